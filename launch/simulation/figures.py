"""Figures of a simulated run, and its bottleneck. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from computerrl.launch.simulation.loop import Simulation

_BUSY = 0.9
"""Share of its time above which a working stage holds up the others."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one simulated run; rates are per simulated time."""

    duration_s: float
    env_steps_per_s: float
    episodes_per_h: float
    updates_per_h: float
    steps_trained_per_s: float
    mean_age: float
    """Versions, over all steps that reached an update, as the learner counts it."""
    little_age: float
    """Mean age by Little's law, measured in versions instead of seconds: steps between sampling and training at a publication,
    divided by steps trained in an update. Counted by the episodes' progress, not by version stamps as ``mean_age``."""
    max_age: int
    too_old_share: float
    """Share of the steps that reached an update."""
    desktop_use: float
    """Share of desktop time in episodes; the rest waits for work (the staleness bound) or for repair."""
    engine_use: float
    """Completions under way divided by slots: the load of the engines."""
    learner_use: float
    """Share of time in training."""
    waiting_share: float
    """Share of slot time without work."""
    lost_share: float
    """Share of the episodes that were lost with a desktop or an actor."""
    effective_share: float
    """Share of time in which the learner was up and not repeating updates."""
    median_episode_s: float
    p99_episode_s: float
    bottleneck: str

    def as_dict(self) -> dict[str, Any]:
        """The figures, JSON-ready."""
        return asdict(self)


def figures_of(simulation: Simulation) -> Figures:
    """Figures of a simulation that was played."""
    counts, cluster, duration_s = simulation.counts, simulation.cluster, simulation.now
    steps_seen = sum(counts.ages.values())
    slot_s = cluster.num_desktops * duration_s
    mean_batch = steps_seen / max(1, counts.updates)
    episodes = sorted(counts.episode_s) or [0.0]
    waiting, learner_use = counts.idle_slot_s / slot_s, counts.train_s / duration_s
    down = min(duration_s, counts.learner_down_s)
    generating = simulation.generating_s / slot_s
    return Figures(
        duration_s=duration_s,
        env_steps_per_s=counts.steps / duration_s,
        episodes_per_h=3600 * counts.episodes / duration_s,
        updates_per_h=3600 * counts.updates / duration_s,
        steps_trained_per_s=counts.steps_trained / duration_s,
        mean_age=sum(age * number for age, number in counts.ages.items()) / max(1, steps_seen),
        little_age=counts.occupancy_sum / max(1, counts.publications) / mean_batch if mean_batch else 0.0,
        max_age=max(counts.ages, default=0),
        too_old_share=counts.steps_too_old / max(1, steps_seen),
        desktop_use=max(0.0, 1 - waiting - _down_share(simulation)),
        engine_use=generating,
        learner_use=learner_use,
        waiting_share=waiting,
        lost_share=counts.episodes_lost / max(1, counts.episodes + counts.episodes_lost),
        effective_share=1 - down / duration_s,
        median_episode_s=episodes[len(episodes) // 2],
        p99_episode_s=episodes[int(0.99 * (len(episodes) - 1))],
        bottleneck=_bottleneck(simulation, learner_use=learner_use, waiting=waiting, generating=generating),
    )


def _down_share(simulation: Simulation) -> float:
    per_actor = simulation.cluster.num_actors * simulation.now
    return simulation.counts.actors_down_s / per_actor


def _bottleneck(simulation: Simulation, *, learner_use: float, waiting: float, generating: float) -> str:
    """Name of the part whose speed-up would help, with its share of time."""
    counts = simulation.counts
    overhead = simulation.cluster.overhead_s * counts.updates / simulation.now
    if learner_use + overhead > _BUSY:
        return f"the learner (in training {learner_use:.0%} of the time; slots wait {waiting:.0%} for it)"
    if waiting > 1 - _BUSY:
        eta = simulation.config.broker.eta
        return f"the staleness bound (slots wait {waiting:.0%}; a larger broker.eta than {eta}, or shorter episodes, would help)"
    slot_s = simulation.cluster.num_desktops * simulation.now
    shares = {
        "generation": generating,
        "resets": counts.reset_s / slot_s,
        "evaluation": counts.evaluate_s / slot_s,
    }
    shares["desktop steps"] = max(0.0, 1 - waiting - _down_share(simulation) - sum(shares.values()))
    name, share = max(shares.items(), key=lambda item: item[1])
    helps = {"generation": "more or faster engines", "desktop steps": "more desktops or faster settling"}
    return f"{name} ({share:.0%} of slot time; {helps.get(name, 'spare desktops that prepare')} would help)"
