"""Where a batch ends: pure decisions on groups and versions in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.config import RunConfig
from computerrl.common.messages import RolloutOrder, TaskRef, TrajectoryGroup
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.pacing import Cut, Pacer
from tests.support.loop_fakes import make_config, make_step, make_trajectory

ORDER = RolloutOrder("rl-1", "training", ("click",), None, 2, 100_000, 1.0, 6, 0)


def group(number: int, *versions: int) -> TrajectoryGroup:
    """Of one trajectory with a step of each of ``versions``."""
    task = TaskRef("click", 100_000 + number, "training")
    trajectory = make_trajectory(ORDER, task, number, 0, success=True, version=0)
    trajectory = replace(trajectory, steps=tuple(make_step(version=version) for version in versions))
    return TrajectoryGroup(number, f"rl-1/{number}", "rl-1", "training", task, (trajectory,))


def config(mode: str = "pace", *, max_age: int = 2) -> RunConfig:
    """Two groups a batch, eta 1: four groups at most."""
    return make_config(max_age=max_age, staleness={"mode": mode, "stall_budget_s": 10.0})


def cut(pacer: Pacer, groups: Sequence[TrajectoryGroup], in_flight: Sequence[int] | None, **options: Any) -> Cut | None:
    values = {"version": 5, "lineage": Lineage(), "now": 0.0, **options}
    return pacer.cut(groups, in_flight, **values)


FRESH = [group(number, 5) for number in range(9)]


@pytest.mark.parametrize("mode", ["admit", "mask", "pace"])
def test_cut_too_few_groups_goes_on(mode: str) -> None:
    assert cut(Pacer(config(mode)), FRESH[:1], ()) is None


@pytest.mark.parametrize("mode", ["admit", "mask"])
def test_cut_other_modes_never_wait(mode: str) -> None:
    assert cut(Pacer(config(mode)), FRESH[:2], (3,)) == Cut(2, 0.0, "none")
    assert cut(Pacer(config(mode)), FRESH[:2], None) == Cut(2, 0.0, "none")


def test_cut_looks_for_further_groups_until_the_broker_tells_what_is_in_flight() -> None:
    pacer = Pacer(config())
    assert cut(pacer, FRESH[:2], None) is None and not pacer.is_stalling
    assert cut(pacer, FRESH[:3], ()) == Cut(2, 0.0, "none")


@pytest.mark.parametrize(("in_flight", "waits"), [((4, 5), False), ((3, 5), True), ((2, 5), False), ((1,), False), ((), False)])
def test_cut_waits_only_for_what_is_exactly_at_the_brink(in_flight: tuple[int, ...], waits: bool) -> None:
    # Version 5, max_age 2: sampled by 3 it can train now and not in the next update; by 2 it is lost already.
    pacer = Pacer(config())
    assert (cut(pacer, FRESH[:2], in_flight) is None) == waits == pacer.is_stalling


def test_cut_straggler_arrives_everything_there_joins_and_the_wait_is_told() -> None:
    pacer = Pacer(config())
    assert cut(pacer, FRESH[:2], (3,), now=100.0) is None
    assert cut(pacer, FRESH[:2], (3,), now=103.0) is None
    late = [*FRESH[:2], group(2, 3)]
    assert cut(pacer, late, None, now=104.0) is None
    assert cut(pacer, late, (5,), now=104.0) == Cut(3, 4.0, "arrived")
    assert not pacer.is_stalling


def test_cut_budget_spent_updates_in_vain_and_does_not_wait_for_the_same_again() -> None:
    pacer = Pacer(config())
    assert cut(pacer, FRESH[:2], (3,), now=0.0) is None
    assert cut(pacer, FRESH[:2], (3,), now=9.9) is None
    assert cut(pacer, FRESH[:2], (3,), now=10.0) == Cut(2, 10.0, "budget")
    assert cut(pacer, FRESH[2:4], (3,), version=6, now=11.0) == Cut(2, 0.0, "none")


def test_cut_batch_is_full_stops_waiting() -> None:
    pacer = Pacer(config())
    assert cut(pacer, FRESH[:2], (3,), now=0.0) is None
    assert cut(pacer, FRESH[:4], None, now=2.0) == Cut(4, 2.0, "full")


def test_cut_phase_over_does_not_wait() -> None:
    assert cut(Pacer(config()), FRESH[:2], (3,), may_wait=False) == Cut(2, 0.0, "none")
    pacer = Pacer(config())
    assert cut(pacer, FRESH[:2], (3,), now=0.0) is None
    assert cut(pacer, FRESH[:2], (3,), now=1.0, may_wait=False) == Cut(2, 1.0, "phase")


def test_cut_complete_group_at_the_brink_joins_with_all_before_it_and_fresh_ones_after_it_do_not() -> None:
    groups = [FRESH[0], FRESH[1], FRESH[2], group(3, 5, 3)]
    assert cut(Pacer(config()), [*groups[:3]], ()) == Cut(2, 0.0, "none")
    assert cut(Pacer(config()), groups, ()) == Cut(4, 0.0, "none")
    assert cut(Pacer(config()), [FRESH[0], FRESH[1], group(2, 3), FRESH[3]], ()) == Cut(3, 0.0, "none")


def test_cut_more_groups_than_admission_allows_are_left_for_the_next_batch() -> None:
    assert cut(Pacer(config()), [*FRESH[:5], group(5, 3)], ()) == Cut(2, 0.0, "none")
    assert cut(Pacer(config()), [*FRESH[:3], group(3, 3), group(4, 3)], ()) == Cut(4, 0.0, "none")


def test_cut_max_age_0_waits_for_everything_of_the_present_version() -> None:
    pacer = Pacer(config(max_age=0))
    assert cut(pacer, FRESH[:2], (5,)) is None and pacer.is_stalling


def test_cut_after_a_restart_ages_are_counted_along_the_lineage() -> None:
    # 14 died; 15 has the weights of 10, so 17 is at 12: what 15 sampled is 2 old, and 14 (at 14) not old at all.
    lineage = Lineage().resumed(base=10, resumed_at=15)
    assert cut(Pacer(config()), FRESH[:2], (14, 15), version=17, lineage=lineage) is None
    assert cut(Pacer(config()), FRESH[:2], (14, 16), version=17, lineage=lineage) == Cut(2, 0.0, "none")
    assert cut(Pacer(config()), FRESH[:2], (10,), version=17, lineage=lineage) is None
    assert cut(Pacer(config()), [*FRESH[:2], group(2, 15)], (), version=17, lineage=lineage) == Cut(3, 0.0, "none")


@pytest.mark.parametrize("mode", ["mask", "pace"])
def test_cut_of_dynamic_sampling_waits_for_groups_that_teach_and_takes_those_between(mode: str) -> None:
    pacer = Pacer(config(mode), teaches=lambda group: group.group_seq % 2 == 1)
    assert cut(pacer, FRESH[:2], ()) is None
    assert cut(pacer, FRESH[:3], ()) is None
    assert cut(pacer, FRESH[:4], ()) == Cut(4, 0.0, "none")
    assert cut(pacer, FRESH[1:4], ()) == Cut(3, 0.0, "none")


@pytest.mark.parametrize("mode", ["mask", "pace"])
def test_cut_of_dynamic_sampling_trains_what_there_is_when_no_more_can_come(mode: str) -> None:
    pacer = Pacer(config(mode), teaches=lambda group: False)
    assert cut(pacer, FRESH[:3], ()) is None
    assert cut(pacer, FRESH[:4], ()) == Cut(4, 0.0, "none")
    assert cut(pacer, FRESH[:6], ()) == Cut(4, 0.0, "none")
