"""`recipe.max_run_s`: the run ends in time whatever the machine, and says what it left out."""

from __future__ import annotations

import heapq
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.recipe import limits, recipe
from computerrl.learner.recipe.state import LoopState, Pace
from tests.support.loop_fakes import Bench, make_config

BUDGET_S = 400.0


def run_with_ticks_of(tick_s: float, folder: Path) -> LoopState:
    """A whole run on a machine on which a unit of work takes ``tick_s``."""
    config = make_config(recipe={"max_run_s": BUDGET_S, "max_updates": 100_000, "eval_episodes_per_family": 10})
    bench = Bench(folder, config)
    loop = bench.start()
    while not loop.finished:
        bench.clock.advance(tick_s)
        loop.tick()
    loop.close()
    return loop.state


@pytest.mark.parametrize("tick_s", [pytest.param(0.2, marks=pytest.mark.release), 1.0, 3.0, 10.0, 25.0])
def test_run_on_any_machine_ends_within_its_budget_and_evaluates(tick_s: float, tmp_path: Path) -> None:
    state = run_with_ticks_of(tick_s, tmp_path)
    # A unit of work that has begun is finished.
    assert state.run_s <= BUDGET_S - limits.MIN_CLOSING_S + 2 * tick_s
    last = state.evaluations[recipe.EVAL_AFTER_RL]
    num_played = sum(family["episodes"] for family in last["families"].values())
    assert num_played + last.get("num_cut_off", 0) == 2 * state.planned[recipe.EVAL_AFTER_RL]
    assert num_played


@pytest.mark.release
def test_slow_machine_plays_fewer_evaluation_episodes_and_a_fast_one_all(tmp_path: Path) -> None:
    fast, slow = (run_with_ticks_of(tick_s, tmp_path / str(tick_s)) for tick_s in (0.2, 10.0))
    assert fast.planned == dict.fromkeys(recipe.EVALUATIONS, 10)
    assert slow.planned[recipe.EVAL_AFTER_RL] < 10
    assert fast.update > 100 > slow.update


def test_start_up_counts_and_a_resumed_run_goes_on_from_its_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.start_s() == 0.0
    folder.note_start()
    begun = folder.start_s()
    boot_id, started = json.loads(folder.started_path.read_text())
    age_s = time.time() - psutil.Process().create_time()
    assert begun == pytest.approx(age_s, abs=30.0), "counted from the start of this process"
    folder.started_path.write_text(json.dumps([boot_id, started - 50.0]))
    assert begun + 50.0 <= folder.start_s() < begun + 110.0
    folder.started_path.write_text(json.dumps(["another machine's", started - 50.0]))
    assert folder.start_s() == 0.0


def played(lengths_s: Sequence[float], *, num_playing: int) -> list[float]:
    """When episodes of these lengths end, each played by whoever is free first."""
    free, ends_s = [0.0] * num_playing, []
    for length_s in lengths_s:
        ends_s.append(heapq.heappop(free) + length_s)
        heapq.heappush(free, ends_s[-1])
    return sorted(ends_s)


@pytest.mark.parametrize("num_playing", [1, 6, 10])
@pytest.mark.parametrize("seed", range(5))
def test_pace_of_a_short_evaluation_foretells_a_long_one(seed: int, num_playing: int) -> None:
    chance, delay_s = random.Random(seed), 5.0
    short, long = (
        [delay_s + end_s for end_s in played([chance.uniform(2.0, 6.0) for _ in range(number)], num_playing=num_playing)]
        for number in (42, 140)
    )
    pace = limits.pace(short, num_playing=num_playing)
    assert pace.of(len(short)) >= short[-1] - 1e-9, "it says what was seen"
    assert pace.of(len(long)) == pytest.approx(long[-1], rel=0.15)


def test_pace_where_nothing_is_steady_is_that_of_the_whole() -> None:
    assert limits.pace([1.0, 2.0, 3.0, 6.0], num_playing=4) == Pace(1.5, 0.0)


@pytest.mark.parametrize("start_s", [0.0, 20.0, 200.0])
def test_rl_ends_when_the_last_evaluation_is_due(start_s: float) -> None:
    state = LoopState(run_s=start_s, start_s=start_s, pace=Pace(0.5, 10.0))
    config = make_config(recipe={"max_run_s": 600.0}).learner.recipe
    ends_s = limits.rl_ends_s(state, config, num_evaluated=140)
    assert ends_s is not None
    left_s = 600.0 - ends_s
    assert left_s == pytest.approx(80.0 + max(limits.MIN_CLOSING_S, limits.CLOSING_START_UPS * start_s))
    assert not limits.reason_to_end_rl(state, config, num_evaluated=140)
    state.run_s = ends_s
    assert "600 s" in limits.reason_to_end_rl(state, config, num_evaluated=140)


def test_update_that_would_end_after_the_last_evaluation_is_due_does_not_begin() -> None:
    config = make_config(recipe={"max_run_s": 600.0}).learner.recipe
    state = LoopState(run_s=300.0, pace=Pace(0.5, 0.0), rl_s=100.0, update=5)
    ends_s = limits.rl_ends_s(state, config, num_evaluated=140)
    assert ends_s is not None
    state.run_s = ends_s - 20.1
    assert not limits.reason_to_end_rl(state, config, num_evaluated=140), "updates take 20 s"
    state.run_s = ends_s - 19.9
    assert limits.reason_to_end_rl(state, config, num_evaluated=140)
