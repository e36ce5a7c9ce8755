"""One desktop's thread: starts its driver, runs calls on it one after another, gives up when told to.

Driver calls block and may hang, so the thread that makes them decides nothing: it reports every outcome to the service, which
may have given the desktop up meanwhile (`DesktopWorker.dispose`) and then ignores the report. Knows no leases and no sockets.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from computerrl.common import log
from computerrl.common.errors import ComputerRLError, DesktopBroken
from computerrl.common.messages import Action, ErrorReply, Lease, Message, Observation, TaskRef
from computerrl.env_server.driver import DesktopDriver, TaskInstance

Reply = Callable[[Message], None]

CLOSE_LIMIT_S = 5.0
"""A successor starts after this long even if the broken desktop is still not closed."""


@dataclass(slots=True)
class Session:
    """What the desktop shows under one lease: a task being played."""

    token: int
    task: TaskRef
    instance: TaskInstance
    instruction: str
    observation: Observation
    actions: Sequence[Action] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a spare desktop shows before anybody asked for it."""

    task: TaskRef
    instance: TaskInstance
    instruction: str
    app: str
    window_title: str
    """What was in front."""
    prepared_at: float
    """Monotonic."""


@dataclass(slots=True, eq=False)
class Call:
    """One request for a desktop on its way."""

    name: str
    deadline: float
    """Monotonic; later the desktop counts as hanging."""
    lease: Lease | None
    """None: the service's own (health checks, spares)."""
    work: Callable[[DesktopWorker], Message]
    reply: Reply = field(default=lambda message: None)
    request: Message | None = None
    """What was asked for; None: the service's own."""


class WorkerEvents(Protocol):
    """Whom a worker reports to; called in the worker's thread."""

    def worker_started(self, worker: DesktopWorker) -> None:
        """The driver is there."""

    def worker_finished(self, worker: DesktopWorker, call: Call | None, outcome: Message | ComputerRLError) -> None:
        """``call`` came to its end; None: the driver did not start."""


class DesktopWorker:
    """Runs calls on desktop ``index``. ``predecessor``: the broken one whose end it waits for first."""

    def __init__(
        self,
        index: int,
        *,
        make: Callable[[], DesktopDriver],
        events: WorkerEvents,
        start_deadline: float,
        predecessor: DesktopWorker | None = None,
    ) -> None:
        self.index = index
        self.start_deadline: float | None = start_deadline
        """Monotonic; None once started."""
        self.pending: list[Call] = []
        """Being run and next to be; kept by the service."""
        self.session: Session | None = None
        self.prepared: Prepared | None = None
        """Both touched only inside calls."""
        self.driver: DesktopDriver | None = None
        self.disposed = threading.Event()
        """The driver is closed and gone."""
        self._make = make
        self._events = events
        self._predecessor = predecessor
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._given_up = False
        self._dispose_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"desktop-{index}", daemon=True)
        self._thread.start()

    @property
    def given_up(self) -> bool:
        """What it still reports counts no more."""
        return self._given_up

    def submit(self, call: Call) -> None:
        """Run ``call`` after those submitted before."""
        self._calls.put(call)

    def give_up(self) -> None:
        """End the thread when it can, close the driver at once, from another thread since this one may hang."""
        with self._dispose_lock:
            if self._given_up:
                return
            self._given_up = True
        self._calls.put(None)
        threading.Thread(target=self._dispose, name=f"desktop-{self.index}-close", daemon=True).start()

    def _dispose(self) -> None:
        driver = self.driver
        if driver is not None:
            try:
                driver.close()
            except Exception as error:  # noqa: BLE001
                # Thread boundary: a desktop that cannot be closed must not keep its successor from starting.
                log.get_logger().error("desktop.close_failed", desktop=self.index, error=repr(error))
        if driver is not None or not self._thread.is_alive():
            self.disposed.set()

    def _run(self) -> None:
        if self._predecessor is not None and self._predecessor.driver is not None:
            self._predecessor.disposed.wait(CLOSE_LIMIT_S)
        self._predecessor = None
        if not self._given_up:
            self._start()
        while not self._given_up:
            call = self._calls.get()
            if call is not None and not self._given_up:
                self._events.worker_finished(self, call, self._outcome(call))
        if self.driver is None:
            self.disposed.set()

    def _start(self) -> None:
        started = time.monotonic()
        try:
            driver = self._make()
        except ComputerRLError as error:
            self._events.worker_finished(self, None, error)
            return
        except Exception as error:  # noqa: BLE001
            # Thread boundary: our own mistake in a driver shows as a broken desktop, with its trace in the log.
            log.get_logger().exception("desktop.start_failed", desktop=self.index)
            self._events.worker_finished(self, None, DesktopBroken(f"did not start: {error!r}"))
            return
        with self._dispose_lock:
            self.driver = driver
            late = self._given_up
        if late:
            self._dispose()
            return
        log.get_logger().info("desktop.started", desktop=self.index, start_s=round(time.monotonic() - started, 3))
        self._events.worker_started(self)

    def _outcome(self, call: Call) -> Message | ComputerRLError:
        try:
            return call.work(self)
        except ComputerRLError as error:
            return error
        except Exception as error:  # noqa: BLE001
            # Thread boundary: whatever a driver, evaluator or demonstrator stumbled over, the desktop's state is unknown.
            log.get_logger().exception("desktop.call_failed", desktop=self.index, call=call.name)
            return DesktopBroken(f"{call.name} failed: {error!r}")


def error_reply(error: ComputerRLError) -> ErrorReply:
    """``error`` as a message."""
    return ErrorReply(error.code, str(error))
