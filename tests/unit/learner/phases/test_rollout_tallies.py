"""Results of demonstration orders: successes by family, and what the prompt's format could not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace

from computerrl.common.config import RunConfig
from computerrl.common.messages import EndReason, TaskRef, TrajectoryGroup
from computerrl.learner.accounts.books import Books
from computerrl.learner.phases.rollouts import RolloutTallies
from computerrl.learner.recipe import orders
from computerrl.learner.recipe.recipe import OrderPlan, Phase
from computerrl.learner.recipe.state import LoopState
from computerrl.learner.supervised.pool import EpisodePool
from tests.support.data.trainer_data import make_group, make_step

FAMILIES = ("calc-total", "web-click-button")


@dataclass
class _Records:
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))


@dataclass
class _Books:
    state: LoopState
    records: _Records


def group(number: int, family: str, end_reason: EndReason) -> TrajectoryGroup:
    made = make_group([(end_reason == "done_action", [make_step([5], [6])])], group_seq=number)
    task = TaskRef(family, number, "demonstration")
    shown = {"kind": "demonstration", "order_id": "demos", "task": task}
    trajectories = tuple(replace(one, end_reason=end_reason, **shown) for one in made.trajectories)
    return replace(made, trajectories=trajectories, **shown)


def test_demonstrations_off_the_format_are_counted_by_family() -> None:
    plan = OrderPlan("demos", "demonstration", 2, 1, 0, 1.0)
    books = _Books(LoopState(), _Records())
    orders.enter(books.state, [plan.to_message(RunConfig(), FAMILIES, policy_version=0)], close_present=False)
    pool = EpisodePool(seed=0, max_per_family=10)
    tallies = RolloutTallies(
        Phase("demonstrations", "rollouts", (plan,)), cast(Books, books), families=FAMILIES, demonstrations=pool
    )
    ends: list[tuple[str, EndReason]] = [
        ("calc-total", "off_demonstration"),
        ("web-click-button", "done_action"),
        ("calc-total", "off_demonstration"),
        ("web-click-button", "done_action"),
    ]
    for number, (family, end_reason) in enumerate(ends):
        assert books.records.events == []
        assert tallies.add(group(number, family, end_reason)) == "demonstrated"
    ((name, fields),) = books.records.events
    assert (name, fields["phase"], fields["success"]) == ("demonstrations", "demos", 0.5)
    assert fields["families"]["calc-total"] == {"successes": 0, "episodes": 2}
    assert fields["off_demonstration"] == {"calc-total": 2}
    assert pool.num_episodes == 2
    again = LoopState.from_json(books.state.to_json())
    assert again.tallies["demos"].off_demonstration == {"calc-total": 2}
