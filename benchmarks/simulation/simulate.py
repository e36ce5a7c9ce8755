"""The simulator: a day of a thousand desktops, and its bookkeeping against Little's law. No desktop takes part.

computerrl bench simulate
"""

from __future__ import annotations

import time
from typing import Any

from computerrl.common.config import RunConfig
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.figures import figures_of
from computerrl.launch.simulation.loop import Simulation
from computerrl.launch.simulation.workload import AssumedWorkload

_HOURS, _QUICK_HOURS = 24.0, 6.0
_TARGET_S = 60.0


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    hours = _QUICK_HOURS if quick else _HOURS
    # A batch that keeps all desktops busy: nothing is left out because of waiting.
    tree = {"broker": {"eta": 4}, "learner": {"group_size": 8, "groups_per_batch": 64, "max_age": 8}}
    config = RunConfig.model_validate(tree)
    cluster = Cluster(num_desktops=1000, num_actors=64, train_fixed_s=60.0, train_step_s=0.0, weight_s=0.0, load_stall_s=0.0)
    times, simulation = [], None
    for seed in range(1 if quick else 3):
        began = time.perf_counter()
        simulation = Simulation(config, cluster, AssumedWorkload(), seed=seed).play(3600.0 * hours)
        times.append((time.perf_counter() - began) * _HOURS / hours)
    assert simulation is not None
    figures = figures_of(simulation)
    gap = abs(figures.mean_age / figures.little_age - 1)
    return [
        {
            "name": "1,000 desktops, 64 actors, 24 h",
            "value": sorted(times)[len(times) // 2],
            "unit": "s",
            "spread": max(times) - min(times),
            "target": _TARGET_S,
            "better": "lower",
        },
        {
            "name": "... episodes through the broker core",
            "value": simulation.counts.episodes,
            "unit": "episodes",
            "better": "higher",
        },
        {"name": "... desktops in use", "value": figures.desktop_use, "unit": "share", "better": "higher"},
        {"name": "mean age against Little's law", "value": gap, "unit": "share", "target": 0.01, "better": "lower"},
        {"name": "... mean age", "value": figures.mean_age, "unit": "versions", "better": "lower"},
    ]


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
