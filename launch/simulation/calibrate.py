"""A recorded run as workload and cluster: its training episodes' own times, its updates' times. Reads the run folder."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.workload import Episode, RecordedWorkload

MIN_EPISODES, MIN_UPDATES = 16, 3
Pair = tuple[dict[str, Any], dict[str, Any]]
"""An update and its successor."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of the run itself while it trained by RL."""

    duration_s: float
    num_updates: int
    """In ``duration_s``: from one update's end to another's, pauses of other phases left out."""
    env_steps_per_s: float
    update_s: float
    """From one update to the next, in the mean."""
    mean_age: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A recorded run as workload and cluster of the model."""

    config: RunConfig
    cluster: Cluster
    workload: RecordedWorkload
    measured: Measured


def calibrate(run: Path, *, crowding: float) -> Calibration:
    """The model of ``run``. Raises `ConfigError` naming the part that the run lacks.

    Completions were measured among others: the time of one alone is its measured time divided by the crowding then. ``crowding``
    itself cannot be seen in a run of one size, and only matters where the number of episodes per engine is changed.
    """
    folder = RunFolder(run)
    config = load_config(folder.resolved_config)
    updates = [line for line in _lines(folder.metrics_path) if line.get("event") == "update"]
    episodes = [line for line in _lines(folder.episodes_path) if line.get("kind") == "training"]
    if len(updates) < MIN_UPDATES or len(episodes) < MIN_EPISODES:
        reason = f"{run} has {len(updates)} updates and {len(episodes)} training episodes"
        step = f"use a run with at least {MIN_UPDATES} and {MIN_EPISODES}"
        raise ConfigError([Problem("--from-run", reason, step)])
    pairs = _pairs(updates)
    if not pairs:
        raise ConfigError([Problem("--from-run", f"{run} has no two updates of one phase in a row", "use a longer run")])
    duration_s = sum(after["time"] - before["time"] for before, after in pairs)
    measured = Measured(
        duration_s=duration_s,
        num_updates=len(pairs),
        env_steps_per_s=sum(len(one["steps"]) for one in _between(episodes, pairs)) / duration_s,
        update_s=duration_s / len(pairs),
        mean_age=fmean(after["policy_age_mean"] for _, after in pairs),
    )
    during = [_times(one) for one in _between(episodes, pairs)]
    num_generating = sum(one.generate_s for one in during) / duration_s / config.actor.num_actors
    slowed = 1.0 + crowding * max(0.0, num_generating - 1.0)
    found: dict[str, list[Episode]] = defaultdict(list)
    for one in episodes:
        alone = _times(one)
        found[one["family"]].append(alone._replace(generate_s=alone.generate_s / slowed))
    return Calibration(config, _cluster(config, pairs, crowding=crowding), RecordedWorkload(dict(found)), measured)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ConfigError([Problem("--from-run", f"{path} is missing", "give the folder of a run that has trained")])
    return read_json_lines(path)


def _pairs(updates: list[dict[str, Any]]) -> list[Pair]:
    """Updates of one phase that follow each other without a restart between them."""
    return [
        (before, after)
        for before, after in pairwise(updates)
        if before["phase"] == after["phase"]
        and after["update"] == before["update"] + 1
        and after["run_s"] > before["run_s"]
        and after["time"] - before["time"] < 2 * (after["run_s"] - before["run_s"]) + 1.0
    ]


def _between(episodes: list[dict[str, Any]], pairs: list[Pair]) -> list[dict[str, Any]]:
    """Training episodes that ended between the two updates of any pair."""
    spans = [(before["time"], after["time"]) for before, after in pairs]
    return [one for one in episodes if any(began <= one["started_at"] + one["duration_s"] < ended for began, ended in spans)]


def _times(one: dict[str, Any]) -> Episode:
    timings = [step["timing"] for step in one["steps"]]
    desktop_s = sum(timing["desktop_s"] for timing in timings)
    generate_s = sum(timing["generate_s"] for timing in timings)
    rest_s = max(0.0, one["duration_s"] - one["reset_s"] - desktop_s - generate_s)
    return Episode(max(1, len(timings)), one["reset_s"], desktop_s, generate_s, rest_s + one["wait_s"])


def _cluster(config: RunConfig, pairs: list[Pair], *, crowding: float) -> Cluster:
    updates = [after for _, after in pairs]
    overhead_s = fmean(after["time"] - before["time"] - after["wait_s"] - after["train_s"] for before, after in pairs)
    return Cluster(
        num_desktops=config.actor.num_actors * config.actor.num_episodes,
        num_actors=config.actor.num_actors,
        crowding=crowding,
        train_fixed_s=0.0,
        train_step_s=fmean(update["train_s"] for update in updates) / fmean(update["num_steps"] for update in updates),
        overhead_s=max(0.0, overhead_s),
        weight_s=0.0,
        load_stall_s=0.0,
        checkpoint_every_updates=config.learner.checkpoint_every_updates,
    )
