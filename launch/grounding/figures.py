"""Figures of a grounding evaluation: the share of answers in the right region, of all entries and of each kind. Pure.

The interval is Wilson's (`launch.report.evaluation_figures`), for as many trials as there are entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from computerrl.common.log import on_one_line
from computerrl.launch.grounding.entries import Entry, LeftOut
from computerrl.launch.report.evaluation_figures import wilson_interval

Outcome = Literal["hit", "beside", "refused", "pointed", "other_action", "no_action"]
"""`hit`: a point in the region, or `fail()` where nothing fits. `beside`: a point outside the region. `refused`: `fail()` though
there is a region. `pointed`: a point though nothing fits. `other_action`: an action without one place. `no_action`: text that is
no action."""
OUTCOMES: tuple[Outcome, ...] = ("hit", "beside", "refused", "pointed", "other_action", "no_action")
MAX_EXAMPLES = 3
"""Maximum number of entries that are named for each reason of leaving out."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An entry and the policy's answer, as journalled."""

    entry: Entry
    kind: str
    """`actor.grounding.AnswerKind`."""
    text: str
    """Whole completion."""
    point: tuple[int, int] | None
    reason: str

    @property
    def outcome(self) -> Outcome:
        """What the answer is worth."""
        if self.kind == "point" and self.point is not None:
            if self.entry.region.kind == "refusal":
                return "pointed"
            return "hit" if self.entry.region.holds(*self.point) else "beside"
        if self.kind == "fail":
            return "hit" if self.entry.region.kind == "refusal" else "refused"
        return "other_action" if self.kind == "other_action" else "no_action"


def grounding_figures(answers: Sequence[Answered], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """JSON-ready: `all`, `kinds` (kind -> value -> score), `outcomes` (outcome -> number) and `left_out` (reason -> number and
    examples). A score has num_entries, num_hits, and mean, low and high as shares; mean is None without entries."""
    outcomes = Counter(answer.outcome for answer in answers)
    by_value: dict[str, dict[str, list[Answered]]] = {}
    for answer in answers:
        for kind, values in answer.entry.labels.items():
            for value in values:
                by_value.setdefault(kind, {}).setdefault(value, []).append(answer)
    return {
        "all": _score(answers),
        "kinds": {kind: {value: _score(those) for value, those in sorted(values.items())} for kind, values in by_value.items()},
        "outcomes": {outcome: outcomes[outcome] for outcome in OUTCOMES},
        "left_out": _left_out(left_out),
    }


def _score(answers: Sequence[Answered]) -> dict[str, Any]:
    num_hits = sum(answer.outcome == "hit" for answer in answers)
    mean = num_hits / len(answers) if answers else None
    low, high = wilson_interval(mean or 0.0, len(answers))
    return {"num_entries": len(answers), "num_hits": num_hits, "mean": mean, "low": low, "high": high}


def _left_out(left_out: Sequence[LeftOut]) -> dict[str, Any]:
    by_reason: dict[str, list[LeftOut]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one)
    return {
        reason: {"num": len(those), "examples": [{"key": one.key, "detail": one.detail} for one in those[:MAX_EXAMPLES]]}
        for reason, those in sorted(by_reason.items())
    }


def table_of(figures: Mapping[str, Any]) -> str:
    """For a terminal: a line for each value of each kind, for all, and for each reason of leaving out."""
    lines = [f"{'kind':12} {'value':32} {'entries':>8} {'hits':>6} {'score':>24}"]
    rows = [(kind, value, score) for kind, values in figures["kinds"].items() for value, score in values.items()]
    for kind, value, score in [*rows, ("all", "", figures["all"])]:
        cell = "-" if score["mean"] is None else f"{score['mean']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"
        lines.append(f"{kind:12} {on_one_line(value):32} {score['num_entries']:8} {score['num_hits']:6} {cell:>24}")
    wrong = ", ".join(f"{number} {outcome}" for outcome, number in figures["outcomes"].items() if number)
    lines.append(f"answers: {wrong or 'none'}")
    for reason, found in figures["left_out"].items():
        first = found["examples"][0]
        lines.append(f"left out: {found['num']} {reason}, such as {on_one_line(first['key'] + ': ' + first['detail'])}")
    return "\n".join(lines)
