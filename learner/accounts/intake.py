"""Groups on their way from the broker into the books: taken strictly by number, each decided once.

Trajectories that must never be trained on (`learner.poison`) are set aside when they come. Only the intake sees them, and it
records them with their group. Where steps show screenshots, threads fetch, read, verify and decode these while the control thread
goes on; a group is handed over when it and all before it are checked.

A group is taken, then decided: the outcome of each of its trajectories is recorded and the cursor moves past the group. A
checkpoint covers the decided groups; the broker delivers the others again. The intake chooses no outcome itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from computerrl.common import log
from computerrl.common.errors import ProtocolError
from computerrl.common.messages import NoGroup, Trajectory, TrajectoryGroup
from computerrl.learner.accounts.ledger import AgeSpan, Ledger, Outcome
from computerrl.learner.accounts.records import Records
from computerrl.learner.contracts import Broker
from computerrl.learner.images import ImageFolder, names_in
from computerrl.learner.poison import Poison, StepCheck, poison_of
from computerrl.learner.recipe.state import LoopState

MAX_THREADS = 4
"""Reading and decoding leave the interpreter lock; more threads would only take cores from training."""
MAX_CHECKING = 4
"""Groups that are checked at once: enough that the threads have work while a batch trains."""


@dataclass(frozen=True, slots=True)
class _Checking:
    """A group, and the reasons against its trajectories as they are found, in order."""

    group: TrajectoryGroup
    found: Sequence[Poison | None] = ()
    futures: Sequence[Future[Poison | None]] = ()

    @property
    def is_done(self) -> bool:
        return all(future.done() for future in self.futures)

    def results(self) -> Sequence[Poison | None]:
        """Waits for them."""
        return [future.result() for future in self.futures] if self.futures else self.found


class Intake:
    """The groups from ``state.cursor`` on."""

    def __init__(
        self,
        state: LoopState,
        *,
        broker: Broker,
        ledger: Ledger,
        records: Records,
        vocabulary_size: int,
        check_screenshot: StepCheck | None = None,
        images: ImageFolder | None = None,
    ) -> None:
        """``images``: where ``check_screenshot`` and the trainer read images; those of a group are fetched into it first. Only
        with ``check_screenshot``."""
        self._state = state
        self._images = images
        self._check_screenshot = check_screenshot
        self._vocabulary_size = vocabulary_size
        self._poisoned: dict[int, list[tuple[Trajectory, Poison]]] = {}
        """Group number -> trajectories that were set aside."""
        self._checking: deque[_Checking] = deque()
        """Groups after those taken that threads check, in order of number."""
        self._threads = None
        if check_screenshot is not None:
            num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
            self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="intake")
        self._broker = broker
        self._ledger = ledger
        self._records = records
        self.taken: list[TrajectoryGroup] = []
        """Groups from the cursor on whose outcomes are not decided."""
        self.in_flight: tuple[int, ...] | None = None
        """Policy versions in flight for training by the broker's last answer, None when that was a group."""

    def fetch(self, *, wait: bool = False) -> TrajectoryGroup | None:
        """The next group that was not taken yet, None when it is not complete, or threads still check it. ``wait``: for them."""
        if len(self._checking) < MAX_CHECKING:
            self._receive()
        if not self._checking or not (wait or self._checking[0].is_done):
            return None
        checking = self._checking.popleft()
        return self._without_poison(checking.group, checking.results())

    def _receive(self) -> None:
        """Ask the broker for one more group, and begin to check it."""
        wanted = self._state.cursor + len(self.taken) + len(self._checking)
        group = self._broker.fetch_group(wanted)
        if isinstance(group, NoGroup):
            # A group that is being checked is on its way no longer, but not here either.
            self.in_flight = None if self._checking else group.training_versions
            return
        self.in_flight = None
        if group.group_seq != wanted:
            raise ProtocolError(f"asked for group {wanted}, got {group.group_seq}: it would be taken twice or never")
        check = partial(
            poison_of,
            policy_version=self._state.policy_version,
            vocabulary_size=self._vocabulary_size,
            check_screenshot=self._check_screenshot,
        )
        threads, images = self._threads, self._images
        if threads is None:
            self._checking.append(_Checking(group, found=[check(one) for one in group.trajectories]))
            return
        fetching: Future[None] | None = None
        if images is not None:
            # Before the checks that wait for it, in a queue that keeps its order: a thread is never left waiting.
            fetching = threads.submit(images.fetch, names_in(group.trajectories), self._broker.fetch_images)

        def check_fetched(trajectory: Trajectory) -> Poison | None:
            if fetching is not None:
                fetching.result()
            return check(trajectory)

        self._checking.append(_Checking(group, futures=[threads.submit(check_fetched, one) for one in group.trajectories]))

    def close(self, *, wait: bool = False) -> None:
        """Check nothing any more: groups that were not handed over are delivered again. ``wait``: for what threads do now."""
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=True)

    @property
    def is_checking(self) -> bool:
        """Whether threads check a group that is not handed over."""
        return bool(self._checking)

    @property
    def received(self) -> list[TrajectoryGroup]:
        """Groups from the cursor on that came from the broker: those taken, and those that are being checked."""
        return [*self.taken, *(checking.group for checking in self._checking)]

    def current(self) -> list[TrajectoryGroup]:
        """Groups taken that belong to the present orders."""
        return [group for group in self.taken if group.order_id in self._state.orders]

    def batch(self, num_groups: int) -> tuple[list[TrajectoryGroup], list[TrajectoryGroup]]:
        """(all groups taken up to the last of the batch, the batch: the first ``num_groups`` groups of the present orders)."""
        groups = self.current()[:num_groups]
        taken = [group for group in self.taken if group.group_seq <= groups[-1].group_seq]
        return taken, groups

    def decide(
        self,
        groups: Sequence[TrajectoryGroup],
        outcomes: Sequence[Sequence[Outcome]],
        ages: Mapping[str, AgeSpan] | None = None,
        advantages: Mapping[str, Sequence[float | None]] | None = None,
    ) -> None:
        """Record the ``outcomes`` of the trajectories of ``groups``, the next groups from the cursor on. ``ages`` and
        ``advantages`` (of each step): by trajectory, for those in the batch."""
        state = self._state
        for group, of_group in zip(groups, outcomes, strict=True):
            assert group.group_seq == state.cursor
            for trajectory, outcome in zip(group.trajectories, of_group, strict=True):
                span = (ages or {}).get(trajectory.trajectory_id)
                self._ledger.record(
                    trajectory,
                    outcome,
                    group_seq=group.group_seq,
                    update=state.update,
                    policy_version=state.policy_version,
                    ages=span,
                )
                self._records.episode(
                    trajectory,
                    outcome,
                    age_max=None if span is None else span.maximum,
                    advantages=(advantages or {}).get(trajectory.trajectory_id, ()),
                )
                self._records.film_strip(trajectory, step=state.update)
            poisoned = self._poisoned.pop(group.group_seq, [])
            for trajectory, poison in poisoned:
                self._ledger.record(
                    trajectory,
                    poison,
                    group_seq=group.group_seq,
                    update=state.update,
                    policy_version=state.policy_version,
                    ages=None,
                )
                self._records.episode(trajectory, poison)
                log.get_logger().error("trajectory.poisoned", trajectory_id=trajectory.trajectory_id, reason=poison)
            if group.num_given_up:
                log.get_logger().warning("group.incomplete", task=group.task.task_id, num_given_up=group.num_given_up)
            state.take([*group.trajectories, *(trajectory for trajectory, _ in poisoned)])
            if group.kind == "training":
                state.next_seed = max(state.next_seed, group.task.seed + 1)
            state.cursor += 1
        self.taken = [group for group in self.taken if group.group_seq >= state.cursor]

    def _without_poison(self, group: TrajectoryGroup, found: Sequence[Poison | None]) -> TrajectoryGroup:
        """``group`` without the trajectories for which ``found`` has a reason."""
        poisoned = [(one, poison) for one, poison in zip(group.trajectories, found, strict=True) if poison is not None]
        if not poisoned:
            return group
        self._poisoned[group.group_seq] = poisoned
        fine = tuple(one for one, poison in zip(group.trajectories, found, strict=True) if poison is None)
        # Beyond the intake a poisoned rollout counts as one that could not be played.
        return replace(group, trajectories=fine, num_given_up=group.num_given_up + len(poisoned))

    def close_phase(self) -> None:
        """Record `phase_closed` for all groups that were taken and not trained."""
        self.decide_all(self.taken, "phase_closed")

    def decide_all(self, groups: Sequence[TrajectoryGroup], outcome: Outcome) -> None:
        """Record the same outcome for all trajectories of ``groups``."""
        self.decide(groups, [[outcome] * len(group.trajectories) for group in groups])
