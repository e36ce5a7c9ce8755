"""`grounding`: advantages of outcome and of where actions point, against a slow formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import ElementTarget, Step, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges, WantsTargets, make_algorithm
from computerrl.learner.algorithms.grounding import Grounding
from tests.support.data.trainer_data import make_group, make_step

BOX = ElementTarget(100, 100, 40, 20, 800, 600, is_same_kind=True)


def make(**options: Any) -> Grounding:
    algorithm = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name="grounding", options=options)))
    assert isinstance(algorithm, Grounding)
    return algorithm


def pointing(x: int, *, first: int, target: ElementTarget | None = BOX) -> Step:
    return replace(make_step([1, first], [first, 3]), places=(x, 100), target=target)


def standard(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / (deviation + 1e-4) for value in values]


def mixed_group() -> TrajectoryGroup:
    """Four episodes: one succeeds; two have a second step, whose target is not known."""
    typing = [replace(make_step([1, 20 + i], [9, 3])) for i in range(2)]
    first = [pointing(x, first=5 + i) for i, x in enumerate((100, 119, 125, 700))]
    return make_group([(True, [first[0], typing[0]]), (False, [first[1], typing[1]]), (False, [first[2]]), (False, [first[3]])])


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0)])
def test_grounding_adds_advantages_of_outcome_and_of_steps_with_a_target(weights: tuple[float, float]) -> None:
    of_outcome, of_place = weights
    algorithm = make(reward="gaussian", outcome_weight=of_outcome, grounding_weight=of_place)
    batch = algorithm.prepare([mixed_group()], ages=PolicyAges(0))
    outcome = standard([1, 1, 0, 0, 0, 0])  # Steps of the four episodes, in order.
    place = standard([math.exp(-((x - 100) ** 2) / (2 * 20**2)) for x in (100, 119, 125, 700)])
    expected = [of_outcome * a for a in outcome]
    for row, value in zip((0, 2, 4, 5), place, strict=True):
        expected[row] += of_place * value
    np.testing.assert_allclose(batch.advantage_S, [a for a in expected if a], rtol=1e-5)
    assert batch.metrics["target_known"] == pytest.approx(4 / 6)


def test_grounding_orders_misses_where_all_episodes_fail() -> None:
    group = make_group([(False, [pointing(x, first=5 + i)]) for i, x in enumerate((125, 200, 700))])
    assert make(reward="point_in_box").prepare([group], ages=PolicyAges(0)).advantage_S.tolist() == []
    near, farther, far = make(reward="distance").prepare([group], ages=PolicyAges(0)).advantage_S
    assert near > farther > 0 > far
    assert make(reward="distance", grounding_weight=0).prepare([group], ages=PolicyAges(0)).advantage_S.tolist() == []


def test_grounding_without_any_target_is_grpo() -> None:
    group = make_group([(i == 0, [make_step([1, 2], [5 + i, 3])]) for i in range(4)])
    batch = make(reward="gaussian").prepare([group], ages=PolicyAges(0))
    np.testing.assert_allclose(batch.advantage_S, standard([1, 0, 0, 0]), rtol=1e-5)
    assert batch.metrics["target_known"] == 0 and batch.metrics["grounding_reward"] == 0


def test_grounding_asks_for_targets_unless_they_are_worth_nothing_and_refuses_unknown_rewards() -> None:
    asking, plain = make(), make(grounding_weight=0.0)
    assert isinstance(asking, WantsTargets) and asking.wants_targets and not plain.wants_targets
    with pytest.raises(ConfigError, match=r"learner\.algorithm\.options\.reward.*no grounding reward 'gausian'"):
        make(reward="gausian")
