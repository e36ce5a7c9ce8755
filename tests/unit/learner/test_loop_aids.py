"""Demonstrations in RL: which are asked for, which updates imitate, and that a resumed run asks for no more."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.messages import RolloutOrder
from computerrl.common.metrics import read_json_lines
from computerrl.learner.conductor import LearnerLoop
from computerrl.learner.recipe.state import LoopState
from tests.support.loop_fakes import FAMILIES, Bench, make_config

CLICK, TYPE = FAMILIES


def started(bench: Bench) -> tuple[LearnerLoop, list[Any], list[int]]:
    """(loop, batches of its updates, ids of the steps that cloning trained on)."""
    loop = bench.start()
    batches: list[Any] = []
    cloned: list[int] = []
    update, sft_step = bench.trainer.update, bench.trainer.sft_step
    bench.trainer.update = lambda batch: batches.append(batch) or update(batch)  # type: ignore[method-assign,func-returns-value]
    bench.trainer.sft_step = lambda steps, lr: cloned.extend(map(id, steps)) or sft_step(steps, lr)  # type: ignore[method-assign,func-returns-value]
    return loop, batches, cloned


def aids(bench: Bench) -> list[RolloutOrder]:
    return [order for order in bench.broker.orders.values() if order.order_id.startswith("aid-")]


def ledger(bench: Bench) -> list[dict[str, Any]]:
    return read_json_lines(bench.folder.folder / "ledger.jsonl")


def fails_in(*families: str, num_solved: int = 0) -> Callable[[RolloutOrder, int, int], bool]:
    """Outcomes by family; of other families all rollouts succeed."""
    return lambda order, number, index: order.families[number % len(order.families)] not in families or index < num_solved


def family_of_steps(pool: Any) -> dict[int, str]:
    episodes = pool.draw(per_task=99, max_steps=None, salt="")
    return {id(step): episode.family for episode in episodes for step in episode.steps}


@pytest.mark.parametrize("failing", [(), (CLICK,), FAMILIES])
@pytest.mark.parametrize("num_solved", [0, 1])
def test_updates_imitate_what_was_cloned_of_families_that_mostly_fail(
    failing: tuple[str, ...], num_solved: int, tmp_path: Path
) -> None:
    replay = {"demo_replay_steps": 8, "demo_replay_weight": 0.3}
    bench = Bench(tmp_path, make_config(recipe=replay, entropulse={"enabled": False}))
    bench.broker.success = fails_in(*failing, num_solved=num_solved)
    loop, batches, cloned = started(bench)
    bench.run(loop)
    assert not aids(bench) and len(batches) == 6
    family_of = family_of_steps(loop.pools.demonstrations)
    assert set(family_of) == set(cloned)
    for batch in batches:
        assert {family_of[id(step)] for step in batch.demonstrated} == set(failing)
        assert len(batch.demonstrated) <= 8 and batch.demonstration_weight == 0.3
    if failing:
        first = [id(step) for step in batches[0].demonstrated]
        assert any([id(step) for step in batch.demonstrated] != first for batch in batches)


@pytest.mark.parametrize(("below", "num_solved", "expected"), [(0.5, 1, True), (0.5, 2, False), (0.51, 2, True), (1.0, 4, False)])
def test_families_that_are_not_in_a_batch_are_imitated_as_their_latest_rollouts_failed(
    below: float, num_solved: int, expected: bool, tmp_path: Path
) -> None:
    replay = {"demo_replay_steps": 8, "demo_replay_below": below}
    # Batches of one group: each holds one family, in turn.
    bench = Bench(tmp_path, make_config(recipe=replay, entropulse={"enabled": False}, groups_per_batch=1))
    bench.broker.success = fails_in(CLICK, num_solved=num_solved)
    loop, batches, _ = started(bench)
    bench.run(loop)
    family_of = family_of_steps(loop.pools.demonstrations)
    imitated = [{family_of[id(step)] for step in batch.demonstrated} for batch in batches]
    assert imitated == [{CLICK} if expected else set()] * 6
    assert loop.state.latest_success == {CLICK: num_solved / 4, TYPE: 1.0}
    assert LoopState.from_json(loop.state.to_json()) == loop.state


@pytest.mark.parametrize(("worse", "better"), [(CLICK, TYPE), (TYPE, CLICK)])
def test_families_that_fail_most_are_imitated_first_when_the_steps_are_not_enough_for_all(
    worse: str, better: str, tmp_path: Path
) -> None:
    # One episode of two steps.
    bench = Bench(tmp_path, make_config(recipe={"demo_replay_steps": 2}, entropulse={"enabled": False}))
    bench.broker.success = lambda order, number, index: (
        index < (0 if order.families[number % len(order.families)] == worse else 1)
    )
    loop, batches, _ = started(bench)
    bench.run(loop)
    family_of = family_of_steps(loop.pools.demonstrations)
    assert loop.state.latest_success == {worse: 0.0, better: 0.25}
    assert [{family_of[id(step)] for step in batch.demonstrated} for batch in batches] == [{worse}] * 6


@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize(("failing", "num_solved"), [((CLICK,), 0), (FAMILIES, 0), (FAMILIES, 1), ((), 0)])
def test_instances_on_which_a_whole_group_failed_are_demonstrated_until_the_limit(
    failing: tuple[str, ...], num_solved: int, limit: int, tmp_path: Path
) -> None:
    recipe = {"demo_replay_steps": 8, "demos_of_failures": limit}
    bench = Bench(tmp_path, make_config(recipe=recipe, entropulse={"enabled": False}))
    bench.broker.success = fails_in(*failing, num_solved=num_solved)
    loop, batches, cloned = started(bench)
    bench.run(loop)
    assert len(batches) == 6
    trained = [group for group in bench.broker.groups if group.order_id == "rl-1"][:12]
    hopeless = [group.task for group in trained if not any(one.success for one in group.trajectories)]
    assert [(order.families[0], order.first_seed, order.split) for order in aids(bench)] == [
        (task.family, task.seed, "training") for task in hopeless[:limit]
    ]
    assert {order.order_id for order in aids(bench)} <= bench.broker.closed
    family_of = family_of_steps(loop.pools.aids)
    assert not set(cloned) & set(family_of)
    imitated = [{family_of[id(step)] for step in batch.demonstrated} for batch in batches]
    # The first update asks, the second has the answer.
    assert imitated == [set()] + [{order.families[0] for order in aids(bench)[:2]} if hopeless else set()] * 5
    outcomes = Counter(line["outcome"] for line in ledger(bench) if line["trajectory_id"].startswith("aid-"))
    # What the last update asked for comes when RL is over.
    assert outcomes["demonstrated"] >= min(limit, len(hopeless) - 2) and sum(outcomes.values()) <= len(aids(bench))


@pytest.mark.parametrize("seed", range(8))
def test_learner_killed_at_random_points_asks_for_no_more_and_decides_each_once(seed: int, tmp_path: Path) -> None:
    recipe = {"demo_replay_steps": 8, "demos_of_failures": 5, "max_updates": 8}
    bench = Bench(tmp_path, make_config(recipe=recipe, entropulse={"enabled": False}))
    bench.broker.success = fails_in(CLICK)
    bench.kill_often(random.Random(seed), most_ticks=50)
    loop = bench.run(bench.start())
    asked = [order.order_id for order in aids(bench)]
    assert len(asked) == 5 and loop.state.aids == asked and set(asked) <= bench.broker.closed
    assert loop.pools.aids.num_episodes == 5
    outcomes = {line["trajectory_id"]: line["outcome"] for line in ledger(bench)}
    assert len(outcomes) == len(ledger(bench)) and [outcomes[f"{order_id}/0/0"] for order_id in asked] == ["demonstrated"] * 5
