"""What episodes earned, as the report shows it. Pure; the figures are those of the updates (docs/reference/metrics.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from computerrl.launch.watch.run_state import Record

LATEST = 10
"""Number of latest updates that are averaged."""
_PREFIX = "reward_"


def rewards_of(updates: Sequence[Record]) -> dict[str, Any]:
    """Rewards beside the evaluator's success; empty where that alone counts.

    ``means`` by name, ``agreement`` and ``false_success`` of a judge: means of the `LATEST` updates that have them; ``unknown``
    and ``tokens``: of the run; ``alarm``: whether the newest update found the judge at odds with the evaluator.
    """
    names = sorted({name for record in updates for name in record if name.startswith(_PREFIX)})
    if not names:
        return {}
    return {
        "means": {name.removeprefix(_PREFIX): _mean(updates, name) for name in names},
        "unknown": int(sum(float(record.get("rewards_unknown") or 0.0) for record in updates)),
        "agreement": _mean(updates, "judge_agreement"),
        "false_success": _mean(updates, "judge_false_success"),
        "tokens": updates[-1].get("judge_tokens"),
        "alarm": bool(updates[-1].get("judge_alarm")),
    }


def _mean(updates: Sequence[Record], name: str) -> float | None:
    values = [float(record[name]) for record in updates if record.get(name) is not None][-LATEST:]
    return sum(values) / len(values) if values else None
