"""`computerrl eval` as people run it, against a server of chats: real, contained desktops, screenshots over HTTP, clicks back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import content_hash
from tests.support.data.chat_server import chat_server, images_of, texts_of
from tests.support.data.image_prompts import make_folder
from tests.unit.launch.run.test_evaluate_chat import FAMILY, scripted_policy

ROOT = Path(__file__).resolve().parents[3]
EVAL_S = 600.0
pytestmark = pytest.mark.release


def test_evaluation_through_a_chat_plays_real_desktops_with_the_screens_that_are_stored(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "theirs", "idefics3")
    settings = (
        "actor.endpoint.mode=chat",
        "actor.prompt={format: compact_vision, chat_template: true, max_prompt_tokens: 1900}",
        "actor.max_new_tokens=48",
        "tasks.max_steps=5",
    )
    with chat_server(scripted_policy(num_tasks=2)) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "computerrl", "eval", str(folder), "--config", str(ROOT / "configs" / "smoke.yaml")),
                *("--endpoint", server.url, "--tasks", FAMILY, "--episodes", "2", "--json"),
                *(part for setting in settings for part in ("--set", setting)),
            ],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True, capture_output=True,
            timeout=EVAL_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    assert figures["all"]["num_rollouts"] == 2 and figures["all"]["pass@1"]["mean"] == 1.0
    run = RunFolder(tmp_path / "runs" / "eval-theirs")
    steps = [step for episode in read_json_lines(run.episodes_path) for step in episode["steps"]]
    sent = {content_hash(data) for body in server.asked if "Task:" in texts_of(body) for _, data in images_of(body)}
    assert sent == {step["screenshot"]["content_hash"] for step in steps}
