"""What breaks in a simulated run, when, and what that costs. Called by the loop's clock; decides nothing about work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from computerrl.common.messages import AssignmentReturn
from computerrl.launch.simulation.records import Play

if TYPE_CHECKING:
    from computerrl.launch.simulation.loop import Simulation


class Breakdowns:
    """Of one run."""

    def __init__(self, run: Simulation) -> None:
        self._run = run
        self._failures = run.cluster.failures

    def schedule(self) -> None:
        """At the start of the run."""
        self._next_desktop()
        self._next_actor()
        self._next_learner()

    def _next_desktop(self) -> None:
        self._after(self._failures.desktop_mtbf_s, self._run.cluster.num_desktops, self._desktop_fails)

    def _next_actor(self) -> None:
        self._after(self._failures.actor_mtbf_s, self._run.cluster.num_actors, self._actor_fails)

    def _next_learner(self) -> None:
        self._after(self._failures.learner_mtbf_s, 1, self._learner_fails)

    def _after(self, mtbf_s: float | None, count: int, handle: Callable[[], None]) -> None:
        """The first of ``count`` parts fails; never when they never fail."""
        if mtbf_s is not None:
            self._run.later(self._run.chance.expovariate(count / mtbf_s), handle)

    def _desktop_fails(self) -> None:
        """Any desktop, in use or not; its episode goes back to the broker."""
        self._next_desktop()
        number = self._run.chance.randrange(self._run.cluster.num_desktops)
        under_way = [play for plays in self._run.plays for play in plays.values()]
        if number < len(under_way):
            play = under_way[number]
            self._lose(play)
            self._run.later(self._failures.desktop_repair_s, self._repaired, play.actor, play.slot)
        self._run.assign()

    def _repaired(self, actor: int, slot: int) -> None:
        if self._run.is_up[actor]:
            self._run.idle.append((actor, slot, self._run.now))
        self._run.assign()

    def _lose(self, play: Play) -> None:
        play.gone = True
        engine = self._run.engines[play.actor]
        if play.began_s and not play.ended_s:
            engine.remove(play, self._run.now)
            self._run.expect_end(play.actor)
        elif play.ended_s:
            self._run.num_waiting_steps -= play.times.num_steps
        self._run.forget(play)
        self._run.counts.episodes_lost += 1
        self._run.ask(AssignmentReturn(play.granted.assignment_id, "x", "desktop_broken"))

    def _actor_fails(self) -> None:
        failures, num_actors = self._failures, self._run.cluster.num_actors
        self._next_actor()
        struck = range(num_actors) if failures.job_restarts else [self._run.chance.randrange(num_actors)]
        repair_s = max(failures.actor_repair_s, failures.learner_repair_s) if failures.job_restarts else failures.actor_repair_s
        for actor in struck:
            self._down(actor, repair_s)
        if failures.job_restarts:
            self._learner_down(repair_s)
        self._run.assign()

    def _down(self, actor: int, repair_s: float) -> None:
        if not self._run.is_up[actor]:
            return
        self._run.is_up[actor] = False
        for play in list(self._run.plays[actor].values()):
            self._lose(play)
        for entry in [entry for entry in self._run.idle if entry[0] == actor]:
            self._run.idle.remove(entry)
            self._run.counts.idle_slot_s += self._run.now - entry[2]
        self._run.counts.actors_down_s += repair_s
        self._run.later(repair_s, self._up, actor)

    def _up(self, actor: int) -> None:
        self._run.is_up[actor] = True
        self._run.idle += [(actor, slot, self._run.now) for slot in range(self._run.cluster.slots_of(actor))]
        self._run.assign()

    def _learner_fails(self) -> None:
        failures = self._failures
        self._next_learner()
        if failures.job_restarts:
            for actor in range(self._run.cluster.num_actors):
                self._down(actor, max(failures.actor_repair_s, failures.learner_repair_s))
        self._learner_down(failures.learner_repair_s)

    def _learner_down(self, repair_s: float) -> None:
        """Restart, then the updates since the last checkpoint again (the broker hands their groups out again), then on."""
        if not self._run.learner_up:
            return
        self._run.learner_up = False
        self._run.training_epoch += 1
        redo_s = sum(self._run.since_checkpoint_s) + self._run.cluster.overhead_s * len(self._run.since_checkpoint_s)
        self._run.counts.learner_down_s += repair_s + redo_s
        self._run.later(repair_s + redo_s, self._learner_up_again)

    def _learner_up_again(self) -> None:
        self._run.learner_up = True
        if self._run.in_training is not None:
            self._run.run_training()
        else:
            self._run.learn()
            self._run.assign()
