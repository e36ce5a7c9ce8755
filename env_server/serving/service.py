"""The desktops of one host as a handler: message in, message out, no sockets.

    submit(message, reply) ──► pool: is the lease valid? ──► DesktopWorker thread ──► reply
                                   ▲                          │
                     timer thread: hung calls, expired leases, restarts, waiting lease requests

Serial mode and tests use `DesktopService.handle`; `env_server.process` puts a socket in front. The pool decides about leases,
the fleet runs the workers, the queue holds waiting lease requests. This file brings the lock, the clock and the timer thread,
none of which polls.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from computerrl.common import log
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, DiskFull, HostBroken, NoDesktop, PictureError, ProtocolError
from computerrl.common.messages import (
    Ack,
    DemonstrationRequest,
    Desktops,
    DesktopsRequest,
    EncodedImage,
    ErrorReply,
    EvaluationRequest,
    ImageReply,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Message,
    ScreenshotRef,
    ScreenshotRequest,
    StepRequest,
    TaskReset,
)
from computerrl.common.metrics import Timings
from computerrl.common.vision.screens import ReadScreenshot
from computerrl.common.wire.channel import error_from_reply
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import memory
from computerrl.env_server.judging.judge import LONGEST_S, Judge, make_judge
from computerrl.env_server.judging.untouched import Untouched, reset_limit_s
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.desktop_worker import DesktopCall, DesktopWorker, Reply, error_reply
from computerrl.env_server.serving.fleet import DesktopFleet, ServiceTimes
from computerrl.env_server.serving.lease_queue import LeaseQueue, Spares
from computerrl.env_server.serving.pool import DesktopPool, DesktopState, PoolLimits
from computerrl.env_server.serving.views import DesktopViews
from computerrl.env_server.tasks import families_of

OnDesktop = TaskReset | StepRequest | DemonstrationRequest | EvaluationRequest
"""Requests that are carried out on a leased desktop."""
T = TypeVar("T")
_UP: tuple[DesktopState, ...] = ("idle", "preparing", "leased")
_STATES: tuple[DesktopState, ...] = (*_UP, "new", "starting", "broken")


def unstored(ref: ScreenshotRef) -> bytes:
    """The reader of a service that stores no screenshots."""
    raise FileNotFoundError(ref.segment)


class DesktopService:
    """``config.num_desktops`` desktops made by ``make(index)`` in their own threads; starts them at once, a few at a time.

    ``first_token`` must exceed the tokens of all leases that an earlier process issued (`env_server.process`).
    """

    def __init__(
        self,
        config: DesktopConfig,
        *,
        tasks: TasksConfig,
        make: Callable[[int], DesktopDriver],
        first_token: int = 1,
        times: ServiceTimes | None = None,
        available_mb: Callable[[], int] = memory.available_mb,
        judge: Judge | None = None,
        untouched: Untouched | None = None,
        by_pixels: bool = False,
        read: ReadScreenshot = unstored,
    ) -> None:
        """``by_pixels``: see `calls.TaskSetting`. ``read``: bytes of a stored screenshot."""
        times = times or ServiceTimes()
        families = families_of(tasks)
        self.timings = {name: Timings() for name in ("step", "settle", "observe", "reset", "evaluate")}
        self._config = config
        self._tasks = tasks
        self._grace_s = times.grace_s
        self._read = read
        self._judge = judge or make_judge(config.driver, tasks)
        self._judge.start()
        self._setting = calls.TaskSetting(tasks, self._judge, untouched or Untouched(config), by_pixels)
        self._changed = threading.Condition()
        """Lock of all that follows; notified when the timer thread may have a new deadline."""
        self._closed = False
        self._views = DesktopViews()
        limits = PoolLimits(
            lease_time_limit_s=config.lease_time_limit_s,
            max_starting=config.max_starting or max(1, len(os.sched_getaffinity(0)) // 2),
        )
        self._pool = DesktopPool(config.num_desktops, limits=limits, first_token=first_token)
        self._fleet = DesktopFleet(
            self._pool, config=config, times=times, make=make, events=self, views=self._views, available_mb=available_mb
        )
        self._queue = LeaseQueue(self._pool, families=families, wait_s=times.lease_wait_s)
        self._spares = Spares(self._pool, self._fleet, config=config, times=times, families=families, setting=self._setting)
        with self._changed:
            self._fleet.start_due(time.monotonic())
        self._memory = memory.ResourceWatcher(
            self._pids, self._replace_excessive, limit_mb=config.memory_limit_mb, max_processes=config.max_processes
        )
        self._timer = threading.Thread(target=self._watch_deadlines, name="desktop-timer", daemon=True)
        self._timer.start()

    @property
    def fatal(self) -> ComputerRLError | None:
        """Reason why the process has to end; None while it can go on."""
        return self._fleet.fatal

    # --- requests

    def handle(self, message: Message, sender: str = "local") -> Message:
        """The reply to ``message``. Blocks until it is made; every call has a deadline."""
        return _answer(lambda reply: self.submit(message, sender, reply))

    def use(self, lease: Lease, work: Callable[[DesktopDriver], T], *, limit_s: float) -> T:
        """What ``work`` returns, run on a leased desktop between its calls; the lease's task is over. Blocks.

        ``limit_s``: a desktop that takes longer counts as hanging. Raises the errors of a call (`DesktopClient`)."""
        found: list[T] = []

        def begin(reply: Reply) -> None:
            with self._changed:
                if self._closed:
                    raise NoDesktop("the env_server is stopping")
                self._begin(lease, limit_s, "use", calls.use(work, found), reply)

        answer = _answer(begin)
        if isinstance(answer, ErrorReply):
            raise error_from_reply(answer, peer="local")
        return found[0]

    def submit(self, message: Message, sender: str, reply: Reply) -> None:
        """Have ``message`` answered by exactly one ``reply``, from this or another thread. Never blocks on a desktop."""
        try:
            if isinstance(message, ScreenshotRequest):
                reply(_encoded(message.screenshot, self._read))
                return
            with self._changed:
                self._dispatch(message, sender, reply)
        except ComputerRLError as error:
            reply(error_reply(error))

    def _dispatch(self, message: Message, sender: str, reply: Reply) -> None:
        if self._closed:
            raise NoDesktop("the env_server is stopping")
        if isinstance(message, LeaseRequest):
            self._queue.add(message, sender, reply, now=time.monotonic())
            self._react()
        elif isinstance(message, LeaseRelease):
            self._pool.release(message.lease, now=time.monotonic())
            reply(Ack())
            self._react()
        elif isinstance(message, DesktopsRequest):
            views = tuple(self._views.view(index, self._pool[index]) for index in range(self._config.num_desktops))
            reply(Desktops(views, self._views.elements(message.elements_of)))
        elif isinstance(message, OnDesktop):
            self._begin_call(message, reply)
        else:
            raise ProtocolError(f"an env_server does not answer {type(message).__name__}")

    def _begin_call(self, request: OnDesktop, reply: Reply) -> None:
        limit_s = self._config.step_deadline_s
        match request:
            case TaskReset():
                name, work = "reset", calls.reset(request, setting=self._setting, timings=self.timings)
                self._judge.prepare(request.task)
                limit_s = reset_limit_s(self._config, request.task)
            case StepRequest():
                name, work = "step", calls.step(request, tasks=self._tasks, timings=self.timings)
            case DemonstrationRequest():
                name, work = "demonstrate", calls.demonstrate(request)
            case EvaluationRequest():
                name, work = "evaluate", calls.evaluate(request, setting=self._setting, timings=self.timings)
                # Judging may have to save files and end programs: the desktop gets as long as for a reset.
                limit_s = self._config.reset_deadline_s + LONGEST_S
        self._begin(request.lease, limit_s, name, work, reply, request)

    def _begin(
        self, lease: Lease, limit_s: float, name: str, work: calls.Work, reply: Reply, request: Message | None = None
    ) -> None:
        now = time.monotonic()
        self._pool.begin_call(lease, now=now)
        self._fleet.submit(lease.desktop, DesktopCall(name, now + limit_s + self._grace_s, lease, work, reply, request))
        self._changed.notify_all()

    # --- events of the workers, and of the watcher of their processes

    def worker_started(self, worker: DesktopWorker) -> None:
        """See `WorkerEvents`."""
        with self._changed:
            if not worker.given_up and not self._closed:
                self._fleet.started(worker, time.monotonic())
                self._react()

    def worker_finished(self, worker: DesktopWorker, call: DesktopCall | None, outcome: Message | ComputerRLError) -> None:
        """See `WorkerEvents`."""
        with self._changed:
            if worker.given_up or self._closed:
                return
            if call is not None:
                worker.pending.remove(call)
            if isinstance(outcome, ComputerRLError) and (call is None or _is_desktops_fault(outcome)):
                self._fleet.replace(worker, outcome, call)
            elif call is not None:
                self._end_call(worker, call, outcome)
            self._react()

    def _end_call(self, worker: DesktopWorker, call: DesktopCall, outcome: Message | ComputerRLError) -> None:
        now = time.monotonic()
        if call.name == "prepare":
            self._spares.prepared(worker.index, outcome, now)
        if call.lease is not None:
            if not isinstance(outcome, ComputerRLError):
                self._views.update(worker.index, call.request, outcome)
            self._pool.end_call(worker.index, call.lease.token, now=now)
            self._fleet.postpone_health_check(worker.index, now)
        call.reply(error_reply(outcome) if isinstance(outcome, ComputerRLError) else outcome)

    def _pids(self) -> Mapping[int, int]:
        with self._changed:
            return self._fleet.pids()

    def _replace_excessive(self, desktop: int, pid: int, since: float, reason: str) -> None:
        with self._changed:
            if not self._closed and self._fleet.replace_excessive(desktop, pid, since, reason):
                self._react()

    # --- time

    def _watch_deadlines(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                self._fleet.replace_hanging(now)
                self._fleet.check_health(now)
                self._react()
                deadlines = (self._fleet.next_deadline(), self._queue.next_expiry(), self._pool.next_deadline())
                deadline = min((one for one in deadlines if one is not None), default=None)
                self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _react(self) -> None:
        """Do what an event made possible: end leases, start desktops, answer waiting lease requests, prepare spares."""
        now = time.monotonic()
        if self._closed:
            return
        if expired := self._pool.expire(now):
            log.get_logger().warning("lease.expired", num_leases=expired)
        self._fleet.start_due(now)
        for request in self._queue.serve(now):
            if request.next_task is not None and not self._queue:
                self._spares.prepare(request.next_task, now)
        self._changed.notify_all()

    # --- for displays and the end

    def metrics(self) -> dict[str, float]:
        """Latest figures, `env_server/name` -> value."""
        with self._changed:
            pool = self._pool
            counts = {
                "desktops_ready": float(pool.count(*_UP)),
                "desktops_leased": float(pool.count("leased")),
                "desktops_quarantined": float(pool.num_quarantined),
                "restarts": float(pool.starts.num_restarts),
                "leases_expired": float(pool.num_expired),
                "spares_used": float(pool.num_spares_used),
            }
        quantiles = {f"{name}_p50_s": timings.p50 for name, timings in self.timings.items()}
        return {f"env_server/{name}": value for name, value in (counts | quantiles).items()}

    def note(self) -> str:
        """Number of desktops in each state, for people."""
        with self._changed:
            parts = [f"{count} {state}" for state in _STATES if (count := self._pool.count(state))]
        return f"desktops: {', '.join(parts)}"

    def wait_ready(self, num_desktops: int, *, timeout_s: float) -> bool:
        """Wait until ``num_desktops`` are up, or the host proves broken; returns whether they are up."""
        with self._changed:
            self._changed.wait_for(lambda: self.fatal is not None or self._pool.count(*_UP) >= num_desktops, timeout_s)
            return self.fatal is None and self._pool.count(*_UP) >= num_desktops

    def close(self, *, limit_s: float = 2.0) -> bool:
        """Close all desktops in parallel and refuse all requests. Returns False when some were not closed within ``limit_s``."""
        workers = self._fleet.workers
        with self._changed:
            was_closed, self._closed = self._closed, True
            self._memory.stop()
            replies = [call.reply for worker in workers.values() for call in worker.pending] + self._queue.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + limit_s
        for worker in workers.values():
            worker.give_up()
        if not was_closed:
            for reply in replies:
                reply(error_reply(NoDesktop("the env_server is stopping")))
        closed = [worker.disposed.wait(max(0.0, deadline - time.monotonic())) for worker in workers.values()]
        self._judge.close()
        return all(closed)


def _answer(begin: Callable[[Reply], None]) -> Message:
    """What ``begin`` has the reply be."""
    answered = threading.Event()
    answers: list[Message] = []

    def reply(answer: Message) -> None:
        answers.append(answer)
        answered.set()

    begin(reply)
    answered.wait()
    return answers[0]


def _encoded(ref: ScreenshotRef, read: ReadScreenshot) -> ImageReply:
    """Raises `PictureError`."""
    try:
        return ImageReply((EncodedImage.of(read(ref)),))
    except (OSError, ValueError) as error:
        raise PictureError(f"screenshot {ref.content_hash} cannot be read: {error}", mismatch=False) from error


def _is_desktops_fault(error: ComputerRLError) -> bool:
    return isinstance(error, DesktopBroken | HostBroken | DiskFull)
