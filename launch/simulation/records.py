"""Records of a simulated run: episodes under way, stages for a picture, counts. They hold no rules."""

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
    """Beginning of the first step; 0 before."""
    ended_s: float = 0.0
    """End of the last step; 0 before."""
    gone: bool = False
    """The episode was lost with its desktop or actor."""


@dataclass(slots=True)
class Span:
    """A stage of a desktop, an actor or the learner, for the plot."""

    who: str
    stage: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Counts:
    """Counts of a run."""

    episodes: int = 0
    steps: int = 0
    """Steps of finished episodes."""
    episodes_lost: int = 0
    """Episodes whose desktop or actor failed."""
    num_waiting_steps: int = 0
    """Steps of finished episodes that are in no update yet."""
    updates: int = 0
    steps_trained: int = 0
    steps_too_old: int = 0
    ages: Counter[int] = field(default_factory=Counter)
    """Age in versions when trained -> steps; steps that are too old are included."""
    train_s: float = 0.0
    learner_down_s: float = 0.0
    actors_down_s: float = 0.0
    """Seconds added up over actors."""
    idle_slot_s: float = 0.0
    """Time of slots without work, held back by the staleness bound for example."""
    reset_s: float = 0.0
    evaluate_s: float = 0.0
    occupancy_sum: float = 0.0
    """Steps sampled and not yet trained at a publication, added up over publications."""
    publications: int = 0
    episode_s: list[float] = field(default_factory=list)
