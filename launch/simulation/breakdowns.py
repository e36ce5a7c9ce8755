"""Failures of a simulated run: which part fails when, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Callable

from computerrl.launch.simulation.actors import Fleet
from computerrl.launch.simulation.learner import Learner
from computerrl.launch.simulation.world import World


class Breakdowns:
    """The failures of desktops, actors and the learner."""

    def __init__(self, world: World, fleet: Fleet, learner: Learner) -> None:
        self._world = world
        self._fleet = fleet
        self._learner = learner
        self._failures = world.cluster.failures

    def schedule(self) -> None:
        """Draw the first failure of each kind."""
        self._next_desktop()
        self._next_actor()
        self._next_learner()

    def _next_desktop(self) -> None:
        self._after(self._failures.desktop_mtbf_s, self._world.cluster.num_desktops, self._desktop_fails)

    def _next_actor(self) -> None:
        self._after(self._failures.actor_mtbf_s, self._world.cluster.num_actors, self._actor_fails)

    def _next_learner(self) -> None:
        self._after(self._failures.learner_mtbf_s, 1, self._learner_fails)

    def _after(self, mtbf_s: float | None, count: int, handle: Callable[[], None]) -> None:
        """Schedule the failure of the first of ``count`` parts; None: they never fail."""
        if mtbf_s is not None:
            self._world.later(self._world.chance.expovariate(count / mtbf_s), handle)

    def _desktop_fails(self) -> None:
        """Any desktop fails, in use or not; the episode of one in use goes back to the broker."""
        self._next_desktop()
        number = self._world.chance.randrange(self._world.cluster.num_desktops)
        under_way = [(actor, play) for actor in self._fleet.actors for play in actor.plays.values()]
        if number < len(under_way):
            actor, play = under_way[number]
            self._fleet.lose(play)
            self._world.later(self._failures.desktop_repair_s, self._fleet.repaired, actor, play.slot)
        self._fleet.assign()

    def _actor_fails(self) -> None:
        self._next_actor()
        if self._failures.job_restarts:
            self._job_fails()
        else:
            actor = self._fleet.actors[self._world.chance.randrange(self._world.cluster.num_actors)]
            self._fleet.take_down(actor, repair_s=self._failures.actor_repair_s)
        self._fleet.assign()

    def _learner_fails(self) -> None:
        self._next_learner()
        if self._failures.job_restarts:
            self._job_fails()
        else:
            self._learner.fail(self._failures.learner_repair_s, on_repaired=self._fleet.assign)

    def _job_fails(self) -> None:
        repair_s = max(self._failures.actor_repair_s, self._failures.learner_repair_s)
        for actor in self._fleet.actors:
            self._fleet.take_down(actor, repair_s=repair_s)
        self._learner.fail(repair_s, on_repaired=self._fleet.assign)
