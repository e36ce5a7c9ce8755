"""pass@k and its intervals, against counting and published figures."""

from __future__ import annotations

import itertools

import pytest

from computerrl.launch.report.evaluation_figures import evaluation_figures, ks, pass_at_k, wilson_interval


@pytest.mark.parametrize(("num_rollouts", "num_successes"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (8, 3)])
def test_pass_at_k_is_the_share_of_choices_with_a_success(num_rollouts: int, num_successes: int) -> None:
    outcomes = [True] * num_successes + [False] * (num_rollouts - num_successes)
    for k in range(1, num_rollouts + 1):
        chosen = list(itertools.combinations(outcomes, k))
        assert pass_at_k(num_rollouts, num_successes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


@pytest.mark.parametrize(("num_rollouts", "num_successes", "k"), [(2, 1, 3), (2, 3, 1), (2, 1, 0), (2, -1, 1)])
def test_pass_at_k_of_what_cannot_be_is_an_error(num_rollouts: int, num_successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="rollouts"):
        pass_at_k(num_rollouts, num_successes, k)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, table I, Wilson without continuity correction.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_gives_published_figures(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes / trials, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_of_nothing_says_nothing() -> None:
    assert wilson_interval(0.0, 0) == (0.0, 1.0)
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1.0)


def test_ks_are_powers_of_two_and_the_number_itself() -> None:
    assert [ks(number) for number in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_evaluation_figures_of_families_and_all() -> None:
    results = {("a", 1): (2, 2), ("a", 2): (2, 1), ("b", 1): (2, 0), ("b", 2): (1, 1)}
    found = evaluation_figures(results, rollouts_per_task=2)
    assert list(found["families"]) == ["a", "b"]
    assert found["all"]["num_tasks"] == 4 and found["all"]["num_rollouts"] == 7 and found["all"]["num_successes"] == 4
    assert found["all"]["pass@1"]["mean"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    # One task lost a rollout: nobody knows its pass@2.
    assert found["all"]["pass@2"] == {
        "mean": pytest.approx(2 / 3),
        "num_tasks": 3,
        **dict(zip(("low", "high"), wilson_interval(2 / 3, 3), strict=True)),
    }
    assert found["families"]["b"]["pass@2"]["mean"] == 0.0


def test_evaluation_figures_of_nothing_played_have_no_mean() -> None:
    found = evaluation_figures({}, rollouts_per_task=1)
    assert found["families"] == {}
    assert found["all"]["pass@1"] == {"mean": None, "low": 0.0, "high": 1.0, "num_tasks": 0}
