"""`computerrl eval --grounding`: whole evaluations on small folders, with a model of this process and with a chat server."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from computerrl.common.errors import ComputerRLError, ConfigError, ResumeError
from computerrl.common.metrics import read_json_lines
from computerrl.launch.commands.main import cli
from computerrl.launch.grounding.entries import Entry
from computerrl.launch.grounding.folders import read_dataset
from computerrl.launch.run.evaluate import Wish
from computerrl.launch.run.grounding import evaluate_grounding
from tests.support.data.chat_server import Answer, chat_server, images_of, texts_of
from tests.support.data.image_prompts import make_folder
from tests.support.tiers import one_in
from tests.unit.launch.grounding.grounding_folders import (
    HEIGHT,
    WIDTH,
    osworld_entry,
    osworld_g,
    save_picture,
    screenspot_pro,
    screenspot_v2,
    v2_entry,
)

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "vision-quickstart.yaml"
CHAT = ("actor.endpoint.mode=chat", "actor.prompt.chat_template=true", "actor.prompt.coordinates=thousand")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "theirs", "qwen2_5_vl")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wish(model: Path, data: Path, *overrides: str, **fields: Any) -> Wish:
    return Wish(str(model), config=CONFIG, grounding=data, overrides=overrides, **fields)


def figures_of(name: str) -> dict[str, Any]:
    found = json.loads((Path("runs") / name / "evaluation.json").read_text())
    assert isinstance(found, dict)
    return found


def click(x: float, y: float) -> str:
    return f"click({round(x * 1000 / WIDTH)}, {round(y * 1000 / HEIGHT)})"


def middle(entry: Entry) -> str:
    """The right answer."""
    if entry.region.kind == "refusal":
        return "fail()"
    xs, ys = [x for x, _ in entry.region.corners], [y for _, y in entry.region.corners]
    return click(sum(xs) / len(xs), sum(ys) / len(ys))


def policy(data: Path, answer: Callable[[Entry], Answer]) -> Callable[[dict[str, Any]], Answer]:
    """Knows each entry by its instruction; the check at the start has none."""
    by_instruction = {entry.instruction: entry for entry in read_dataset(data).entries}

    def reply(body: dict[str, Any]) -> Answer:
        found = re.search(r"Task: (.*)", texts_of(body))
        return answer(by_instruction[found[1]]) if found else "ok"

    return reply


def test_model_of_this_process_answers_every_picture_once_and_the_page_shows_wrong_answers(model: Path, here: Path) -> None:
    data = osworld_g(here / "data", osworld_entry("bbox", [5, 5, 5, 5], instruction="<b>bold</b>"))
    assert evaluate_grounding(wish(model, data)) == 0
    name = "eval-theirs-data"
    figures = figures_of(name)
    answers = read_json_lines(here / "runs" / name / "answers.jsonl")
    assert len(answers) == figures["all"]["num_entries"] == sum(figures["outcomes"].values()) == 4
    assert figures["dataset"]["name"] == "OSWorld-G" and figures["left_out"] == {}
    page = (here / "runs" / name / "evaluation.html").read_text()
    assert page.count("data:image/webp;base64,") == 4 - figures["all"]["num_hits"]
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page and not re.search(r"(src|href)=\"(?!data:)", page)
    with pytest.raises(ResumeError, match="has finished"):
        evaluate_grounding(wish(model, data, resume=True))
    (here / "runs" / name / "evaluation.json").unlink()
    osworld_g(data)
    with pytest.raises(ResumeError, match="other annotations"):
        evaluate_grounding(wish(model, data, resume=True))


@pytest.mark.parametrize("make", one_in(3, [screenspot_pro, screenspot_v2, osworld_g]))
def test_policy_that_knows_the_answers_scores_one_and_sees_the_pictures(
    model: Path, here: Path, make: Callable[[Path], Path]
) -> None:
    data = make(here / "data")
    dataset = read_dataset(data)
    with chat_server(policy(data, middle)) as server:
        assert evaluate_grounding(wish(model, data, *CHAT, endpoint=server.url)) == 0
    assert figures_of("eval-theirs-data")["all"]["mean"] == 1.0
    asked = [images_of(body) for body in server.asked if "Task:" in texts_of(body)]
    assert len(asked) == len(dataset.entries) and all(len(images) == 1 for images in asked)
    shown = {Image.open(io.BytesIO(data)).tobytes() for images in asked for _, data in images}
    assert shown == {Image.open(entry.picture).convert("RGB").tobytes() for entry in dataset.entries}


def test_scores_are_told_by_kind_with_intervals_and_wrong_answers_by_their_outcome(
    model: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = osworld_g(here / "data", osworld_entry("bbox", [80, 80, 9, 9], GUI_types=["Button"], instruction="the other one"))
    answers = {"bbox": "click(0, 0)", "polygon": "drag_pixels([1, 1, 2, 2])", "refusal": "fail()"}

    def answer(entry: Entry) -> Answer:
        return answers.get(entry.instruction.removeprefix("find the "), middle(entry))

    with chat_server(policy(data, answer)) as server:
        assert evaluate_grounding(wish(model, data, *CHAT, endpoint=server.url)) == 0
    figures = figures_of("eval-theirs-data")
    assert figures["outcomes"] == {"hit": 2, "beside": 1, "refused": 0, "pointed": 0, "other_action": 1, "no_action": 0}
    buttons = figures["kinds"]["GUI type"]["Button"]
    assert (buttons["num_entries"], buttons["num_hits"], buttons["mean"]) == (2, 1, 0.5)
    assert 0 < buttons["low"] < 0.5 < buttons["high"] < 1
    assert figures["kinds"]["region"]["refusal"]["mean"] == 1.0
    table = capsys.readouterr().out
    assert "0.500 [0.095, 0.905]" in table and "1 other_action" in table and "evaluation.html" in table


def test_evaluation_that_was_broken_off_goes_on_where_it_was(model: Path, here: Path) -> None:
    data = screenspot_v2(here / "data", web=[v2_entry("pc_a.png", [10, 10, 20 + number, 20]) for number in range(6)])
    asked: list[str] = []

    def fails_later(entry: Entry) -> Answer:
        asked.append(entry.instruction)
        return (200, {"choices": []}) if len(asked) > 3 else middle(entry)

    with chat_server(policy(data, fails_later)) as server:
        again = wish(model, data, *CHAT, "actor.num_episodes=1", endpoint=server.url)
        with pytest.raises(ConfigError, match="in a row"):
            evaluate_grounding(again)
        folder = here / "runs" / "eval-theirs-data"
        known = {line["key"] for line in read_json_lines(folder / "answers.jsonl")}
        assert len(known) == 3 and not (folder / "evaluation.json").exists()
        with (folder / "answers.jsonl").open("a") as file:
            file.write('{"key": "screens')  # The process died while it wrote.
        server.answer = policy(data, middle)
        server.asked.clear()
        assert evaluate_grounding(replace(again, resume=True)) == 0
    num_asked = sum("Task:" in texts_of(body) for body in server.asked)
    assert num_asked == len(read_dataset(data).entries) - 3
    assert figures_of(folder.name)["all"]["mean"] == 1.0 and not (here / "runs" / "eval-theirs-data-2").exists()


def test_what_cannot_be_played_is_counted_with_its_reason(model: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = [
        v2_entry("gone.png", [1, 1, 1, 1]),
        v2_entry("cut.png", [1, 1, 1, 1]),
        v2_entry("no.png", [1, 1, 1, 1]),
        v2_entry("pc_a.png", [500, 1, 10, 10], instruction="far away"),
        v2_entry("pc_a.png", [1, 1, 10, 10], instruction="refused"),
        v2_entry("thin.png", [0, 0, 1, 1]),
    ]
    data = screenspot_v2(here / "data", desktop=extra)
    pictures = data / "screenspotv2_image"
    whole = save_picture(pictures / "cut.png").read_bytes()
    (pictures / "cut.png").write_bytes(whole[: len(whole) * 2 // 3])
    (pictures / "no.png").write_text("version https://git-lfs.github.com/spec/v1\n")
    save_picture(pictures / "thin.png", size=(1000, 2))

    def answer(entry: Entry) -> Answer:
        return (400, {"error": {"message": "too large"}}) if entry.instruction == "refused" else middle(entry)

    with chat_server(policy(data, answer)) as server:
        assert evaluate_grounding(wish(model, data, *CHAT, endpoint=server.url)) == 0
    figures = figures_of("eval-theirs-data")
    counted = {reason: found["num"] for reason, found in figures["left_out"].items()}
    expected = {"picture_missing": 1, "picture_unreadable": 2, "box_outside": 1, "request_refused": 1, "picture_refused": 1}
    assert counted == expected
    assert figures["all"]["num_entries"] + sum(counted.values()) == figures["dataset"]["num_entries"]
    assert "gone.png" in figures["left_out"]["picture_missing"]["examples"][0]["detail"]
    table, page = capsys.readouterr().out, (here / "runs" / "eval-theirs-data" / "evaluation.html").read_text()
    assert "1 picture_missing" in table and "too large" in table and "picture missing" in page


@pytest.mark.parametrize(
    ("overrides", "fields", "said"),
    [
        ((), {"families": ("web-click-button",)}, "--tasks"),
        ((), {"rollouts": 4}, "--rollouts"),
        ((), {"episodes": 4}, "--episodes"),
        (("actor.prompt={format: compact}", "learner.recipe.eval_control_episodes_per_family=0"), {}, "show no pictures"),
        (("actor.prompt.max_prompt_tokens=64",), {}, "max_prompt_tokens"),
    ],
)
def test_wish_that_fits_no_pictures_is_refused_before_a_folder_is_made(
    model: Path, here: Path, overrides: tuple[str, ...], fields: dict[str, Any], said: str
) -> None:
    data = screenspot_v2(here / "data")
    save_picture(data / "screenspotv2_image" / "pc_a.png", size=(800, 600))
    with pytest.raises(ComputerRLError, match=re.escape(said)):
        evaluate_grounding(wish(model, data, *overrides, **fields))
    assert not (here / "runs").exists() or not list((here / "runs").iterdir())


def test_data_set_of_which_nothing_can_be_played_is_an_error(model: Path, here: Path) -> None:
    data = screenspot_pro(here / "data")
    for file in (data / "images").rglob("*.png"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"no entry of ScreenSpot-Pro can be played, the first for picture_missing"):
        evaluate_grounding(wish(model, data))
    assert not (here / "runs").exists()


def test_help_names_the_data_sets() -> None:
    shown = " ".join(CliRunner().invoke(cli, ["eval", "--help"]).output.split())
    assert "--grounding DIR" in shown and "ScreenSpot-v2, ScreenSpot-Pro or OSWorld-G" in shown
