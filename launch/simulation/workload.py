"""What an episode takes on its own: drawn from assumed laws, or from a run's recorded episodes. Knows no queues and no clock."""

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
    """Lease, reset, first observation, as the actor sees it."""
    desktop_s: float
    """All steps together."""
    generate_s: float
    """All steps together, with the engine to itself."""
    evaluate_s: float
    """After the last step, submission included."""


class Workload(Protocol):
    """Where episodes come from."""

    @property
    def families(self) -> tuple[str, ...]: ...

    def draw(self, family: str, chance: random.Random) -> Episode: ...


@dataclass(frozen=True, slots=True)
class AssumedWorkload:
    """Laws instead of measurements. The defaults are assumptions for desktop tasks of OSWorld's kind and a model of about 9
    billion parameters that thinks before it acts; `assumptions` prints them."""

    mean_steps: float = 15.0
    """Actions of an episode; lognormal with ``spread_steps`` as sigma of the logarithm, cut at ``max_steps``."""
    spread_steps: float = 0.6
    max_steps: int = 50
    desktop_step_s: float = 2.5
    """Action, settling and observation; lognormal over episodes with sigma ``spread_desktop``."""
    spread_desktop: float = 0.3
    generate_step_s: float = 2.0
    """One answer, with the engine to itself."""
    reset_s: float = 15.0
    evaluate_s: float = 3.0
    straggler_share: float = 0.0
    """Of episodes whose desktop is ``straggler_factor`` times slower."""
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
        """In words, with units."""
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
        """One of ``family``'s."""
        found = chance.choice(self.episodes[family])
        if self.straggler_share and chance.random() < self.straggler_share:
            found = found._replace(desktop_s=found.desktop_s * self.straggler_factor)
        return found

    def assumptions(self) -> dict[str, str]:
        """In words, with units."""
        count = sum(map(len, self.episodes.values()))
        return {"episodes": f"{count} recorded training episodes of {len(self.episodes)} families, drawn within their family"}


AnyWorkload = AssumedWorkload | RecordedWorkload


def with_stragglers(workload: AnyWorkload, share: float, factor: float) -> AnyWorkload:
    """``workload`` with so large a share of desktops that are ``factor`` times slower."""
    return replace(workload, straggler_share=share, straggler_factor=factor)
