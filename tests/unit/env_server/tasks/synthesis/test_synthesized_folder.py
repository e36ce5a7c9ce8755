"""The folder of synthesized tasks: what is written is read as families, and what was changed is refused with its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import DesktopConfig, RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.client import family_names
from computerrl.env_server.serving.synthesis import prepared
from computerrl.env_server.tasks import families_of, task_instance
from computerrl.env_server.tasks.forge.plan import call, key, typed
from computerrl.env_server.tasks.synthesis import task_file
from computerrl.env_server.tasks.synthesis.start import Start
from computerrl.env_server.tasks.synthesis.task_file import Manifest, TaskFile
from computerrl.env_server.tasks.synthesis.walks import APPLICATIONS, State, Walk, changes_of
from computerrl.env_server.tasks.wordings import said_to_agents
from computerrl.launch.commands.main import cli

DESKTOPS = DesktopConfig(driver="local")
ACTIONS = (call("files.move", path="a.txt", folder="out"), call("files.make_folder", path="new"))
AFTER = State({"out/a.txt": b"one\n", "b.txt": b"two\n"}, frozenset({"out", "new"}))


def walk(number: int = 3) -> Walk:
    start = Start("", {"a.txt": b"one\n", "b.txt": b"two\n"}, draw=lambda rng: [], folders=("out",))
    return Walk("files", 7, number, start, ACTIONS)


def a_task(number: int = 3) -> tuple[TaskFile, dict[str, bytes]]:
    found = walk(number)
    changes = changes_of("files", found.before, AFTER)
    task, contents = task_file.make_task(found, AFTER, changes, image="core-1", version="1")
    return task_file.with_demonstration(task, found, ACTIONS, num_failed=4), contents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one task."""
    out = tmp_path / "out"
    manifest = prepared(out, "files", seed=7, desktops=DESKTOPS, version="1")
    task, contents = a_task()
    task_file.write_manifest(out, msgspec.structs.replace(manifest, num_walks=4, tasks={task.id: write(out, task, contents)}))
    return out


def write(out: Path, task: TaskFile, contents: dict[str, bytes]) -> str:
    return task_file.write_task(out, task, contents)


def getter(state: State) -> Callable[..., Any]:
    listing = sorted([*state.files, *(f"{path}/" for path in state.folders)])
    return lambda kind, path="": listing if kind == "folder_listing" else state.files.get(path)


def test_written_task_is_a_family_that_is_played_when_none_is_named(folder: Path) -> None:
    tasks = TasksConfig(synthesized=str(folder))
    config = RunConfig.model_validate({"tasks": {"synthesized": str(folder)}})
    assert family_names(config) == ("synthesized-files-00003",)
    instance = task_instance(TaskRef("synthesized-files-00003", 5, "demonstration"), tasks=tasks)
    assert instance.calls_applications and instance.counts_facts
    assert instance.instruction is not None
    assert all(word in instance.instruction for word in ("a.txt", "out", "new"))
    shown = [render_action(instance.demonstrate("", None, actions, None)) for actions in ((), ACTIONS[:1], ACTIONS)]  # type: ignore[arg-type]
    assert shown == ['files.move("a.txt", "out")', 'files.make_folder("new")', "done()"]
    assert {step.kind for step in instance.setup} == {"make_folder", "put_file", "open"}


@pytest.mark.parametrize(
    ("state", "succeeds"),
    [
        (AFTER, True),
        (walk().before, False),
        (State(AFTER.files, AFTER.folders - {"new"}), False),
        (State({**AFTER.files, "a.txt": b"one\n"}, AFTER.folders), False),
        (State({**AFTER.files, "c.txt": b""}, AFTER.folders), False),
        (State(AFTER.files, AFTER.folders | {"newer"}), False),
        (State({**AFTER.files, "b.txt": b"three\n"}, AFTER.folders), False),
    ],
)
def test_checker_asks_for_the_changes_and_nothing_else(folder: Path, state: State, *, succeeds: bool) -> None:
    instance = families_of(TasksConfig(synthesized=str(folder)))["synthesized-files-00003"].make(0)
    assert instance.evaluate(getter(state)).success == succeeds


def test_task_keeps_its_words(folder: Path) -> None:
    tasks = TasksConfig(synthesized=str(folder), wordings="seen")
    ref = TaskRef("synthesized-files-00003", 100_005, "training")
    text = task_instance(ref, tasks=tasks).instruction
    assert text is not None and said_to_agents(text, ref, tasks) == text


def test_demonstration_saves_by_keys_only_where_it_calls_no_application() -> None:
    task, _ = a_task()
    document = Walk("calc", 0, 1, Start("workbook", {}, draw=lambda rng: [], save=call("calc.save")), ())
    by_hand = task_file.with_demonstration(task, document, (key("ctrl+home"), typed("5")))
    by_calls = task_file.with_demonstration(task, document, (typed("5"), call("calc.get_cell", cell="A1")))
    assert by_hand.demonstration[-1] == 'key("ctrl+s")' and by_calls.demonstration[-1] == "calc.save()"
    assert all(parse_action(text) for text in (*by_hand.demonstration, *by_calls.demonstration))


def test_tasks_that_ask_for_the_same_share_a_key_whatever_their_walk() -> None:
    (one, _), (other, _) = a_task(3), a_task(4)
    assert one.id != other.id and task_file.keys_of(one) & task_file.keys_of(other)
    changed = msgspec.structs.replace(other, changes=other.changes[:1], instruction="Do it.")
    assert not task_file.keys_of(one) & task_file.keys_of(changed)


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_task(folder: Path, **changes: object) -> None:
    """Change a task's file, and its hash in the manifest."""
    path = folder / "tasks" / "files-00003.json"
    edit_json(path, **changes)
    edit_json(folder / "manifest.json", tasks={"files-00003": task_file.sha256(path.read_bytes())})


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "holds no manifest.json that can be read"),
    "no json": (lambda f: (f / "manifest.json").write_text("{"), "is no manifest"),
    "another field": (lambda f: edit_json(f / "manifest.json", more=1), "is no manifest"),
    "another version": (lambda f: edit_json(f / "manifest.json", format=99), r"another version \(99"),
    "no tasks": (lambda f: edit_json(f / "manifest.json", tasks={}), "holds no tasks"),
    "path for a name": (lambda f: edit_json(f / "manifest.json", tasks={"../x-00001": "0"}), "names a task '../x-00001'"),
    "missing task": (lambda f: (f / "tasks" / "files-00003.json").unlink(), "cannot be read"),
    "changed task": (lambda f: edit_json(f / "tasks" / "files-00003.json", instruction="x"), "is not the file"),
    "other task": (lambda f: rewrite_task(f, id="files-00004"), "is not the file"),
    "wrong action": (lambda f: rewrite_task(f, demonstration=["import os"]), "is no task: not one function call"),
    "unknown action": (lambda f: rewrite_task(f, demonstration=["os.system('x')"]), "is no task: unknown action"),
    "wrong type": (lambda f: rewrite_task(f, files=["a.txt"]), "is no task"),
    "path for a content": (lambda f: rewrite_task(f, files={"a.txt": "../../secret"}), "names a content '../../secret'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_folder_is_refused_with_what_is_wrong(folder: Path, case: str) -> None:
    change, said = WRONG[case]
    change(folder)
    with pytest.raises(ConfigError, match=said) as error:
        families_of(TasksConfig(synthesized=str(folder)))
    assert "tasks.synthesized" in str(error.value) and "->" in str(error.value)


@pytest.mark.parametrize("harm", ["unlink", "change"])
def test_content_that_is_missing_or_changed_fails_the_task(folder: Path, harm: str) -> None:
    family = families_of(TasksConfig(synthesized=str(folder)))["synthesized-files-00003"]
    content = folder / "files" / task_file.sha256(b"one\n")
    if harm == "unlink":
        content.unlink()
    else:
        content.write_bytes(b"other\n")
    with pytest.raises(TaskFailed, match=r"content [0-9a-f]{64} of the task files-00003"):
        family.make(0)


@pytest.mark.parametrize(
    ("named", "said"), [("synthesized-files-9", "has no task with this id"), ("synthesized-x", "names no folder")]
)
def test_unknown_synthesized_family_is_refused_with_where_it_was_looked_for(folder: Path, named: str, said: str) -> None:
    with_folder = {"synthesized": str(folder)} if named.endswith("9") else {}
    config = RunConfig.model_validate({"tasks": {**with_folder, "families": [named]}})
    with pytest.raises(ConfigError, match=said):
        family_names(config)


def test_same_settings_go_on_where_the_folder_ended(folder: Path) -> None:
    found = prepared(folder, "files", seed=7, desktops=DESKTOPS, version="2")
    assert (found.num_walks, list(found.tasks), found.version) == (4, ["files-00003"], "2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"app": "calc"}, "begun with app 'files', this is 'calc'"),
        ({"seed": 8}, "begun with seed 7, this is 8"),
        ({"desktops": DesktopConfig(driver="scripted")}, "walks need a real desktop"),
        ({"app": "impress", "desktops": DesktopConfig(driver="apptainer", image="core")}, "impress, which image core lacks"),
    ],
)
def test_other_settings_are_refused_before_a_desktop_starts(folder: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepared(folder, **{"app": "files", "seed": 7, "desktops": DESKTOPS, "version": "1", **change})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nope", "out"], "'calc', 'files', 'impress', 'writer'"),
        (["calc"], "OUT"),
        (["calc", "out", "--num", "0"], "--num"),
        (["calc", "out", "--seed", "-1"], "--seed"),
        (["calc", "out", "--config", "nope.yaml"], "nope.yaml"),
        (["calc", "out", "--image", "nope"], "no recipe and no file or folder 'nope'"),
        (["calc", "full"], "holds other files"),
        (["calc", "full/file"], "is no folder"),
    ],
)
def test_wrong_command_is_refused_with_its_reason(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("computerrl.env_server.serving.synthesis.image_id", lambda desktops: real_image_id(desktops))
    result = CliRunner().invoke(cli, ["tasks", "synthesize", *args])
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)
    assert not (tmp_path / "out").exists()


def real_image_id(desktops: DesktopConfig) -> str:
    """Of an image with this name; images that are built are not looked for."""
    from computerrl.env_server.image.find import image_path

    return desktops.image if desktops.image == "full" else str(image_path(desktops.image))


def test_command_offers_the_applications_that_there_are() -> None:
    found = cli.commands["tasks"].commands["synthesize"].params[0].type.choices  # type: ignore[attr-defined]
    assert list(found) == sorted(APPLICATIONS)


def test_manifest_counts_what_was_proposed() -> None:
    manifest = Manifest(
        format=1,
        app="calc",
        seed=0,
        image="i",
        version="1",
        tasks={"calc-00001": "x"},
        unsaid={"a": 2},
        unproven={"b": 3, "c": 1},
    )
    assert manifest.num_proposed == 5
