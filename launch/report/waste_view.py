"""What was not trained, as the report shows it: rows of a table and a chart. Pure.

Shows what `learner.accounts.waste` counted; computes nothing of its own but shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.launch.report.charts import Chart, Figure, Point, Series, figure

Waste = Mapping[str, Any]
"""`waste` of an update or summary record (docs/reference/metrics.md)."""

_TITLES = {
    "submitted": "submitted",
    "too_old": "too old: every step was",
    "masked": "masked: some steps were too old",
    "within_bound": "= what the age bound alone leaves",
    "phase_closed": "phase closed",
    "no_signal": "no signal: as good as the rest of its group",
    "not_chosen": "not chosen by the algorithm",
    "too_sure": "too sure to be trained (the algorithm's choice)",
    "skipped": "skipped: gradients that were not finite",
    "wrong_length": "poisoned: lengths differ",
    "not_finite": "poisoned: log-probs that are no numbers",
    "impossible_logprob": "poisoned: a log-prob that no sampled token has",
    "outside_vocabulary": "poisoned: tokens outside the vocabulary",
    "future_version": "poisoned: a policy version that was never published",
    "picture_missing": "poisoned: no readable screenshot",
    "picture_mismatch": "poisoned: not the picture of the prompt",
    "trained": "= trained",
}
_UNDELIVERED = {"order_closed": "order closed (at the broker)"}
"""Drops that the broker counts without lengths -> title."""


def waste_rows(waste: Waste, drops: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of the report's table, the whole first and what was trained last; empty when nothing was taken."""
    if not waste.get("submitted", {}).get("trajectories"):
        return []
    amounts = {**waste["lost"], **{name: waste[name] for name in ("submitted", "within_bound", "trained")}}
    rows = [{"title": title, **amounts[name]} for name, title in _TITLES.items() if name in amounts]
    unknown = [{"title": title, "trajectories": drops[name]} for name, title in _UNDELIVERED.items() if drops.get(name)]
    return [*rows[:-1], *unknown, rows[-1]]


def length_chart(waste: Waste) -> Figure | None:
    """Shares of trajectories by length, submitted and trained, as a figure; None when there is nothing to compare."""
    rows = waste.get("lengths", [])
    submitted, trained = (_shares([(row[0], row[column]) for row in rows]) for column in (1, 2))
    if not submitted or not trained:
        return None
    series = [Series("submitted", submitted, "s1"), Series("trained", trained, "s2", dashed=True)]
    return figure(Chart("Lengths of trajectories submitted and trained", series, rows[-1][0], x_label="steps", percent=True))


def _shares(points: Sequence[Point]) -> list[Point]:
    total = sum(number for _, number in points)
    return [(length, number / total) for length, number in points if total]
