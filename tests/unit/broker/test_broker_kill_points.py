"""Random runs in which the broker, the actors and the learner are killed at any time: nothing acknowledged is lost or doubled.

The broker is killed inside the write of a batch: any number of that batch's bytes may have reached the disk, and none of its
requests was answered. The learner falls back to its checkpoint. An actor forgets what it played.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from computerrl.broker.journal.file import FileJournal
from computerrl.broker.service import BrokerService
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    CurriculumPlan,
    ErrorReply,
    GroupRequest,
    Hello,
    ImageReply,
    ImageRequest,
    ImagesWanted,
    Message,
    OrderClosure,
    ReceiptBatch,
    RolloutOrder,
    ScreenshotRef,
    TaskRef,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
    Welcome,
    content_hash,
    submissions_of,
)
from tests.support.broker_invariants import CheckedCore
from tests.support.clock import ManualClock
from tests.support.data.broker_data import order, step, trajectory_for

NUM_RUNS = 50
KILLS_PER_RUN = 20
GROUP_SIZE, GROUPS_PER_BATCH = 3, 2
ADAPTIVE = CurriculumPlan("success_band", num_recent=8, min_results=2, min_group_size=2, max_group_size=5)


class Run:
    """One broker, a few actors, one learner, and what they know to be true."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.clock = ManualClock()
        self.num_restarts = -1
        self.acknowledged: set[str] = set()
        self.playing: list[Assignment] = []
        self.tasks: dict[str, TaskRef] = {}
        self.orders: list[RolloutOrder] = []
        self.closed: set[str] = set()
        self.version = 0
        # The learner: groups taken along its lineage, and what its checkpoint holds.
        self.taken: list[TrajectoryGroup] = []
        self.checkpoint: list[TrajectoryGroup] = []
        self.group_ids: dict[int, tuple[str, ...]] = {}
        self.images = {content_hash(data): data for data in (self.rng.randbytes(self.rng.randint(1, 1500)) for _ in range(40))}
        """What the desktops show; an actor has all of it."""
        self.num_images_read = 0
        self.start()

    def start(self) -> None:
        core = CheckedCore(run_id="r", eta=1, groups_per_batch=GROUPS_PER_BATCH, max_assignment_s=20.0, peer_timeout_s=15.0)
        self.journal = FileJournal(self.folder, fsync=False)
        self.service = BrokerService(core, self.journal, clock=self.clock, segment_bytes=20_000)
        self.num_restarts += 1

    def ask(self, message: Message) -> Message:
        self.clock.advance(self.rng.random())
        return self.service(message, "actor-0:a")

    def kill_broker(self, messages: list[Message]) -> None:
        """Kill it while it writes what ``messages`` ask for."""
        old = self.journal.path.read_bytes()
        self.service.answer_all([(message, "actor-0:a") for message in messages])
        path = self.journal.path
        self.service.close()
        written = path.read_bytes()
        if written.startswith(old):
            path.write_bytes(written[: self.rng.randint(len(old), len(written))])
        self.start()
        # Its memory of the version may be older than the learner's; the learner announces again with its next update.

    def turn(self) -> None:
        action = self.rng.choices(
            [
                self.place,
                self.close,
                self.take_assignment,
                self.submit,
                self.submit_together,
                self.give_back,
                self.fetch,
                self.save,
                self.learner_dies,
                self.resubmit,
                self.actor_dies,
            ],
            [2, 1, 30, 25, 5, 3, 20, 4, 1, 3, 1],
        )[0]
        action()

    def new_order(self) -> RolloutOrder:
        number = len(self.orders)
        kind = self.rng.choice(["training", "training", "evaluation"])
        size = None if kind == "training" else self.rng.randint(1, 3)
        plan = ADAPTIVE if kind == "training" and self.rng.random() < 0.5 else CurriculumPlan()
        return order(
            f"{kind}-{number}", kind=kind, num_per_family=size, group_size=GROUP_SIZE, min_policy_version=-1, curriculum=plan
        )

    def place(self) -> None:
        if len(self.orders) - len(self.closed) < 3:
            new = self.new_order()
            self.orders.append(new)
            assert self.ask(new) == Ack()

    def close(self) -> None:
        open_orders = [one.order_id for one in self.orders if one.order_id not in self.closed]
        if open_orders:
            self.closed.add(self.rng.choice(open_orders))
            for order_id in self.closed:
                assert self.ask(OrderClosure(order_id)) == Ack()

    def take_assignment(self) -> None:
        answer = self.ask(AssignmentRequest("a", self.version))
        if isinstance(answer, Assignment):
            # What a group plays was told before the kill, and may not change after it.
            assert self.tasks.setdefault(answer.group_id, answer.task) == answer.task
            self.playing.append(answer)

    def episode(self) -> Trajectory | None:
        if not self.playing:
            return None
        granted = self.playing.pop(self.rng.randrange(len(self.playing)))
        shown = self.rng.sample(sorted(self.images), self.rng.choice((0, 1, 2)))
        refs = tuple(ScreenshotRef(name, "segment", 0, len(self.images[name]), 8, 8) for name in shown)
        played = replace(step(num_prompt=self.rng.randint(1, 40)), images=refs)
        return trajectory_for(granted, steps=[played], success=self.rng.random() < 0.5)

    def hand_in(self, message: Trajectory | TrajectoryBatch) -> Message:
        """With its images, where the broker lacks them."""
        while isinstance(reply := self.ask(message), ImagesWanted):
            for submission in submissions_of(reply.names, self.images):
                assert self.ask(submission) == Ack()
        return reply

    def submit(self) -> None:
        trajectory = self.episode()
        if trajectory is not None:
            receipt = self.hand_in(trajectory)
            assert isinstance(receipt, TrajectoryReceipt)
            if receipt.accepted:
                assert trajectory.trajectory_id not in self.acknowledged
                self.acknowledged.add(trajectory.trajectory_id)
            else:
                assert receipt.reason in ("duplicate", "order_closed")

    def submit_together(self) -> None:
        together = [trajectory for trajectory in (self.episode() for _ in range(3)) if trajectory is not None]
        if together:
            answer = self.hand_in(TrajectoryBatch(tuple(together)))
            assert isinstance(answer, ReceiptBatch) and len(answer.receipts) == len(together)
            for trajectory, receipt in zip(together, answer.receipts, strict=True):
                assert receipt.trajectory_id == trajectory.trajectory_id
                assert receipt.accepted or receipt.reason in ("duplicate", "order_closed")
                if receipt.accepted:
                    assert receipt.trajectory_id not in self.acknowledged
                    self.acknowledged.add(receipt.trajectory_id)

    def resubmit(self) -> None:
        """The receipt was lost; the actor sends again."""
        trajectory = self.episode()
        if trajectory is not None:
            first, second = self.hand_in(trajectory), self.hand_in(trajectory)
            assert isinstance(first, TrajectoryReceipt) and isinstance(second, TrajectoryReceipt)
            assert not second.accepted
            if first.accepted:
                self.acknowledged.add(trajectory.trajectory_id)

    def give_back(self) -> None:
        if self.playing:
            granted = self.playing.pop()
            assert self.ask(AssignmentReturn(granted.assignment_id, "a", "desktop_broken")) == Ack()

    def actor_dies(self) -> None:
        self.playing.clear()
        self.clock.advance(21.0)

    def fetch(self) -> bool:
        answer = self.ask(GroupRequest(len(self.taken)))
        if not isinstance(answer, TrajectoryGroup):
            assert not isinstance(answer, ErrorReply), answer
            return False
        assert answer.group_seq == len(self.taken)
        ids = tuple(one.trajectory_id for one in answer.trajectories)
        # A group given once is the same for ever, whoever was killed in between.
        assert self.group_ids.setdefault(answer.group_seq, ids) == ids
        self.read_images(answer)
        self.taken.append(answer)
        if len(self.taken) % GROUPS_PER_BATCH == 0:
            self.version += 1
            self.ask(VersionAnnouncement(self.version, len(self.taken)))
        return True

    def read_images(self, group: TrajectoryGroup) -> None:
        """Every image of a group is there as long as the group is, byte for byte."""
        names = {ref.content_hash for one in group.trajectories for step in one.steps for ref in step.images}
        if names:
            answer = self.ask(ImageRequest(tuple(names)))
            assert isinstance(answer, ImageReply)
            assert {one.content_hash: one.data.tobytes() for one in answer.images} == {name: self.images[name] for name in names}
            self.num_images_read += len(names)

    def save(self) -> None:
        self.checkpoint = self.taken[: len(self.taken) // GROUPS_PER_BATCH * GROUPS_PER_BATCH]
        if self.rng.random() < 0.8:  # Else it is killed between its checkpoint and the report.
            assert self.ask(ConsumptionReport(len(self.checkpoint))) == Ack()

    def learner_dies(self) -> None:
        self.taken = list(self.checkpoint)
        welcome = self.ask(Hello("learner", 0, f"l{self.rng.random()}", "node", 1, {}))
        assert isinstance(welcome, Welcome)
        self.version = max(self.version, welcome.policy_version) + 1
        self.ask(VersionAnnouncement(self.version, len(self.taken)))

    def in_flight(self) -> list[Message]:
        """Requests that arrive together when the broker is killed; nobody gets an answer."""
        messages: list[Message] = [GroupRequest(len(self.taken)), AssignmentRequest("a", self.version)]
        for _ in range(self.rng.randint(1, 4)):
            trajectory = self.episode()
            messages += [trajectory] if trajectory is not None else []
        together = [one for one in (self.episode() for _ in range(self.rng.randint(0, 3))) if one is not None]
        messages += [TrajectoryBatch(tuple(together))] if together else []
        messages += submissions_of(self.rng.sample(sorted(self.images), self.rng.randint(0, 3)), self.images)
        if self.rng.random() < 0.3:
            messages.append(ConsumptionReport(len(self.checkpoint)))
        if self.rng.random() < 0.3:
            messages.append(VersionAnnouncement(self.version, 0))
        self.rng.shuffle(messages)
        return messages

    def finish(self) -> None:
        """Everything still open is closed; the learner takes what there is."""
        for one in self.orders:
            assert self.ask(OrderClosure(one.order_id)) == Ack()
        while self.fetch():
            pass
        assert self.ask(ConsumptionReport(len(self.taken))) == Ack()


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_nothing_acknowledged_is_lost_or_taken_twice_over_random_kill_points(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, seed)
    for _ in range(KILLS_PER_RUN):
        for _ in range(run.rng.randint(0, 40)):
            run.turn()
        run.kill_broker(run.in_flight())
    pending = {trajectory.trajectory_id for state in run.service.core.orders for trajectory in state.slots.pending()}
    run.finish()
    taken = Counter(one.trajectory_id for group in run.taken for one in group.trajectories)
    assert not [trajectory_id for trajectory_id, times in taken.items() if times > 1]
    # What was acknowledged was taken, unless its order was closed while its group was incomplete.
    missing = run.acknowledged - set(taken)
    assert {trajectory_id.partition("/")[0] for trajectory_id in missing - pending} <= run.closed
    counters = run.service.core.counters
    assert counters["held"] == 0 and run.num_images_read
    assert counters["received"] == counters["delivered"] + counters["rejected"]
    assert run.num_restarts == KILLS_PER_RUN
    run.service.close()
