"""The sentence at the head of a report: what it claims, and that it claims nothing that the figures do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.launch.report.headline import difference_interval, headline
from computerrl.launch.report.report_data import success_of

Counts = tuple[int, int]


def evaluated(split: str = "evaluation", **families: Counts) -> dict[str, Any]:
    counts = {name: {"successes": successes, "episodes": episodes} for name, (successes, episodes) in families.items()}
    return success_of({"families": counts, "split": split})


def run(**fields: Any) -> dict[str, Any]:
    nothing = {"success_before": None, "success_after_bc": None, "success_after_rl": None}
    return {**nothing, "num_updates": 9, "demonstrations": {}, **fields}


LOW, MIDDLE, HIGH = (0, 20), (5, 20), (20, 20)
CASES = {
    "nothing evaluated": (run(), "No evaluation was completed, so success on held-out tasks is not known."),
    "an evaluation without episodes": (
        run(success_before=evaluated(a=(0, 0))),
        "No evaluation was completed, so success on held-out tasks is not known.",
    ),
    "one evaluation": (
        run(success_before=evaluated(a=MIDDLE, b=LOW)),
        "Success before training: 5 of 40 episodes; there is no second evaluation to compare it with.",
    ),
    "cloning without RL": (
        run(success_before=evaluated(a=LOW, b=LOW), success_after_bc=evaluated(a=HIGH, b=(1, 20)), num_updates=0),
        "Cloning lifted 1 of 2 families; b went from 0 of 20 to 1 of 20, which chance may explain.",
    ),
    "RL after cloning": (
        run(
            success_before=evaluated(a=LOW, b=LOW, c=LOW),
            success_after_bc=evaluated(a=MIDDLE, b=MIDDLE, c=MIDDLE),
            success_after_rl=evaluated(a=HIGH, b=HIGH, c=MIDDLE),
            demonstrations={"scripted": {}},
        ),
        "RL lifted 2 of 3 families; c is still at 5 of 20.",
    ),
    "cloning and RL with no evaluation between": (
        run(success_before=evaluated(a=LOW, b=LOW), success_after_rl=evaluated(a=HIGH, b=HIGH), demonstrations={"scripted": {}}),
        "Training lifted both families.",
    ),
    "RL alone": (
        run(success_before=evaluated(a=LOW), success_after_rl=evaluated(a=HIGH)),
        "RL lifted a (20 of 20).",
    ),
    "all of three": (
        run(success_before=evaluated(a=LOW, b=LOW, c=LOW), success_after_rl=evaluated(a=HIGH, b=HIGH, c=HIGH)),
        "RL lifted all 3 families.",
    ),
    "one up, one down": (
        run(success_before=evaluated(a=LOW, b=HIGH), success_after_rl=evaluated(a=HIGH, b=MIDDLE)),
        "RL lifted 1 of 2 families and lowered b (5 of 20).",
    ),
    "no change but chance": (
        run(success_before=evaluated(a=(9, 20), b=MIDDLE), success_after_rl=evaluated(a=(11, 20), b=(4, 20))),
        "RL changed no family beyond its 95 % interval: 14 of 40 episodes before, 15 of 40 after.",
    ),
    "a family that was solved before": (
        run(success_before=evaluated(a=LOW, b=HIGH), success_after_rl=evaluated(a=HIGH, b=HIGH)),
        "RL lifted 1 of 2 families.",
    ),
    "other tasks": (
        run(success_before=evaluated(a=LOW), success_after_rl=evaluated("tuning", a=HIGH)),
        "Success after RL: 20 of 20 episodes; the evaluation before it was of other tasks.",
    ),
    "other families": (
        run(success_before=evaluated(a=LOW), success_after_rl=evaluated(b=HIGH)),
        "Success after RL: 20 of 20 episodes; no family was evaluated twice.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_headline_is_what_the_figures_hold(case: str) -> None:
    report, expected = CASES[case]
    assert headline(report) == expected


@pytest.mark.parametrize(
    ("before", "after", "low", "high"),
    [((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090), ((0, 10), (10, 10), 0.6075, 1.0)],
)
def test_difference_interval_is_the_published_one(before: Counts, after: Counts, low: float, high: float) -> None:
    """Table II of Newcombe (1998), method 10."""
    assert difference_interval(before, after) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("num", [1, 4, 20])
def test_difference_interval_turns_its_sign_with_the_order(num: int) -> None:
    for successes in range(num + 1):
        for later in range(num + 1):
            low, high = difference_interval((successes, num), (later, num))
            back_low, back_high = difference_interval((later, num), (successes, num))
            assert (low, high) == pytest.approx((-back_high, -back_low))
            assert -1.0 <= low <= (later - successes) / num <= high <= 1.0
