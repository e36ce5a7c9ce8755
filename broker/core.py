"""The broker's decisions. Events in, effects out; no I/O and no clock.

    core.handle(MessageReceived(ticket, message, sender), now) -> [Reply(ticket, ...)] or [Persist(ticket, message)]
    core.handle(MessagePersisted(ticket, message), now)        -> [Reply(ticket, ...)]

A message that must survive a crash changes nothing before it is durable. Its check returns `PersistFirst`; `MessagePersisted`
then applies it, and checks it again, so that replaying a journal needs nothing else. When the curriculum picks a group, the
assignment request is answered only after that pick is durable; the request is then handled again. Replies are deterministic, so
a replay numbers groups as before. `BrokerCounters` keeps the balance of trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from computerrl.broker.assignments import Assignments
from computerrl.broker.counters import BrokerCounters
from computerrl.broker.delivery import DeliveryQueue
from computerrl.broker.events import (
    AdmissionSet,
    Context,
    Decision,
    Effect,
    Event,
    Log,
    MessagePersisted,
    MessageReceived,
    Persist,
    PersistFailed,
    PersistFirst,
    ReadImages,
    Reply,
    SendImages,
    StateRestored,
    TimePassed,
    TrajectoryRestored,
    trajectories_of,
)
from computerrl.broker.images import ImageShelf
from computerrl.broker.orders.order_book import OrderBook
from computerrl.broker.peers import PeerTable
from computerrl.broker.trajectories import TrajectoryIntake
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, ProtocolError
from computerrl.common.messages import (
    Ack,
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
    ImageRequest,
    ImageSubmission,
    Message,
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
    VersionAnnouncement,
    Welcome,
)


class BrokerCore:
    """State of the broker and its handlers of all messages."""

    def __init__(self, *, run_id: str, eta: int, groups_per_batch: int, max_assignment_s: float, peer_timeout_s: float) -> None:
        self.run_id = run_id
        self.policy_version = -1
        self.counters = counters = BrokerCounters()
        self.peers = PeerTable(timeout_s=peer_timeout_s)
        self.delivery = DeliveryQueue()
        self.orders = orders = OrderBook(groups_per_batch=groups_per_batch, counters=counters, log=self._log)
        self.assignments = Assignments(
            orders, self.delivery, eta=eta, max_assignment_s=max_assignment_s, counters=counters, log=self._log
        )
        self.images = images = ImageShelf()
        self.trajectories = TrajectoryIntake(orders, self.delivery, images, counters=counters, log=self._log)
        self._now = 0.0
        self._effects: list[Effect] = []
        self._checks: dict[type, Callable[[Any, str], Decision]] = {
            Hello: lambda hello, _: PersistFirst(hello) if self.peers.is_new_learner(hello) else self._accept_hello(hello),
            Heartbeat: lambda heartbeat, _: self._accept_heartbeat(heartbeat),
            DirectoryRequest: lambda request, _: Directory(self.peers.entries(self._now, role=request.role)),
            StatusRequest: lambda _request, _: self.status(),
            RolloutOrder: lambda order, _: orders.check_order(order),
            OrderClosure: lambda closure, _: orders.check_closure(closure),
            AssignmentRequest: lambda request, _: self._assign(request),
            AssignmentReturn: lambda returned, _: self.assignments.return_assignment(returned),
            Trajectory: self.trajectories.check,
            TrajectoryBatch: self.trajectories.check_batch,
            ImageSubmission: lambda submission, _: images.check(submission),
            ImageRequest: lambda request, _: ReadImages(request.names),
            GroupRequest: lambda request, _: self._deliver_group(request),
            ConsumptionReport: lambda report, _: Ack() if self.delivery.is_consumed(report.group_seq) else PersistFirst(report),
            VersionAnnouncement: lambda one, _: PersistFirst(one) if one.policy_version > self.policy_version else Ack(),
        }
        """Message type -> its handler on arrival, which gets the message and its sender's incarnation."""
        self._appliers: dict[type, Callable[[Any], Message]] = {
            Hello: self._accept_hello,
            RolloutOrder: orders.place,
            OrderClosure: orders.close,
            GroupDrawn: orders.begin_group,
            SlotGivenUp: self.trajectories.give_up,
            Trajectory: self.trajectories.accept,
            TrajectoryBatch: self.trajectories.accept_batch,
            ImageSubmission: images.accept,
            ConsumptionReport: self._accept_consumption,
            VersionAnnouncement: self._accept_announcement,
        }
        """Message type -> its handler once it is durable, which returns the reply."""

    @classmethod
    def from_config(cls, config: RunConfig, *, run_id: str) -> BrokerCore:
        """A core with the settings of ``config``."""
        return cls(
            run_id=run_id,
            eta=config.broker.eta,
            groups_per_batch=config.learner.groups_per_batch,
            max_assignment_s=config.broker.max_assignment_s,
            peer_timeout_s=config.broker.peer_timeout_s,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event. ``now``: seconds on any clock that only goes forward."""
        self._now = now
        self._effects = []
        match event:
            case MessageReceived(ticket, message, sender):
                self._receive(ticket, message, sender)
            case MessagePersisted(ticket, message, context):
                self._apply(ticket, message, context)
            case PersistFailed(ticket, message, code, reason):
                for _ in trajectories_of(message):
                    self.counters.count_rejected(code)
                self._effects.append(Reply(ticket, ErrorReply(code, reason)))
            case StateRestored(snapshot):
                self._restore(snapshot)
            case TrajectoryRestored(trajectory):
                self.trajectories.restore(trajectory)
            case TimePassed():
                self._expire()
            case AdmissionSet(is_paused):
                self.assignments.pause(is_paused=is_paused)
        return self._effects

    def _receive(self, ticket: int, message: Message, sender: str) -> None:
        check, incarnation = self._checks.get(type(message)), sender.rpartition(":")[2]
        decision: Decision
        try:
            if check is None:
                raise ProtocolError(f"the broker takes no {type(message).__name__}")
            # A process that was replaced must not act any more, whatever its request.
            self.peers.refuse_superseded(incarnation)
            decision = check(message, incarnation)
        except ComputerRLError as error:
            decision = ErrorReply(error.code, str(error))
        self._effects.append(_effect(ticket, decision))

    def _apply(self, ticket: int | None, message: Message, context: Context | None) -> None:
        if ticket is None and isinstance(message, Hello):
            # Replay restores only the learner's incarnation; later heartbeats decide whether it is present.
            self.peers.restore_learners([(message.index, [message.incarnation])])
            return
        decision: Decision
        try:
            if isinstance(message, TrajectoryBatch) and isinstance(context, ReceiptBatch):
                decision = self.trajectories.accept_batch(message, context)
            else:
                decision = self._appliers[type(message)](message)
            if isinstance(context, AssignmentRequest):
                decision = self._assign(context)
        except ComputerRLError as error:
            decision = ErrorReply(error.code, str(error))
        if ticket is not None:
            self._effects.append(_effect(ticket, decision))

    def _log(self, event: str, **fields: Any) -> None:
        self._effects.append(Log(event, fields))

    # --- presence

    def _accept_hello(self, hello: Hello) -> Welcome:
        replaced = self.peers.greet(hello, self._now)
        self._log("peer.greeted", peer=f"{hello.role}-{hello.index}:{hello.incarnation}", pid=hello.pid)
        if replaced is not None:
            self.assignments.release_all(replaced)
        return Welcome(self.policy_version)

    def _accept_heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAck:
        self.peers.beat(heartbeat, self._now)
        return HeartbeatAck(self.peers.heartbeat_period_s)

    def _expire(self) -> None:
        for hello in self.peers.remove_lost(self._now):
            self._log("peer.lost", peer=f"{hello.role}-{hello.index}:{hello.incarnation}")
            self.counters["peers_lost"] += 1
            self.assignments.release_all(hello.incarnation)
        self.assignments.expire(self._now)

    def _assign(self, request: AssignmentRequest) -> Decision:
        self.peers.refuse_superseded(request.incarnation)
        return self.assignments.assign(request, newest_version=self.policy_version, now=self._now)

    # --- delivery to the learner

    def _deliver_group(self, request: GroupRequest) -> TrajectoryGroup | NoGroup:
        group, is_first = self.delivery.fetch(request.group_seq)
        if group is None:
            return NoGroup(self.orders.versions_in_flight)
        if is_first:
            self.counters.count_delivered(group)
        return group

    def _accept_consumption(self, report: ConsumptionReport) -> Ack:
        for group, fetched in self.delivery.consume(report.group_seq):
            if not fetched:
                self.counters.count_delivered(group)
            self.orders[group.order_id].num_consumed += 1
            self.counters["groups_consumed"] += 1
        return Ack()

    def _accept_announcement(self, announcement: VersionAnnouncement) -> Ack:
        if announcement.policy_version > self.policy_version:
            self.policy_version = announcement.policy_version
            self.delivery.decide(announcement.group_seq)
            self._log("version.announced", policy_version=self.policy_version, group_seq=announcement.group_seq)
        return Ack()

    # --- status and snapshots

    def status(self) -> Status:
        """Counters, gauges, and the live processes with their latest metrics."""
        own = {"images_held": len(self.images), "paused": self.assignments.is_paused}
        gauges = {**self.orders.gauges(), **self.delivery.gauges(), **own}
        return Status(
            run_id=self.run_id,
            policy_version=self.policy_version,
            counters=self.counters.for_status(),
            gauges={name: float(value) for name, value in gauges.items()},
            peers=self.peers.entries(self._now),
            metrics=self.peers.metrics,
            notes=self.peers.notes,
        )

    def snapshot(self) -> dict[str, Any]:
        """State without trajectories and live processes, as plain values. With `held` it replaces a whole journal."""
        # Fetched groups that no checkpoint covers yet wait again after a restart.
        num_redelivered = sum(len(group.trajectories) for group in self.delivery.groups(fetched=True))
        return {
            "policy_version": self.policy_version,
            "learners": self.peers.learners(),
            "counters": self.counters.snapshot(num_redelivered=num_redelivered),
            "delivery": self.delivery.snapshot(),
            "orders": self.orders.snapshot(),
            "images": self.images.names(),
        }

    def held(self) -> list[Trajectory]:
        """Trajectories that belong to the state of `snapshot`."""
        return self.trajectories.held()

    def _restore(self, snapshot: Any) -> None:
        self.policy_version = snapshot["policy_version"]
        self.peers.restore_learners(snapshot["learners"])
        self.counters.restore(snapshot["counters"])
        self.delivery.restore(snapshot["delivery"])
        self.orders.restore(snapshot["orders"])
        self.images.keep(set(snapshot["images"]))


def _effect(ticket: int, decision: Decision) -> Effect:
    if isinstance(decision, PersistFirst):
        return Persist(ticket, decision.record, decision.context)
    return SendImages(ticket, decision.names) if isinstance(decision, ReadImages) else Reply(ticket, decision)
