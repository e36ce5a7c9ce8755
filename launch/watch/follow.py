"""Keeps a `RunState` current: follows metrics.jsonl and asks the broker for its status from a thread.

Draws nothing and decides nothing. A broker that is down or restarting only means that `RunState.status` is None for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import Status, StatusRequest
from computerrl.launch.watch.run_state import MetricsTail, Record, RunState

if TYPE_CHECKING:
    from computerrl.common.run_files.run_folder import RunFolder
    from computerrl.common.wire.transport import Client

STATUS_EVERY_S = 1.0
STATUS_TIMEOUT_S = 2.0


class RunWatch:
    """One run folder under observation. Close it."""

    def __init__(self, folder: RunFolder, *, on_record: Callable[[Record], None] = lambda record: None) -> None:
        """``on_record`` is called from `refresh` for every record written after the watch began."""
        self.state = RunState()
        self._folder = folder
        self._on_record = on_record
        self._tail = MetricsTail(folder.metrics_path)
        self.state.take_all(self._tail.read()[1])
        self._status: Status | None = None
        self.last_status: Status | None = None
        """The last answer there ever was, for the report."""
        self._lock = threading.Lock()
        self._channel: Client | None = None
        self._ended = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status", daemon=True)
        self._thread.start()

    def refresh(self) -> RunState:
        """The state now; cheap when nothing happened."""
        started_over, records = self._tail.read()
        if started_over:
            # A learner that fell back to its checkpoint cut its metrics back as well: what was shown is shown no twice.
            self.state = RunState()
        for record in records:
            self.state.take(record)
            if not started_over:
                self._on_record(record)
        self.state.status = self._status
        return self.state

    def wait_status(self, *, timeout_s: float) -> bool:
        """Wait for the broker's first answer."""
        return self._answered.wait(timeout_s)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()  # also ends a request to a broker that is gone
        self._thread.join(timeout=STATUS_TIMEOUT_S + 1.0)

    def _poll(self) -> None:
        address, wait_s = "", 0.0
        while not self._ended.wait(wait_s):
            wait_s = STATUS_EVERY_S
            broker = self._folder.read_broker()
            if broker is None:
                continue
            if broker["address"] != address:
                address = broker["address"]
                self._connect(address)
            try:
                assert self._channel is not None
                answer = self._channel.request(StatusRequest(), timeout_s=STATUS_TIMEOUT_S)
            except ComputerRLError:
                self._status = None
                continue
            self._status = answer if isinstance(answer, Status) else None
            self.last_status = self._status or self.last_status
            self._answered.set()

    def _connect(self, address: str) -> None:
        from computerrl.common.wire.transport import Client

        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = Client(address, keys=self._folder.load_keys(), sender="supervisor-0:display")
            if self._ended.is_set():
                self._channel.close()
