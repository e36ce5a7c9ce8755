"""The simulated run: actors ask the real broker core for work, play, hand in; a learner takes groups, trains, publishes.

Events lie in a heap; the clock jumps from one to the next. The broker's core gets the messages that real actors and learners
send, so admission, grouping, hand-over after a failure and delivery are not modelled but played. Trajectories hold no tokens: one
shared step stands for each policy version. The cut of a batch is the learner's own (`learner.recipe.pacing`).
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import MessagePersisted, MessageReceived, Persist, Reply
from computerrl.common.config import RunConfig
from computerrl.common.messages import (
    Assignment,
    AssignmentRequest,
    ConsumptionReport,
    GroupRequest,
    Message,
    NoAssignment,
    NoGroup,
    RolloutOrder,
    Step,
    StepTiming,
    Trajectory,
    TrajectoryGroup,
    VersionAnnouncement,
)
from computerrl.launch.simulation.breakdowns import Breakdowns
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.engine import Engine
from computerrl.launch.simulation.records import Counts, Play, Span
from computerrl.launch.simulation.workload import AnyWorkload
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.pacing import Cut, Pacer

_KEPT_VERSIONS = 1000
"""Older versions' shared steps are forgotten."""
_MAX_ASSIGNMENT_S = 1e9
"""The broker's time limit for an episode plays no part: the simulation gives lost ones back itself."""


class Simulation:
    """One run; `play` it once."""

    def __init__(
        self, config: RunConfig, cluster: Cluster, workload: AnyWorkload, *, seed: int = 0, keep_spans_s: float = 0.0
    ) -> None:
        """``keep_spans_s``: stages of the first so many seconds are kept for a picture."""
        self.config = config
        self.cluster = cluster
        self.workload = workload
        self.counts = Counts()
        self.spans: list[Span] = []
        self.now = 0.0
        self._keep_spans_s = keep_spans_s
        self._core = BrokerCore.from_config(_unlimited(config), run_id="simulated")
        self._pacer = Pacer(config)
        self.chance = random.Random(seed)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.engines = [Engine(crowding=cluster.crowding) for _ in range(cluster.num_actors)]
        self.idle: list[tuple[int, int, float]] = []
        """(actor, slot, since)."""
        self.is_up = [True] * cluster.num_actors
        self._loaded_at: list[list[float]] = [[0.0] for _ in range(cluster.num_actors)]
        """For each actor when it had version 0, 1, ..."""
        self._version = 0
        self._taken: list[TrajectoryGroup] = []
        self._cursor = 0
        self.in_training: list[TrajectoryGroup] | None = None
        self._train_s = 0.0
        """Of the batch in training."""
        self.training_epoch = 0
        self._num_steps: dict[str, Counter[int]] = {}
        """Trajectory handed in and not trained -> version -> steps."""
        self.since_checkpoint_s: list[float] = []
        """Training times of updates since the last checkpoint."""
        self.learner_up = True
        self.num_waiting_steps = 0
        """Of finished episodes, not yet trained."""
        self._steps: dict[int, Step] = {}
        self._draining: set[int] = set()
        self._held: dict[str, list[Play]] = {}
        """Group -> rollouts that are through and keep their desktops, where tasks come in waves."""
        self._num_plays = 0
        self.plays: list[dict[int, Play]] = [{} for _ in range(cluster.num_actors)]
        """For each actor its episodes under way, by number: in an order that is the same in every run of a seed."""

    def play(self, duration_s: float, *, on_progress: Callable[[float], None] = lambda share: None) -> Simulation:
        """Until ``duration_s`` simulated seconds have passed; gives itself."""
        self.ask(VersionAnnouncement(0, 0))
        learner = self.config.learner
        self.ask(RolloutOrder("rl-1", "training", self.workload.families, None, learner.group_size, 0, 1.0, 1000, 0))
        for actor in range(self.cluster.num_actors):
            self.idle += [(actor, slot, 0.0) for slot in range(self.cluster.slots_of(actor))]
        Breakdowns(self).schedule()
        self.assign()
        next_report = 0.0
        while self._events and self._events[0][0] <= duration_s:
            self.now, _, handle, arguments = heapq.heappop(self._events)
            handle(*arguments)
            if self.now >= next_report:
                on_progress(self.now / duration_s)
                next_report += duration_s / 100
        self.now = duration_s
        for engine in self.engines:
            engine.advance(duration_s)
        self.counts.idle_slot_s += sum(duration_s - since for _, _, since in self.idle)
        return self

    @property
    def generating_s(self) -> float:
        """Answers under way, integrated over time and added up over engines."""
        return sum(engine.generating_integral for engine in self.engines)

    # --- plumbing ----------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, handle: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), handle, arguments))

    def ask(self, message: Message) -> Message:
        (effect, *_) = self._core.handle(MessageReceived(0, message, "sim-0:x"), self.now)
        effects = [effect]
        if isinstance(effect, Persist):
            effects = self._core.handle(MessagePersisted(0, message), self.now)
        return next(effect.message for effect in effects if isinstance(effect, Reply))

    def _span(self, who: str, stage: str, began_s: float) -> None:
        if began_s < self._keep_spans_s:
            self.spans.append(Span(who, stage, began_s, self.now))

    # --- actors ------------------------------------------------------------------------------------------------------

    def assign(self) -> None:
        """Give idle slots work until the broker has none, in the order in which they became idle."""
        passed_over = set(self._draining)
        while (place := self._next_idle(passed_over)) is not None:
            actor, slot, since = self.idle[place]
            version = len(self._loaded_at[actor]) - 1
            granted = self.ask(AssignmentRequest("x", version))
            if isinstance(granted, NoAssignment) and granted.reason == "policy_version":
                passed_over.add(actor)
                continue
            if not isinstance(granted, Assignment):
                return
            self.idle.pop(place)
            self.counts.idle_slot_s += self.now - since
            self._num_plays += 1
            times = self.workload.draw(granted.task.family, self.chance)
            play = Play(self._num_plays, granted, times, actor, slot, self.now)
            self.plays[actor][play.number] = play
            self.later(play.times.reset_s, self._begin, play)

    def _next_idle(self, passed_over: set[int]) -> int | None:
        """Place in `idle` of the first slot whose actor is not ``passed_over``."""
        return next((place for place, (actor, *_) in enumerate(self.idle) if actor not in passed_over), None)

    def _begin(self, play: Play) -> None:
        if play.gone:
            return
        play.began_s = self.now
        self.counts.reset_s += play.times.reset_s
        self._span(f"slot {play.actor}.{play.slot}", "reset", play.asked_s)
        engine = self.engines[play.actor]
        engine.start(play, desktop_s=play.times.desktop_s, generate_s=play.times.generate_s, now=self.now)
        self.expect_end(play.actor)

    def expect_end(self, actor: int) -> None:
        engine = self.engines[actor]
        delay_s = engine.next_end()
        if delay_s is not None:
            self.later(delay_s, self._end, actor, engine.epoch)

    def _end(self, actor: int, epoch: int) -> None:
        engine = self.engines[actor]
        if engine.epoch != epoch:
            return  # Something changed since; another event has taken its place.
        play = engine.finish(self.now)
        play.ended_s = self.now
        self.num_waiting_steps += play.times.num_steps
        self.expect_end(actor)
        self.later(play.times.evaluate_s, self._submit, play)

    def _submit(self, play: Play) -> None:
        if play.gone:
            return
        self.forget(play)
        self._span(f"slot {play.actor}.{play.slot}", "steps", play.began_s)
        self.counts.evaluate_s += play.times.evaluate_s
        self.counts.episodes += 1
        self.counts.steps += play.times.num_steps
        self.counts.episode_s.append(self.now - play.asked_s)
        self.ask(self._trajectory(play))
        self._free(play)
        self._load_when_drained(play.actor)
        self.learn()
        self.assign()

    def forget(self, play: Play) -> None:
        del self.plays[play.actor][play.number]

    def _free(self, play: Play) -> None:
        """Its slot can be used again: now, or when the last rollout of its task is through."""
        freed = [play]
        if self.cluster.waves == "task":
            held = self._held.setdefault(play.granted.group_id, [])
            held.append(play)
            if len(held) < self.config.learner.group_size:
                return
            freed = self._held.pop(play.granted.group_id)
        self.idle += [(one.actor, one.slot, one.ended_s) for one in freed if self.is_up[one.actor]]

    def _trajectory(self, play: Play) -> Trajectory:
        """Steps spread evenly over the time they took; each has the version its actor had loaded. The message has one step for
        each version: the broker looks at every one, and 15 alike tell it nothing more."""
        granted, number = play.granted, play.times.num_steps
        loaded, each_s = self._loaded_at[play.actor], (play.ended_s - play.began_s) / number
        versions = Counter(bisect_right(loaded, play.began_s + (step + 0.5) * each_s) - 1 for step in range(number))
        self._num_steps[granted.assignment_id] = versions
        success = granted.index % 2 == 0
        return Trajectory(
            trajectory_id=granted.assignment_id,
            group_id=granted.group_id,
            index=granted.index,
            order_id=granted.order_id,
            kind=granted.kind,
            task=granted.task,
            instruction="",
            steps=tuple(map(self._step, versions)),
            reward=float(success),
            success=success,
            end_reason="done_action",
            final_screenshot=None,
            actor="sim-0:x",
            started_at=play.asked_s,
            duration_s=self.now - play.asked_s,
            reset_s=play.times.reset_s,
            wait_s=0.0,
        )

    def _step(self, version: int) -> Step:
        """All steps of a version are the same one: millions of them need no memory."""
        if version not in self._steps:
            one = np.array([1], dtype=np.int32)
            self._steps[version] = Step(
                one,
                one,
                np.array([-1.0], np.float32),
                np.array([version], np.int32),
                "click(1)",
                True,
                "",
                None,
                "quiet",
                StepTiming(0.0, 0.0, 0.0),
            )
            self._steps.pop(version - _KEPT_VERSIONS, None)
        return self._steps[version]

    # --- the learner -------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """As the conductor does between updates, until there is nothing more to do."""
        while self.in_training is None and self.learner_up:
            answer = self.ask(GroupRequest(self._cursor + len(self._taken)))
            in_flight = answer.training_versions if isinstance(answer, NoGroup) else None
            if isinstance(answer, TrajectoryGroup):
                self._taken.append(answer)
            was_stalling = self._pacer.is_stalling
            cut = self._pacer.cut(self._taken, in_flight, version=self._version, lineage=Lineage(), now=self.now)
            if cut is not None:
                self._train(cut)
                return
            if isinstance(answer, NoGroup):
                if self._pacer.is_stalling and not was_stalling:
                    self.later(self.config.learner.staleness.stall_budget_s, self.learn)
                return

    def _train(self, cut: Cut) -> None:
        self.in_training, self._taken = self._taken[: cut.num_groups], self._taken[cut.num_groups :]
        ages: Counter[int] = Counter()
        for trajectory in (one for group in self.in_training for one in group.trajectories):
            for version, count in self._num_steps.pop(trajectory.trajectory_id).items():
                ages[self._version - version] += count
        num_steps = sum(ages.values())
        bound = self.config.learner.age_bound
        too_old = sum(count for age, count in ages.items() if age > bound)
        self.counts.ages.update(ages)
        self.counts.steps_too_old += too_old
        self.counts.steps_trained += num_steps - too_old
        self.num_waiting_steps -= num_steps
        self._train_s = self.cluster.train_fixed_s + self.cluster.train_step_s * num_steps
        if self.cluster.pauses_while_training:
            self._pause_all()
        self.run_training()

    def run_training(self) -> None:
        self.training_epoch += 1
        self.later(self._train_s + self.cluster.overhead_s, self._trained, self.training_epoch, self.now)

    def _trained(self, epoch: int, began_s: float) -> None:
        if epoch != self.training_epoch:
            return  # The learner failed meanwhile; it is made again.
        assert self.in_training is not None
        self._span("learner", "training", began_s)
        self.counts.train_s += self._train_s
        self.counts.updates += 1
        self.since_checkpoint_s.append(self._train_s)
        self._cursor += len(self.in_training)
        self.in_training = None
        self._version += 1
        if self.counts.updates % self.cluster.checkpoint_every_updates == 0:
            self.since_checkpoint_s.clear()
        self.ask(VersionAnnouncement(self._version, self._cursor))
        self.ask(ConsumptionReport(self._cursor))
        if self.cluster.pauses_while_training:
            self._resume_all()
        self.counts.publications += 1
        self.counts.occupancy_sum += self.num_waiting_steps + self._num_steps_under_way()
        if self.cluster.drains_for_weights:
            self._draining |= {actor for actor in range(self.cluster.num_actors) if self.is_up[actor]}
            for actor in list(self._draining):
                self._load_when_drained(actor)
            self.learn()
            return
        for actor in range(self.cluster.num_actors):
            turn_s = actor * self.cluster.load_stall_s if self.cluster.actors_load_in_turn else 0.0
            self.later(self.cluster.weight_s + turn_s, self._stall, actor)
            self.later(self.cluster.weight_s + turn_s + self.cluster.load_stall_s, self._loaded, actor)
        self.learn()
        self.assign()

    def _num_steps_under_way(self) -> float:
        """Sampled by episodes in play, counted by their progress."""
        total = 0.0
        for engine in self.engines:
            engine.advance(self.now)
            for left_s, play in engine.episodes():
                own_s = play.times.desktop_s + play.times.generate_s
                total += play.times.num_steps * (1.0 - left_s / own_s) if own_s else 0.0
        return total

    def _load_when_drained(self, actor: int) -> None:
        if actor in self._draining and not self.plays[actor]:
            self._draining.discard(actor)
            self._stall(actor)
            self.later(self.cluster.weight_s + self.cluster.load_stall_s, self._loaded_to, actor, self._version)

    def _loaded_to(self, actor: int, version: int) -> None:
        """Versions that came while it drained are skipped."""
        loaded = self._loaded_at[actor]
        loaded += [self.now] * (version - len(loaded))
        self._loaded(actor)

    def _stall(self, actor: int) -> None:
        self.engines[actor].pause(self.now)

    def _loaded(self, actor: int) -> None:
        self.engines[actor].resume(self.now)
        self.expect_end(actor)
        self._loaded_at[actor].append(self.now)
        self.assign()

    def _pause_all(self) -> None:
        for engine in self.engines:
            engine.pause(self.now)

    def _resume_all(self) -> None:
        for actor, engine in enumerate(self.engines):
            engine.resume(self.now)
            self.expect_end(actor)


def _unlimited(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"broker": config.broker.model_copy(update={"max_assignment_s": _MAX_ASSIGNMENT_S})})
