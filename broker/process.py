"""The broker process: a socket in front of `broker.service`, a thread that syncs the journal behind it.

One thread receives, decides and replies. While the other waits for the disk, new requests are decided and collected for the next
sync: the slower the disk, the more requests share a sync.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from computerrl.broker.core import BrokerCore
from computerrl.broker.journal.file import FileJournal, MemoryJournal
from computerrl.broker.service import Batch, BrokerService
from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, ConfigError, Problem, SetupError
from computerrl.common.exporter import exporting
from computerrl.common.host import allow_files, keep_freed_memory
from computerrl.common.lifecycle import StopToken, new_incarnation
from computerrl.common.run_files import requests
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.addresses import own_address, split_address, tcp_address
from computerrl.common.wire.transport import Keys, Request, Server

_POLL_S = 0.2
_NUM_FILES = 200
"""Number of open files beside the actors' connections: journal, logs, other processes, ZeroMQ's own."""
_CONNECTIONS_BESIDE = 4
"""Connections of an actor beside one per episode: heartbeats, and some that break off and are made again."""
_SWITCH_S = 0.0005
"""Maximum time that one thread keeps the interpreter from the other. Python's default of 5 ms would be added to each sync of the
journal."""
_GC_PERIOD_S = 600.0
"""Time between garbage collections. Python's own schedule would visit every trajectory at least twice, in pauses of up to 80 ms,
and hardly anything here is garbage in cycles. A full collection with 30,000 trajectories held takes 0.1 s."""
_TICK_S = 0.5
"""Time between two looks into the run folder for a person's requests."""
_REBIND_S = 5.0
"""Time that a restarted broker waits for the port of its predecessor."""


def make_service(config: RunConfig, *, in_memory: bool = False) -> BrokerService:
    """A service on the journal of the run folder, or on one in memory. Raises `ResumeError`."""
    folder = RunFolder(config.folder)
    known = None if in_memory else folder.read_broker()
    core = BrokerCore.from_config(config, run_id=known["run_id"] if known else f"{config.name}-{new_incarnation()}")
    journal = MemoryJournal() if in_memory else FileJournal(folder.journal, fsync=config.broker.fsync)
    return BrokerService(core, journal, segment_bytes=round(config.broker.segment_mb * (1 << 20)))


def run_broker(config: RunConfig, *, stop: StopToken) -> None:
    """Serve until ``stop``.

    Raises `ConfigError` when the port cannot be bound, `ResumeError` for a damaged journal, `SetupError` when this user may
    not open as many files as there will be connections.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.disable()
    keep_freed_memory()
    allow_files(_NUM_FILES + config.actor.num_actors * (config.actor.num_episodes + _CONNECTIONS_BESIDE))
    folder = RunFolder(config.folder)
    incarnation = new_incarnation()
    log.bind(role="broker", index=0, incarnation=incarnation)
    keys = folder.load_keys()
    service = make_service(config)
    server = _bind(config, folder, keys=keys, sender=f"broker-0:{incarnation}", stop=stop)
    try:
        folder.write_broker(address=server.address, run_id=service.core.run_id)
        log.get_logger().info("broker.started", address=server.address)
        latest: dict[str, float] = {}

        def tick() -> None:
            nonlocal latest
            service.set_admission(is_paused=requests.asked(folder.folder, "pause") is not None)
            # Made here: the thread that answers collectors may not look into the core while it changes.
            latest = {f"broker/{name}": float(value) for name, value in service.figures().items()}

        with exporting(config, role="broker", index=0, metrics=lambda: latest):
            serve_batches(server, service, stop, tick=tick)
    finally:
        server.close()
        service.close()
        log.get_logger().info("broker.ended", reason=stop.reason)


def serve_batches(server: Server, service: BrokerService, stop: StopToken, *, tick: Callable[[], None] = lambda: None) -> None:
    """Answer requests until ``stop``, and those whose records are being written then. ``tick`` is called every `_TICK_S`."""
    service.transport_counters = server.counters
    waiting: dict[int, Request] = {}
    tickets = itertools.count()
    collected_at = ticked_at = time.monotonic()
    with _JournalThread(service, wake=server.wake) as writer:
        while not stop.stopped or writer.busy:
            for request in server.poll(_POLL_S):
                ticket = next(tickets)
                waiting[ticket] = request
                service.receive(ticket, request.message, request.sender, frames=request.frames)
            writer.apply_written()
            if not writer.busy and (batch := service.next_batch()) is not None:
                writer.start(batch)
            service.expire()
            for ticket, answer in service.pop_replies():
                waiting.pop(ticket).reply(answer)
            now = time.monotonic()
            if now > ticked_at + _TICK_S:
                tick()
                ticked_at = now
            if now > collected_at + _GC_PERIOD_S:
                gc.collect()
                collected_at = now


class _JournalThread:
    """A thread that persists one batch at a time."""

    def __init__(self, service: BrokerService, *, wake: Callable[[], None]) -> None:
        """``wake`` is called from the thread when a batch is done."""
        self._service = service
        self._wake = wake
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._running: tuple[Batch, Future[None]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    @property
    def busy(self) -> bool:
        """A batch is on its way to the disk."""
        return self._running is not None

    def start(self, batch: Batch) -> None:
        future = self._threads.submit(self._service.persist, batch)
        self._running = (batch, future)
        future.add_done_callback(lambda _: self._wake())

    def apply_written(self) -> None:
        """Apply the batch that is durable, if there is one. Raises its error, except `DiskFull`."""
        if self._running is not None and self._running[1].done():
            (batch, future), self._running = self._running, None
            future.result()
            self._service.apply(batch)


def _bind(config: RunConfig, folder: RunFolder, *, keys: Keys, sender: str, stop: StopToken) -> Server:
    """The server, on the port that this run had before, if any, because its clients reconnect to that port."""
    known = folder.read_broker()
    address = own_address(config.broker.bind_address)
    port = config.broker.port
    if port == 0 and known is not None:
        port = split_address(known["address"])[1]
    deadline = time.monotonic() + (_REBIND_S if known is not None else 0.0)
    while True:
        try:
            return Server(tcp_address(address, port), keys=keys, sender=sender)
        except SetupError as error:
            # A predecessor that was killed may hold the port for a moment longer.
            if time.monotonic() < deadline and not stop.wait(0.2):
                continue
            if config.broker.port == 0 and port != 0:
                # A run resumed much later: another process has the port now, and no client waits for it.
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
