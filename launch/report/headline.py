"""One sentence about what a run achieved, for the head of its report: pure.

Compares the run's last evaluation with the one before it, family by family. A family counts as changed where the 95 % interval
of the difference of its two success rates excludes 0. The interval is Newcombe's (Statistics in Medicine 17, 1998, method 10),
which is built from the Wilson intervals of both rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

from computerrl.launch.report.evaluation_figures import wilson_interval

_EVALUATIONS = {"success_before": "before training", "success_after_bc": "after cloning", "success_after_rl": "after RL"}
"""Field of report.json, in order of time -> words of the sentence."""


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    before: tuple[int, int]
    """Successes and episodes of the earlier evaluation."""
    successes: int
    episodes: int
    change: int
    """1: higher than before, -1: lower, 0: the 95 % interval of the difference holds 0."""

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.successes} of {self.episodes})"


def headline(report: Mapping[str, Any]) -> str:
    """One sentence from the fields of report.json; says so where there is nothing to compare."""
    known = [name for name in _EVALUATIONS if report.get(name) and report[name]["episodes"]]
    if not known:
        return "No evaluation was completed, so success on held-out tasks is not known."
    if len(known) == 1:
        found = _total(report[known[0]])
        return f"Success {_EVALUATIONS[known[0]]}: {found} episodes; there is no second evaluation to compare it with."
    earlier, later = report[known[-2]], report[known[-1]]
    if earlier["split"] != later["split"]:
        return f"Success {_EVALUATIONS[known[-1]]}: {_total(later)} episodes; the evaluation before it was of other tasks."
    families = _compared(earlier["families"], later["families"])
    if not families:
        return f"Success {_EVALUATIONS[known[-1]]}: {_total(later)} episodes; no family was evaluated twice."
    return _sentence(_cause(report, known[-2], known[-1]), families, f"{_total(earlier)} episodes before, {_total(later)} after")


def difference_interval(before: tuple[int, int], after: tuple[int, int]) -> tuple[float, float]:
    """95 % interval of the rate of ``after`` less that of ``before``; each is (successes, episodes), one episode or more."""
    (rate, low, high), (new_rate, new_low, new_high) = (
        (successes / episodes, *wilson_interval(successes / episodes, episodes)) for successes, episodes in (before, after)
    )
    difference = new_rate - rate
    return difference - hypot(new_rate - new_low, high - rate), difference + hypot(new_high - new_rate, rate - low)


def _total(evaluation: Mapping[str, Any]) -> str:
    return f"{sum(item['successes'] for item in evaluation['families'].values())} of {evaluation['episodes']}"


def _cause(report: Mapping[str, Any], earlier: str, later: str) -> str:
    """What lies between both evaluations; `Training` where that is more than one thing, or not known."""
    if later == "success_after_bc":
        return "Cloning"
    cloned = earlier == "success_before" and report.get("demonstrations")
    return "RL" if report["num_updates"] and not cloned else "Training"


def _compared(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> list[_Family]:
    found = []
    for name, item in later.items():
        before = earlier.get(name)
        if before and before["episodes"] and item["episodes"]:
            counts = (before["successes"], before["episodes"])
            low, high = difference_interval(counts, (item["successes"], item["episodes"]))
            found.append(_Family(name, counts, item["successes"], item["episodes"], (low > 0) - (high < 0)))
    return found


def _sentence(cause: str, families: Sequence[_Family], totals: str) -> str:
    lifted, lowered, same = ([family for family in families if family.change == change] for change in (1, -1, 0))
    if not lifted and not lowered:
        return f"{cause} changed no family beyond its 95 % interval: {totals}."
    parts = [f"lifted {_count(lifted, families)}"] if lifted else []
    parts += [f"lowered {', '.join(family.shown for family in lowered)}"] if lowered else []
    text = f"{cause} {' and '.join(parts)}"
    behind = min(same, key=lambda family: family.successes / family.episodes, default=None)
    if behind is not None and behind.successes < behind.episodes:
        text += f"; {_unchanged(behind)}"
    return f"{text}."


def _unchanged(family: _Family) -> str:
    now = f"{family.successes} of {family.episodes}"
    if family.before == (family.successes, family.episodes):
        return f"{family.name} is still at {now}"
    return f"{family.name} went from {family.before[0]} of {family.before[1]} to {now}, which chance may explain"


def _count(some: Sequence[_Family], families: Sequence[_Family]) -> str:
    if len(families) == 1:
        return families[0].shown
    if len(some) < len(families):
        return f"{len(some)} of {len(families)} families"
    return "both families" if len(families) == 2 else f"all {len(families)} families"
