"""The quick form of every study that compares arms: an untrained model, everything written.

The arms of all studies are played serially on imitated desktops; the study of faults kills real processes with real desktops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from computerrl.benchmarks.studies import _runs
from computerrl.benchmarks.studies._catalogue import GROUNDING
from computerrl.benchmarks.studies._designs import Comparison
from computerrl.launch.run.serial import SerialRun
from tests.support.data.image_prompts import make_folder
from tests.support.quick_study import SERIAL, design_of, quick_study, serial_study

COMPARISONS = ("asynchrony", "entropulse", "staleness_desktops", "api_gui", "algorithms", "faults")


def with_pretended_kills(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """Train undisturbed and record kills as `faults.disturbed` does: one process has no roles to kill."""
    run = _runs.train(folder, name, settings)
    kills = [] if name.startswith("undisturbed") else ["learner-0", "actor-0"]
    (run / _runs.KILLS_FILE).write_text(json.dumps({"kills": kills, "run_took_s": 1.0 + len(kills)}))
    return run


def changes_of(name: str) -> dict[str, Any]:
    return {"how": with_pretended_kills} if name == "faults" else {}


def check_cells(cells: list[dict[str, Any]], name: str) -> None:
    assert len(cells) >= 2
    for cell in cells:
        assert cell["num_updates"] == 3 and cell["rl_env_steps"] > 0 and len(cell["updates"]) == 3
        assert cell["num_trajectories_lost"] == cell["num_recorded_twice"] == 0
        assert all(0 <= cell[f"slots_{what}"] < 1.2 for what in ("generating", "on_desktop", "waiting"))
    if name == "faults":
        assert [cell["num_kills"] > 0 for cell in cells] == [False, True, True]


@pytest.mark.release
@pytest.mark.parametrize("name", COMPARISONS)
def test_quick_study_trains_its_quick_arms_serially(tmp_path: Path, name: str) -> None:
    check_cells(serial_study(tmp_path, name, **changes_of(name)), name)


@pytest.mark.release
@pytest.mark.parametrize("name", [name for name in COMPARISONS if name != "faults"])
def test_quick_study_trains_every_arm_serially(tmp_path: Path, name: str) -> None:
    cells = serial_study(tmp_path, name, quick_arms=(), **changes_of(name))
    check_cells(cells, name)
    study = design_of(name)
    assert isinstance(study, Comparison)
    assert [cell["arm"] for cell in cells] == [arm.name for arm in study.arms]
    page = (tmp_path / "out" / "README.md").read_text()
    settings = json.loads((tmp_path / "out" / "data.json").read_text())["settings"]
    assert settings["arms"] == {arm.name: json.loads(json.dumps(dict(arm.settings))) for arm in study.arms}
    assert study.title in page


def test_study_of_grounding_rewards_trains_a_vision_language_model_serially(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "model", "idefics3")
    seen = {"desktop.observation": "both", "actor.prompt.max_prompt_tokens": 400, "learner.max_logprob_gap": 0.001}
    quick = {**GROUNDING.quick, **SERIAL, **seen, "tasks.families": ["web-click-button"], "model.name": str(model)}
    cells = serial_study(tmp_path, "grounding", quick={**quick, "learner.recipe.max_updates": 1})
    assert [cell["arm"] for cell in cells] == ["outcome", "Gaussian"]
    assert all(len(cell["updates"]) == 1 and cell["num_trajectories_lost"] == 0 for cell in cells)
    outcome, paid = (cell["updates"][0] for cell in cells)
    assert outcome["target_known"] == 0 and 0 < paid["target_known"] <= 1
    assert "steps with a target" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.release
def test_quick_study_kills_processes_that_play_on_desktops(tmp_path: Path) -> None:
    check_cells(quick_study(tmp_path, "faults"), "faults")


def test_study_that_was_broken_off_goes_on_with_the_run_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run of the study is interrupted after its first update; the same command finishes it."""
    runs, turn = tmp_path / "out" / "runs", SerialRun.turn

    def interrupted(self: SerialRun) -> bool:
        if len(list(runs.glob("asynchronous*/checkpoints/checkpoint-*"))) >= 2:
            raise KeyboardInterrupt
        return turn(self)

    settings = {**SERIAL, "learner.checkpoint_every_updates": 1, "learner.recipe.eval_episodes_per_family": 0}
    with monkeypatch.context() as patched:
        patched.setattr(SerialRun, "turn", interrupted)
        with pytest.raises(_runs.RunFailed, match="goes on where it ended"):
            serial_study(tmp_path, "asynchrony", quick=settings)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json") if path.parent.name == "cells"}
    cells = serial_study(tmp_path, "asynchrony", quick=settings)
    check_cells(cells, "asynchrony")
    log = (runs / "asynchronous-eta-1-0.log").read_text()
    assert "resuming" in log and "stopped by SIGINT" in log
    assert kept and all((tmp_path / "out" / "cells" / name).read_bytes() == text for name, text in kept.items())
