"""What was lost, and what that does to lengths and families: against numbers worked out by hand."""

from __future__ import annotations

import json

import pytest

from computerrl.learner.accounts.waste import Waste, bias, family_tv, length_ks, mean_length


def example() -> Waste:
    """Four trajectories a of 2 steps, four b of 6; one a is too old, one b loses 3 of its 6 steps, one b had no signal."""
    waste = Waste()
    for family, length in [("a", 2)] * 4 + [("b", 6)] * 4:
        waste.take(family=family, length=length, num_tokens=10 * length)
    waste.lose("too_old", family="a", length=2, num_steps=2, num_tokens=20)
    waste.lose("masked", family="b", length=6, num_steps=3, num_tokens=25)
    waste.lose("no_signal", family="b", length=6, num_steps=6, num_tokens=60)
    return waste


def test_waste_counts_by_reason_in_trajectories_steps_and_tokens() -> None:
    figures = example().figures()
    counts = {
        name: (one["trajectories"], one["steps"], one["action_tokens"], one["mean_length"])
        for name, one in {"submitted": figures["submitted"], "trained": figures["trained"], **figures["lost"]}.items()
    }
    assert counts == {
        "submitted": (8, 32, 320, 4.0),
        "trained": (6, 21, 215, pytest.approx(21 / 5.5)),
        "too_old": (1, 2, 20, 2.0),
        "masked": (1, 3, 25, 6.0),
        "no_signal": (1, 6, 60, 6.0),
    }
    assert figures["lengths"] == [[2, 4.0, 3.0], [6, 4.0, 2.5]]


def test_waste_bias_tells_the_bound_from_everything() -> None:
    figures = example().figures()
    # Submitted: half of each. Within the bound: 3 a, 3.5 b. Trained: 3 a, 2.5 b.
    assert figures["within_bound"]["length_ks"] == pytest.approx(1 / 2 - 3 / 6.5)
    assert figures["within_bound"]["mean_length"] == pytest.approx(27 / 6.5)
    assert figures["trained"]["length_ks"] == pytest.approx(3 / 5.5 - 1 / 2)
    assert figures["trained"]["family_tv"] == pytest.approx(3 / 5.5 - 1 / 2)
    assert figures["lost"]["too_old"]["length_ks"] == pytest.approx(1 / 2 - 3 / 7)
    assert figures["lost"]["no_signal"]["family_tv"] == pytest.approx(4 / 7 - 1 / 2)


def test_length_ks_is_the_largest_gap_of_the_cumulative_shares() -> None:
    before = {("a", 1): 1, ("a", 2): 2, ("a", 4): 4, ("b", 10): 10}  # One trajectory of each length.
    after = {("a", 1): 1, ("a", 2): 2}
    # Cumulative: 1/4, 2/4, 3/4, 1 against 1/2, 1, 1, 1.
    assert length_ks(before, after) == pytest.approx(0.5)
    assert family_tv(before, after) == pytest.approx(0.25)
    assert length_ks(before, before) == family_tv(before, before) == 0.0


def test_mean_length_weighs_a_half_lost_trajectory_by_half() -> None:
    assert mean_length({("a", 2): 2, ("a", 4): 2}) == pytest.approx(4 / 1.5)


def test_waste_of_nothing_has_no_distances() -> None:
    assert bias({}, {}) == {"length_ks": None, "family_tv": None}
    figures = Waste().figures()
    assert figures["trained"]["mean_length"] is None and figures["trained"]["length_ks"] is None
    assert figures["lost"] == {} and figures["lengths"] == []


def test_waste_everything_lost_has_no_distance() -> None:
    waste = Waste()
    waste.take(family="a", length=3, num_tokens=3)
    waste.lose("too_old", family="a", length=3, num_steps=3, num_tokens=3)
    assert waste.figures()["trained"]["length_ks"] is None
    assert waste.figures()["trained"]["trajectories"] == 0


def test_waste_trajectory_without_steps_counts_and_weighs_nothing() -> None:
    waste = example()
    waste.take(family="a", length=0, num_tokens=0)
    waste.lose("no_signal", family="a", length=0, num_steps=0, num_tokens=0)
    figures, plain = waste.figures(), example().figures()
    assert (figures["submitted"]["trajectories"], figures["lost"]["no_signal"]["trajectories"]) == (9, 2)
    assert figures["trained"] == plain["trained"] and figures["lengths"] == plain["lengths"]


def test_waste_survives_a_checkpoint() -> None:
    again = Waste.restore(json.loads(json.dumps(example().state())))
    assert again.figures() == example().figures()
    again.take(family="a", length=2, num_tokens=1)
    assert again.figures()["submitted"]["trajectories"] == 9


def test_waste_memory_is_bounded_by_families_and_lengths() -> None:
    waste = Waste()
    for number in range(10_000):
        waste.take(family="ab"[number % 2], length=1 + number % 5, num_tokens=1)
    assert len(waste.state()["submitted"]["steps"]) == 10
