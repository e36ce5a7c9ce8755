"""Which family a group plays and with how many rollouts: shares kept, nothing forgotten, the same again after a restart."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from computerrl.broker.orders.curriculum import CURRICULA, RecentResults, group_size, max_steps, problem
from computerrl.broker.orders.task_source import Draw, TaskSource
from computerrl.common.config import CurriculumConfig
from computerrl.common.messages import CurriculumPlan, RolloutOrder
from tests.support.data.broker_data import order

WEIGHTS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)


def training(families: str, **plan: object) -> RolloutOrder:
    return order(families=tuple(families), curriculum=CurriculumPlan(**plan))  # type: ignore[arg-type]


def results(**outcomes: str) -> RecentResults:
    """Family -> `1` and `0`, oldest first."""
    return RecentResults(outcomes)


def drawn(source: TaskSource, num_groups: int) -> list[Draw]:
    draws = []
    for _ in range(num_groups):
        draws.append(source.next())
        source.take(draws[-1])
    return draws


def counts(draws: list[Draw]) -> Counter[str]:
    return Counter(draw.task.family for draw in draws)


def test_uniform_families_take_turns_and_seeds_count_up() -> None:
    draws = drawn(TaskSource(training("abc"), RecentResults()), 7)
    assert [f"{draw.task.family}{draw.task.seed - 100_000}" for draw in draws] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2"]


@given(weights=WEIGHTS)
@example(weights=[30.0, *[1.0] * 11])
def test_weighted_any_weights_stay_within_one_group_of_their_shares(weights: list[float]) -> None:
    named = dict(zip("abcdefghijkl", weights, strict=False))
    source = TaskSource(training("".join(named), name="weighted", family_weights=named), RecentResults())
    total, count = sum(map(Fraction, weights)), Counter[str]()
    for number in range(1, 80):
        count += counts(drawn(source, 1))
        for family, weight in named.items():
            assert abs(number * Fraction(weight) / total - count[family]) < 1


def test_weighted_family_of_weight_zero_is_never_played_and_unnamed_ones_have_weight_one() -> None:
    order_ = training("abc", name="weighted", family_weights={"a": 0.0, "b": 3.0})
    assert counts(drawn(TaskSource(order_, RecentResults()), 40)) == {"b": 30, "c": 10}


def test_weighted_seeds_count_up_per_family() -> None:
    draws = drawn(TaskSource(training("ab", name="weighted", family_weights={"a": 4.0}), RecentResults()), 10)
    assert [draw.task.seed - 100_000 for draw in draws if draw.task.family == "a"] == list(range(8))
    assert [draw.task.seed - 100_000 for draw in draws if draw.task.family == "b"] == [0, 1]


def test_band_solved_and_hopeless_families_get_their_floor_and_the_others_the_rest() -> None:
    known = results(a="1" * 20, b="0" * 20, c="10" * 10)
    source = TaskSource(training("abcd", name="success_band", floor=0.2), known)  # Of d nothing is known.
    assert counts(drawn(source, 400)) == {"a": 20, "b": 20, "c": 180, "d": 180}


def test_band_follows_weights_inside_and_outside() -> None:
    known = results(a="1" * 20, b="10" * 10, c="10" * 10)
    plan = {"name": "success_band", "floor": 0.5, "family_weights": {"a": 2.0, "b": 1.0, "c": 2.0}}
    # Half by weight 2:1:2, half by 1:2 between b and c.
    assert counts(drawn(TaskSource(training("abc", **plan), known), 300)) == {"a": 60, "b": 80, "c": 160}


def test_band_that_holds_no_family_goes_by_weights() -> None:
    source = TaskSource(training("ab", name="success_band"), results(a="1" * 20, b="0" * 20))
    assert counts(drawn(source, 10)) == {"a": 5, "b": 5}


@given(outcomes=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=150))
def test_band_whatever_succeeds_no_family_falls_below_its_floor(outcomes: list[tuple[str, bool]]) -> None:
    """Results change between choosing a group and drawing it, as they do when both arrive together."""
    known, count = RecentResults(), Counter[str]()
    source = TaskSource(training("abc", name="success_band", floor=0.3, num_recent=4, min_results=2), known)
    for number, (family, success) in enumerate(outcomes, 1):
        draw = source.next()
        known.add(family, success=success)
        source.take(draw)
        count[draw.task.family] += 1
        # A credit is above -2 groups, and all together are 0: none is above 4.
        assert all(count[name] > 0.1 * number - 4 for name in "abc")


def test_results_only_the_latest_count_and_few_say_nothing() -> None:
    plan = CurriculumPlan(num_recent=4, min_results=3)
    known = results(a="0000", b="01")
    for _ in range(3):
        known.add("a", success=True)
    assert known.success_rate("a", plan) == 0.75
    assert known.success_rate("b", plan) is None and known.success_rate("c", plan) is None
    assert RecentResults(**known.snapshot()).success_rate("a", plan) == 0.75


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [
        ("1" * 9, 4),
        ("11110" * 2, 4),
        ("1110" * 2, 5),
        ("11100" * 2, 8),
        ("10" * 4, 11),
        ("1000" * 2, 16),
        ("0" * 8, 16),
        ("1" * 7, 8),
    ],
)
def test_group_size_follows_the_rule_within_its_limits(outcomes: str, size: int) -> None:
    adaptive = replace(training("a", min_group_size=4, max_group_size=16), group_size=8)
    assert group_size(adaptive, "a", results(a=outcomes)) == size


def test_group_size_without_a_maximum_only_shrinks_as_in_dart() -> None:
    adaptive = replace(training("a", min_group_size=4), group_size=8)
    assert [group_size(adaptive, "a", results(a=outcomes)) for outcomes in ("0" * 20, "11100" * 4, "1110" * 5)] == [8, 8, 5]


def test_group_size_without_limits_is_the_orders() -> None:
    assert group_size(training("a"), "a", results(a="1" * 20)) == 2


@pytest.mark.parametrize("name", list(CURRICULA))
def test_source_restored_goes_on_with_the_same_groups(name: str) -> None:
    known, plan = results(a="1" * 20, b="10" * 10), training("abc", name=name, family_weights={"b": 1.5})
    source = TaskSource(plan, known)
    drawn(source, 23)
    other = TaskSource(plan, RecentResults(**known.snapshot()))
    other.restore(source.snapshot())
    assert other.num_drawn == 23
    assert drawn(other, 40) == drawn(source, 40)


def test_source_ahead_is_what_will_be_drawn_and_draws_nothing() -> None:
    source = TaskSource(training("abc", name="weighted", family_weights={"b": 2.5}), RecentResults())
    drawn(source, 5)
    ahead = [source.ahead(number) for number in range(5, 30)]
    assert source.num_drawn == 5
    assert ahead[:10] == drawn(source, 10)
    assert [source.ahead(number) for number in (29, 15, 22)] == [ahead[24], ahead[10], ahead[17]]
    assert ahead[10:] == drawn(source, 15) and source.ahead(31) == drawn(source, 2)[1]


def test_registry_has_the_names_of_the_configuration() -> None:
    assert set(get_args(CurriculumConfig.model_fields["name"].annotation)) == set(CURRICULA)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"curriculum": CurriculumPlan("random")}, "'random'"),
        ({"curriculum": CurriculumPlan("weighted"), "kind": "evaluation"}, "without end"),
        ({"curriculum": CurriculumPlan("weighted"), "num_per_family": 3}, "without end"),
        ({"curriculum": CurriculumPlan("weighted", {"x": 1.0})}, "does not play: x"),
        ({"curriculum": CurriculumPlan("weighted", {"a": -1.0})}, "below 0"),
        ({"curriculum": CurriculumPlan("weighted", {"a": float("inf")})}, "below 0"),
        ({"curriculum": CurriculumPlan("weighted", {"a": 0.0, "b": 0.0})}, "weight 0"),
        ({"curriculum": CurriculumPlan("success_band", band_low=0.9, band_high=0.1)}, "band"),
        ({"curriculum": CurriculumPlan("success_band", floor=0.0)}, "floor"),
        ({"curriculum": CurriculumPlan(num_recent=4, min_results=5)}, "5 must be there"),
        ({"curriculum": CurriculumPlan(num_recent=10**6)}, "1000000 results"),
        ({"curriculum": CurriculumPlan(max_group_size=1)}, "groups of 2 to 1"),
        ({"curriculum": CurriculumPlan(max_group_size=10**9)}, "at most 64"),
    ],
)
def test_problem_impossible_curriculum_is_named(changes: dict[str, object], word: str) -> None:
    assert word in problem(order(**{"families": ("a", "b"), **changes}), max_group_size=64)


def test_problem_every_curriculum_is_fine_by_itself() -> None:
    assert [problem(order(curriculum=CurriculumPlan(name)), max_group_size=64) for name in CURRICULA] == [""] * len(CURRICULA)


def test_cool_down_families_that_only_fail_rest_and_one_success_brings_them_back() -> None:
    plan = training("abcd", name="cool_down")
    size = plan.group_size
    known = results(a="1" + "0" * size, b="0" * (2 * size), c="0" * (5 * size), d="10" * size)
    shares = CURRICULA["cool_down"].shares(plan, known)
    # One failed group changes nothing, two leave exp(-2), five the millionth.
    assert shares["a"] == pytest.approx(shares["d"], rel=1e-4) and shares["c"] == 1
    assert shares["b"] / shares["a"] == pytest.approx(math.exp(-2), rel=1e-4)
    assert sum(shares.values()) == 1_000_000
    draws = counts(drawn(TaskSource(plan, known), 300))
    assert draws["c"] == 0 and draws["a"] + draws["d"] > 270
    known.add("c", success=True)
    again = CURRICULA["cool_down"].shares(plan, known)
    assert again["c"] == pytest.approx(again["a"], rel=1e-4)
    hopeless = results(a="0" * 5 * size, b="0" * 9 * size, c="0" * 5 * size, d="0" * 6 * size)
    assert len(set(CURRICULA["cool_down"].shares(plan, hopeless).values())) <= 2, "when all are hopeless, all are played"


@pytest.mark.parametrize(("number", "expected"), [(0, 6), (3, 6), (4, 2), (9, 2), (10, 5)])
def test_horizon_rises_with_the_groups(number: int, expected: int) -> None:
    plan = replace(training("a", horizon=((4, 2), (10, 5))), max_steps=6)
    assert max_steps(plan, number, "a", RecentResults()) == expected


def test_length_cap_is_the_longest_success_of_the_family_also_after_a_restart() -> None:
    plan, known = replace(training("ab", length_cap=True, min_results=3), max_steps=9), RecentResults()
    assert max_steps(plan, 0, "a", known) == 9
    known.add_success("a", num_steps=5)  # A demonstration.
    for success in (True, False, True):
        assert max_steps(plan, 0, "a", known) == 9, "not before there are enough results"
        known.add("a", success=success)
    known.add_success("a", num_steps=3)
    for found in (known, RecentResults(**known.snapshot())):
        assert [max_steps(plan, 0, family, found) for family in "ab"] == [5, 9]
    assert max_steps(replace(plan, max_steps=4), 0, "a", known) == 4
    assert max_steps(replace(plan, curriculum=CurriculumPlan()), 0, "a", known) == 9


@pytest.mark.parametrize("horizon", [((4, 2), (4, 3)), ((5, 2), (4, 3)), ((0, 0),), ((0, 7),)])
def test_horizon_that_does_not_rise_or_asks_for_more_steps_than_there_are_is_refused(horizon: object) -> None:
    assert "horizon" in problem(replace(training("a", horizon=horizon), max_steps=6), max_group_size=64)
