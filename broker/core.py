"""The broker's decisions: orders, assignments, credit, deduplication, grouping, delivery. Events in, effects out.

    core.handle(MessageReceived(ticket, message, sender), now) -> [Reply(ticket, ...)] or [Persist(ticket, message)]
    core.handle(MessagePersisted(ticket, message), now)        -> [Reply(ticket, ...)]

No I/O and no clock. What must survive a crash changes nothing before it is on disk: it is checked, answered by `Persist`, and
applied by `MessagePersisted`, which checks again and is therefore also all that replaying a journal takes. A request for an
assignment of a group that results chose waits for `Persist` of that choice, and is then looked at again. Every trajectory
that came in is either delivered, held, or rejected with a named reason: ``received == delivered + held + rejected`` after
every event. Answers are deterministic, so a replay numbers groups as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from computerrl.broker import verdict
from computerrl.broker.delivery import DeliveryQueue
from computerrl.broker.events import (
    AdmissionSet,
    Context,
    Effect,
    Event,
    Log,
    MessagePersisted,
    MessageReceived,
    Persist,
    PersistFailed,
    Reply,
    StateRestored,
    TimePassed,
    TrajectoryRestored,
    trajectories_of,
)
from computerrl.broker.orders.order_book import OrderBook
from computerrl.broker.orders.orders import Group, OrderState, Slot
from computerrl.broker.peers import PeerTable
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, ProtocolError
from computerrl.common.messages import (
    Ack,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    Directory,
    DirectoryRequest,
    ErrorReply,
    GroupDrawn,
    GroupRequest,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Message,
    NoAssignment,
    NoGroup,
    OrderClosure,
    ReceiptBatch,
    RolloutOrder,
    SlotGivenUp,
    Status,
    StatusRequest,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
    Welcome,
)

_MAX_REASONS = 64
"""Distinct return reasons counted by name; a peer cannot grow the counters without end."""


PAUSED_RETRY_S = 1.0
"""An actor asks a paused run again after this."""


class BrokerCore:
    """State of the broker."""

    def __init__(self, *, run_id: str, eta: int, groups_per_batch: int, max_assignment_s: float, peer_timeout_s: float) -> None:
        self.run_id = run_id
        self.policy_version = -1
        self.is_paused = False
        """Nothing new is started; what is under way goes on."""
        self.counters: Counter[str] = Counter()
        self.delivery = DeliveryQueue()
        self.orders = OrderBook(eta=eta, groups_per_batch=groups_per_batch, max_assignment_s=max_assignment_s)
        self.peers = PeerTable(timeout_s=peer_timeout_s)
        self._now = 0.0
        self._effects: list[Effect] = []
        self._receivers: dict[type, Callable[[Any, str], Message | _OnDiskFirst | None]] = {
            Hello: self._greet,
            Heartbeat: self._beat,
            DirectoryRequest: lambda message, _: Directory(self.peers.entries(self._now, role=message.role)),
            StatusRequest: lambda _message, _sender: self.status(),
            AssignmentRequest: self._assign,
            AssignmentReturn: self._take_back,
            GroupRequest: self._deliver,
            Trajectory: self._judge,
            TrajectoryBatch: self._judge_batch,
            RolloutOrder: self._check_order,
            OrderClosure: self._check_closure,
            ConsumptionReport: self._check_consumption,
            VersionAnnouncement: lambda message, _: None if message.policy_version > self.policy_version else Ack(),
        }
        """Message type -> its answer; None when it must be on disk first."""
        self._appliers: dict[type, Callable[[Any], Message]] = {
            Hello: self._welcome,
            Trajectory: self._take,
            TrajectoryBatch: lambda batch: ReceiptBatch(tuple(map(self._take, batch.trajectories))),
            RolloutOrder: self._place,
            OrderClosure: self._close,
            GroupDrawn: self._open_group,
            SlotGivenUp: self._give_up,
            ConsumptionReport: self._consume,
            VersionAnnouncement: self._announce,
        }

    @classmethod
    def from_config(cls, config: RunConfig, *, run_id: str) -> BrokerCore:
        """With the numbers of ``config``."""
        return cls(
            run_id=run_id,
            eta=config.broker.eta,
            groups_per_batch=config.learner.groups_per_batch,
            max_assignment_s=config.broker.max_assignment_s,
            peer_timeout_s=config.broker.peer_timeout_s,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in. ``now``: seconds on any clock that only goes forward."""
        self._now = now
        self._effects = []
        match event:
            case MessageReceived(ticket, message, sender):
                self._receive(ticket, message, sender)
            case MessagePersisted(ticket, message, context):
                self._apply(ticket, message, context)
            case PersistFailed(ticket, message, code, reason):
                for _ in trajectories_of(message):
                    self._reject(code)
                self._effects.append(Reply(ticket, ErrorReply(code, reason)))
            case StateRestored(snapshot):
                self._restore(snapshot)
            case TrajectoryRestored(trajectory):
                self._restore_trajectory(trajectory)
            case TimePassed():
                self._look_at_deadlines()
            case AdmissionSet(is_paused):
                self._pause(is_paused=is_paused)
        return self._effects

    # --- requests

    def _receive(self, ticket: int, message: Message, sender: str) -> None:
        receiver = self._receivers.get(type(message))
        try:
            if receiver is None:
                raise ProtocolError(f"the broker takes no {type(message).__name__}")
            # A process that was replaced must not act any more, whatever it asks for.
            self.peers.refuse_superseded(sender.rpartition(":")[2])
            answer = receiver(message, sender)
        except ComputerRLError as error:
            answer = ErrorReply(error.code, str(error))
        self._effects.append(_response(ticket, _OnDiskFirst(message) if answer is None else answer))

    def _apply(self, ticket: int | None, message: Message, context: Context | None) -> None:
        if ticket is None and isinstance(message, Hello):
            # Whether it is still there, its heartbeats will tell.
            self.peers.restore_learners([(message.index, [message.incarnation])])
            return
        answer: Message | _OnDiskFirst
        try:
            answer = self._appliers[type(message)](message)
            if isinstance(context, AssignmentRequest):
                answer = self._assign(context, "")
            elif isinstance(context, ReceiptBatch) and isinstance(answer, ReceiptBatch):
                taken = iter(answer.receipts)
                answer = ReceiptBatch(tuple(next(taken) if receipt.accepted else receipt for receipt in context.receipts))
        except ComputerRLError as error:
            answer = ErrorReply(error.code, str(error))
        if ticket is not None:
            self._effects.append(_response(ticket, answer))

    def _log(self, event: str, **fields: Any) -> None:
        self._effects.append(Log(event, fields))

    # --- presence

    def _greet(self, hello: Hello, _sender: str) -> Message | None:
        return None if self.peers.is_new_learner(hello) else self._welcome(hello)

    def _welcome(self, hello: Hello) -> Message:
        replaced = self.peers.greet(hello, self._now)
        self._log("peer.greeted", peer=f"{hello.role}-{hello.index}:{hello.incarnation}", pid=hello.pid)
        if replaced is not None:
            self._release_all(replaced)
        return Welcome(self.run_id, self.policy_version)

    def _beat(self, beat: Heartbeat, _sender: str) -> Message:
        self.peers.beat(beat, self._now)
        return HeartbeatAck(self.peers.heartbeat_period_s)

    def _look_at_deadlines(self) -> None:
        for hello in self.peers.take_lost(self._now):
            self._log("peer.lost", peer=f"{hello.role}-{hello.index}:{hello.incarnation}")
            self.counters["peers_lost"] += 1
            self._release_all(hello.incarnation)
        for assignment_id in self.orders.expire(self._now):
            self.counters["expired"] += 1
            self._log("assignment.expired", assignment_id=assignment_id)

    def _pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            self._log("admission.paused" if is_paused else "admission.resumed")

    def _release_all(self, incarnation: str) -> None:
        self.counters["released"] += self.orders.release_all(incarnation)

    # --- orders and assignments

    def _check_order(self, order: RolloutOrder, _sender: str) -> Message | None:
        return None if self.orders.is_new(order) else Ack()

    def _place(self, order: RolloutOrder) -> Message:
        if self.orders.is_new(order):
            self.orders.place(order)
            self._log("order.placed", order_id=order.order_id, kind=order.kind, families=list(order.families))
        return Ack()

    def _check_closure(self, closure: OrderClosure, _sender: str) -> Message | None:
        state = self.orders.get(closure.order_id)
        if state is None:
            raise ProtocolError(f"order {closure.order_id!r} was never placed")
        return Ack() if state.closed else None

    def _close(self, closure: OrderClosure) -> Message:
        if not self.orders[closure.order_id].closed:
            num_dropped = self.orders.close(closure.order_id)
            self.counters["held"] -= num_dropped
            self.counters["rejected"] += num_dropped
            self.counters["rejected/order_closed"] += num_dropped
            self._log("order.closed", order_id=closure.order_id, num_dropped=num_dropped)
        return Ack()

    def _assign(self, request: AssignmentRequest, _sender: str) -> Message | _OnDiskFirst:
        self.peers.refuse_superseded(request.incarnation)
        granted = self.orders.granted_before(request)
        if granted is not None:
            return granted
        if self.is_paused:
            return NoAssignment("paused", PAUSED_RETRY_S)
        answer = self.orders.assign(request, num_trained=self._num_trained, newest_version=self.policy_version, now=self._now)
        self.counters["assigned"] += isinstance(answer, Assignment)
        return _OnDiskFirst(answer, request) if isinstance(answer, GroupDrawn) else answer

    def _num_trained(self, state: OrderState) -> int:
        return state.num_consumed + self.delivery.num_decided(state.order.order_id)

    def _open_group(self, drawn: GroupDrawn) -> Message:
        self.orders[drawn.order_id].open(drawn)
        return Ack()

    def _take_back(self, returned: AssignmentReturn, _sender: str) -> Message | _OnDiskFirst:
        granted = self.orders.find_grant(returned)
        if granted is None:
            return Ack()
        self.counters["returned"] += 1
        self.counters[self._return_counter(returned.reason)] += 1
        state, slot = granted
        given_up = state.take_back(slot, returned.reason)
        return Ack() if given_up is None else _OnDiskFirst(given_up)

    def _give_up(self, given_up: SlotGivenUp) -> Message:
        state, slot = self.orders[given_up.order_id], (given_up.number, given_up.index)
        if not state.closed and not state.is_filled(slot):
            self.counters["given_up"] += 1
            self._log("slot.given_up", group_id=state.group_id(slot[0]), index=slot[1], reason=given_up.reason)
            self._complete(state, state.give_up(slot))
        return Ack()

    def _return_counter(self, reason: str) -> str:
        name = f"returned/{reason[:64]}"
        num_names = sum(1 for counter in self.counters if counter.startswith("returned/"))
        return name if name in self.counters or num_names < _MAX_REASONS else "returned/other"

    # --- trajectories

    def _judge(self, trajectory: Trajectory, sender: str) -> TrajectoryReceipt | None:
        slot = verdict.slot_of(trajectory)
        reason, detail = self._place_rejection(trajectory.order_id, slot), ""
        if slot is not None and not reason:
            detail = verdict.malformation(trajectory, self.orders[trajectory.order_id], slot)
            if not detail:
                return None
            reason = "malformed"
            # The episode is over for its actor; do not wait for the deadline to hand the slot to somebody else.
            self.orders[trajectory.order_id].release_if_held(slot, incarnation=sender.rpartition(":")[2])
        self._reject(reason)
        self._log("trajectory.rejected", trajectory_id=trajectory.trajectory_id, reason=reason, detail=detail)
        return TrajectoryReceipt(trajectory.trajectory_id, accepted=False, reason=reason)

    def _judge_batch(self, batch: TrajectoryBatch, sender: str) -> Message | _OnDiskFirst | None:
        refusals = [self._judge(trajectory, sender) for trajectory in batch.trajectories]
        fine = tuple(one for one, refusal in zip(batch.trajectories, refusals, strict=True) if refusal is None)
        if len(fine) == len(refusals):
            return None
        receipts = ReceiptBatch(
            tuple(
                _accepted(one) if refusal is None else refusal for one, refusal in zip(batch.trajectories, refusals, strict=True)
            )
        )
        return _OnDiskFirst(TrajectoryBatch(fine), receipts) if fine else receipts

    def _place_rejection(self, order_id: str, slot: Slot | None) -> str:
        """Why there is no place for a trajectory, empty when there is."""
        state = self.orders.get(order_id)
        if state is None or slot is None or not state.is_plausible(slot):
            return "unknown_assignment"
        if state.is_filled(slot):
            return "duplicate"
        return "order_closed" if state.closed else ""

    def _reject(self, reason: str) -> None:
        self.counters["received"] += 1
        self.counters["rejected"] += 1
        self.counters[f"rejected/{reason}"] += 1

    def _take(self, trajectory: Trajectory) -> TrajectoryReceipt:
        # Its place is looked at again: two copies may have come in before either was on disk, or the order was closed in between.
        slot = verdict.slot_of(trajectory)
        reason = self._place_rejection(trajectory.order_id, slot)
        if slot is None or reason:
            self._reject(reason)
            return TrajectoryReceipt(trajectory.trajectory_id, accepted=False, reason=reason)
        self.counters["received"] += 1
        self.counters["accepted"] += 1
        self.counters["held"] += 1
        if trajectory.kind == "training":
            self.orders.results.add(trajectory.task.family, success=trajectory.success)
        if trajectory.success:
            self.orders.results.add_success(trajectory.task.family, num_steps=len(trajectory.steps))
        state = self.orders[trajectory.order_id]
        self._complete(state, state.fill(slot, trajectory))
        return _accepted(trajectory)

    def _complete(self, state: OrderState, group: Group | None) -> None:
        """Queue ``group`` for delivery, if something completed one."""
        if group is None:
            return
        seq, group_id, order = self.delivery.next_seq, state.group_id(group.number), state.order
        given_up = len(group.given_up)
        self.delivery.put(
            TrajectoryGroup(seq, group_id, order.order_id, order.kind, group.task, group.trajectories, num_given_up=given_up)
        )
        self.counters["groups_completed"] += 1
        self._log("group.completed", group_id=group_id, group_seq=seq)

    # --- delivery

    def _deliver(self, request: GroupRequest, _sender: str) -> Message:
        group, first = self.delivery.fetch(request.group_seq)
        if group is None:
            return NoGroup(sum(state.num_pending for state in self.orders), self.orders.versions_in_flight())
        if first:
            self._count_delivered(group)
        return group

    def _count_delivered(self, group: TrajectoryGroup) -> None:
        self.counters["held"] -= len(group.trajectories)
        self.counters["delivered"] += len(group.trajectories)

    def _check_consumption(self, report: ConsumptionReport, _sender: str) -> Message | None:
        if report.group_seq > self.delivery.next_seq:
            self.delivery.consume(report.group_seq)  # Raises, naming both numbers.
        return None if report.group_seq > self.delivery.cursor else Ack()

    def _consume(self, report: ConsumptionReport) -> Message:
        for group, fetched in self.delivery.consume(report.group_seq):
            if not fetched:
                self._count_delivered(group)
            self.orders[group.order_id].num_consumed += 1
            self.counters["groups_consumed"] += 1
        return Ack()

    def _announce(self, announcement: VersionAnnouncement) -> Message:
        if announcement.policy_version > self.policy_version:
            self.policy_version = announcement.policy_version
            self.delivery.decide(announcement.group_seq)
            self._log("version.announced", policy_version=self.policy_version, group_seq=announcement.group_seq)
        return Ack()

    def status(self) -> Status:
        """All that is known now."""
        gauges = {**self.orders.gauges(), **self.delivery.gauges(), "paused": self.is_paused}
        names = ("received", "accepted", "delivered", "held", "rejected", "assigned", "returned")
        return Status(
            run_id=self.run_id,
            policy_version=self.policy_version,
            counters={**dict.fromkeys(names, 0), **self.counters},
            gauges={name: float(value) for name, value in gauges.items()},
            peers=self.peers.entries(self._now),
            metrics=self.peers.metrics,
            notes=self.peers.notes,
        )

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All but trajectories and who is present, as plain values; with `held` it is a whole journal."""
        counters = dict(self.counters)
        # Fetched groups that no checkpoint covers yet wait again after a restart.
        num_again = sum(len(group.trajectories) for group in self.delivery.groups(fetched=True))
        counters["held"] = counters.get("held", 0) + num_again
        counters["delivered"] = counters.get("delivered", 0) - num_again
        return {
            "policy_version": self.policy_version,
            "learners": self.peers.learners(),
            "counters": counters,
            "delivery": self.delivery.snapshot(),
            "orders": self.orders.snapshot(),
        }

    def held(self) -> list[Trajectory]:
        """Trajectories that `snapshot` needs beside it."""
        complete = [trajectory for group in self.delivery.groups() for trajectory in group.trajectories]
        return complete + [trajectory for state in self.orders for trajectory in state.pending()]

    def _restore(self, snapshot: Any) -> None:
        self.policy_version = snapshot["policy_version"]
        self.peers.restore_learners(snapshot["learners"])
        self.counters = Counter(snapshot["counters"])
        self.delivery = DeliveryQueue.restore(snapshot["delivery"])
        self.orders.restore(snapshot["orders"])

    def _restore_trajectory(self, trajectory: Trajectory) -> None:
        if not self.delivery.put_back(trajectory):
            slot = verdict.slot_of(trajectory)
            assert slot is not None
            self.orders[trajectory.order_id].fill(slot, trajectory)


@dataclass(frozen=True, slots=True)
class _OnDiskFirst:
    """There is no answer before ``record`` is on disk."""

    record: Message
    context: Context | None = None


def _response(ticket: int, answer: Message | _OnDiskFirst) -> Reply | Persist:
    return Persist(ticket, answer.record, answer.context) if isinstance(answer, _OnDiskFirst) else Reply(ticket, answer)


def _accepted(trajectory: Trajectory) -> TrajectoryReceipt:
    return TrajectoryReceipt(trajectory.trajectory_id, accepted=True, reason="")
