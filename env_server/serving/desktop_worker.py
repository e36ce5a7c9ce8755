"""The thread of one desktop: it starts the driver and runs calls on it one after another.

Driver calls block and may hang, so this thread decides nothing: it reports every outcome to the service, which ignores the report
if it gave the desktop up meanwhile (`DesktopWorker.give_up`). The worker knows no leases and no sockets.
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
"""Time limit of closing a broken desktop; its successor starts then in any case."""


@dataclass(slots=True)
class TaskSession:
    """A task being played under one lease."""

    token: int
    task: TaskRef
    instance: TaskInstance
    instruction: str
    observation: Observation
    actions: Sequence[Action] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task that a spare shows before an actor requests it."""

    task: TaskRef
    instance: TaskInstance
    instruction: str
    app: str
    window_title: str
    """Title of the window in front; it belongs to ``app``."""
    prepared_at: float
    """Monotonic time at which the task was on screen."""


@dataclass(slots=True, eq=False)
class DesktopCall:
    """A call on a desktop, waiting or running."""

    name: str
    deadline: float
    """Monotonic time after which the desktop counts as hanging."""
    lease: Lease | None
    """Lease under which the call is made; None for the service's own calls (health checks, spares)."""
    work: Callable[[DesktopWorker], Message]
    reply: Reply = field(default=lambda message: None)
    request: Message | None = None
    """Request that the call carries out; None for the service's own calls."""


class WorkerEvents(Protocol):
    """Receiver of a worker's reports; called in the worker's thread."""

    def worker_started(self, worker: DesktopWorker) -> None:
        """The driver is up."""

    def worker_finished(self, worker: DesktopWorker, call: DesktopCall | None, outcome: Message | ComputerRLError) -> None:
        """``call`` ended with ``outcome``; None: the driver did not start."""


class DesktopWorker:
    """Runs calls on desktop ``index``. ``predecessor``: broken worker of the same desktop, which has to be closed first."""

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
        """Monotonic time after which the start counts as failed; None once started."""
        self.pending: list[DesktopCall] = []
        """Calls running and waiting, in order; the service changes this list under its lock."""
        self.session: TaskSession | None = None
        self.prepared: PreparedTask | None = None
        """Like ``session``, touched only inside calls."""
        self.reset_at = 0.0
        """Monotonic time of the end of the last reset."""
        self.driver: DesktopDriver | None = None
        self.disposed = threading.Event()
        """Set once the driver is closed."""
        self._make = make
        self._events = events
        self._predecessor = predecessor
        self._calls: queue.SimpleQueue[DesktopCall | None] = queue.SimpleQueue()
        self._given_up = False
        self._dispose_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"desktop-{index}", daemon=True)
        self._thread.start()

    @property
    def given_up(self) -> bool:
        """Whether the worker was given up; its reports are ignored then."""
        return self._given_up

    def submit(self, call: DesktopCall) -> None:
        """Run ``call`` after those submitted before."""
        self._calls.put(call)

    def give_up(self) -> None:
        """End the thread when possible and close the driver at once, from another thread because the worker's may hang."""
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

    def _outcome(self, call: DesktopCall) -> Message | ComputerRLError:
        try:
            return call.work(self)
        except ComputerRLError as error:
            return error
        except Exception as error:  # noqa: BLE001
            # Thread boundary: whatever a driver, evaluator or demonstrator stumbled over, the desktop's state is unknown.
            log.get_logger().exception("desktop.call_failed", desktop=self.index, call=call.name)
            return DesktopBroken(f"{call.name} failed: {error!r}")


def error_reply(error: ComputerRLError) -> ErrorReply:
    """The message that reports ``error``."""
    return ErrorReply(error.code, str(error))
