"""The learner of a simulated run: takes groups, cuts batches by the real pacing (`learner.recipe.pacing`), trains, publishes.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from computerrl.common.messages import ConsumptionReport, GroupRequest, NoGroup, TrajectoryGroup, VersionAnnouncement
from computerrl.launch.simulation.world import World
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.pacing import Cut, Pacer


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups that one update trains."""

    groups: Sequence[TrajectoryGroup]
    steps_by_version: Mapping[str, Counter[int]]
    """Trajectory -> policy version -> steps sampled by it."""
    version: int
    """Policy version that is trained."""
    cut: Cut


class Learner:
    """One batch is in training at a time; an update that a failure interrupts is made again."""

    def __init__(self, world: World, *, on_batch: Callable[[Batch], None], on_published: Callable[[int], None]) -> None:
        """``on_batch`` is called when training of a batch begins, ``on_published`` with each new policy version."""
        self._world = world
        self._on_batch = on_batch
        self._on_published = on_published
        self._pacer = Pacer(world.config)
        self._version = 0
        self._taken: list[TrajectoryGroup] = []
        """Groups that are in no batch yet."""
        self._cursor = 0
        """Number of groups trained."""
        self._in_training: list[TrajectoryGroup] | None = None
        self._train_s = 0.0
        """Training time of the batch in training."""
        self._attempt = 0
        """Number of times that training of a batch has begun or was interrupted; an event of an older attempt is void."""
        self._since_checkpoint_s: list[float] = []
        """Training times of updates since the last checkpoint."""
        self._is_up = True

    def learn(self) -> None:
        """Take groups until a batch is whole or the broker has no group; then train or wait, as the conductor does."""
        while self._in_training is None and self._is_up:
            answer = self._world.ask(GroupRequest(self._cursor + len(self._taken)))
            in_flight = answer.training_versions if isinstance(answer, NoGroup) else None
            if isinstance(answer, TrajectoryGroup):
                self._taken.append(answer)
            was_stalling = self._pacer.is_stalling
            cut = self._pacer.cut(self._taken, in_flight, version=self._version, lineage=Lineage(), now=self._world.now)
            if cut is not None:
                self._train(cut)
                return
            if isinstance(answer, NoGroup):
                if self._pacer.is_stalling and not was_stalling:
                    self._world.later(self._world.config.learner.staleness.stall_budget_s, self.learn, is_timeout=True)
                return

    def _train(self, cut: Cut) -> None:
        self._in_training, self._taken = self._taken[: cut.num_groups], self._taken[cut.num_groups :]
        names = [one.trajectory_id for group in self._in_training for one in group.trajectories]
        steps_by_version = {name: self._world.steps_by_version.pop(name) for name in names}
        batch = Batch(self._in_training, steps_by_version, self._version, cut)
        num_steps = self._count(batch)
        cluster = self._world.cluster
        self._train_s = cluster.train_fixed_s + cluster.train_step_s * num_steps
        self._on_batch(batch)
        self._begin_training()

    def _count(self, batch: Batch) -> int:
        """Enter the ages of the batch's steps into the counts; gives the number of its steps."""
        ages: Counter[int] = Counter()
        for versions in batch.steps_by_version.values():
            for version, count in versions.items():
                ages[batch.version - version] += count
        num_steps, bound = sum(ages.values()), self._world.config.learner.age_bound
        too_old = sum(count for age, count in ages.items() if age > bound)
        counts = self._world.counts
        counts.ages.update(ages)
        counts.steps_too_old += too_old
        counts.steps_trained += num_steps - too_old
        counts.num_waiting_steps -= num_steps
        return num_steps

    def _begin_training(self) -> None:
        self._attempt += 1
        self._world.later(self._train_s + self._world.cluster.overhead_s, self._trained, self._attempt, self._world.now)

    def _trained(self, attempt: int, began_s: float) -> None:
        if attempt != self._attempt:
            return
        assert self._in_training is not None
        counts = self._world.counts
        self._world.note_span("learner", "training", began_s)
        counts.train_s += self._train_s
        counts.updates += 1
        self._since_checkpoint_s.append(self._train_s)
        self._cursor += len(self._in_training)
        self._in_training = None
        self._version += 1
        if counts.updates % self._world.cluster.checkpoint_every_updates == 0:
            self._since_checkpoint_s.clear()
        self._world.ask(VersionAnnouncement(self._version, self._cursor))
        self._world.ask(ConsumptionReport(self._cursor))
        self._on_published(self._version)

    # --- failures ----------------------------------------------------------------------------------------------------

    def fail(self, repair_s: float, *, on_repaired: Callable[[], None]) -> None:
        """Restart for ``repair_s``, then make the updates since the last checkpoint again, then go on.

        The broker delivers the groups of those updates again. ``on_repaired`` is called after a failure between two updates.
        Nothing happens to a learner that is down already.
        """
        if not self._is_up:
            return
        self._is_up = False
        self._attempt += 1
        redo_s = sum(self._since_checkpoint_s) + self._world.cluster.overhead_s * len(self._since_checkpoint_s)
        counts = self._world.counts
        counts.learner_down_s += repair_s + redo_s
        self._world.later(repair_s + redo_s, self._back, on_repaired)

    def _back(self, on_repaired: Callable[[], None]) -> None:
        self._is_up = True
        if self._in_training is not None:
            self._begin_training()
        else:
            self.learn()
            on_repaired()
