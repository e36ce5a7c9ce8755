"""The desktops of one host as a handler: message in, message out, no sockets.

    submit(message, reply) ──► pool: may this lease? ──► DesktopWorker thread ──► reply
                                   ▲                          │
                     timer thread: hung calls, expired leases, restarts, waiting lease requests

Serial mode and tests use `DesktopService.handle`; `env_server.process` puts a socket in front. Decisions are the pool's
(`env_server.serving.pool`); this file brings the lock, the clock and the threads, none of which polls.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from computerrl.common import log
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, DiskFull, EnvError, HostBroken, NoDesktop, ProtocolError
from computerrl.common.messages import (
    Ack,
    DemonstrationRequest,
    Desktops,
    DesktopsRequest,
    EvaluationRequest,
    LeaseRelease,
    LeaseRequest,
    Message,
    StepRequest,
    TaskRef,
    TaskReset,
)
from computerrl.common.metrics import Timings
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import memory
from computerrl.env_server.judging.judge import LONGEST_S, Judge, make_judge
from computerrl.env_server.judging.untouched import Untouched, reset_limit_s
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.desktop_worker import CLOSE_LIMIT_S, Call, DesktopWorker, Reply, error_reply
from computerrl.env_server.serving.pool import DesktopPool, DesktopState, PoolLimits
from computerrl.env_server.serving.wall import Wall
from computerrl.env_server.tasks import families_of

DEADLINE_GRACE_S = 1.0
"""A driver keeps its own deadlines and says more about it; only one that does not is cut off from here."""

START_LIMIT_S = 130.0
"""Until a desktop is up; all of a host start at once on few cores. Drivers keep a shorter limit of their own."""

LEASE_WAIT_S = 5.0
"""A lease request waits this long for a free desktop before `NoDesktop`: waiting costs nothing here, asking again does."""

HEALTH_PERIOD_S = 20.0
"""An idle desktop is asked this often whether it still answers."""

_HEALTH_DEADLINE_S = 2.0

OnDesktop = TaskReset | StepRequest | DemonstrationRequest | EvaluationRequest
"""Requests that are done on a leased desktop."""


@dataclass(slots=True)
class _WaitingLease:
    holder: str
    request: LeaseRequest
    expires_at: float
    reply: Reply


class DesktopService:
    """``config.num_desktops`` desktops made by ``make(index)`` in their own threads; starts them at once, a few at a time.

    ``first_token`` must exceed the tokens of all leases that an earlier process gave out (`env_server.process`).
    """

    def __init__(
        self,
        config: DesktopConfig,
        *,
        tasks: TasksConfig,
        make: Callable[[int], DesktopDriver],
        first_token: int = 1,
        start_limit_s: float = START_LIMIT_S,
        grace_s: float = DEADLINE_GRACE_S,
        health_period_s: float = HEALTH_PERIOD_S,
        lease_wait_s: float = LEASE_WAIT_S,
        available_mb: Callable[[], int] = memory.available_mb,
        judge: Judge | None = None,
        untouched: Untouched | None = None,
    ) -> None:
        self._config = config
        self._judge = judge or make_judge(config.driver, tasks)
        self._tasks = tasks
        self._setting = calls.Setting(tasks, self._judge, untouched or Untouched(config))
        self._families = families_of(tasks)
        self._make = make
        self._start_limit_s = start_limit_s
        self._grace_s = grace_s
        self._health_period_s = health_period_s
        self._lease_wait_s = lease_wait_s
        self._available_mb = available_mb
        self._changed = threading.Condition()
        self._pool = DesktopPool(
            config.num_desktops,
            limits=PoolLimits(
                lease_time_limit_s=config.lease_time_limit_s,
                max_starting=config.max_starting or max(1, len(os.sched_getaffinity(0)) // 2),
            ),
            first_token=first_token,
        )
        self._wall = Wall(time.monotonic)
        self._waiting: deque[_WaitingLease] = deque()
        self._health_due = [0.0] * config.num_desktops
        self._not_preparable: TaskRef | None = None
        self._closed = False
        self.fatal: ComputerRLError | None = None
        """Why the process has to end; None while it need not."""
        self.timings = {name: Timings() for name in ("step", "settle", "observe", "reset", "evaluate")}
        self._workers: dict[int, DesktopWorker] = {}
        """By desktop; those not started yet are missing."""
        with self._changed:
            self._start_due(time.monotonic())
        self._memory = memory.ResourceWatcher(
            self._pids, self._take_excess, limit_mb=config.memory_limit_mb, max_processes=config.max_processes
        )
        self._timer = threading.Thread(target=self._watch, name="desktop-timer", daemon=True)
        self._timer.start()

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, message: Message, sender: str = "local") -> Message:
        """The answer to ``message``; blocks until it is there (every call has a deadline)."""
        answered = threading.Event()
        answers: list[Message] = []

        def reply(answer: Message) -> None:
            answers.append(answer)
            answered.set()

        self.submit(message, sender, reply)
        answered.wait()
        return answers[0]

    def submit(self, message: Message, sender: str, reply: Reply) -> None:
        """Have ``message`` answered by exactly one ``reply``, from this or another thread. Never blocks on a desktop."""
        try:
            with self._changed:
                self._take(message, sender, reply)
        except ComputerRLError as error:
            reply(error_reply(error))

    def _take(self, message: Message, sender: str, reply: Reply) -> None:
        if self._closed:
            raise NoDesktop("the env_server is stopping")
        if isinstance(message, LeaseRequest):
            self._take_lease_request(message, sender, reply)
        elif isinstance(message, LeaseRelease):
            self._pool.release(message.lease, now=time.monotonic())
            reply(Ack())
            self._after_change()
        elif isinstance(message, TaskReset):
            call = calls.reset(message, setting=self._setting, timings=self.timings)
            self._judge.prepare(message.task)
            self._begin("reset", message, call, reply, limit_s=reset_limit_s(self._config, message.task))
        elif isinstance(message, StepRequest):
            self._begin("step", message, calls.step(message, tasks=self._tasks, timings=self.timings), reply)
        elif isinstance(message, DemonstrationRequest):
            self._begin("demonstrate", message, calls.demonstrate(message), reply)
        elif isinstance(message, EvaluationRequest):
            # Judging may have to save files and end programs: the desktop gets as long as for a reset.
            call = calls.evaluate(message, setting=self._setting, timings=self.timings)
            limit_s = self._config.reset_deadline_s + LONGEST_S
            self._begin("evaluate", message, call, reply, limit_s=limit_s)
        elif isinstance(message, DesktopsRequest):
            reply(self._look(message))
        else:
            raise ProtocolError(f"an env_server does not answer {type(message).__name__}")

    def _take_lease_request(self, message: LeaseRequest, sender: str, reply: Reply) -> None:
        now = time.monotonic()
        holder = f"{_role_index(sender)}:{message.incarnation}"
        for old in self._pool.holders():
            if _role_index(old) == _role_index(sender) and old != holder and _role_index(sender) != sender:
                log.get_logger().info("lease.holder_replaced", old=old, new=holder)
                self._pool.release_holder(old, now=now)
        self._waiting.append(_WaitingLease(holder, message, now + self._lease_wait_s, reply))
        self._after_change()

    def _look(self, message: DesktopsRequest) -> Desktops:
        views = []
        for desktop in range(self._config.num_desktops):
            state, reason, holder = self._pool.look(desktop)
            views.append(self._wall.view(desktop, state=state, reason=reason, holder=holder))
        return Desktops(tuple(views), self._wall.elements(message.elements_of))

    def _begin(
        self, name: str, request: OnDesktop, work: Callable[[DesktopWorker], Message], reply: Reply, *, limit_s: float = 0.0
    ) -> None:
        lease, now = request.lease, time.monotonic()
        self._pool.begin_call(lease, now=now)
        worker = self._workers[lease.desktop]
        deadline = now + (limit_s or self._config.step_deadline_s) + self._grace_s
        call = Call(name, deadline, lease, work, reply, request)
        worker.pending.append(call)
        worker.submit(call)
        self._changed.notify_all()

    # --- what workers report -----------------------------------------------------------------------------------------

    def worker_started(self, worker: DesktopWorker) -> None:
        """See `WorkerEvents`."""
        with self._changed:
            if worker.given_up or self._closed:
                return
            worker.start_deadline = None
            now = time.monotonic()
            self._pool.started(worker.index, now=now)
            self._health_due[worker.index] = now + self._health_period_s
            self._after_change()

    def worker_finished(self, worker: DesktopWorker, call: Call | None, outcome: Message | ComputerRLError) -> None:
        """See `WorkerEvents`."""
        with self._changed:
            if worker.given_up or self._closed:
                return
            now = time.monotonic()
            if call is not None:
                worker.pending.remove(call)
            if isinstance(outcome, ComputerRLError) and (call is None or _is_desktops_fault(outcome)):
                self._broke(worker, outcome, call)
            elif call is not None:
                if call.name == "prepare":
                    self._prepared(worker, outcome, now)
                if call.lease is not None:
                    if not isinstance(outcome, ComputerRLError):
                        self._wall.take(worker.index, call.request, outcome)
                    self._pool.end_call(worker.index, call.lease.token, now=now)
                    self._health_due[worker.index] = now + self._health_period_s
                call.reply(error_reply(outcome) if isinstance(outcome, ComputerRLError) else outcome)
            self._after_change()

    def _broke(self, worker: DesktopWorker, error: ComputerRLError, call: Call | None) -> None:
        """Give ``worker`` up; its successor starts when the pool says so."""
        reason = f"{error.code}: {error}"
        where = call.name if call else "none" if worker.start_deadline is None else "start"
        log.get_logger().warning("desktop.broke", desktop=worker.index, call=where, reason=reason)
        if isinstance(error, HostBroken | DiskFull) or not isinstance(error, EnvError):
            self._end(error)
        self._pool.broke(worker.index, reason, now=time.monotonic())
        self._wall.forget(worker.index)
        if self._pool.host_reason:
            self._end(HostBroken(self._pool.host_reason))
        lost = [*([call] if call is not None else []), *worker.pending]
        worker.pending.clear()
        worker.give_up()
        for lost_call in lost:
            lost_call.reply(error_reply(error))

    def _end(self, error: ComputerRLError) -> None:
        """Nothing on this host works: refuse everything and have the process end."""
        self._pool.host_broke(str(error))
        if self.fatal is None:
            self.fatal = error
            log.get_logger().error("host.broke", error=error.code, reason=str(error))

    # --- time --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                self._end_hanging(now)
                self._check_health(now)
                self._after_change()
                deadline = self._next_deadline()
                self._changed.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _next_deadline(self) -> float | None:
        workers = self._workers.values()
        times = [worker.pending[0].deadline for worker in workers if worker.pending]
        times += [worker.start_deadline for worker in workers if worker.start_deadline and not worker.given_up]
        times += [waiting.expires_at for waiting in self._waiting]
        idle = (index for index in self._workers if self._pool.state(index) == "idle")
        times += [self._health_due[index] for index in idle]
        pool_deadline = self._pool.next_deadline()
        return min([*times, pool_deadline] if pool_deadline is not None else times, default=None)

    def _pids(self) -> dict[int, int]:
        """Outermost processes of the desktops that have some."""
        with self._changed:
            drivers = {index: worker.driver for index, worker in self._workers.items() if not worker.given_up}
        return {index: driver.pid for index, driver in drivers.items() if driver is not None and driver.pid}

    def _take_excess(self, desktop: int, pid: int, reason: str) -> None:
        with self._changed:
            worker = self._workers[desktop]
            if not self._closed and not worker.given_up and worker.driver is not None and worker.driver.pid == pid:
                call = worker.pending.pop(0) if worker.pending else None
                self._broke(worker, DesktopBroken(f"desktop {desktop} {reason}"), call)
                self._after_change()

    def _end_hanging(self, now: float) -> None:
        for worker in self._workers.values():
            if worker.given_up:
                continue
            if worker.start_deadline is not None and now >= worker.start_deadline:
                self._broke(worker, DesktopBroken(f"did not start within {self._start_limit_s:g} s"), None)
            elif worker.pending and now >= worker.pending[0].deadline:
                call = worker.pending.pop(0)
                self._broke(worker, DesktopBroken(f"{call.name} passed its deadline: the desktop hangs"), call)

    def _check_health(self, now: float) -> None:
        for index, worker in self._workers.items():
            if self._pool.state(index) == "idle" and now >= self._health_due[index] and not worker.pending:
                self._health_due[index] = now + self._health_period_s
                call = Call("health", now + _HEALTH_DEADLINE_S, None, calls.health)
                worker.pending.append(call)
                worker.submit(call)

    def _after_change(self) -> None:
        """Whatever an event may have made possible: lease expiry, restarts, waiting lease requests."""
        now = time.monotonic()
        if self._closed:
            return
        if expired := self._pool.expire(now):
            log.get_logger().warning("lease.expired", num_leases=expired)
        self._start_due(now)
        while self._waiting:
            waiting = self._waiting[0]
            try:
                task = waiting.request.task
                answer: Message = self._pool.lease(waiting.holder, app=self._app_of(task), task=task, now=now)
            except ComputerRLError as error:
                if isinstance(error, NoDesktop) and now < waiting.expires_at:
                    break
                answer = error_reply(error)
            self._waiting.popleft()
            waiting.reply(answer)
            if waiting.request.next_task is not None:
                self._prepare(waiting.request.next_task, now)
        self._changed.notify_all()

    def _app_of(self, task: TaskRef | None) -> str:
        """The application that the task is played in; empty where that is not known."""
        family = self._families.get(task.family) if task is not None else None
        return family.app if family else ""

    def _prepare(self, task: TaskRef, now: float) -> None:
        """Have a spare desktop show ``task``, if nobody waits for one and the task is one that can be played here."""
        if self._waiting or task.family not in self._families or task == self._not_preparable:
            return
        index = self._pool.spare(task, app=self._app_of(task), now=now)
        if index is not None:
            worker = self._workers[index]
            deadline = now + reset_limit_s(self._config, task) + self._grace_s
            call = Call("prepare", deadline, None, calls.prepare(task, setting=self._setting))
            worker.pending.append(call)
            worker.submit(call)

    def _prepared(self, worker: DesktopWorker, outcome: Message | ComputerRLError, now: float) -> None:
        failed = isinstance(outcome, ComputerRLError)
        if failed:
            # Whoever asks for the task hears the same; it is not tried again for each member of its group.
            self._not_preparable = self._pool.prepares(worker.index)
            log.get_logger().info("spare.failed", desktop=worker.index, reason=str(outcome))
        self._pool.prepared(worker.index, done=not failed, now=now)

    def _start_due(self, now: float) -> None:
        if not self._pool.wants_start(now):
            return
        lacked_memory = self._pool.lacks_memory
        due = self._pool.due(now, num_fitting=memory.num_fitting(self._config, available_mb=self._available_mb))
        if self._pool.lacks_memory and not lacked_memory:
            log.get_logger().warning("desktop.no_memory", needed_mb=self._config.memory_per_desktop_mb)
        for index in due:
            self._workers[index] = self._new_worker(index, self._workers.get(index))

    def _new_worker(self, index: int, predecessor: DesktopWorker | None) -> DesktopWorker:
        deadline = time.monotonic() + self._start_limit_s
        if predecessor is not None:
            deadline += CLOSE_LIMIT_S
        return DesktopWorker(index, make=lambda: self._make(index), events=self, start_deadline=deadline, predecessor=predecessor)

    # --- for displays and the end ------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Latest figures, `env_server/name` -> value."""
        with self._changed:
            pool = self._pool
            leased = pool.count("leased")
            counts = {
                "desktops_ready": float(pool.count("idle") + pool.count("preparing") + leased),
                "desktops_leased": float(leased),
                "desktops_quarantined": float(pool.num_quarantined),
                "restarts": float(pool.num_restarts),
                "leases_expired": float(pool.num_expired),
                "spares_used": float(pool.num_spares_used),
            }
        quantiles = {f"{name}_p50_s": timings.p50 for name, timings in self.timings.items()}
        return {f"env_server/{name}": value for name, value in (counts | quantiles).items()}

    def note(self) -> str:
        """What the desktops are doing, for people."""
        with self._changed:
            states: tuple[DesktopState, ...] = ("idle", "preparing", "leased", "new", "starting", "broken")
            parts = [f"{count} {state}" for state in states if (count := self._pool.count(state))]
        return f"desktops: {', '.join(parts)}"

    def wait_ready(self, num_desktops: int, *, timeout_s: float) -> bool:
        """Wait until so many desktops are up, or the host turns out broken."""

        def ready() -> bool:
            num_ready = sum(self._pool.count(state) for state in ("idle", "preparing", "leased"))
            return self.fatal is not None or num_ready >= num_desktops

        with self._changed:
            return self._changed.wait_for(ready, timeout_s) and self.fatal is None

    def close(self, *, limit_s: float = 2.0) -> bool:
        """Close all desktops in parallel; refuse what comes. False when some were not closed within ``limit_s``."""
        with self._changed:
            already, self._closed = self._closed, True
            self._memory.stop()
            pending = [call for worker in self._workers.values() for call in worker.pending]
            waiting = [lease.reply for lease in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + limit_s
        for worker in self._workers.values():
            worker.give_up()
        if not already:
            for reply in [*(call.reply for call in pending), *waiting]:
                reply(error_reply(NoDesktop("the env_server is stopping")))
        closed = [worker.disposed.wait(max(0.0, deadline - time.monotonic())) for worker in self._workers.values()]
        self._judge.close()
        return all(closed)


def _role_index(sender: str) -> str:
    """`actor-0` of `actor-0:incarnation`."""
    return sender.partition(":")[0]


def _is_desktops_fault(error: ComputerRLError) -> bool:
    return isinstance(error, DesktopBroken | HostBroken | DiskFull)
