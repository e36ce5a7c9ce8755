"""The restart rule."""

from __future__ import annotations

import pytest

from computerrl.common.config import SupervisorConfig
from computerrl.launch.supervision.restarts import EndRun, RestartHistory, ScheduledRestart, describe_exit

CONFIG = SupervisorConfig(max_restarts=3, backoff_s=0.5, stable_s=60.0)


def history() -> RestartHistory:
    return RestartHistory(CONFIG)


def test_restart_repeated_deaths_back_off_twice_as_long_each_time_then_give_up() -> None:
    actor = history()
    delays = [actor.ended(-9, lived_s=0.0) for _ in range(3)]
    assert delays == [ScheduledRestart(0.0, 1), ScheduledRestart(0.5, 2), ScheduledRestart(1.0, 3)]
    assert actor.ended(-9, lived_s=0.0) == EndRun(finished=False, reason="restart_limit")


def test_restart_of_a_process_that_lived_longer_than_its_backoff_is_at_once() -> None:
    actor = RestartHistory(CONFIG.model_copy(update={"max_restarts": 10}))
    lives = (0.0, 0.2, 0.25, 50.0, 0.0)
    delays = [actor.ended(-9, lived_s=lived_s) for lived_s in lives]
    assert [one.delay_s for one in delays if isinstance(one, ScheduledRestart)] == pytest.approx([0.0, 0.3, 0.75, 0.0, 4.0])


def test_restart_after_a_stable_life_counts_from_zero() -> None:
    actor = history()
    for _ in range(3):
        actor.ended(1, lived_s=1.0)
    assert actor.ended(1, lived_s=61.0) == ScheduledRestart(0.0, 1)
    assert actor.num_restarts_total == 4


def test_exit_of_a_process_that_finished_ends_the_run() -> None:
    assert history().ended(0, lived_s=1.0, finished=True) == EndRun(finished=True, reason="finished")


def test_exit_zero_without_having_finished_is_a_death() -> None:
    assert isinstance(history().ended(0, lived_s=1.0), ScheduledRestart)


@pytest.mark.parametrize(
    ("exit_code", "reason"), [(2, "config_error"), (3, "setup_error"), (4, "resume_error"), (9, "disk_full")]
)
def test_exit_code_only_the_person_can_mend_ends_the_run_at_once(exit_code: int, reason: str) -> None:
    assert history().ended(exit_code, lived_s=1.0) == EndRun(finished=False, reason=reason)


def test_describe_exit_names_signals() -> None:
    assert [describe_exit(code) for code in (3, -9, -200)] == ["exit code 3", "SIGKILL", "signal 200"]
