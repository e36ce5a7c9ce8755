"""Any sequence of events, found by hypothesis: the invariants hold, and the journal tells the whole state at any time.

The real service on a journal in memory, with orders whose groups follow from the order alone and orders whose groups results
choose. Requests come alone and together, the disk is full at times, the broker is killed between any two turns.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from computerrl.broker.core import BrokerCore
from computerrl.broker.journal.file import MemoryJournal, Position
from computerrl.broker.service import BrokerService
from computerrl.common.errors import DiskFull
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    CurriculumPlan,
    ErrorReply,
    GroupRequest,
    Message,
    NoAssignment,
    OrderClosure,
    RolloutOrder,
    TaskRef,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
)
from tests.support.broker_invariants import CheckedCore
from tests.support.clock import ManualClock
from tests.support.data.broker_data import order, step, trajectory_for

GROUPS_PER_BATCH = 2
PLANS = {
    "uniform": CurriculumPlan(),
    "weighted": CurriculumPlan("weighted", {"calc-set-cell": 2.5}),
    "band": CurriculumPlan("success_band", num_recent=6, min_results=2),
    "rollouts": CurriculumPlan(num_recent=6, min_results=2, min_group_size=1, max_group_size=4),
    "both": CurriculumPlan("success_band", {"web-click-button": 0.5}, num_recent=6, min_results=2, max_group_size=3),
}


SEGMENT_BYTES = 4000
"""Some ten trajectories: most runs go through several segments."""


class FillingJournal(MemoryJournal):
    """Refuses all batches while it is full."""

    full = False

    def flush(self) -> list[Position]:
        if self.full and self._batch:
            self._batch = []
            raise DiskFull("no space")
        return super().flush()

    def begin_segment(self, snapshot: bytes) -> None:
        if self.full:
            raise DiskFull("no space")
        super().begin_segment(snapshot)


class BrokerMachine(RuleBasedStateMachine):
    """One broker and what its peers know to be true."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.journal = FillingJournal()
        self.service = self.restarted()
        self.orders: list[RolloutOrder] = []
        self.playing: list[Assignment] = []
        self.tasks: dict[str, TaskRef] = {}
        self.groups: list[TrajectoryGroup] = []
        self.acknowledged: set[str] = set()
        self.num_taken = self.num_consumed = 0
        self.version = 0

    def restarted(self) -> BrokerService:
        core = CheckedCore(run_id="r", eta=1, groups_per_batch=GROUPS_PER_BATCH, max_assignment_s=20.0, peer_timeout_s=15.0)
        return BrokerService(core, self.journal, clock=self.clock, segment_bytes=SEGMENT_BYTES)

    def ask(self, *messages: Message, num_later: int = 0) -> list[Message]:
        """Their answers. ``num_later``: so many of them come while the disk is busy with those before."""
        self.clock.advance(0.25)
        service, at_once = self.service, len(messages) - num_later
        for ticket, message in enumerate(messages[:at_once]):
            service.receive(ticket, message, "actor-0:a")
        batch = service.next_batch()
        for ticket, message in enumerate(messages[at_once:], at_once):
            service.receive(ticket, message, "actor-0:a")
        while batch is not None or (batch := service.next_batch()) is not None:
            service.persist(batch)
            service.apply(batch)
            batch = None
        service.expire()
        answers = dict(service.pop_replies())
        return [answers[ticket] for ticket in range(len(messages))]

    def learn(self, answers: list[Message]) -> None:
        """A group means the same task for ever, whoever is killed."""
        for answer in answers:
            assert isinstance(answer, (Assignment, NoAssignment)), answer
            if isinstance(answer, Assignment):
                assert self.tasks.setdefault(answer.group_id, answer.task) == answer.task
                self.playing.append(answer)

    # --- what happens

    @initialize(plan=st.sampled_from(sorted(PLANS)))
    def first_order(self, plan: str) -> None:
        self.place(plan)

    @precondition(lambda self: len(self.orders) < 4)
    @rule(plan=st.sampled_from(["evaluation", *sorted(PLANS)]))
    def place(self, plan: str) -> None:
        name, first_seed = f"{plan}-{len(self.orders)}", 1000 * len(self.orders)
        if plan == "evaluation":
            new = order(name, kind="evaluation", num_per_family=1, first_seed=first_seed)
        else:
            new = order(name, curriculum=PLANS[plan], first_seed=first_seed)
        assert self.ask(new) == [Ack()]
        self.orders.append(new)

    @rule(which=st.integers(0, 3))
    def close(self, which: int) -> None:
        if which < len(self.orders) - 1:  # The newest stays open, so that there is something to do.
            assert self.ask(OrderClosure(self.orders[which].order_id)) == [Ack()]

    @rule(num_requests=st.integers(1, 7), num_later=st.integers(0, 3))
    def request(self, num_requests: int, num_later: int) -> None:
        self.learn(self.ask(*[AssignmentRequest("a", self.version)] * num_requests, num_later=min(num_later, num_requests)))

    @rule()
    def request_twice(self) -> None:
        request = AssignmentRequest("a", self.version, f"request-{len(self.tasks)}-{self.clock()}")
        first, second = self.ask(request, request)
        if isinstance(first, Assignment):
            assert isinstance(second, Assignment) and first.assignment_id == second.assignment_id
            self.learn([first])

    @rule()
    def request_while_the_disk_is_full(self) -> None:
        self.journal.full = True
        (answer,) = self.ask(AssignmentRequest("a", self.version))
        self.journal.full = False
        if isinstance(answer, ErrorReply):
            assert answer.code == "disk_full"
        else:
            self.learn([answer])

    @precondition(lambda self: self.playing)
    @rule(successes=st.lists(st.booleans(), min_size=1, max_size=4), num_requests=st.integers(0, 3), later=st.booleans())
    def submit(self, successes: list[bool], num_requests: int, later: bool) -> None:
        """Episodes, and requests that arrive together with them."""
        played = []
        for success in successes[: len(self.playing)]:
            done = trajectory_for(self.playing.pop(0), steps=[step()], success=success)
            played.append(done)
        requests = [AssignmentRequest("a", self.version)] * num_requests
        receipts = self.ask(*played, *requests, num_later=num_requests if later else 0)
        self.learn(receipts[len(played) :])
        for receipt in receipts[: len(played)]:
            assert isinstance(receipt, TrajectoryReceipt)
            assert receipt.reason in ("", "duplicate", "order_closed")
            if receipt.accepted:
                assert receipt.trajectory_id not in self.acknowledged
                self.acknowledged.add(receipt.trajectory_id)

    @rule(outcomes=st.lists(st.booleans(), min_size=4, max_size=12))
    def play(self, outcomes: list[bool]) -> None:
        """Some actors at work for a while."""
        for success in outcomes:
            self.request(1, 0)
            if self.playing:
                self.submit([success], 0, False)

    @precondition(lambda self: self.playing)
    @rule(num_times=st.integers(1, 4))
    def give_back(self, num_times: int) -> None:
        """The same episode again and again, until it is given up."""
        for _ in range(min(num_times, len(self.playing))):
            assert self.ask(AssignmentReturn(self.playing.pop().assignment_id, "a", "task_failed")) == [Ack()]
            self.request(1, 0)

    @rule(forgets=st.booleans())
    def expire(self, forgets: bool) -> None:
        """Nothing was submitted in time; the actors may still do so."""
        self.clock.advance(21.0)
        if forgets:
            self.playing.clear()

    @rule()
    def fetch(self) -> None:
        (answer,) = self.ask(GroupRequest(self.num_taken))
        if isinstance(answer, TrajectoryGroup):
            indices = [one.index for one in answer.trajectories]
            assert indices == sorted(set(indices)) and len(indices) + answer.num_given_up > max([*indices, 0])
            if self.num_taken == len(self.groups):
                self.groups.append(answer)
            seen = self.groups[self.num_taken]
            assert [one.trajectory_id for one in seen.trajectories] == [one.trajectory_id for one in answer.trajectories]
            self.num_taken += 1
            if self.num_taken % GROUPS_PER_BATCH == 0:
                self.announce()

    def announce(self) -> None:
        self.version += 1
        assert self.ask(VersionAnnouncement(self.version, self.num_taken)) == [Ack()]

    @rule()
    def consume(self) -> None:
        assert self.ask(ConsumptionReport(self.num_taken)) == [Ack()]
        self.num_consumed = self.num_taken

    @rule()
    def learner_falls_back(self) -> None:
        self.num_taken = self.num_consumed
        self.announce()

    @rule()
    def crash(self) -> None:
        self.service = self.restarted()

    # --- what holds

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        assert told(self.restarted().core) == told(self.service.core)

    @invariant()
    def acknowledged_is_held_or_delivered_or_given_up(self) -> None:
        core = self.service.core
        held = {trajectory.trajectory_id for trajectory in core.held()}
        taken = {one.trajectory_id for group in self.groups for one in group.trajectories}
        closed = {state.order.order_id for state in core.orders if state.closed}
        assert {trajectory_id.partition("/")[0] for trajectory_id in self.acknowledged - held - taken} <= closed


def told(core: BrokerCore) -> dict[str, Any]:
    """What the journal must tell: all of a snapshot but counters of what is not written, and groups that nobody has played yet
    of orders that tell them."""
    value = json.loads(json.dumps(core.snapshot()))
    counters = value["counters"]
    names = ("accepted", "held", "delivered", "groups_completed", "given_up")
    value["counters"] = {name: counters.get(name, 0) for name in names}
    for told_order, state in zip(value["orders"]["orders"], core.orders, strict=True):
        if state.source.is_static:
            del told_order["source"]
            told_order["groups"] = [one for one in told_order["groups"] if state.slots.groups[one[0]].filled or one[3]]
    return {**value, "trajectories": sorted(trajectory.trajectory_id for trajectory in core.held())}


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
