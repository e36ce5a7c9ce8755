"""Journal and core together: requests in, replies out. No request is answered before its record is durable.

    receive(request) ─► core ─► replies
                         └────► records ─► next_batch ─► persist (any thread) ─► apply ─► core ─► replies, or more records

Opens no sockets and starts no threads. `answer_all` makes all of these steps at once, for serial mode. `broker.process` persists
in a thread of its own, so that the next requests are decided while the disk is busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import (
    AdmissionSet,
    Event,
    Log,
    MessagePersisted,
    MessageReceived,
    Persist,
    PersistFailed,
    Reply,
    SendImages,
    StateRestored,
    TimePassed,
    TrajectoryRestored,
    trajectories_of,
)
from computerrl.broker.journal import records
from computerrl.broker.journal.file import Journal, Position
from computerrl.broker.journal.image_index import ImageIndex
from computerrl.common import log
from computerrl.common.clock import Clock
from computerrl.common.errors import DiskFull
from computerrl.common.messages import Message, Status
from computerrl.common.wire.codec import Buffer

SEGMENT_BYTES = 64 << 20
"""Size at which a segment is followed by a new one; a restart reads one segment and the held trajectories."""


@dataclass(slots=True)
class Record:
    """A message to be written as one record of the journal."""

    write: Persist
    frames: Sequence[Buffer] | None = None
    """Frames in which the message arrived; None: the broker made it."""


@dataclass(slots=True)
class Batch:
    """Records that are written together, and the result."""

    records: list[Record]
    snapshot: bytes | None = None
    """First record of a new segment that the batch begins; None: it goes into the present segment."""
    needed: set[int] = field(default_factory=set)
    """Older segments that ``snapshot`` points into; all others are deleted."""
    positions: list[Position] = field(default_factory=list)
    """Positions of the records, once they are durable."""
    error: DiskFull | None = None
    """Reason why nothing of the batch is durable; None when all of it is."""


class BrokerService:
    """Answers requests; every acknowledged message is in the journal. `answer_all` may be called from any thread."""

    def __init__(
        self, core: BrokerCore, journal: Journal, *, clock: Clock = time.monotonic, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Replays ``journal`` into ``core``. Raises `ResumeError` when it cannot be read."""
        self.core = core
        self._journal = journal
        self.transport_counters: Mapping[str, int] = {}
        """Counters of the server in front of this service; part of every `Status`."""
        self._clock = clock
        self._lock = threading.RLock()
        self._segment_bytes = self._next_segment_at = segment_bytes
        self._positions: dict[str, bytes] = {}
        """Packed position of each trajectory, also of those forgotten since the last snapshot."""
        self._images = ImageIndex()
        self._replies: list[tuple[int, Message]] = []
        self._records: list[Record] = []
        self._replay()

    # --- all at once

    def __call__(self, message: Message, sender: str) -> Message:
        """Answer one request."""
        return self.answer_all([(message, sender)])[0]

    def answer_all(
        self, requests: Sequence[tuple[Message, str]], *, frames: Sequence[Sequence[Buffer]] | None = None
    ) -> list[Message]:
        """Answer requests that arrived together, with one sync for all. ``frames``: frames of each request."""
        with self._lock:
            for ticket, (message, sender) in enumerate(requests):
                self.receive(ticket, message, sender, frames=None if frames is None else frames[ticket])
            while (batch := self.next_batch()) is not None:
                self.persist(batch)
                self.apply(batch)
            self.expire()
            replies = dict(self.pop_replies())
            return [replies[ticket] for ticket in range(len(requests))]

    # --- step by step, from one thread; only `persist` may run in another one

    def receive(self, ticket: int, message: Message, sender: str, *, frames: Sequence[Buffer] | None = None) -> None:
        """Handle a request. ``ticket``: name of its reply. ``frames``: frames in which it arrived."""
        self._handle(MessageReceived(ticket, message, sender), frames)

    def pop_replies(self) -> list[tuple[int, Message]]:
        """(ticket, reply) of all requests that were answered since the last call."""
        replies, self._replies = self._replies, []
        return replies

    def next_batch(self) -> Batch | None:
        """Records to be written now, None when there are none. Called only after the last batch was applied."""
        if not self._records:
            return None
        batch, self._records = Batch(self._records), []
        if self._journal.newest_bytes >= self._next_segment_at:
            self._begin_snapshot(batch)
        return batch

    def _begin_snapshot(self, batch: Batch) -> None:
        # Nothing is on its way to the disk: core and journal hold the same state.
        held = self.core.held()
        self._positions = {one.trajectory_id: self._positions[one.trajectory_id] for one in held}
        packed = b"".join(self._positions.values())
        # Trajectories of this batch were checked, and are not held yet.
        upcoming = [one for record in batch.records for one in trajectories_of(record.write.message)]
        images = self.core.images.needed([*held, *upcoming])
        self.core.images.keep(images)
        self._images.keep(images)
        batch.snapshot = records.snapshot_record(self.core, packed, images=self._images.plain())
        batch.needed = records.segments_in(packed) | self._images.segments()

    def persist(self, batch: Batch) -> None:
        """Make ``batch`` durable, or set its ``error``. Touches nothing but the journal."""
        if batch.snapshot is not None:
            self._begin_segment(batch.snapshot, needed=batch.needed)
        for record in batch.records:
            self._journal.append(*records.message_record(record.write.message, frames=record.frames))
        try:
            batch.positions = self._journal.flush()
        except DiskFull as error:
            log.get_logger().error("journal.disk_full", reason=str(error), num_refused=len(batch.records))
            batch.error = error

    def apply(self, batch: Batch) -> None:
        """Apply a batch that is durable, or refuse its requests when it is not."""
        if batch.error is not None:
            for record in batch.records:
                self._handle(PersistFailed(record.write.ticket, record.write.message, batch.error.code, str(batch.error)))
            return
        for record, position in zip(batch.records, batch.positions, strict=True):
            self._index(record.write.message, position)
            self._handle(MessagePersisted(record.write.ticket, record.write.message, record.write.context))

    def expire(self) -> None:
        """Handle all deadlines that have passed."""
        self._handle(TimePassed())

    def set_admission(self, *, is_paused: bool) -> None:
        """Pause the run (start nothing new), or resume it."""
        self._handle(AdmissionSet(is_paused))

    def figures(self) -> dict[str, float]:
        """Counters and gauges of a `Status`."""
        status = self._with_own_figures(self.core.status())
        assert isinstance(status, Status)
        return {**status.counters, **status.gauges}

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # --- effects and journal

    def _handle(self, event: Event, frames: Sequence[Buffer] | None = None) -> None:
        for effect in self.core.handle(event, self._clock()):
            match effect:
                case Reply(ticket, message):
                    self._replies.append((ticket, self._with_own_figures(message)))
                case Persist():
                    as_it_came = isinstance(event, MessageReceived) and effect.message is event.message
                    self._records.append(Record(effect, frames if as_it_came else None))
                case SendImages(ticket, names):
                    self._replies.append((ticket, self._images.read(names, self._journal)))
                case Log(name, fields):
                    log.get_logger().info(name, **fields)

    def _index(self, message: Message, position: Position) -> None:
        self._images.add(message, position)
        for part, trajectory in enumerate(trajectories_of(message), position.part):
            # Of two copies the first one was accepted.
            if trajectory.trajectory_id not in self._positions:
                self._positions[trajectory.trajectory_id] = records.packed(Position(position.segment, position.offset, part))

    def _replay(self) -> None:
        num_records, needed = 0, set()
        for position, event in records.events(self._journal):
            if isinstance(event, TrajectoryRestored):
                needed.add(position.segment)
            match event:
                case StateRestored(snapshot):
                    self._images.restore(snapshot["images"])
                    needed |= self._images.segments()
                case MessagePersisted(_, message) | TrajectoryRestored(message):
                    self._index(message, position)
            self.core.handle(event, self._clock())
            num_records += 1
        # Segments that were to be deleted when the process was killed.
        self._journal.drop_segments(needed)
        if num_records:
            held = self.core.counters["held"]
            log.get_logger().info("journal.replayed", num_records=num_records, num_held=held, bytes=self._journal.num_bytes)

    def _begin_segment(self, snapshot: bytes, *, needed: set[int]) -> None:
        before = self._journal.newest_bytes
        try:
            self._journal.begin_segment(snapshot)
        except DiskFull as error:
            log.get_logger().error("journal.disk_full", reason=str(error), num_refused=0)
            self._next_segment_at = before + self._segment_bytes
            return
        self._journal.drop_segments(needed)
        # A snapshot may itself be large: the rest of the segment may be as large, or every batch would begin a segment.
        self._next_segment_at = max(self._segment_bytes, 2 * self._journal.newest_bytes)
        log.get_logger().info("journal.segment_begun", bytes_before=before, bytes=self._journal.num_bytes)

    def _with_own_figures(self, message: Message) -> Message:
        if not isinstance(message, Status):
            return message
        gauges = {**message.gauges, "journal_bytes": float(self._journal.num_bytes)}
        return replace(message, gauges=gauges, counters={**message.counters, **self.transport_counters})
