"""Imported trajectories: tokens of the run's own prompts, what is left out and why, and cloning from them."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from computerrl.actor.prompts.builder import FolderTokenizer, builder_of_run, unreadable
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, DiskFull
from computerrl.common.messages import Observation, ScreenshotRef, content_hash
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.imported import read_head
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.commands.main import cli
from computerrl.launch.export.stored import Selection
from computerrl.launch.export.tally import Tally
from computerrl.launch.export.write import export_trajectories
from computerrl.launch.imports.write import Wishes, import_trajectories
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.run.preflight import check_imported
from computerrl.launch.run.serial import run_serial
from computerrl.learner.model.policy import load_policy
from computerrl.learner.supervised.imported import episodes_of_imports, read_episodes
from computerrl.learner.supervised.pool import EpisodePool, KeptEpisode
from computerrl.learner.supervised.sft import make_round
from computerrl.learner.training.trainer import Trainer
from tests.support.data import image_prompts
from tests.support.folders.stored_run import INSTRUCTION, SOLVED, store_run
from tests.support.tiers import one_in

WIDTH, HEIGHT = 160, 120
CLICK, WRITE, DONE = (
    "pyautogui.click(x=0.25, y=0.5)",
    "pyautogui.write(message='Grüße')",
    "computer.terminate(status='success')",
)
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen": ("qwen2_5_vl", {"format": "qwen_computer_use", "chat_template": True, "images": 2}),
    "tars": ("qwen2_5_vl", {"format": "ui_tars", "chat_template": True, "images": 2}),
    "computerrl": ("idefics3", {"format": "computerrl_vision", "chat_template": True, "images": 2}),
    "compact": ("idefics3", {"format": "compact_vision", "images": 1}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: image_prompts.make_folder(folder / name, name) for name in ("qwen2_5_vl", "idefics3")}


def config_of(models: dict[str, Path], way: str = "qwen", *, imported: Sequence[Path] = (), **more: Any) -> RunConfig:
    model, prompt = FORMATS[way]
    return RunConfig.model_validate(
        {
            "model": {"name": str(models[model]), "dtype": "float32"},
            "desktop": {"screen_width": 640, "screen_height": 480},
            "tasks": {"actions": "gui"},
            "actor": {"max_new_tokens": 512, "prompt": {"max_prompt_tokens": 60_000, "history_steps": 3, **prompt}},
            "learner": {"device": "cpu", "recipe": {"imported": [str(one) for one in imported], "bc_epochs": 1}},
            **more,
        }
    )


def trajectory(name: str, *steps: str | dict[str, Any], **fields: Any) -> dict[str, Any]:
    """``steps``: code, or fields of the step's value; each has a screenshot of its own."""
    values = [{"code": step, "thought": "", "action": ""} if isinstance(step, str) else step for step in steps]
    traj = [{"index": number, "image": f"{name}_{number}.png", "value": value} for number, value in enumerate(values)]
    return {"task_id": name, "instruction": f"Do {name}.", "task_completed": True, "traj": traj, **fields}


def dataset(folder: Path, *trajectories: dict[str, Any] | str) -> Path:
    """A file of ``trajectories`` (a text: a line as it is) with the screenshots that they name beside it."""
    (folder / "images").mkdir(parents=True)
    for one in trajectories:
        for step in one["traj"] if isinstance(one, dict) else ():
            save_screen(folder / "images" / step["image"])
    lines = [one if isinstance(one, str) else json.dumps(one) for one in trajectories]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "tasks.jsonl"


def save_screen(path: Path, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    pixels = np.full((size[1], size[0], 3), sum(path.name.encode()) % 256, np.uint8)
    Image.fromarray(pixels).save(path)


def imported(source: Path, out: Path, config: RunConfig, **wishes: Any) -> tuple[Tally, list[KeptEpisode]]:
    images = wishes.pop("images", None)
    shares: list[float] = []
    tally = import_trajectories(
        source, out, config=config, images=images, wishes=Wishes(**wishes), tell=lambda done, total: shares.append(done)
    )
    assert shares == sorted(shares) and 0 < shares[-1] <= 1
    return tally, list(read_episodes(out))


def reasons(tally: Tally) -> dict[str, tuple[int, int]]:
    return {reason: (counts["trajectories"], counts["steps"]) for reason, counts in tally.left_out.items()}


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", one_in(3, FORMATS))
def test_tokens_are_those_of_an_episode_with_these_screens_and_actions(way: str, models: dict[str, Path], tmp_path: Path) -> None:
    config = config_of(models, way)
    tally, (episode,) = imported(dataset(tmp_path / "data", trajectory("sort", CLICK, WRITE, DONE)), tmp_path / "out", config)
    assert tally.as_dict() == {"kept": {"trajectories": 1, "steps": 3}, "left_out": {}}
    folder = Path(config.model.name)
    builder = builder_of_run(config, folder, FolderTokenizer(folder), read=unreadable)
    past: list[PastAction] = []
    for number, (step, action) in enumerate(zip(episode.steps, ["click(40, 60)", 'type("Grüße")', "done()"], strict=True)):
        data = (tmp_path / "data" / "images" / f"sort_{number}.png").read_bytes()
        ref = step.images[-1]
        assert (
            ref.content_hash == content_hash(data) == content_hash((tmp_path / "out" / "images" / ref.content_hash).read_bytes())
        )
        screen = Observation("", "", (), ref, WIDTH, HEIGHT, "none", 0.0, "")
        completion = builder.render(action, screen)
        assert step.action_tokens.tolist() == builder.encode_action(completion).tolist()
        prompt = builder.build("Do sort.", screen, past)
        assert step.prompt_tokens.tolist() == prompt.tokens.tolist() and len(step.images) == min(
            number + 1, config.actor.prompt.images
        )
        past.append(PastAction(completion, screenshot=ref))


def test_our_own_export_comes_back_as_the_actions_it_was_made_of(models: dict[str, Path], tmp_path: Path) -> None:
    _, prompt = FORMATS["qwen"]
    played = (SOLVED[0], SOLVED[2])
    config = store_run(tmp_path / "run", models["qwen2_5_vl"], [("rl-1/0/0", played), ("rl-1/0/1", played)], prompt=prompt)
    export_trajectories(tmp_path / "run", tmp_path / "data", kind="agentnet", selection=Selection())
    _, episodes = imported(tmp_path / "data" / "trajectories.jsonl", tmp_path / "out", config)
    folder = Path(config.model.name)
    builder = builder_of_run(config, folder, FolderTokenizer(folder), read=unreadable)
    assert len(episodes) == 2
    for episode in episodes:
        told = [builder.parse(builder_text(folder, step.action_tokens), screen_of(step.images[-1])) for step in episode.steps]
        assert [(action.name, action.args.get("target"), action.args.get("y")) for action in told] == [
            ("click", 30, 50),
            ("done", None, None),
        ]
        assert all(INSTRUCTION in builder_text(folder, step.prompt_tokens) for step in episode.steps)


def builder_text(folder: Path, tokens: np.ndarray) -> str:
    return str(FolderTokenizer(folder).decode(tokens.tolist()))


def screen_of(ref: ScreenshotRef) -> Observation:
    return Observation("", "", (), ref, ref.width, ref.height, "none", 0.0, "")


def test_thoughts_are_taken_over_on_demand(models: dict[str, Path], tmp_path: Path) -> None:
    step = {"code": CLICK, "thought": "The </think> button\n```sorts``` the table."}
    source, config = dataset(tmp_path / "data", trajectory("sort", step, DONE)), config_of(models, "computerrl")
    texts = {}
    for takes_thoughts in (False, True):
        _, (episode,) = imported(source, tmp_path / str(takes_thoughts), config, takes_thoughts=takes_thoughts)
        texts[takes_thoughts] = builder_text(models["idefics3"], episode.steps[0].action_tokens)
    assert "sorts" in texts[True] and "sorts" not in texts[False]
    builder = builder_of_run(config, models["idefics3"], FolderTokenizer(models["idefics3"]), read=unreadable)
    for text in texts.values():
        assert builder.parse(text, screen_of(episode.steps[0].images[0])).name == "click"


# --- what is left out ------------------------------------------------------------------------------------------------


def test_step_that_was_wrong_or_needless_is_past_and_not_imitated(models: dict[str, Path], tmp_path: Path) -> None:
    wrong = {"code": CLICK, "last_step_correct": False}
    needless = {"code": "pyautogui.press('f5')", "last_step_correct": True, "last_step_redundant": True}
    source = dataset(tmp_path / "data", trajectory("sort", wrong, needless, WRITE, DONE))
    tally, (episode,) = imported(source, tmp_path / "out", config_of(models, "qwen"))
    assert reasons(tally) == {"marked as not correct": (0, 1), "marked as redundant": (0, 1)}
    prompt = builder_text(models["qwen2_5_vl"], episode.steps[0].prompt_tokens)
    assert "left_click" in prompt and "f5" in prompt and len(episode.steps) == 2


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("pyautogui.mouseDown()", "no action for pyautogui.mouseDown"),
        ("pyautogui.click(x=3, y=4)", "a place outside the screen"),
        ("pyautogui.hotkey('ctrl', 'a')\npyautogui.hotkey('ctrl', 'c')", "several actions on one screen: key, key"),
        ("pyautogui.keyDown('shift')", "key_down with arguments that qwen_computer_use cannot say"),
    ],
)
def test_trajectory_is_kept_up_to_the_first_step_that_cannot_be_said(
    step: str, reason: str, models: dict[str, Path], tmp_path: Path
) -> None:
    source = dataset(tmp_path / "data", trajectory("sort", CLICK, step, WRITE, DONE), trajectory("none", step, DONE))
    tally, (episode,) = imported(source, tmp_path / "out", config_of(models))
    assert len(episode.steps) == 1 and tally.kept == {"trajectories": 1, "steps": 1}
    assert reasons(tally) == {reason: (0, 2), "after a step that was left out": (0, 3), "no step is left": (1, 0)}


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def _widen(path: Path) -> None:
    save_screen(path, (6000, 4))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_remove, "a screenshot that is missing"),
        (_cut, "a screenshot that cannot be read"),
        (_widen, "a screenshot of a size that the model does not take"),
    ],
)
def test_screenshot_that_cannot_be_shown_ends_its_trajectory(
    damage: Any, reason: str, models: dict[str, Path], tmp_path: Path
) -> None:
    source = dataset(tmp_path / "data", trajectory("sort", CLICK, WRITE, DONE))
    damage(tmp_path / "data" / "images" / "sort_1.png")
    tally, (episode,) = imported(source, tmp_path / "out", config_of(models))
    assert len(episode.steps) == 1 and reasons(tally) == {reason: (0, 1), "after a step that was left out": (0, 1)}


@pytest.mark.parametrize("name", ["../secret.png", "{tmp}/secret.png"])
def test_screenshot_outside_its_folder_is_never_read(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    one = trajectory("sort", CLICK, DONE)
    source = dataset(tmp_path / "data", one)
    save_screen(tmp_path / "data" / "secret.png")
    one["traj"][1]["image"] = name.format(tmp=tmp_path / "data")
    source.write_text(json.dumps(one))
    tally, _ = imported(source, tmp_path / "out", config_of(models))
    assert reasons(tally) == {"a screenshot outside the folder of screenshots": (0, 1), "after a step that was left out": (0, 0)}


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", ""])
def test_screenshot_with_a_name_that_no_file_has_is_left_out(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    one = trajectory("sort", CLICK, DONE)
    source = dataset(tmp_path / "data", one)
    one["traj"][1]["image"] = name
    source.write_text(json.dumps(one))
    tally, (episode,) = imported(source, tmp_path / "out", config_of(models))
    assert len(episode.steps) == 1 and any("a screenshot that" in reason for reason in tally.left_out)


def test_trajectories_are_left_out_by_their_reason(models: dict[str, Path], tmp_path: Path) -> None:
    unfinished = trajectory("other", CLICK, DONE, task_completed=False)
    source = dataset(
        tmp_path / "data", trajectory("sort", CLICK, DONE), '{"task_id": 5}', "nonsense", trajectory("sort", CLICK), unfinished
    )
    tally, episodes = imported(source, tmp_path / "out", config_of(models))
    found = reasons(tally)
    assert found.pop("task not completed") == (1, 2) and found.pop("a task that is there already") == (1, 1)
    assert len(episodes) == 1 and set(found.values()) == {(1, 0)} and all("no trajectory of this format" in one for one in found)
    _, episodes = imported(source, tmp_path / "all", config_of(models), takes_unfinished=True)
    assert [episode.task_id for episode in episodes] == ["agentnet/sort", "agentnet/other"]
    _, episodes = imported(source, tmp_path / "one", config_of(models), takes_unfinished=True, limit=1)
    assert len(episodes) == 1


def test_long_answers_and_screens_that_do_not_fit_are_left_out(models: dict[str, Path], tmp_path: Path) -> None:
    long = "pyautogui.write(message='" + "word " * 200 + "')"
    source = dataset(tmp_path / "data", trajectory("sort", CLICK, long, DONE))
    config = config_of(models)
    short = config.model_copy(update={"actor": config.actor.model_copy(update={"max_new_tokens": 64})})
    tally, (episode,) = imported(source, tmp_path / "out", short)
    assert len(episode.steps) == 2 and reasons(tally) == {"an answer of more than 64 tokens (actor.max_new_tokens)": (0, 1)}


# --- what is refused -------------------------------------------------------------------------------------------------


def test_nothing_left_is_an_error_with_the_table(models: dict[str, Path], tmp_path: Path) -> None:
    source = dataset(tmp_path / "data", trajectory("sort", "pyautogui.mouseDown()"))
    with pytest.raises(ConfigError, match=r"no trajectory of .* is left\n.*(?s:.*)no action for pyautogui.mouseDown +0 +1"):
        imported(source, tmp_path / "out", config_of(models))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_format_without_images_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    source = dataset(tmp_path / "data", trajectory("sort", CLICK, DONE))
    with pytest.raises(ConfigError, match="show no images"):
        imported(source, tmp_path / "out", RunConfig())
    with pytest.raises(ConfigError, match="there is no folder"):
        imported(source, tmp_path / "out", config_of(models), images=tmp_path / "none")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        imported(source, tmp_path / "out", config_of(models))


def test_full_disk_leaves_nothing(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, config = dataset(tmp_path / "data", trajectory("sort", CLICK, DONE)), config_of(models)

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFull, match="nothing was kept"):
        imported(source, tmp_path / "out", config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_run_with_other_prompts_or_without_the_screenshots_is_refused_before_it_starts(
    models: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    imported(dataset(tmp_path / "data", trajectory("sort", CLICK, DONE)), out, config_of(models))
    head = read_head(out)
    assert (head.num_episodes, head.num_steps, head.num_images, head.source) == (1, 2, 2, "tasks.jsonl")

    def problems(way: str = "qwen", folder: Path = out) -> str:
        found = check_imported(config_of(models, way, imported=[folder]), inspect_machine())
        return "\n".join(str(finding.problem) for finding in found)

    assert problems() == ""
    assert "was made for other prompts" in problems("tars")
    assert "is no folder of imported trajectories" in problems(folder=tmp_path)
    next((out / "images").iterdir()).unlink()
    assert "has 1 images, and 2 were imported" in problems()
    (out / "import.json").write_text("{}")
    assert "was not written by this version" in problems()


# --- cloning ---------------------------------------------------------------------------------------------------------


def test_policy_learns_imported_answers_from_their_screens(models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    imported(
        dataset(tmp_path / "data", *(trajectory(f"task{one}", CLICK, WRITE, DONE) for one in range(3))), out, config_of(models)
    )
    config = config_of(models, imported=[out], run_dir=str(tmp_path / "runs"))
    nothing = EpisodePool(seed=0, max_per_family=1)
    made = make_round("bc", config, demonstrations=nothing, successes=nothing)
    steps = [step for batch in made.batches for step in batch]
    assert len(steps) == 9 and all(step.images for step in steps)
    again = make_round("bc", config, demonstrations=nothing, successes=nothing)
    assert again.pool_digest == made.pool_digest
    trainer = Trainer(config, load_policy(config))
    trainer.change_objective(1e-2)
    losses = [trainer.sft_step(steps, 1e-2)["loss"] for _ in range(8)]
    assert all(np.isfinite(losses)) and losses[-1] < 0.7 * losses[0]


def test_a_whole_run_clones_what_was_imported_and_nothing_else(models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    tasks = [trajectory(f"task{one}", CLICK, WRITE, DONE) for one in range(3)]
    actor = {"max_new_tokens": 64, "prompt": {"max_prompt_tokens": 1900, **FORMATS["compact"][1]}}
    imported(dataset(tmp_path / "data", *tasks), out, config_of(models, "compact", actor=actor))
    recipe = {"imported": [str(out)], "bc_epochs": 2, "demos_per_family": 0, "max_updates": 0, "eval_episodes_per_family": 0}
    config = config_of(
        models,
        "compact",
        mode="serial",
        actor=actor,
        run_dir=str(tmp_path / "runs"),
        desktop={"driver": "scripted", "num_desktops": 1, "screen_width": 640, "screen_height": 480},
        learner={"device": "cpu", "num_threads": 1, "recipe": recipe},
    )
    assert not check_imported(config, inspect_machine())
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0
    assert [one["step"] for one in state.sft_steps] == [1, 2]
    assert not read_json_lines(RunFolder(config.folder).episodes_path)


def test_at_most_so_many_episodes_are_drawn_by_the_seed(models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    imported(dataset(tmp_path / "data", *(trajectory(f"task{one}", CLICK, DONE) for one in range(6))), out, config_of(models))

    def drawn(seed: int) -> list[str]:
        recipe = {"imported": [str(out)], "imported_episodes": 3}
        config = config_of(models, learner={"device": "cpu", "recipe": recipe}, seed=seed)
        return [episode.task_id for episode in episodes_of_imports(config)]

    assert len(set(drawn(1))) == 3 and drawn(1) == drawn(1) and len({tuple(drawn(seed)) for seed in range(8)}) > 1


def test_damaged_file_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    imported(dataset(tmp_path / "data", trajectory("sort", CLICK, DONE)), out, config_of(models))
    (file,) = out.glob("*.safetensors")
    for data in (file.read_bytes()[:-9], b"", b"{}" * 20):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=r"episodes-00000.safetensors cannot be read: .*\n?.*import"):
            episodes_of_imports(config_of(models, imported=[out]))


def test_file_that_is_missing_is_named_and_never_passed_over(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("computerrl.learner.supervised.imported.EPISODES_PER_FILE", 2)
    out = tmp_path / "out"
    _, episodes = imported(
        dataset(tmp_path / "data", *(trajectory(f"task{one}", DONE) for one in range(5))), out, config_of(models)
    )
    assert [episode.task_id for episode in episodes] == [f"agentnet/task{one}" for one in range(5)]
    for name in ("episodes-00002.safetensors", "episodes-00001.safetensors"):
        (out / name).unlink()
        with pytest.raises(ConfigError, match=f"{name} cannot be read"):
            list(read_episodes(out))


def test_command_prints_the_account_and_the_next_step(models: dict[str, Path], tmp_path: Path) -> None:
    source = dataset(tmp_path / "data", trajectory("sort", CLICK, DONE), trajectory("none", "pyautogui.mouseDown()"))
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(json.dumps(config_of(models).model_dump(mode="json")))
    arguments = ["--config", str(config), "--set", "actor.prompt.max_prompt_tokens=1536"]
    result = CliRunner().invoke(cli, ["import-trajectories", str(source), str(out), *arguments])
    assert result.exit_code == 0, result.output
    assert "no action for pyautogui.mouseDown" in result.output and f"learner.recipe.imported=[{out}]" in result.output
    again = tmp_path / "again"
    result = CliRunner().invoke(cli, ["import-trajectories", str(source), str(again), *arguments, "--json"])
    assert json.loads(result.stdout)["kept"]["trajectories"] == 1 and str(again) in result.stdout
