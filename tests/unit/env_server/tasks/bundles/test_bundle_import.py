"""`computerrl tasks import`: the report, the folder that it writes, and families of a run. Nothing of a bundle runs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from computerrl.common.config import RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.client import family_names
from computerrl.env_server.tasks import families_of, task_instance
from computerrl.launch.commands.main import cli
from tests.support.tasks.bundles import CHECKS, write_bundle


def imports(folder: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["tasks", "import", "cua-gym", str(folder), str(out), *options])


def run_config(out: Path, *families: str, demos: int = 0) -> RunConfig:
    tasks = {"imported": str(out), "families": families}
    return RunConfig.model_validate({"tasks": tasks, "learner": {"recipe": {"demos_per_family": demos}}})


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Two right bundles and four wrong ones."""
    folder = tmp_path / "bundles"
    write_bundle(folder, "calc", app_type="libreoffice_calc", files={"data/a.csv": "1"})
    write_bundle(folder, "shop", app_type="shop_mock", files={"web/index.html": "x"}, solution="pass")
    write_bundle(folder, "again", task_id="shop")
    write_bundle(folder, "bad", reward=b"\xff")
    write_bundle(folder, "node", files={"web/server.js": ""})
    (folder / "empty").mkdir()
    (folder / "README.md").write_text("about")
    return folder


def test_import_reports_each_bundle_and_keeps_the_broken_ones_in_the_index(bundles: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "report.json"
    result = imports(bundles, out, "--json", str(report))
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    for name, reason in {
        "shop": "broken: id: shop is the id of another bundle",
        "bad": "broken: reward.py: is no text in UTF-8",
        "empty": "broken: task.json: is missing",
        "node": "app: web_app: program node, which image full lacks",
    }.items():
        assert lines[lines.index(f"broken   {name}") + 1].strip() == reason
    assert "run      again" in lines and "run      calc" in lines and "2 of 6 tasks can be run" in lines
    index = json.loads((out / "index.json").read_text())
    entries = {entry["path"]: entry for entry in index["tasks"]}
    assert list(entries) == ["again", "bad", "calc", "empty", "node", "shop"] and index["format"] == "cua-gym"
    assert [name for name, entry in entries.items() if entry["broken"]] == ["bad", "empty", "node", "shop"]
    assert not any(entry["played"] for entry in entries.values())
    assert sorted(path.name for path in (out / "tasks").iterdir()) == ["calc", "shop"]
    assert (out / "tasks/calc/data/a.csv").read_text() == "1" and (out / "tasks/calc/reward.py").read_text() == CHECKS
    assert json.loads(report.read_text())["num_runnable"] == 2


def test_import_runs_nothing_of_a_bundle(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    marks = f"open({str(mark)!r}, 'w').close()\n"
    shell = {"initial_setup.sh": f"touch {mark}\n"}
    write_bundle(tmp_path / "bundles", "one", reward=marks + CHECKS, setup=marks, solution=marks)
    write_bundle(tmp_path / "bundles", "two", reward=marks + CHECKS, files=shell)
    assert imports(tmp_path / "bundles", tmp_path / "out").exit_code == 0
    families_of(TasksConfig(imported=str(tmp_path / "out")))
    assert not mark.exists()


def test_imported_bundles_are_the_families_of_a_run(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    imports(bundles, out)
    assert family_names(run_config(out)) == ("cua-gym-shop", "cua-gym-calc")
    names = ("calc-set-cell", "cua-gym-calc")
    assert family_names(run_config(out, *names)) == names
    tasks = run_config(out).tasks
    family = families_of(tasks)["cua-gym-calc"]
    assert (family.app, family.has_demonstrator, family.is_default) == ("calc", False, False)
    made = task_instance(TaskRef("cua-gym-calc", 100_000, "training"), tasks=tasks)
    assert made.instruction == "Make calc." and made.digest is not None and len(made.digest()) == 64
    with pytest.raises(ConfigError, match="no demonstrator"):
        family_names(run_config(out, demos=2))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cua-gym-node", "it is broken: app: web_app: program node"), ("cua-gym-nothing", "no bundle with this id")],
)
def test_broken_or_unknown_bundle_is_refused_by_name_with_the_reason(
    bundles: Path, tmp_path: Path, name: str, reason: str
) -> None:
    imports(bundles, tmp_path / "out")
    with pytest.raises(ConfigError, match=reason):
        family_names(run_config(tmp_path / "out", name))
    with pytest.raises(TaskFailed, match=reason):
        task_instance(TaskRef(name, 100_000, "training"), tasks=run_config(tmp_path / "out").tasks)


def test_name_of_a_bundle_without_a_folder_says_so() -> None:
    with pytest.raises(TaskFailed, match=r"tasks\.imported names no folder"):
        task_instance(TaskRef("cua-gym-one", 5, "demonstration"), tasks=TasksConfig())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "holds no index.json that can be read"),
        (b"{", "is no index"),
        (b"\xff", "is no index"),
        (b'{"version": 1, "format": "cua-gym", "tasks": [{"path": 3}]}', "is no index"),
        (b'{"version": 1, "format": "cua-gym", "tasks": [{"path": "a", "id": "../a"}]}', "names a task '../a'"),
        (b'{"version": 2, "format": "cua-gym", "tasks": []}', "was written by another version"),
        (b'{"version": 1, "format": "cua-gym", "tasks": []}', "all 0 bundles of"),
    ],
)
def test_folder_that_no_import_wrote_is_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"tasks\.imported: .*{reason}"):
        family_names(run_config(tmp_path))


def test_wrong_folders_are_refused_before_anything_is_written(bundles: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("x")
    (tmp_path / "nothing").mkdir()
    for folder, out, named in (
        (tmp_path / "nowhere", tmp_path / "out", "DIR: there is no folder"),
        (tmp_path / "nothing", tmp_path / "out", "holds no folders"),
        (bundles / "calc", tmp_path / "out", "is a bundle itself"),
        (bundles, bundles / "out", "OUT: .*lies in the folder of the bundles"),
        (bundles, bundles, "OUT: .*lies in the folder of the bundles"),
        (bundles, full, "OUT: .*holds other files"),
        (bundles, bundles / "README.md/out", "OUT: "),
    ):
        result = imports(folder, out)
        assert isinstance(result.exception, ConfigError)
        with pytest.raises(ConfigError, match=named):
            raise result.exception
    assert not (tmp_path / "out").exists() and [path.name for path in full.iterdir()] == ["mine.txt"]


def test_report_shows_no_control_character_of_a_name(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundles", "a\x1b[31m\nb", id="one", instruction="Do it.")
    write_bundle(tmp_path / "bundles", "c\udcff", id="two", instruction="Do it.")
    result = imports(tmp_path / "bundles", tmp_path / "out")
    assert result.exit_code == 0 and "2 of 2 tasks can be run" in result.stdout
    assert all(line.isprintable() for line in result.stdout.splitlines())


@pytest.mark.parametrize("driver", ["local", "scripted"])
def test_bundles_are_never_played_outside_a_container(bundles: Path, tmp_path: Path, driver: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"mode: {'serial' if driver == 'scripted' else 'processes'}\ndesktop: {{driver: {driver}}}\n")
    result = imports(bundles, tmp_path / "out", "--play", "--config", str(config))
    with pytest.raises(ConfigError, match=r"desktop\.driver: .*outside a container"):
        raise result.exception or AssertionError(result.output)
    imports(bundles, tmp_path / "out")
    tasks = {"imported": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match=f"driver '{driver}'"):
        family_names(RunConfig.model_validate({"tasks": tasks, "desktop": {"driver": driver}}))


def test_import_again_replaces_what_was_imported(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        imports(bundles, out)
        assert sorted(path.name for path in (out / "tasks").iterdir()) == ["calc", "shop"]
    for name in ("again", "calc"):
        (bundles / name / "task.json").unlink()
    imports(bundles, out)
    assert [path.name for path in (out / "tasks").iterdir()] == ["shop"]
