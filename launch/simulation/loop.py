"""The simulated run: actors request work from the real broker core, play, submit; a learner takes groups, trains, publishes.

The real code decides about admission, groups, reassignment after a failure, delivery (the broker core) and the end of a batch
(`learner.recipe.pacing`). Only times are modelled. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from computerrl.common.config import RunConfig
from computerrl.common.messages import RolloutOrder, VersionAnnouncement
from computerrl.launch.simulation.actors import Fleet
from computerrl.launch.simulation.breakdowns import Breakdowns
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.learner import Batch, Learner
from computerrl.launch.simulation.records import Counts, Span
from computerrl.launch.simulation.workload import Workload
from computerrl.launch.simulation.world import World


class Simulation:
    """One simulated run; `play` it once."""

    def __init__(
        self,
        config: RunConfig,
        cluster: Cluster,
        workload: Workload,
        *,
        seed: int = 0,
        keep_spans_s: float = 0.0,
        on_batch: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        """``keep_spans_s``: stages that begin before this time are kept for a picture. ``on_batch`` is called with each batch
        when its training begins."""
        self.config = config
        self.cluster = cluster
        self._families = workload.families
        self._on_batch = on_batch
        self._world = World(config, cluster, seed=seed, keep_spans_s=keep_spans_s)
        self._fleet = Fleet(self._world, workload, on_submitted=self._learn_and_assign)
        self._learner = Learner(self._world, on_batch=self._training, on_published=self._published)

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._world.now

    @property
    def counts(self) -> Counts:
        """Counts of the run until now."""
        return self._world.counts

    @property
    def spans(self) -> list[Span]:
        """Stages kept for a picture."""
        return self._world.spans

    @property
    def broker_counters(self) -> Mapping[str, int]:
        """The broker core's own counters."""
        return self._world.broker_counters

    @property
    def generating_s(self) -> float:
        """Completions under way, integrated over time and added up over engines."""
        return sum(actor.engine.generating_integral for actor in self._fleet.actors)

    def play(
        self,
        duration_s: float,
        *,
        is_done: Callable[[], bool] = lambda: False,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> Simulation:
        """Play until ``duration_s`` simulated seconds have passed or ``is_done`` is true after an event; gives the simulation."""
        self._world.ask(VersionAnnouncement(0, 0))
        self._world.ask(RolloutOrder("rl-1", "training", self._families, None, self.config.learner.group_size, 0, 1.0, 1000, 0))
        Breakdowns(self._world, self._fleet, self._learner).schedule()
        self._fleet.assign()
        next_report = 0.0
        while not is_done():
            if not self._world.run_next(until_s=duration_s):
                break
            if self.now >= next_report:
                on_progress(self.now / duration_s)
                next_report += duration_s / 100
        self._fleet.finish()
        return self

    def _learn_and_assign(self) -> None:
        self._learner.learn()
        self._fleet.assign()

    def _training(self, batch: Batch) -> None:
        if self.cluster.pauses_while_training:
            for actor in self._fleet.actors:
                actor.pause()
        self._on_batch(batch)

    def _published(self, version: int) -> None:
        if self.cluster.pauses_while_training:
            for actor in self._fleet.actors:
                actor.resume()
        self.counts.publications += 1
        self.counts.occupancy_sum += self.counts.num_waiting_steps + self._fleet.num_steps_under_way()
        self._fleet.load(version)
        self._learner.learn()
        if not self.cluster.drains_for_weights:  # Actors that drain request nothing before their weights are loaded.
            self._fleet.assign()
