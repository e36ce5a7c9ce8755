"""Exports of stored trajectories: what other programs read, whole or not at all, and an account of what was left out."""

from __future__ import annotations

import ast
import errno
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computerrl.actor.prompts.tokenizer import FolderTokenizer
from computerrl.common.actions import ACTIONS, parse_action
from computerrl.common.errors import ConfigError, DiskFull, ResumeError, SetupError
from computerrl.common.messages import content_hash
from computerrl.common.metrics import read_json_lines
from computerrl.launch.commands.main import cli
from computerrl.launch.export import write
from computerrl.launch.export.agentnet import NoCode, code_of
from computerrl.launch.export.stored import Selection
from computerrl.launch.export.write import export_trajectories
from computerrl.launch.web.episodes import prompt_tokens
from computerrl.learner.model_store import ensure_model
from tests.support.data import image_prompts
from tests.support.folders.stored_run import HEIGHT, INSTRUCTION, SOLVED, WIDTH, Played, store_run
from tests.support.tiers import one_in

CLICKS = (SOLVED[0], SOLVED[2])
MALFORMED = Played("", completion="I will click the the")
ALL = Selection()

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("tiny-random", {"format": "compact"}),
    "chat": ("tiny-random", {"format": "compact", "chat_template": True}),
    "published": ("tiny-random", {"format": "computerrl_text", "chat_template": True}),
    "grid of pieces": ("qwen2_5_vl", {"format": "qwen_computer_use", "chat_template": True, "images": 2}),
    "grid without template": ("qwen2_5_vl", {"format": "compact_vision", "images": 2}),
    "tiles": ("idefics3", {"format": "computerrl_vision", "chat_template": True, "images": 2}),
    "tiles without template": ("idefics3", {"format": "compact_vision", "images": 2}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {name: image_prompts.make_folder(folder / name, name) for name in ("qwen2_5_vl", "idefics3")}
    return {"tiny-random": ensure_model("tiny-random"), **made}


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> Path:
    """Two trajectories of prompts without images, one of which was not solved."""
    folder = tmp_path_factory.mktemp("runs") / "told"
    played = [("rl-1/0/0", SOLVED), ("rl-1/0/1", (SOLVED[0], MALFORMED, SOLVED[2]))]
    store_run(folder, models["tiny-random"], played, failed=["rl-1/0/1"])
    return folder


# --- chats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", one_in(3, WAYS))
def test_chats_of_every_format_are_the_prompts_that_the_policy_read(way: str, models: dict[str, Path], tmp_path: Path) -> None:
    model, prompt = WAYS[way]
    store_run(tmp_path / "run", models[model], [("rl-1/0/0", CLICKS), ("rl-1/0/1", (MALFORMED, *CLICKS))], prompt=prompt)
    tally = export_trajectories(tmp_path / "run", tmp_path / "out", kind="sft", selection=ALL)
    assert tally.as_dict() == {
        "kept": {"trajectories": 2, "steps": 4},
        "left_out": {"action that was not done": {"trajectories": 0, "steps": 1}},
    }
    shows_images = model != "tiny-random"
    path = tmp_path / "out" / ("train/metadata.jsonl" if shows_images else "train.jsonl")
    chats = read_json_lines(path)
    samples = {one["trajectory_id"]: one["steps"] for one in read_json_lines(tmp_path / "run/trajectories/samples.jsonl")}
    tokenizer = FolderTokenizer(models[model])
    for chat in chats:
        sample = samples[chat["trajectory_id"]][chat["step"]]
        turns = [*chat["prompt"], *chat["completion"]]
        parts = [part for turn in turns for part in _parts(turn["content"])]
        assert turns[-1]["role"] == "assistant" and turns[-2]["role"] == "user" and INSTRUCTION in str(_texts(parts))
        shown = [image["content_hash"] for image in sample.get("images", [])]
        assert len([part for part in parts if part["type"] == "image"]) == len(shown)
        assert len(shown) == (min(2, chat["step"] + 1) if shows_images else 0)
        for name, content in zip(chat.get("file_names", []), shown, strict=True):
            assert content_hash((path.parent / name).read_bytes()) == content
        # No text is lost, and none of the template's or of the images' stands in the chat.
        whole = tokenizer.decode([token for token in prompt_tokens(sample["prompt"]) if token >= 0])
        for text in _texts(parts)[:-1]:
            assert text.strip() in whole
            assert not any(mark in text for mark in ("<|im_", "<image>", "_pad|>", "<|vision", "<fake_token", "<global"))


def _parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(parts: list[dict[str, str]]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def test_chats_are_of_successes_alone_and_say_so(text_run: Path, tmp_path: Path) -> None:
    tally = export_trajectories(text_run, tmp_path / "out", kind="sft", selection=ALL)
    assert tally.left_out["not solved"] == {"trajectories": 1, "steps": 3}
    assert {chat["trajectory_id"] for chat in read_json_lines(tmp_path / "out" / "train.jsonl")} == {"rl-1/0/0"}


def test_prompt_of_another_template_is_left_out_and_counted(models: dict[str, Path], tmp_path: Path) -> None:
    store_run(tmp_path / "run", models["tiny-random"], [("rl-1/0/0", CLICKS)], prompt={"chat_template": True})
    other = tmp_path / "model"
    other.mkdir()
    for file in models["tiny-random"].iterdir():
        (other / file.name).symlink_to(file)
    (other / "chat_template.jinja").unlink(missing_ok=True)
    turns = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
    turns += "{% if add_generation_prompt %}[assistant]{% endif %}"
    (other / "chat_template.jinja").write_text(turns)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(models["tiny-random"]), str(other)))
    with pytest.raises(ConfigError, match="no chat of the model's template"):
        export_trajectories(tmp_path / "run", tmp_path / "out", kind="sft", selection=ALL)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "model"}


# --- records ---------------------------------------------------------------------------------------------------------


def test_json_lines_hold_every_trajectory_with_texts_tokens_and_screenshots(text_run: Path, tmp_path: Path) -> None:
    tally = export_trajectories(text_run, tmp_path / "out", kind="jsonl", selection=ALL)
    solved, failed = read_json_lines(tmp_path / "out" / "trajectories.jsonl")
    assert tally.as_dict()["kept"] == {"trajectories": 2, "steps": 6}
    assert (solved["instruction"], solved["success"], failed["success"]) == (INSTRUCTION, True, False)
    step = solved["steps"][1]
    assert step["completion"] == SOLVED[1].action and "".join(step["tokens"]).strip() == SOLVED[1].action
    assert set(step["policy_versions"]) == {3} and step["advantage"] == 0.5 and len(step["logprobs"]) == len(step["tokens"])
    assert INSTRUCTION in step["prompt"][0]["text"] and failed["steps"][1]["action_error"] == "not an action"
    for name in [one["screenshot"] for one in solved["steps"]] + [failed["final_screenshot"]]:
        file = tmp_path / "out" / name
        assert content_hash(file.read_bytes()) == file.stem and file.suffix == ".png"
    assert json.loads((tmp_path / "out" / "export.json").read_text())["run"] == "told"


@pytest.mark.parametrize(
    ("selection", "kept", "reason"),
    [
        (Selection(is_solved=True), 1, "not solved"),
        (Selection(kinds=("training",), families=("editor-type-save",)), 2, None),
    ],
)
def test_selection_counts_what_it_leaves_out(
    text_run: Path, tmp_path: Path, selection: Selection, kept: int, reason: str | None
) -> None:
    tally = export_trajectories(text_run, tmp_path / "out", kind="jsonl", selection=selection, has_screenshots=False)
    assert tally.kept["trajectories"] == kept and set(tally.left_out) == ({reason} if reason else set())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trajectories.jsonl", "export.json"}


def test_trajectory_that_the_learner_refused_is_left_out(models: dict[str, Path], tmp_path: Path) -> None:
    store_run(tmp_path / "run", models["tiny-random"], [("rl-1/0/0", CLICKS)], outcome="wrong_length")
    with pytest.raises(ConfigError, match=r"refused by the learner: wrong_length +1 +2"):
        export_trajectories(tmp_path / "run", tmp_path / "out", kind="jsonl", selection=ALL)


# --- AgentNet --------------------------------------------------------------------------------------------------------


def test_agentnet_has_code_with_shares_of_the_screen_and_the_screen_of_each_action(text_run: Path, tmp_path: Path) -> None:
    tally = export_trajectories(text_run, tmp_path / "out", kind="agentnet", selection=ALL)
    solved, failed = read_json_lines(tmp_path / "out" / "trajectories.jsonl")
    codes = [step["value"]["code"] for step in solved["traj"]]
    assert codes == [
        "pyautogui.click(x=0.2, y=0.5)",
        "pyautogui.click(x=0.5, y=0.2)\npyautogui.write(message='Grüße 🙂')",
        "computer.terminate(status='success')",
    ]
    assert (solved["task_completed"], failed["task_completed"], len(failed["traj"])) == (True, False, 2)
    assert [step["index"] for step in failed["traj"]] == [0, 1]
    assert all((tmp_path / "out" / "images" / step["image"]).is_file() for step in solved["traj"] + failed["traj"])
    assert tally.left_out == {"action that was not done": {"trajectories": 0, "steps": 1}}


@pytest.mark.parametrize(
    ("played", "has_screens", "reason"),
    [
        ((Played('calc.set_cell("B2", 5)'), SOLVED[2]), True, "call of an application"),
        ((Played('quote("noted")'), SOLVED[2]), True, "action quote"),
        ((Played("click(1)"), SOLVED[2]), True, "place not recorded"),
        ((MALFORMED,), True, "no action that was done"),
        (CLICKS, False, "no screenshot"),
    ],
)
def test_agentnet_leaves_out_what_has_no_code_by_its_reason(
    played: tuple[Played, ...], has_screens: bool, reason: str, models: dict[str, Path], tmp_path: Path
) -> None:
    names = [("rl-1/0/0", played)]
    store_run(tmp_path / "run", models["tiny-random"], names, has_screens=has_screens, prompt={"format": "compact"})
    with pytest.raises(ConfigError, match=rf"left out: {reason} +1 +{len(played)}\n"):
        export_trajectories(tmp_path / "run", tmp_path / "out", kind="agentnet", selection=ALL)
    assert not (tmp_path / "out").exists()


POINT, PATH = (75, 20), (10, 20, 30, 40, 50, 60)


@pytest.mark.parametrize(
    ("action", "places", "code"),
    [
        ('click(75, 20, "right")', POINT, "pyautogui.rightClick(x=0.5, y=0.2)"),
        ('click(75, 20, "middle")', POINT, "pyautogui.middleClick(x=0.5, y=0.2)"),
        ("double_click(75, 20)", POINT, "pyautogui.doubleClick(x=0.5, y=0.2)"),
        ("triple_click(75, 20)", POINT, "computer.triple_click(x=0.5, y=0.2)"),
        ("hover(75, 20)", POINT, "pyautogui.moveTo(x=0.5, y=0.2)"),
        ('scroll(75, 20, "down", 3)', POINT, "pyautogui.scroll(-3, x=0.5, y=0.2)"),
        ('scroll(75, 20, "right", 3)', POINT, "pyautogui.hscroll(3, x=0.5, y=0.2)"),
        ("drag(1, 2)", (0, 0, 75, 20), "pyautogui.moveTo(x=0.0, y=0.0)\npyautogui.dragTo(x=0.5, y=0.2, button='left')"),
        ("drag_pixels([75, 20])", POINT, "pyautogui.dragTo(x=0.5, y=0.2, button='left')"),
        ('key("ctrl+shift+S")', (), "pyautogui.hotkey('ctrl', 'shift', 's')"),
        ('key("ctrl++")', (), "pyautogui.hotkey('ctrl', '+')"),
        ('key("Tab", 2)', (), "pyautogui.press('tab')\npyautogui.press('tab')"),
        ('key_down("shift")', (), "pyautogui.keyDown('shift')"),
        ("wait()", (), "computer.wait()"),
        ("fail()", (), "computer.terminate(status='failure')"),
        (
            'type("a\\n\'b\\"", enter=True, overwrite=True)',
            (),
            "pyautogui.hotkey('ctrl', 'a')\npyautogui.write(message='a\\n\\'b\"')\npyautogui.press('enter')",
        ),
        (
            'click(75, 20, hold="ctrl")',
            POINT,
            "pyautogui.keyDown('ctrl')\npyautogui.click(x=0.5, y=0.2)\npyautogui.keyUp('ctrl')",
        ),
    ],
)
def test_code_of_an_action(action: str, places: tuple[int, ...], code: str) -> None:
    assert code_of(parse_action(action), places, width=WIDTH, height=HEIGHT) == code


@given(text=st.text(max_size=40), name=st.sampled_from(sorted(ACTIONS)))
def test_code_of_any_text_is_calls_of_literals_or_is_refused(text: str, name: str) -> None:
    words = {"type": f"type({text!r})", "key": f"key({text!r})", "quote": f"quote({text!r})"}
    try:
        action = parse_action(words.get(name, f"{name}()"))
        lines = code_of(action, (), width=WIDTH, height=HEIGHT).split("\n")
    except (ValueError, LookupError):
        return
    for line in lines:
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[0] in ("pyautogui", "computer")
        values = [ast.literal_eval(value) for value in [*call.args, *(keyword.value for keyword in call.keywords)]]
        assert name != "type" or text in values


# --- what goes wrong -------------------------------------------------------------------------------------------------


def _damage_segment(run: Path) -> None:
    (segment,) = (path for path in (run / "trajectories").iterdir() if path.suffix not in (".jsonl", ""))
    segment.write_bytes(segment.read_bytes()[:50])


@pytest.mark.parametrize("kind", ["jsonl", "agentnet"])
def test_screenshot_that_is_missing_ends_the_export_and_is_named(
    kind: write.Format, models: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    store_run(run, models["tiny-random"], [("rl-1/0/0", CLICKS)])
    _damage_segment(run)
    with pytest.raises(ConfigError, match=r"screenshots: a screenshot of rl-1/0/0 cannot be read: .*\n.*--no-screenshots"):
        export_trajectories(run, tmp_path / "out", kind=kind, selection=ALL)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export_trajectories(run, tmp_path / "out", kind="jsonl", selection=ALL, has_screenshots=False)


def test_full_disk_leaves_nothing_and_says_so(text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFull, match="nothing was kept"):
        export_trajectories(text_run, tmp_path / "out", kind="jsonl", selection=ALL)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_exists_stays_as_it_is(text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export_trajectories(text_run, tmp_path / "out", kind="jsonl", selection=ALL)
    with pytest.raises(ConfigError, match="there is no folder"):
        export_trajectories(text_run, tmp_path / "none" / "out", kind="jsonl", selection=ALL)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("selection", [Selection(kinds=("play",)), Selection(families=("calc-set-cell",))])
def test_kind_or_family_that_no_trajectory_has_is_refused_with_those_there_are(
    text_run: Path, tmp_path: Path, selection: Selection
) -> None:
    with pytest.raises(ConfigError, match=r"use (training|editor-type-save)"):
        export_trajectories(text_run, tmp_path / "out", kind="jsonl", selection=selection)


def test_run_whose_tokenizer_is_gone_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    store_run(tmp_path / "run", models["tiny-random"], [("rl-1/0/0", CLICKS)])
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(models["tiny-random"]), str(tmp_path / "gone")))
    with pytest.raises(ConfigError, match="put the model folder back"):
        export_trajectories(tmp_path / "run", tmp_path / "out", kind="jsonl", selection=ALL)


def test_run_without_trajectories_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    store_run(tmp_path / "run", models["tiny-random"], [])
    with pytest.raises(ConfigError, match="no stored trajectory"):
        export_trajectories(tmp_path / "run", tmp_path / "out", kind="jsonl", selection=ALL)


def test_parquet_without_pyarrow_is_refused_before_anything_is_written(
    text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pyarrow: not installed.*\n.*pip install"):
        export_trajectories(text_run, tmp_path / "out", kind="parquet", selection=ALL)
    assert list(tmp_path.iterdir()) == []


def test_command_prints_the_account_and_refuses_a_run_at_work(text_run: Path, tmp_path: Path) -> None:
    words = ["export-trajectories", str(text_run), str(tmp_path / "out")]
    lock = text_run / ".lock"
    lock.write_text(str(os.getpid()))
    assert isinstance(CliRunner().invoke(cli, words).exception, ResumeError) and not (tmp_path / "out").exists()
    assert CliRunner().invoke(cli, [*words[:2], str(tmp_path / "early"), "--so-far"]).exit_code == 0
    lock.unlink()
    done = CliRunner().invoke(cli, [*words, "--solved", "--format", "jsonl"])
    assert done.exit_code == 0 and "left out: not solved" in done.output
    told = json.loads(CliRunner().invoke(cli, [*words[:2], str(tmp_path / "other"), "--solved", "--json"]).stdout)
    assert told["folder"] == str(tmp_path / "other") and told["kept"]["steps"] and "not solved" in told["left_out"]
    for wrong in (["--sft", "--format", "jsonl"], ["--sft", "--no-screenshots"], ["--format", "agentnet", "--no-screenshots"]):
        assert CliRunner().invoke(cli, [*words, *wrong]).exit_code == 2


def test_export_changes_nothing_in_the_run(text_run: Path, tmp_path: Path) -> None:
    def contents() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(text_run.rglob("*"))}

    before = contents()
    export_trajectories(text_run, tmp_path / "out", kind="sft", selection=ALL)
    assert contents() == before and np.all([path.is_file() for path in (tmp_path / "out").iterdir()])


def test_code_of_an_action_without_a_place_is_refused() -> None:
    with pytest.raises(NoCode, match="place not recorded"):
        code_of(parse_action('type("x", target=1)'), (), width=WIDTH, height=HEIGHT)
