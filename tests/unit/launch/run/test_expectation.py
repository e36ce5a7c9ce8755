"""What a run is expected to reach: a rule of three on a measured speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.common.config import RunConfig, load_config
from computerrl.launch.plan.expectation import REFERENCE, expectation, expected_updates, measure

QUICKSTART = Path(__file__).parents[4] / "configs" / "quickstart.yaml"


def quickstart(*overrides: str) -> RunConfig:
    return load_config(QUICKSTART, overrides=["learner.device=cpu", *overrides])


def test_expected_updates_rise_with_speed_and_time_and_stop_at_the_limit() -> None:
    speeds = [REFERENCE.gflops * factor for factor in (0.1, 0.5, 1.0, 2.0, 100.0)]
    found = [expected_updates(quickstart(), speed) or 0 for speed in speeds]
    assert found == sorted(found) and found[0] == 0 and found[-1] == quickstart().learner.recipe.max_updates
    assert 8 <= found[2] <= 40, "the reference itself"
    assert (expected_updates(quickstart("learner.recipe.max_run_s=900"), speeds[2]) or 0) > found[2]


@pytest.mark.parametrize(
    "other", ["learner.recipe.max_run_s=null", "model.name=tiny-random", "actor.engine=vllm", "learner.device=cuda"]
)
def test_nothing_is_expected_of_runs_that_the_reference_is_not_like(other: str) -> None:
    assert expected_updates(quickstart(other), REFERENCE.gflops) is None
    assert expectation(quickstart(other), num_cores=2) is None


def test_speed_is_measured_and_a_slow_machine_gets_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(1, seconds=0.05) > 0
    monkeypatch.setattr("computerrl.launch.plan.expectation.measure", lambda num_cores: 0.2 * REFERENCE.gflops)
    slow = expectation(quickstart(), num_cores=2) or ""
    assert "few" in slow and "-> learner.recipe.max_run_s=1200" in slow
    monkeypatch.setattr("computerrl.launch.plan.expectation.measure", lambda num_cores: 2 * REFERENCE.gflops)
    assert "within 10 minutes" in (expectation(quickstart(), num_cores=2) or "")
