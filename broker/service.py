"""Journal and core together: requests in, answers out, and nothing is answered before it is on disk.

    take(request) ─► core ─► answers
                      └────► writes ─► next_batch ─► persist (any thread) ─► finish ─► core ─► answers, or more writes

Opens no sockets and starts no threads. `answer_all` goes through all of it at once, for serial mode; `broker.process` persists in
a thread of its own, so that the next requests are decided while the disk is busy.
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
    TimePassed,
    TrajectoryRestored,
    trajectories_of,
)
from computerrl.broker.journal import records
from computerrl.broker.journal.file import Journal, Position
from computerrl.common import log
from computerrl.common.clock import Clock
from computerrl.common.errors import DiskFull
from computerrl.common.messages import Message, Status
from computerrl.common.wire.codec import Buffer

SEGMENT_BYTES = 64 << 20
"""A segment that has grown to this is followed by a new one; a restart reads one segment and what is held."""


@dataclass(slots=True)
class Record:
    """What becomes one record of the journal."""

    write: Persist
    frames: Sequence[Buffer] | None = None
    """What the message came in."""


@dataclass(slots=True)
class Batch:
    """What is written together, and how it went."""

    records: list[Record]
    snapshot: bytes | None = None
    """First record of a new segment, which the batch shall begin."""
    needed: set[int] = field(default_factory=set)
    """Older segments that ``snapshot`` points into; all others go."""
    positions: list[Position] = field(default_factory=list)
    error: DiskFull | None = None
    """Nothing of the batch is on disk."""


class BrokerService:
    """Answers requests; what it acknowledges is in the journal. Calls of `answer_all` may come from any thread."""

    def __init__(
        self, core: BrokerCore, journal: Journal, *, clock: Clock = time.monotonic, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Replays ``journal`` into ``core``. Raises `ResumeError` when it cannot be read."""
        self.core = core
        self._journal = journal
        self.transport_counters: Mapping[str, int] = {}
        """What the server in front of this refused; part of every `Status`."""
        self._clock = clock
        self._lock = threading.RLock()
        self._segment_bytes = self._next_segment_at = segment_bytes
        self._positions: dict[str, bytes] = {}
        """Trajectory -> where it lies, packed; those that were forgotten since the last snapshot are still there."""
        self._answers: list[tuple[int, Message]] = []
        self._records: list[Record] = []
        self._replay()

    # --- all at once

    def __call__(self, message: Message, sender: str) -> Message:
        """Answer one request."""
        return self.answer_all([(message, sender)])[0]

    def answer_all(
        self, requests: Sequence[tuple[Message, str]], *, frames: Sequence[Sequence[Buffer]] | None = None
    ) -> list[Message]:
        """Answer requests that arrived together; one sync for all. ``frames``: what each of them came in."""
        with self._lock:
            for ticket, (message, sender) in enumerate(requests):
                self.take(ticket, message, sender, frames=None if frames is None else frames[ticket])
            while (batch := self.next_batch()) is not None:
                self.persist(batch)
                self.finish(batch)
            self.look_at_deadlines()
            answers = dict(self.take_answers())
            return [answers[ticket] for ticket in range(len(requests))]

    # --- step by step, from one thread; only `persist` may run in another one

    def take(self, ticket: int, message: Message, sender: str, *, frames: Sequence[Buffer] | None = None) -> None:
        """A request came in; ``ticket``: what its answer will be called. ``frames``: what it came in."""
        self._handle(MessageReceived(ticket, message, sender), frames)

    def take_answers(self) -> list[tuple[int, Message]]:
        """(ticket, answer) of all requests that were answered since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def next_batch(self) -> Batch | None:
        """What has to be written now, None when nothing has. Not before the batch before was finished."""
        if not self._records:
            return None
        batch, self._records = Batch(self._records), []
        if self._journal.newest_bytes >= self._next_segment_at:
            # Nothing is on its way to the disk: the core is exactly what the journal says.
            names = [trajectory.trajectory_id for trajectory in self.core.held()]
            self._positions = {name: self._positions[name] for name in names}
            held = b"".join(self._positions.values())
            batch.snapshot, batch.needed = records.snapshot_record(self.core, held), records.segments_in(held)
        return batch

    def persist(self, batch: Batch) -> None:
        """Make ``batch`` durable, or note why not. Touches nothing but the journal."""
        if batch.snapshot is not None:
            self._begin_segment(batch.snapshot, needed=batch.needed)
        for record in batch.records:
            self._journal.append(*records.message_record(record.write.message, frames=record.frames))
        try:
            batch.positions = self._journal.flush()
        except DiskFull as error:
            log.get_logger().error("journal.disk_full", reason=str(error), num_refused=len(batch.records))
            batch.error = error

    def finish(self, batch: Batch) -> None:
        """Apply what is on disk now, refuse what is not."""
        if batch.error is not None:
            for record in batch.records:
                self._handle(PersistFailed(record.write.ticket, record.write.message, batch.error.code, str(batch.error)))
            return
        for record, position in zip(batch.records, batch.positions, strict=True):
            self._note(record.write.message, position)
            self._handle(MessagePersisted(record.write.ticket, record.write.message, record.write.context))

    def look_at_deadlines(self) -> None:
        """Once a turn."""
        self._handle(TimePassed())

    def set_admission(self, *, is_paused: bool) -> None:
        """Start nothing new, or go on."""
        self._handle(AdmissionSet(is_paused))

    def figures(self) -> dict[str, float]:
        """Counters and gauges of a `Status`."""
        status = self._with_own_figures(self.core.status())
        assert isinstance(status, Status)
        return {**status.counters, **status.gauges}

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # --- inside

    def _handle(self, event: Event, frames: Sequence[Buffer] | None = None) -> None:
        for effect in self.core.handle(event, self._clock()):
            match effect:
                case Reply(ticket, message):
                    self._answers.append((ticket, self._with_own_figures(message)))
                case Persist():
                    as_it_came = isinstance(event, MessageReceived) and effect.message is event.message
                    self._records.append(Record(effect, frames if as_it_came else None))
                case Log(name, fields):
                    log.get_logger().info(name, **fields)

    def _note(self, message: Message, position: Position) -> None:
        for part, trajectory in enumerate(trajectories_of(message), position.part):
            # Of two copies the first is the one that was taken.
            if trajectory.trajectory_id not in self._positions:
                self._positions[trajectory.trajectory_id] = records.packed(Position(position.segment, position.offset, part))

    def _replay(self) -> None:
        num_records, needed = 0, set()
        for position, event in records.events(self._journal):
            if isinstance(event, TrajectoryRestored):
                needed.add(position.segment)
            match event:
                case MessagePersisted(_, message) | TrajectoryRestored(message):
                    self._note(message, position)
            self.core.handle(event, self._clock())
            num_records += 1
        # Those that were to go when the process was killed.
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
        # A snapshot may itself be large: what follows it is, too, or every batch would begin a segment.
        self._next_segment_at = max(self._segment_bytes, 2 * self._journal.newest_bytes)
        log.get_logger().info("journal.segment_begun", bytes_before=before, bytes=self._journal.num_bytes)

    def _with_own_figures(self, message: Message) -> Message:
        if not isinstance(message, Status):
            return message
        gauges = {**message.gauges, "journal_bytes": float(self._journal.num_bytes)}
        return replace(message, gauges=gauges, counters={**message.counters, **self.transport_counters})
