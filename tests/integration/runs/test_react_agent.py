"""An agent of another library, cloned and trained without knowing it: LangChain's ReAct."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from computerrl.common.config import load_config
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.serial import run_serial
from tests.foreign.environment import make_environment

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = ROOT / "tests" / "foreign"


def test_langchain_s_react_agent_is_cloned_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_environment(tmp_path / "react", FOREIGN / "react_requirements.txt")
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    # Behind our own: both know the same versions of what they share.
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(FOREIGN)])
    overrides = [
        "tasks.families=[calc-set-cell]",
        f"run_dir={tmp_path / 'runs'}",
        "actor.agent={kind: 'react_agent:Agent', demonstrate: 'react_agent:demonstrate', max_calls: 1}",
        "actor.max_new_tokens=64",
        "actor.prompt.max_prompt_tokens=1900",
        "learner.recipe={demos_per_family: 2, bc_epochs: 1, max_updates: 1, eval_episodes_per_family: 1}",
        "learner.num_threads=1",
        "actor.num_threads=1",
    ]
    config = load_config(ROOT / "configs" / "serial.yaml", overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0
    episodes = read_json_lines(RunFolder(config.folder).episodes_path)
    shown = [one for one in episodes if one["kind"] == "demonstration"]
    assert len(shown) == 2 and all(one["success"] and len(one["steps"]) == 2 for one in shown), shown
    assert state.sft_steps, "they were cloned"
    training = [one for one in episodes if one["kind"] == "training"]
    assert training and all(one["steps"] for one in training), "an untrained model's answers are steps as well"
