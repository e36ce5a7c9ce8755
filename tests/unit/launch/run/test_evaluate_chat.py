"""A whole evaluation of a model on a server that takes turns of a chat, with imitated desktops: screens in, clicks back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import TasksConfig
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import content_hash
from computerrl.env_server.tasks import FAMILIES
from computerrl.launch.run.evaluate import Wish, evaluate
from computerrl.launch.web.episodes import Episodes, Wanted
from tests.support.data.actor_data import make_observation
from tests.support.data.chat_server import chat_server, images_of, texts_of
from tests.support.data.image_prompts import make_folder

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
CORNER = "click(0, 0)"
NUM_IMAGES = 3
FAMILY, FIRST_SEED = "calc-set-cell", TasksConfig().evaluation_seeds[0]


def scripted_policy(*, num_tasks: int) -> Callable[[dict[str, Any]], str]:
    """Clicks twice into a corner, then sets the cell that its task names."""
    instances = [FAMILIES[FAMILY].make(FIRST_SEED + number) for number in range(num_tasks)]
    shown = [instance.demonstrate("", make_observation(), (), lambda kind: None).args for instance in instances]
    calls = {
        instance.instruction: f'calc.set_cell("{args["cell"]}", "{args["value"]}")'
        for instance, args in zip(instances, shown, strict=True)
    }

    def answer(body: dict[str, Any]) -> str:
        text = texts_of(body)
        call = next((call for instruction, call in calls.items() if f"Task: {instruction}" in text), None)
        if call is None:
            return "ok"  # The check at the start has no task.
        if text.count(CORNER) < 2:
            return CORNER
        return "done()" if "Done: calc.set_cell" in text else call

    return answer


def test_evaluation_through_a_chat_sends_the_stored_screens_in_order_and_does_what_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_folder(tmp_path / "theirs", "qwen2_5_vl")
    for file in folder.glob("*.safetensors"):
        file.unlink()  # The server has the weights.
    prompt = f"{{format: compact_vision, chat_template: true, images: {NUM_IMAGES}, max_prompt_tokens: 1900}}"
    overrides = ("actor.endpoint.mode=chat", f"actor.prompt={prompt}", "actor.max_new_tokens=48", "tasks.max_steps=5")
    with chat_server(scripted_policy(num_tasks=3)) as server:
        wish = Wish(str(folder), server.url, CONFIG, families=(FAMILY,), episodes=3, overrides=overrides)
        assert evaluate(wish) == 0
    figures = json.loads((tmp_path / "runs" / "eval-theirs" / "evaluation.json").read_text())
    assert figures["all"]["num_rollouts"] == 3 and figures["all"]["pass@1"]["mean"] == 1.0

    run = RunFolder(tmp_path / "runs" / "eval-theirs")
    episodes = read_json_lines(run.episodes_path)
    screens = [[step["screenshot"]["content_hash"] for step in episode["steps"]] for episode in episodes]
    expected = sorted(
        [of_episode[max(0, place - NUM_IMAGES + 1) : place + 1] for of_episode in screens for place in range(len(of_episode))]
    )
    asked = [body for body in server.asked if "Task:" in texts_of(body)]
    assert sorted([[content_hash(data) for _, data in images_of(body)] for body in asked]) == expected
    assert all(len(of_episode) == 4 for of_episode in screens)
    assert len(images_of(server.asked[0])) == NUM_IMAGES, "the check at the start shows as many images as a prompt"

    # What people see of it: thumbnails where the images' tokens were, and the place of a click.
    shown = Episodes(run, model=str(folder))
    shown.refresh()
    (row, *_) = shown.list(Wanted())["rows"]
    step = shown.get(row["trajectory_id"])["steps"][1]
    images = [part for part in step["prompt"] if not isinstance(part, str)]
    assert len(images) == 2 and step["places"] == [0, 0]
    assert images[-1]["content_hash"] == step["screenshot"]["content_hash"]
    assert "image_pad" not in "".join(part for part in step["prompt"] if isinstance(part, str))
    assert step["action_text"] == CORNER and all(token["logprob"] is None for token in step["tokens"])
