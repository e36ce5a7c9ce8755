"""The broker process: sockets and journal around the core.

`BrokerService` turns messages into answers (journal and core, no sockets; serial mode calls it directly); `run_broker` puts it
behind a `Server`. Everything happens in one thread. Requests that arrive together are synced to disk together, before any of them
is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from broker import records
from broker.core import BrokerCore
from broker.events import Log, MessagePersisted, MessageReceived, Persist, PersistFailed, Reply, TimePassed
from broker.journal import FileJournal, Journal, MemoryJournal
from common import log
from common.clock import Clock
from common.config import RunConfig
from common.errors import ComputerRLError, ConfigError, DiskFull, Problem, SetupError
from common.lifecycle import StopToken, new_incarnation
from common.messages import Message, Status
from common.run_folder import RunFolder
from common.transport import Keys, Request, Server

_POLL_S = 0.2
_COMPACT_BYTES = 64 << 20
"""A journal below this is never worth rewriting."""
_REBIND_S = 5.0
"""How long a restarted broker waits for the port of its predecessor."""


class BrokerService:
    """Answers requests; what it acknowledges is in the journal. Thread-safe, one request (or batch) at a time."""

    def __init__(
        self, core: BrokerCore, journal: Journal, *, clock: Clock = time.monotonic, compact_bytes: int = _COMPACT_BYTES
    ) -> None:
        """Replays ``journal`` into ``core``. Raises `ResumeError` when it cannot be read."""
        self.core = core
        self._journal = journal
        self._clock = clock
        self._lock = threading.RLock()
        self._compact_bytes = self._compact_at_bytes = compact_bytes
        num_records = 0
        for payload in journal.replay():
            core.handle(records.event_of(payload), clock())
            num_records += 1
        if num_records:
            held = core.counters["held"]
            log.get_logger().info("journal.replayed", num_records=num_records, num_held=held, bytes=journal.num_bytes)

    def __call__(self, message: Message, sender: str) -> Message:
        """Answer one request."""
        return self.answer_all([(message, sender)])[0]

    def answer_all(
        self, requests: Sequence[tuple[Message, str]], *, frames: Sequence[Sequence[bytes]] | None = None
    ) -> list[Message]:
        """Answer requests that arrived together; one sync for all. ``frames``: what each request came in."""
        with self._lock:
            answers: dict[int, Message] = {}
            writes: list[Persist] = []
            for ticket, (message, sender) in enumerate(requests):
                self._handle(MessageReceived(ticket, message, sender), answers, writes)
            self._persist(writes, answers, frames)
            self._handle(TimePassed(), answers, writes)
            self._compact()
            return [self._with_journal_gauges(answers[ticket]) for ticket in range(len(requests))]

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _handle(
        self, event: MessageReceived | MessagePersisted | PersistFailed | TimePassed, answers: dict[int, Message],
        writes: list[Persist],
    ) -> None:  # fmt: skip
        for effect in self.core.handle(event, self._clock()):
            match effect:
                case Reply(ticket, message):
                    answers[ticket] = message
                case Persist():
                    writes.append(effect)
                case Log(name, fields):
                    log.get_logger().info(name, **fields)

    def _persist(self, writes: list[Persist], answers: dict[int, Message], frames: Sequence[Sequence[bytes]] | None) -> None:
        for write in writes:
            came_in = frames[write.ticket] if frames is not None and write.asked is None else None
            self._journal.append(records.message_record(write.message, frames=came_in))
        try:
            self._journal.flush()
        except DiskFull as error:
            log.get_logger().error("journal.disk_full", reason=str(error), num_refused=len(writes))
            for write in writes:
                self._handle(PersistFailed(write.ticket, write.message, error.code, str(error)), answers, [])
            return
        more: list[Persist] = []
        for write in writes:
            self._handle(MessagePersisted(write.ticket, write.message, write.asked), answers, more)
        if more:  # More assignments were asked for than the group drawn has.
            self._persist(more, answers, frames)

    def _compact(self) -> None:
        if self._journal.num_bytes < self._compact_at_bytes:
            return
        before = self._journal.num_bytes
        try:
            self._journal.rewrite(records.compacted_records(self.core))
        except DiskFull as error:
            log.get_logger().error("journal.disk_full", reason=str(error), num_refused=0)
            self._compact_at_bytes = before + self._compact_bytes
            return
        # Twice what is still needed: rewriting then costs at most as much again as writing did.
        self._compact_at_bytes = max(self._compact_bytes, 2 * self._journal.num_bytes)
        log.get_logger().info("journal.compacted", bytes_before=before, bytes_after=self._journal.num_bytes)

    def _with_journal_gauges(self, message: Message) -> Message:
        if not isinstance(message, Status):
            return message
        return replace(message, gauges={**message.gauges, "journal_bytes": float(self._journal.num_bytes)})


def make_service(config: RunConfig, *, in_memory: bool = False) -> BrokerService:
    """A service on the journal of the run folder, or on one in memory. Raises `ResumeError`."""
    folder = RunFolder(config.folder)
    known = None if in_memory else folder.read_broker()
    core = BrokerCore.from_config(config, run_id=known["run_id"] if known else f"{config.name}-{new_incarnation()}")
    journal = MemoryJournal() if in_memory else FileJournal(folder.journal, fsync=config.broker.fsync)
    return BrokerService(core, journal)


def run_broker(config: RunConfig, *, stop: StopToken) -> None:
    """Serve until ``stop``. Raises `ConfigError` when the port cannot be bound, `ResumeError` for a damaged journal."""
    folder = RunFolder(config.folder)
    incarnation = new_incarnation()
    log.bind(role="broker", index=0, incarnation=incarnation)
    keys = folder.load_keys()
    service = make_service(config)
    server = _bind(config, folder, keys=keys, sender=f"broker-0:{incarnation}", stop=stop)
    try:
        folder.write_broker(address=server.address, run_id=service.core.run_id)
        log.get_logger().info("broker.started", address=server.address)
        serve_batches(server, service, stop)
    finally:
        server.close()
        service.close()
        log.get_logger().info("broker.ended", reason=stop.reason)


def serve_batches(server: Server, service: BrokerService, stop: StopToken) -> None:
    """Answer what came since the last turn, all together, until ``stop``."""
    while not stop.stopped:
        requests: list[Request] = server.poll(_POLL_S)
        frames = [request.frames for request in requests]
        answers = service.answer_all([(request.message, request.sender) for request in requests], frames=frames)
        for request, answer in zip(requests, answers, strict=True):
            request.reply(answer)


def _bind(config: RunConfig, folder: RunFolder, *, keys: Keys, sender: str, stop: StopToken) -> Server:
    """The server, on the port this run had before, if any: its clients reconnect to that."""
    known = folder.read_broker()
    port = config.broker.port
    if port == 0 and known is not None:
        port = int(known["address"].rpartition(":")[2])
    deadline = time.monotonic() + (_REBIND_S if known is not None else 0.0)
    while True:
        try:
            return Server(f"tcp://{config.broker.bind_address}:{port}", keys=keys, sender=sender)
        except SetupError as error:
            # A predecessor that was killed may hold the port for a moment longer.
            if time.monotonic() < deadline and not stop.wait(0.2):
                continue
            if config.broker.port == 0 and port != 0:
                # A run resumed much later: somebody else has the port now, and none of our clients waits for it.
                log.get_logger().warning("broker.port_lost", port=port)
                port = 0
                continue
            raise ConfigError([_port_problem(config, error)]) from None


def _port_problem(config: RunConfig, error: ComputerRLError) -> Problem:
    reason = str(error).partition("\n")[0]
    return Problem(
        "broker.port" if config.broker.port else "broker.bind_address",
        reason,
        "end the process that has the port, or set broker.port to another one (0 takes a free one)",
    )
