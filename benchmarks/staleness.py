"""Staleness modes: heavy-tailed simulated episodes through the real broker, pacing, masking and ledger; what each mode loses.

The three modes play the same law of lengths from the same seed (`_straggling.py` has the numbers). Times are simulated, so every
figure is the same on every machine. The peer of `admit` and `pace` is `mask`.
"""

from __future__ import annotations

from typing import Any

from computerrl.benchmarks._straggling import MAX_AGE, Outcome, simulate

_NUM_TRAJECTORIES, _NUM_QUICK = 340_000, 34_000
"""In each mode; a million in all."""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    num_trajectories = _NUM_QUICK if quick else _NUM_TRAJECTORIES
    runs = {mode: simulate(mode, num_trajectories=num_trajectories) for mode in ("admit", "mask", "pace")}
    return [row for mode, outcome in runs.items() for row in _rows(mode, outcome, mask=runs["mask"])]


def _rows(mode: str, outcome: Outcome, *, mask: Outcome) -> list[dict[str, Any]]:
    bound = 0 if mode != "admit" else None
    beyond = sum(number for age, number in outcome.ages.items() if age > MAX_AGE)
    rows = [
        _row(f"{mode}: steps trained beyond age {MAX_AGE}", beyond, "steps", "lower", target=bound),
        _row(f"{mode}: oldest step trained", max(outcome.ages), "versions", "lower"),
        _row(f"{mode}: mean age trained", _mean_age(outcome), "versions", "lower"),
    ]
    compared = (
        ("steps lost", _share_lost, "share", "lower"),
        ("length bias (KS)", lambda one: one.waste["within_bound"]["length_ks"], "0..1", "lower"),
        ("family bias (TV)", lambda one: one.waste["within_bound"]["family_tv"], "0..1", "lower"),
        ("mean length trained, by submitted", _length_ratio, "ratio", "higher"),
        ("trajectories per simulated hour", _per_hour, "1/h", "higher"),
    )
    for name, figure, unit, better in compared:
        row = _row(f"{mode}: {name}", figure(outcome), unit, better)
        rows.append(row if mode == "mask" else {**row, "peer": "mask", "peer_value": figure(mask)})
    if mode == "pace":
        rows.append(_row("pace: time spent waiting", outcome.stall_s / outcome.run_s, "share", "lower"))
        rows.append(_row("pace: largest batch, by groups_per_batch", _growth(outcome), "ratio", "lower"))
    return rows


def _mean_age(outcome: Outcome) -> float:
    return sum(age * number for age, number in outcome.ages.items()) / outcome.ages.total()


def _share_lost(outcome: Outcome) -> float:
    return sum(amount["steps"] for amount in outcome.waste["lost"].values()) / outcome.waste["submitted"]["steps"]


def _length_ratio(outcome: Outcome) -> float:
    return outcome.waste["trained"]["mean_length"] / outcome.waste["submitted"]["mean_length"]


def _per_hour(outcome: Outcome) -> float:
    return outcome.waste["submitted"]["trajectories"] / outcome.run_s * 3600


def _growth(outcome: Outcome) -> float:
    return max(outcome.batch_sizes) / min(outcome.batch_sizes)


def _row(name: str, value: float, unit: str, better: str, *, target: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": better, "target": target}


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
