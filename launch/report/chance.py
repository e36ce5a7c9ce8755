"""How often an agent that sees no screen would be right: pure.

A task of one click is solved by whoever clicks inside its target. Two agents without a screen are compared with the policy:

    random   clicks anywhere on the screen
    blind    knows the task's text, and where targets were in other episodes: it clicks where most of them would be hit

The blind one is what a policy can reach that learned to answer without looking. Targets come from training episodes of an
algorithm that asks the demonstrators for them (`grounding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_TARGETS = 60
"""Of a family: the first ones. Places to click are compared pair by pair."""


@dataclass(frozen=True, slots=True)
class Chance:
    """Probabilities of success of a family without seeing its screen."""

    random: float
    blind: float
    num_targets: int


class Targets:
    """Targets of a run's episodes of one step."""

    def __init__(self) -> None:
        self._families: dict[str, dict[int, tuple[str, Sequence[float]]]] = {}

    def add(self, episode: Mapping[str, Any]) -> None:
        """Take one line of episodes.jsonl in. Rollouts of one instance count once."""
        steps: Sequence[Any] = episode.get("steps") or ()
        target = steps[0].get("target") if len(steps) == 1 else None
        if not target:
            return
        kept = self._families.setdefault(str(episode.get("family")), {})
        if len(kept) < MAX_TARGETS:
            kept.setdefault(int(episode["seed"]), (str(episode.get("instruction")), target))

    def chances(self) -> dict[str, Chance]:
        """Family -> chance, of families with two targets or more."""
        found = {}
        for family, kept in sorted(self._families.items()):
            if len(kept) > 1:
                boxes = np.asarray([box for _, box in kept.values()], dtype=np.float64)
                blind = _blind([text for text, _ in kept.values()], boxes)
                found[family] = Chance(_random(boxes), blind, len(kept))
        return found


def _random(boxes: np.ndarray) -> float:
    """``boxes``: [N, 6], see `steps[].target` in docs/reference/metrics.md."""
    return float(np.mean(boxes[:, 2] * boxes[:, 3] / (boxes[:, 4] * boxes[:, 5])))


def _blind(texts: Sequence[str], boxes: np.ndarray) -> float:
    """Share of targets that are hit by the place that most *other* targets hold: those of the same text, or where there are none
    those of the family."""
    half = boxes[:, 2:4] / 2
    low, high = boxes[:, :2] - half, boxes[:, :2] + half
    total = 0.0
    for place, text in enumerate(texts):
        alike = [other for other, said in enumerate(texts) if said == text and other != place]
        others = alike or [other for other in range(len(texts)) if other != place]
        middles = _most_held(low[others], high[others])
        total += float(((middles >= low[place]) & (middles <= high[place])).all(axis=1).mean())
    return total / len(texts)


def _most_held(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[K, 2] places that most of the boxes from ``low`` to ``high`` ([N, 2]) hold: middles of what these share.

    Where most boxes overlap, a left edge and an upper edge of theirs cross."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.unique(low[:, 0]), np.unique(low[:, 1])))
    corners = np.stack([x, y], axis=1)[:, None]
    holds = np.all((corners >= low) & (corners <= high), axis=2, keepdims=True)[:, :, 0]
    num_held = holds.sum(axis=1)
    sharing = np.unique(holds[num_held == num_held.max()], axis=0)[:, :, None]
    return np.asarray((np.where(sharing, low, -np.inf).max(axis=1) + np.where(sharing, high, np.inf).min(axis=1)) / 2)


@dataclass(frozen=True, slots=True)
class Compared:
    """Successes without the right screen beside those of the blind agent."""

    successes: int
    episodes: int
    expected: float
    p_value: float
    """Probability that the blind agent has at least as many."""


def compare(families: Mapping[str, Mapping[str, Any]], chances: Mapping[str, Chance]) -> Compared | None:
    """``families``: of an evaluation, family -> `successes` and `episodes`. None where the chance of one is unknown."""
    played = {name: item for name, item in families.items() if item["episodes"]}
    if not played or not played.keys() <= chances.keys():
        return None
    odds = [chances[name].blind for name, item in played.items() for _ in range(item["episodes"])]
    successes = sum(int(item["successes"]) for item in played.values())
    return Compared(successes, len(odds), sum(odds), _at_least(successes, odds))


def _at_least(number: int, odds: Iterable[float]) -> float:
    """Probability of ``number`` successes or more in independent attempts (Poisson binomial distribution)."""
    found: np.ndarray = np.ones(1)
    for odd in odds:
        found = np.convolve(found, [1.0 - odd, odd])
    return float(min(1.0, found[number:].sum()))
