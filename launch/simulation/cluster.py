"""Numbers of desktops and actors of a simulated run, times of the learner, rates of failures: assumptions, unless
calibrated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from computerrl.common.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Failures:
    """Mean times between failures of one part of each kind, seconds, exponentially distributed; None: it never fails."""

    desktop_mtbf_s: float | None = None
    desktop_repair_s: float = 10.0
    """Time of recycling; the episode goes back to the broker."""
    actor_mtbf_s: float | None = None
    actor_repair_s: float = 60.0
    """Time of restart and model load; the actor's episodes are played again."""
    learner_mtbf_s: float | None = None
    learner_repair_s: float = 120.0
    """Time of restart and model load; then the updates since the last checkpoint are made again."""
    job_restarts: bool = False
    """Any failure of an actor or of the learner stops everything, and all start anew together, as in systems
    without repair of single roles."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts of a simulated run."""

    num_desktops: int = 64
    num_actors: int = 4
    """Each has an engine (a GPU) and plays `num_desktops / num_actors` episodes at a time."""
    crowding: float = 0.03
    """With n completions under way each takes 1 + crowding * (n - 1) times as long as alone: 0 is perfect batching, 1 none."""
    train_fixed_s: float = 5.0
    """Fixed time of each update."""
    train_step_s: float = 0.05
    """Time for each step of a batch."""
    overhead_s: float = 1.0
    """Time around each update: records, snapshot, publishing."""
    weight_s: float = 3.0
    """Time from the end of an update until engines have its weights; engines go on meanwhile."""
    load_stall_s: float = 0.5
    """Time that engines stand still for new weights."""
    actors_load_in_turn: bool = False
    """Actors load weights one after the other, each `load_stall_s` after the one before, instead of all at once."""
    pauses_while_training: bool = False
    """Engines stand still during updates: learner and engines share their GPUs."""
    drains_for_weights: bool = False
    """An engine takes new weights only when its episodes are through, and begins none before (no partial rollouts)."""
    waves: Literal["rollout", "task"] = "rollout"
    """Time at which a desktop is free. `rollout`: after its rollout; `task`: after all rollouts of its group."""
    checkpoint_every_updates: int = 5
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        problems = []
        for name in ("num_desktops", "num_actors"):
            if getattr(self, name) < 1:
                problems.append(Problem(f"--{name[4:]}", f"{getattr(self, name)}, and at least 1 is needed", "give 1 or more"))
        if not problems and self.num_actors > self.num_desktops:
            reason = f"{self.num_actors} actors, but only {self.num_desktops} desktops: some would never play"
            problems.append(Problem("--actors", reason, f"set it to {self.num_desktops} or less"))
        if not 0 <= self.crowding <= 1:
            problems.append(Problem("--crowding", f"{self.crowding}", "give a number from 0 to 1"))
        if problems:
            raise ConfigError(problems)

    def slots_of(self, actor: int) -> int:
        """Episodes that ``actor`` plays at a time."""
        return self.num_desktops // self.num_actors + (actor < self.num_desktops % self.num_actors)

    def assumptions(self) -> dict[str, str]:
        """The assumptions in words, with units."""
        fail = self.failures
        mtbf = {"desktop": fail.desktop_mtbf_s, "actor": fail.actor_mtbf_s, "learner": fail.learner_mtbf_s}
        shown = ", ".join(f"{name} every {seconds:g} s" for name, seconds in mtbf.items() if seconds) or "none"
        return {
            "desktops, actors": f"{self.num_desktops}, {self.num_actors} with an engine each",
            "crowding": f"with n completions under way each takes 1 + {self.crowding:g} (n - 1) times as long",
            "an update": f"{self.train_fixed_s:g} s + {self.train_step_s:g} s for each step + {self.overhead_s:g} s around it",
            "new weights": f"{self.weight_s:g} s on their way, engines stand still for {self.load_stall_s:g} s"
            + (", one after the other" if self.actors_load_in_turn else "")
            + (", when their episodes are through" if self.drains_for_weights else "")
            + (", and during updates" if self.pauses_while_training else ""),
            "a desktop is free": {"rollout": "after its rollout", "task": "after all rollouts of its task"}[self.waves],
            "failures": shown + (", each restarts the whole job" if fail.job_restarts else ""),
        }
