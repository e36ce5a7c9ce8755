"""The conductor in the three modes of staleness: what it waits for, what it trains, what it writes down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_loop_conductor import check_exactly_once, events, ledger

from computerrl.learner.conductor import LearnerLoop
from tests.support.loop_fakes import Bench, make_config


def bench_of(folder: Path, mode: str, **learner: Any) -> Bench:
    """Two groups of four a batch, no rollouts before RL, ages up to 2, 10 s of budget."""
    recipe = {"demos_per_family": 0, "eval_episodes_per_family": 0, "max_updates": 6, **learner.pop("recipe", {})}
    values = {"max_age": 2, "staleness": {"mode": mode, "stall_budget_s": 10.0}, "recipe": recipe, **learner}
    return Bench(folder, make_config(**values))


def tick_until_update(bench: Bench, loop: LearnerLoop, update: int, *, max_ticks: int = 50) -> None:
    for _ in range(max_ticks):
        if loop.state.update == update:
            return
        bench.clock.advance(1.0)
        loop.tick()
    raise AssertionError(f"no update {update}: {loop.state}")


def start_with_a_straggler(bench: Bench) -> LearnerLoop:
    """Updates 1 and 2 are done, the batch of update 3 is complete, and something of version 0 is in flight, now 2 old."""
    bench.broker.num_released = 4
    loop = bench.start()
    tick_until_update(bench, loop, 2)
    assert loop.state.policy_version == 2
    bench.broker.num_released, bench.broker.in_flight = 6, (0,)
    return loop


def test_pace_update_waits_for_the_straggler_and_trains_it(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "pace")
    loop = start_with_a_straggler(bench)
    for _ in range(6):
        bench.clock.advance(1.0)
        loop.tick()
    assert loop.state.update == 2
    bench.broker.num_released, bench.broker.in_flight = 7, ()
    bench.broker.sampled_version = lambda: 0
    tick_until_update(bench, loop, 3)
    update = events(bench, "update")[-1]
    assert update["num_groups"] == 3 and update["policy_age_max"] == 2 and update["num_steps_too_old"] == 0
    assert update["stall_end"] == "arrived" and 4 <= update["stall_s"] <= 6
    assert update["stall_s"] <= update["wait_s"]
    assert loop.metrics()["learner/stall_s"] == update["stall_s"] == loop.state.stall_s


def test_pace_budget_spent_in_vain_updates_without_the_straggler(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "pace")
    loop = start_with_a_straggler(bench)
    tick_until_update(bench, loop, 3)
    update = events(bench, "update")[-1]
    assert (update["num_groups"], update["stall_end"]) == (2, "budget")
    assert 10 <= update["stall_s"] <= 11


@pytest.mark.parametrize("mode", ["admit", "mask"])
def test_other_modes_do_not_wait_for_the_straggler(tmp_path: Path, mode: str) -> None:
    bench = bench_of(tmp_path, mode)
    loop = start_with_a_straggler(bench)
    tick_until_update(bench, loop, 3, max_ticks=3)
    update = events(bench, "update")[-1]
    assert (update["stall_s"], update["stall_end"]) == (0.0, "none")


def test_pace_groups_looked_at_ahead_are_trained_once_in_the_next_batch(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "pace")
    bench.broker.num_released = 3
    loop = bench.start()
    tick_until_update(bench, loop, 1)
    assert (events(bench, "update")[-1]["num_groups"], loop.state.cursor) == (2, 2)
    bench.broker.num_released = 4
    tick_until_update(bench, loop, 2, max_ticks=3)
    assert loop.state.cursor == 4
    bench.broker.num_released = 40
    bench.run(loop)
    check_exactly_once(bench)


def test_pace_killed_while_it_waits_trains_every_trajectory_exactly_once(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "pace", checkpoint_every_updates=1)
    loop = start_with_a_straggler(bench)
    for _ in range(4):
        bench.clock.advance(1.0)
        loop.tick()
    bench.checkpoints.wait()
    again = bench.start()
    assert (again.state.update, again.state.policy_version) == (2, 3)
    # Version 3 has the weights of version 2: along the lineage the straggler is 2 old, as before, and is waited for again.
    for _ in range(6):
        bench.clock.advance(1.0)
        again.tick()
    assert again.state.update == 2
    bench.broker.num_released, bench.broker.in_flight = 40, ()
    bench.run(again)
    assert events(bench, "update")[2]["stall_end"] in ("arrived", "full")
    check_exactly_once(bench)


def test_pace_time_of_rl_over_while_it_waits_trains_the_whole_batch_it_has(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "pace", recipe={"max_updates": 99, "max_rl_s": 14.0})
    loop = start_with_a_straggler(bench)
    for _ in range(20):
        bench.clock.advance(1.0)
        loop.tick()
    assert loop.finished
    updates = events(bench, "update")
    assert (len(updates), updates[-1]["stall_end"]) == (3, "phase")
    assert {line["outcome"] for line in ledger(bench) if line["group_seq"] < 6} == {"trained"}


def test_admit_old_steps_are_trained_and_none_is_masked(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "admit", recipe={"max_updates": 8})
    bench.broker.num_released, bench.broker.sampled_version = 16, lambda: 0
    bench.run(bench.start())
    summary = events(bench, "summary")[-1]
    assert summary["max_policy_age_trained"] == 7 > bench.config.learner.max_age
    assert summary["num_steps_masked"] == 0 and "too_old" not in summary["drops"]


def test_waste_of_a_run_that_was_killed_is_what_its_ledger_says_line_by_line(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "mask", checkpoint_every_updates=2, recipe={"max_updates": 8})
    numbers = iter(range(18))
    # Every fourth group, of one and the same family, was sampled by version 0: too old from update 4 on.
    bench.broker.sampled_version = lambda: 0 if next(numbers) % 4 == 0 else max(0, bench.broker.version - 1)
    bench.broker.num_released = 18
    loop = bench.start()
    tick_until_update(bench, loop, 5)
    bench.checkpoints.wait()
    again = bench.start()
    assert 0 < again.state.update < 5
    bench.run(again)
    lines = ledger(bench)
    waste = events(bench, "summary")[-1]["waste"]
    assert waste["submitted"]["trajectories"] == len(lines) == 72
    for reason in ("too_old", "phase_closed"):
        expected = [line for line in lines if line["outcome"] == reason]
        assert waste["lost"][reason]["trajectories"] == len(expected) > 0
        assert waste["lost"][reason]["steps"] == sum(line["num_steps"] for line in expected)
    assert waste["trained"]["trajectories"] == sum(line["outcome"] == "trained" for line in lines)
    assert events(bench, "update")[-1]["family_tv"] > 0
