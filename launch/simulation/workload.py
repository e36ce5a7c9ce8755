"""Times of an episode on its own, drawn from assumed laws or from a run's recorded episodes. Pure: no queues, no clock."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol


class Episode(NamedTuple):
    """Times of one episode alone on its engine and host, in seconds."""

    num_steps: int
    reset_s: float
    """Time of lease, reset and first observation, as the actor measures it."""
    desktop_s: float
    """Time of all steps on the desktop."""
    generate_s: float
    """Time of all completions, with the engine to itself."""
    evaluate_s: float
    """Time from the last step to the submitted trajectory."""
    sampled_at: float = 0.5
    """Share of a step's time that has passed when its policy version is read: the middle, since completions and desktop take
    turns; 0 where completions take no time."""


class Workload(Protocol):
    """A source of episodes."""

    @property
    def families(self) -> tuple[str, ...]:
        """Task families of the rollout order."""
        ...

    def draw(self, family: str, chance: random.Random) -> Episode:
        """The times of one episode of ``family``."""
        ...


@dataclass(frozen=True, slots=True)
class AssumedWorkload:
    """Assumed laws of times. The defaults are assumptions for desktop tasks of OSWorld's kind and a model of about 9 billion
    parameters that thinks before it acts; `assumptions` prints them."""

    mean_steps: float = 15.0
    """Mean number of actions of an episode; lognormal with ``spread_steps`` as sigma of the logarithm, cut at ``max_steps``."""
    spread_steps: float = 0.6
    max_steps: int = 50
    desktop_step_s: float = 2.5
    """Time of an action, settling and an observation; lognormal over episodes with sigma ``spread_desktop``."""
    spread_desktop: float = 0.3
    generate_step_s: float = 2.0
    """Time of one completion, with the engine to itself."""
    reset_s: float = 15.0
    evaluate_s: float = 3.0
    straggler_share: float = 0.0
    """Share of episodes whose desktop is ``straggler_factor`` times slower."""
    straggler_factor: float = 10.0

    @property
    def families(self) -> tuple[str, ...]:
        return ("assumed",)

    def draw(self, family: str, chance: random.Random) -> Episode:
        """One episode; ``family`` makes no difference."""
        del family
        mean_log = math.log(self.mean_steps) - self.spread_steps**2 / 2
        num_steps = max(1, min(self.max_steps, round(chance.lognormvariate(mean_log, self.spread_steps))))
        slow = chance.lognormvariate(-(self.spread_desktop**2) / 2, self.spread_desktop)
        if self.straggler_share and chance.random() < self.straggler_share:
            slow *= self.straggler_factor
        return Episode(
            num_steps, self.reset_s, num_steps * self.desktop_step_s * slow, num_steps * self.generate_step_s, self.evaluate_s
        )

    def assumptions(self) -> dict[str, str]:
        """The assumptions in words, with units."""
        return {
            "steps per episode": f"lognormal, mean {self.mean_steps:g}, sigma {self.spread_steps:g}, at most {self.max_steps}",
            "desktop step": f"{self.desktop_step_s:g} s, sigma {self.spread_desktop:g} between episodes",
            "generation of a step": f"{self.generate_step_s:g} s with the engine to itself",
            "reset, evaluation": f"{self.reset_s:g} s, {self.evaluate_s:g} s",
            "stragglers": f"{self.straggler_share:.0%} of episodes, {self.straggler_factor:g} times slower desktops",
        }


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A run's own episodes, drawn again at random within their family."""

    episodes: Mapping[str, Sequence[Episode]]
    straggler_share: float = 0.0
    straggler_factor: float = 10.0

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(self.episodes)

    def draw(self, family: str, chance: random.Random) -> Episode:
        """One recorded episode of ``family``."""
        found = chance.choice(self.episodes[family])
        if self.straggler_share and chance.random() < self.straggler_share:
            found = found._replace(desktop_s=found.desktop_s * self.straggler_factor)
        return found

    def assumptions(self) -> dict[str, str]:
        """The assumptions in words, with units."""
        count = sum(map(len, self.episodes.values()))
        return {"episodes": f"{count} recorded training episodes of {len(self.episodes)} families, drawn within their family"}


@dataclass(frozen=True, slots=True)
class ParetoWorkload:
    """Episodes of heavy-tailed lengths whose steps all take the same time; resets, completions and evaluations take none.

    The share of episodes longer than x times the least is x to the -``tail``.
    """

    least_steps: Mapping[str, int]
    """Family -> least number of steps of its episodes."""
    tail: float = 1.3
    max_steps: int = 40
    step_s: float = 4.0

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(self.least_steps)

    def draw(self, family: str, chance: random.Random) -> Episode:
        """One episode of ``family``."""
        num_steps = min(self.max_steps, int(self.least_steps[family] * chance.paretovariate(self.tail)))
        return Episode(num_steps, 0.0, num_steps * self.step_s, 0.0, 0.0, sampled_at=0.0)


AnyWorkload = AssumedWorkload | RecordedWorkload


def with_stragglers(workload: AnyWorkload, share: float, factor: float) -> AnyWorkload:
    """``workload`` in which ``share`` of the desktops are ``factor`` times slower."""
    return replace(workload, straggler_share=share, straggler_factor=factor)
