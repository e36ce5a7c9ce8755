"""The actors of a simulated run: slots that request assignments, play and submit; engines that load new weights.

slot   idle ──assignment──► reset ──► steps, on its actor's engine ──► evaluation ──► submitted, idle
actor  up ──failure──► down, its episodes go back to the broker ──repair──► up, all slots idle

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from computerrl.common.messages import Assignment, AssignmentRequest, AssignmentReturn, NoAssignment
from computerrl.launch.simulation.engine import Engine
from computerrl.launch.simulation.records import Play
from computerrl.launch.simulation.trajectories import Trajectories, versions_of
from computerrl.launch.simulation.workload import Workload
from computerrl.launch.simulation.world import World


class Actor:
    """One actor: the engine that its episodes share, and the weights that the engine has loaded."""

    def __init__(self, number: int, world: World, *, on_end: Callable[[Play], None], on_loaded: Callable[[], None]) -> None:
        """``on_end`` is called when an episode has made its last step, ``on_loaded`` when the engine has new weights."""
        self.number = number
        self.engine = Engine(crowding=world.cluster.crowding)
        self.loaded_at = [0.0]
        """Seconds at which version 0, 1, ... was loaded."""
        self.plays: dict[int, Play] = {}
        """Episodes under way by number, in an order that is the same in every run of a seed."""
        self.is_up = True
        self.is_draining = False
        """New weights wait until no episode is under way, and no episode begins before."""
        self._world = world
        self._on_end = on_end
        self._on_loaded = on_loaded

    @property
    def version(self) -> int:
        """Policy version of the loaded weights."""
        return len(self.loaded_at) - 1

    def begin(self, play: Play) -> None:
        """The reset of ``play`` is over: its steps begin."""
        play.began_s = self._world.now
        self.engine.start(play, desktop_s=play.times.desktop_s, generate_s=play.times.generate_s, now=self._world.now)
        self._expect_end()

    def remove(self, play: Play) -> None:
        """Take ``play`` out of the engine before its last step."""
        self.engine.remove(play, self._world.now)
        self._expect_end()

    def _expect_end(self) -> None:
        delay_s = self.engine.next_end()
        if delay_s is not None:
            self._world.later(delay_s, self._end, self.engine.epoch)

    def _end(self, epoch: int) -> None:
        if self.engine.epoch != epoch:
            return  # Something changed since; another event has taken its place.
        play = self.engine.finish(self._world.now)
        play.ended_s = self._world.now
        self._expect_end()
        self._on_end(play)

    def pause(self) -> None:
        """Stop the engine until `resume`."""
        self.engine.pause(self._world.now)

    def resume(self) -> None:
        """End one `pause`."""
        self.engine.resume(self._world.now)
        self._expect_end()

    def load_after(self, delay_s: float) -> None:
        """Load the next version ``delay_s`` from now, while episodes are under way."""
        if delay_s + self._world.cluster.load_stall_s == 0.0:
            self.loaded_at.append(self._world.now)  # At once: requests of this moment already name it.
            return
        self._world.later(delay_s, self.pause)
        self._world.later(delay_s + self._world.cluster.load_stall_s, self._loaded)

    def load_when_drained(self, version: int) -> None:
        """Load ``version`` if the actor is draining and no episode is under way; versions between are skipped."""
        if self.is_draining and not self.plays:
            self.is_draining = False
            self.pause()
            cluster = self._world.cluster
            self._world.later(cluster.weight_s + cluster.load_stall_s, self._loaded_to, version)

    def _loaded_to(self, version: int) -> None:
        self.loaded_at += [self._world.now] * (version - len(self.loaded_at))
        self._loaded()

    def _loaded(self) -> None:
        self.resume()
        self.loaded_at.append(self._world.now)
        self._on_loaded()


class Fleet:
    """All actors and their slots."""

    def __init__(self, world: World, workload: Workload, *, on_submitted: Callable[[], None]) -> None:
        """``on_submitted`` is called after each trajectory that the broker has received."""
        self._world = world
        self._workload = workload
        self._on_submitted = on_submitted
        self._trajectories = Trajectories()
        self.actors = [
            Actor(number, world, on_end=self._evaluate, on_loaded=self.assign) for number in range(world.cluster.num_actors)
        ]
        self._idle = [(actor, slot, 0.0) for actor in self.actors for slot in range(world.cluster.slots_of(actor.number))]
        """(actor, slot, idle since), in the order in which the slots became idle."""
        self._held: dict[str, list[Play]] = {}
        """Group -> finished rollouts that keep their desktops, where a desktop is free after all rollouts of its task."""
        self._num_plays = 0
        self._version = 0

    # --- episodes ----------------------------------------------------------------------------------------------------

    def assign(self) -> None:
        """Request assignments for idle slots until the broker has none."""
        passed_over = {actor for actor in self.actors if actor.is_draining}
        while (place := self._next_idle(passed_over)) is not None:
            actor, slot, since = self._idle[place]
            granted = self._world.ask(AssignmentRequest("x", actor.version))
            if isinstance(granted, NoAssignment) and granted.reason == "policy_version":
                passed_over.add(actor)
                continue
            if not isinstance(granted, Assignment):
                return
            self._idle.pop(place)
            self._world.counts.idle_slot_s += self._world.now - since
            self._num_plays += 1
            times = self._workload.draw(granted.task.family, self._world.chance)
            play = Play(self._num_plays, granted, times, actor.number, slot, self._world.now)
            actor.plays[play.number] = play
            self._world.later(times.reset_s, self._begin, play)

    def _next_idle(self, passed_over: set[Actor]) -> int | None:
        """Place in the queue of the first idle slot whose actor is not ``passed_over``."""
        return next((place for place, (actor, *_) in enumerate(self._idle) if actor not in passed_over), None)

    def _begin(self, play: Play) -> None:
        if play.gone:
            return
        self._world.counts.reset_s += play.times.reset_s
        self._world.note_span(f"slot {play.actor}.{play.slot}", "reset", play.asked_s)
        self.actors[play.actor].begin(play)

    def _evaluate(self, play: Play) -> None:
        self._world.counts.num_waiting_steps += play.times.num_steps
        self._world.later(play.times.evaluate_s, self._submit, play)

    def _submit(self, play: Play) -> None:
        if play.gone:
            return
        actor, counts = self.actors[play.actor], self._world.counts
        del actor.plays[play.number]
        self._world.note_span(f"slot {play.actor}.{play.slot}", "steps", play.began_s)
        counts.evaluate_s += play.times.evaluate_s
        counts.episodes += 1
        counts.steps += play.times.num_steps
        counts.episode_s.append(self._world.now - play.asked_s)
        versions = versions_of(play, actor.loaded_at)
        self._world.steps_by_version[play.granted.assignment_id] = versions
        self._world.ask(self._trajectories.make(play, versions, now=self._world.now))
        self._free(play)
        actor.load_when_drained(self._version)
        self._on_submitted()

    def _free(self, play: Play) -> None:
        """The slot of ``play`` can be used again: now, or after the last rollout of its task."""
        freed = [play]
        if self._world.cluster.waves == "task":
            held = self._held.setdefault(play.granted.group_id, [])
            held.append(play)
            if len(held) < self._world.config.learner.group_size:
                return
            freed = self._held.pop(play.granted.group_id)
        self._idle += [(actor, one.slot, one.ended_s) for one in freed if (actor := self.actors[one.actor]).is_up]

    def finish(self) -> None:
        """Bring engines and idle times up to the end of the run."""
        for actor in self.actors:
            actor.engine.advance(self._world.now)
        self._world.counts.idle_slot_s += sum(self._world.now - since for _, _, since in self._idle)

    # --- weights -----------------------------------------------------------------------------------------------------

    def load(self, version: int) -> None:
        """The learner has published ``version``: each actor loads it, in the way that the cluster has."""
        self._version = version
        cluster = self._world.cluster
        if cluster.drains_for_weights:
            for actor in self.actors:
                actor.is_draining |= actor.is_up
            for actor in self.actors:
                actor.load_when_drained(version)
            return
        for actor in self.actors:
            turn_s = actor.number * cluster.load_stall_s if cluster.actors_load_in_turn else 0.0
            actor.load_after(cluster.weight_s + turn_s)

    def num_steps_under_way(self) -> float:
        """Steps sampled by episodes in play, counted by their progress."""
        total = 0.0
        for actor in self.actors:
            actor.engine.advance(self._world.now)
            for left_s, play in actor.engine.episodes():
                own_s = play.times.desktop_s + play.times.generate_s
                total += play.times.num_steps * (1.0 - left_s / own_s) if own_s else 0.0
        return total

    # --- failures ----------------------------------------------------------------------------------------------------

    def lose(self, play: Play) -> None:
        """The desktop or the actor of ``play`` failed: its assignment goes back to the broker."""
        actor, counts = self.actors[play.actor], self._world.counts
        play.gone = True
        if play.began_s and not play.ended_s:
            actor.remove(play)
        elif play.ended_s:
            counts.num_waiting_steps -= play.times.num_steps
        del actor.plays[play.number]
        counts.episodes_lost += 1
        self._world.ask(AssignmentReturn(play.granted.assignment_id, "x", "desktop_broken"))

    def repaired(self, actor: Actor, slot: int) -> None:
        """The desktop of ``slot`` works again."""
        if actor.is_up:
            self._idle.append((actor, slot, self._world.now))
        self.assign()

    def take_down(self, actor: Actor, *, repair_s: float) -> None:
        """``actor`` fails, and is back after ``repair_s``; nothing happens to one that is down already."""
        if not actor.is_up:
            return
        actor.is_up = False
        for play in list(actor.plays.values()):
            self.lose(play)
        counts = self._world.counts
        counts.idle_slot_s += sum(self._world.now - since for one, _, since in self._idle if one is actor)
        self._idle = [entry for entry in self._idle if entry[0] is not actor]
        counts.actors_down_s += repair_s
        self._world.later(repair_s, self._bring_up, actor)

    def _bring_up(self, actor: Actor) -> None:
        actor.is_up = True
        self._idle += [(actor, slot, self._world.now) for slot in range(self._world.cluster.slots_of(actor.number))]
        self.assign()
