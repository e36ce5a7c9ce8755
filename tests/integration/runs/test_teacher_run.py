"""A model behind a server teaches a policy on real desktops: it plays the demonstrations, and the policy is cloned from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import load_config
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.report.write import report_of, write_report
from computerrl.launch.run.preflight import check_teacher, inspect_machine
from computerrl.launch.run.serial import run_serial
from tests.support.data.chat_server import Answer, chat_server, said, texts_of

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]


def answer(body: dict[str, Any]) -> str:
    """Talks first, then points at the word by its pixels or sets the cell, then says that it is done."""
    asked = texts_of(body)
    if "Say ok." in asked:
        return "ok"
    if "Done: " not in asked:
        return "Let me have a look at the sheet."
    if "calc.set_cell(" in asked.rpartition("Task: ")[2]:
        return "done()"
    cell = re.search(r"Set cell (\S+) to (.+)\.|Put (.+) into cell (\S+)\.", asked)
    assert cell is not None, asked
    return f'calc.set_cell("{cell[1] or cell[4]}", "{cell[2] or cell[3]}")'


def counted(body: dict[str, Any]) -> Answer:
    return 200, {**said(answer(body)), "usage": {"prompt_tokens": 100, "completion_tokens": 7}}


def test_policy_is_cloned_from_what_a_model_behind_a_server_did(tmp_path: Path) -> None:
    with chat_server(counted) as server:
        overrides = [
            "tasks={families: [calc-set-cell], max_steps: 6}",
            f"run_dir={tmp_path / 'runs'}",
            "desktop={driver: apptainer, image: core, num_desktops: 1, apps: [calc]}",
            "actor.max_new_tokens=40",
            "learner.recipe={demos_per_family: 3, bc_epochs: 1, max_updates: 0, eval_episodes_per_family: 0}",
            "learner.recipe.teacher.agent={kind: openai, answers: text, input_price: 3, output_price: 15}",
            f"learner.recipe.teacher.endpoint={{url: '{server.url}', model: theirs}}",
        ]
        config = load_config(ROOT / "configs" / "serial.yaml", overrides=overrides)
        assert not check_teacher(config, inspect_machine())
        RunFolder(config.folder).create(config)
        state = run_serial(config)
    shown = [one for one in read_json_lines(RunFolder(config.folder).episodes_path) if one["kind"] == "demonstration"]
    assert len(shown) == 3 and all(one["success"] for one in shown), shown
    for episode in shown:
        texts = [step["action_text"] for step in episode["steps"]]
        assert len(texts) == 2 and texts[0].startswith("calc.set_cell(") and texts[1] == "done()", "what it said first is no step"
    assert state.sft_steps, "they were cloned"
    usage = [step["usage"] for episode in shown for step in episode["steps"]]
    assert [one["num_requests"] for one in usage] == [2, 1] * 3, "what it said first is counted with the step after it"
    report = report_of(config.folder)
    assert report["demonstrations"] == {"theirs": {"num": 3, "num_successes": 3}}
    taught = report["teacher"]
    assert (taught["name"], taught["num_requests"]) == ("theirs", 9)
    assert taught["cost"] == pytest.approx(9 * (100 * 3 + 7 * 15) / 1e6)
    assert "Shown by theirs: 3, of which 3 succeeded" in write_report(config.folder).read_text()
    assert {body["model"] for body in server.asked} == {"theirs"} and len(server.asked) >= 10
