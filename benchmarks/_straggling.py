"""A simulated run with heavy-tailed episodes: real broker, real pacing, real masking and ledger; actors and time are imitated.

Slots play episodes whose lengths follow a Pareto law; every step takes the same time and is sampled by the newest version. An
update takes a fixed time, during which episodes go on. One event is handled after the other on a clock that jumps to the next.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
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
    NoGroup,
    RolloutOrder,
    Step,
    StepTiming,
    Trajectory,
    TrajectoryGroup,
    VersionAnnouncement,
)
from computerrl.learner.accounts.ledger import AgeSpan, Ledger
from computerrl.learner.algorithms import PolicyAges, make_algorithm
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.pacing import Cut, Pacer

FAMILIES = {"short": 1, "long": 3}
"""Family -> its episodes' least number of steps."""
TAIL = 1.3
"""Exponent of the Pareto law: the share of episodes longer than x times the least is x to the -1.3."""
MAX_STEPS = 40
STEP_S = 4.0
TRAIN_S = 12.0
NUM_SLOTS = 48
GROUP_SIZE, GROUPS_PER_BATCH = 4, 8
ETA, MAX_AGE = 2, 4
STALL_BUDGET_S = 60.0


def config_of(mode: str) -> RunConfig:
    """A batch of 32 trajectories; ages up to 4 are trained."""
    learner = {
        "group_size": GROUP_SIZE,
        "groups_per_batch": GROUPS_PER_BATCH,
        "max_age": MAX_AGE,
        "staleness": {"mode": mode, "stall_budget_s": STALL_BUDGET_S},
    }
    return RunConfig.model_validate({"broker": {"eta": ETA, "max_assignment_s": 1e6}, "learner": learner})


@dataclass
class Outcome:
    """What came of a run."""

    ages: Counter[int] = field(default_factory=Counter)
    """Age -> steps that the algorithm let train at it."""
    waste: dict[str, Any] = field(default_factory=dict)
    """`learner.accounts.waste.Waste.figures`."""
    batch_sizes: Counter[int] = field(default_factory=Counter)
    """Groups -> batches of so many."""
    stall_ends: Counter[str] = field(default_factory=Counter)
    stall_s: float = 0.0
    run_s: float = 0.0
    """Simulated."""


class StragglerRun:
    """One run; `play` it once."""

    def __init__(self, config: RunConfig, *, num_trajectories: int, seed: int) -> None:
        """Ends once so many trajectories have been taken."""
        self._num_trajectories = num_trajectories
        self._core = BrokerCore.from_config(config, run_id="straggling")
        self._pacer = Pacer(config)
        self._algorithm = make_algorithm(config.learner, seed=config.seed)
        self._age_bound = config.learner.age_bound
        self._ledger = Ledger(lambda line: None)
        self._chance = random.Random(seed)
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, tuple[str, Any]]] = []
        self._published = [0.0]
        """When each version was there."""
        self._steps: dict[int, Step] = {}
        self._idle = NUM_SLOTS
        self._taken: list[TrajectoryGroup] = []
        self._cursor = 0
        self._training: list[TrajectoryGroup] | None = None
        self.outcome = Outcome()

    def play(self) -> Outcome:
        """To the end."""
        self._ask(VersionAnnouncement(0, 0))
        self._ask(RolloutOrder("rl-1", "training", tuple(FAMILIES), None, GROUP_SIZE, 0, 1.0, MAX_STEPS, 0))
        self._assign()
        while self._cursor * GROUP_SIZE < self._num_trajectories:
            self._now, _, (kind, what) = heapq.heappop(self._events)
            if kind == "episode":
                self._ask(self._finished(*what))
                self._idle += 1
            elif kind == "trained":
                self._publish()
            if self._training is None:
                self._learn()
            self._assign()
        self.outcome.waste = self._ledger.waste.figures()
        self.outcome.run_s = self._now
        return self.outcome

    def _ask(self, message: Message) -> Message:
        (effect, *_) = self._core.handle(MessageReceived(0, message, "sim-0:x"), self._now)
        effects = [effect]
        if isinstance(effect, Persist):
            effects = self._core.handle(MessagePersisted(0, message), self._now)
        return next(effect.message for effect in effects if isinstance(effect, Reply))

    def _later(self, delay_s: float, kind: str, what: Any = None) -> None:
        heapq.heappush(self._events, (self._now + delay_s, next(self._order), (kind, what)))

    # --- actors

    def _assign(self) -> None:
        while self._idle:
            granted = self._ask(AssignmentRequest("x", self._version))
            if not isinstance(granted, Assignment):
                return
            self._idle -= 1
            least = FAMILIES[granted.task.family]
            num_steps = min(MAX_STEPS, int(least * self._chance.paretovariate(TAIL)))
            self._later(num_steps * STEP_S, "episode", (granted, num_steps))

    def _finished(self, granted: Assignment, num_steps: int) -> Trajectory:
        began = self._now - num_steps * STEP_S
        versions = [bisect_right(self._published, began + number * STEP_S) - 1 for number in range(num_steps)]
        success = granted.index % 2 == 0  # Every group has a signal: only ages keep steps out of the loss.
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
            started_at=began,
            duration_s=num_steps * STEP_S,
            reset_s=0.0,
            wait_s=0.0,
        )

    def _step(self, version: int) -> Step:
        """All steps of a version are the same one: a million of them need no memory."""
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
                StepTiming(STEP_S, 0.0, 0.0),
            )
            self._steps.pop(version - 1000, None)
        return self._steps[version]

    # --- the learner

    @property
    def _version(self) -> int:
        return len(self._published) - 1

    def _learn(self) -> None:
        """As `learner.phases.rl.RlWork.tick`, until there is nothing more to do."""
        while True:
            answer = self._ask(GroupRequest(self._cursor + len(self._taken)))
            in_flight = answer.training_versions if isinstance(answer, NoGroup) else None
            if isinstance(answer, TrajectoryGroup):
                self._taken.append(answer)
            was_stalling = self._pacer.is_stalling
            cut = self._pacer.cut(self._taken, in_flight, version=self._version, lineage=Lineage(), now=self._now)
            if cut is not None:
                self._train(cut)
                return
            if isinstance(answer, NoGroup):
                if self._pacer.is_stalling and not was_stalling:
                    self._later(STALL_BUDGET_S, "look")
                return

    def _train(self, cut: Cut) -> None:
        self._training, self._taken = self._taken[: cut.num_groups], self._taken[cut.num_groups :]
        self.outcome.batch_sizes[cut.num_groups] += 1
        self.outcome.stall_ends[cut.stall_end] += 1
        self.outcome.stall_s += cut.stall_s
        batch = self._algorithm.prepare(self._training, ages=PolicyAges(self._version))
        self.outcome.ages.update(Counter(self._age(step) for step in batch.samples))
        for group in self._training:
            for trajectory in group.trajectories:
                self._record(trajectory, group.group_seq)
        self._later(TRAIN_S, "trained")

    def _record(self, trajectory: Trajectory, group_seq: int) -> None:
        ages = [self._age(step) for step in trajectory.steps]
        masked = sum(age > self._age_bound for age in ages)
        self._ledger.record(
            trajectory,
            "too_old" if masked == len(ages) else "trained",
            group_seq=group_seq,
            update=self._version,
            policy_version=self._version,
            ages=AgeSpan(min(ages), max(ages), masked, masked),
        )

    def _age(self, step: Step) -> int:
        return self._version - int(step.policy_versions[0])

    def _publish(self) -> None:
        assert self._training is not None
        self._cursor += len(self._training)
        self._training = None
        self._published.append(self._now)
        self._ask(VersionAnnouncement(self._version, self._cursor))
        self._ask(ConsumptionReport(self._cursor))


def simulate(mode: str, *, num_trajectories: int, seed: int = 0) -> Outcome:
    """A run in staleness mode ``mode``."""
    return StragglerRun(config_of(mode), num_trajectories=num_trajectories, seed=seed).play()
