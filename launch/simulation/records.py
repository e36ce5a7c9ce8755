"""What a simulated run keeps: episodes under way, stages for a picture, counts. Holds no rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from computerrl.common.messages import Assignment
from computerrl.launch.simulation.workload import Episode


@dataclass(slots=True)
class Play:
    """One episode under way."""

    number: int
    granted: Assignment
    times: Episode
    actor: int
    slot: int
    asked_s: float
    began_s: float = 0.0
    """First step."""
    ended_s: float = 0.0
    gone: bool = False
    """Lost with its desktop or actor."""


@dataclass(slots=True)
class Span:
    """A stage of a desktop, an actor or the learner, for the plot."""

    who: str
    stage: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Counts:
    """What is counted while it runs."""

    episodes: int = 0
    steps: int = 0
    """Of finished episodes."""
    episodes_lost: int = 0
    """Played in vain: their desktop or actor failed."""
    updates: int = 0
    steps_trained: int = 0
    steps_too_old: int = 0
    ages: Counter[int] = field(default_factory=Counter)
    """Age in versions when trained -> steps, those too old included."""
    train_s: float = 0.0
    learner_down_s: float = 0.0
    actors_down_s: float = 0.0
    """Added up over actors."""
    idle_slot_s: float = 0.0
    """Slots without work: the staleness bound held them back, or there was none."""
    reset_s: float = 0.0
    evaluate_s: float = 0.0
    occupancy_sum: float = 0.0
    """Steps sampled and not yet trained, added up over publications."""
    publications: int = 0
    episode_s: list[float] = field(default_factory=list)
