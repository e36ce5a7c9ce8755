"""Typed requests to the broker, repeated until their deadline: every one of them may safely arrive twice.

The only file of this folder that other folders import. It opens no socket: give it a `common.wire.transport.Channel`.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from computerrl.broker.client_batches import Submissions
from computerrl.common import log
from computerrl.common.errors import ChannelClosed, PeerTimeout, PictureError, ProtocolError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import (
    MAX_IMAGES,
    Ack,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    ConsumptionReport,
    Directory,
    DirectoryRequest,
    GroupRequest,
    Heartbeat,
    HeartbeatAck,
    Hello,
    ImageReply,
    ImageRequest,
    ImagesWanted,
    Message,
    NoAssignment,
    NoGroup,
    OrderClosure,
    PeerEntry,
    ReceiptBatch,
    Role,
    RolloutOrder,
    Status,
    StatusRequest,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
    Welcome,
    submissions_of,
)
from computerrl.common.wire.transport import Channel

_Reply = TypeVar("_Reply")

_ATTEMPT_S = 5.0
"""Deadline of one attempt; a broken connection ends it sooner."""
_MAX_SUBMISSIONS = 1000
"""Maximum number of submissions of one trajectory; each but the last is followed by up to 256 images."""
NO_IMAGES: Mapping[str, bytes] = {}
_PAUSE_S = 0.1
"""Pause between attempts. A refused connection fails immediately instead of using up the attempt."""


class BrokerClient:
    """The broker as seen from another process. Thread-safe. It is a `Channel` itself."""

    def __init__(self, channel: Channel, *, deadline_s: float = 60.0, stop: StopToken | None = None) -> None:
        """``deadline_s``: time for which a request is repeated before it raises `PeerTimeout`, long enough for a restart of the
        broker. After ``stop`` no request is repeated."""
        self.channel = channel
        self._deadline_s = deadline_s
        self._stop = stop if stop is not None else StopToken()
        self._request_prefix = secrets.token_hex(4)
        self._request_numbers = itertools.count()
        self._submissions = Submissions()

    def hello(self, hello: Hello) -> Welcome:
        """Register this process; `common.lifecycle.HeartbeatThread` does it too."""
        return self._ask(hello, Welcome)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Send one heartbeat. Raises `UnknownPeer` when the broker has restarted since `hello`."""
        self._ask(heartbeat, HeartbeatAck)

    def directory(self, role: Role) -> tuple[PeerEntry, ...]:
        """Live processes of a role, sorted by index."""
        return self._ask(DirectoryRequest(role), Directory).peers

    def place_order(self, order: RolloutOrder) -> None:
        """Order rollouts. Placing the same open order again changes nothing. Raises `OrderRefused` when its id is taken."""
        self._ask(order, Ack)

    def close_order(self, order_id: str) -> None:
        """End an order; its incomplete groups are dropped."""
        self._ask(OrderClosure(order_id), Ack)

    def request_assignment(self, incarnation: str, policy_version: int) -> Assignment | NoAssignment:
        """One episode to play, or the reason why there is none."""
        request_id = f"{self._request_prefix}-{next(self._request_numbers)}"
        reply = self.request(AssignmentRequest(incarnation, policy_version, request_id), timeout_s=self._deadline_s)
        if isinstance(reply, (Assignment, NoAssignment)):
            return reply
        raise _unexpected(reply)

    def return_assignment(self, assignment_id: str, incarnation: str, reason: str) -> None:
        """Return an episode that could not be played; ``reason``: code of the error."""
        self._ask(AssignmentReturn(assignment_id, incarnation, reason), Ack)

    def submit(self, trajectory: Trajectory, images: Mapping[str, bytes] = NO_IMAGES) -> TrajectoryReceipt:
        """Hand in an episode. After an attempt whose reply was lost, the receipt says `duplicate`: the trajectory is on disk.
        Raises `DiskFull`. The trajectories of several threads may travel in one message.

        ``images``: encoded bytes of all images that its prompts show, by name; those that the broker lacks are sent before."""
        if images:
            return self._submit_with_images(trajectory, images)
        return self._submissions.submit(trajectory, self._send)

    def _submit_with_images(self, trajectory: Trajectory, images: Mapping[str, bytes]) -> TrajectoryReceipt:
        for _ in range(_MAX_SUBMISSIONS):
            reply = self.request(trajectory, timeout_s=self._deadline_s)
            if isinstance(reply, TrajectoryReceipt):
                return reply
            if not isinstance(reply, ImagesWanted):
                raise _unexpected(reply)
            if missing := [name for name in reply.names if name not in images]:
                raise PictureError(
                    f"{trajectory.trajectory_id} names image {missing[0]}, which this process lacks", mismatch=False
                )
            for submission in submissions_of(reply.names, images):
                self._ask(submission, Ack)
        raise ProtocolError(f"the broker wanted images of {trajectory.trajectory_id} {_MAX_SUBMISSIONS} times")

    def fetch_images(self, names: Collection[str]) -> dict[str, bytes]:
        """Encoded bytes of the images with these names. Those that the broker does not have, or whose bytes do not have the hash
        that names them, are missing."""
        found: dict[str, bytes] = {}
        left = list(names)
        while left:
            reply = self.request(ImageRequest(tuple(left[:MAX_IMAGES])), timeout_s=self._deadline_s)
            if not isinstance(reply, ImageReply):
                raise _unexpected(reply)
            given = {image.content_hash for image in reply.images}
            found |= {image.content_hash: image.data.tobytes() for image in reply.images if image.is_intact}
            # A reply has as many as fit it: without any of those asked for, there is none.
            left = [name for name in left if name not in given] if given else left[MAX_IMAGES:]
        return found

    def fetch_group(self, group_seq: int) -> TrajectoryGroup | NoGroup:
        """The group with this number, any number of times until it is reported as consumed."""
        reply = self.request(GroupRequest(group_seq), timeout_s=self._deadline_s)
        if isinstance(reply, (TrajectoryGroup, NoGroup)):
            return reply
        raise _unexpected(reply)

    def report_consumption(self, group_seq: int) -> None:
        """Report that a checkpoint on disk covers all groups below ``group_seq``."""
        self._ask(ConsumptionReport(group_seq), Ack)

    def announce_version(self, policy_version: int, *, group_seq: int) -> None:
        """Announce the learner's present version; ``group_seq``: first group whose outcome it has not decided."""
        self._ask(VersionAnnouncement(policy_version, group_seq), Ack)

    def status(self, *, timeout_s: float | None = None) -> Status:
        """State of the run: all counters, queues and peers."""
        reply = self.request(StatusRequest(), timeout_s=self._deadline_s if timeout_s is None else timeout_s)
        if isinstance(reply, Status):
            return reply
        raise _unexpected(reply)

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """Repeat ``message`` until there is a reply or ``timeout_s`` is over, across restarts of the broker."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                return self.channel.request(message, timeout_s=max(0.001, min(_ATTEMPT_S, left_s)))
            except ChannelClosed:
                raise
            except PeerTimeout as error:
                if deadline - time.monotonic() <= _PAUSE_S or self._stop.wait(_PAUSE_S):
                    raise
                log.get_logger().info("broker.retried", kind=type(message).__name__, reason=str(error))

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def _send(self, trajectories: Sequence[Trajectory]) -> Sequence[TrajectoryReceipt]:
        if len(trajectories) == 1:
            return [self._ask(trajectories[0], TrajectoryReceipt)]
        receipts = self._ask(TrajectoryBatch(tuple(trajectories)), ReceiptBatch).receipts
        if [receipt.trajectory_id for receipt in receipts] != [trajectory.trajectory_id for trajectory in trajectories]:
            raise ProtocolError(f"the broker gave receipts for others than the {len(trajectories)} trajectories that it was sent")
        return receipts

    def _ask(self, message: Message, reply_type: type[_Reply]) -> _Reply:
        reply = self.request(message, timeout_s=self._deadline_s)
        if isinstance(reply, reply_type):
            return reply
        raise _unexpected(reply)


def _unexpected(reply: Message) -> ProtocolError:
    return ProtocolError(f"the broker answered with an unexpected {type(reply).__name__}")
