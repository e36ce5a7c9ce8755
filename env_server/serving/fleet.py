"""The workers of a host's desktops: started when the pool has them due, checked, and replaced when they broke.

Not thread-safe: the service calls the fleet under its lock. Leases are the pool's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from computerrl.common import log
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, DiskFull, EnvError, HostBroken
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import memory
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.desktop_worker import CLOSE_LIMIT_S, DesktopCall, DesktopWorker, WorkerEvents, error_reply
from computerrl.env_server.serving.pool import DesktopPool
from computerrl.env_server.serving.views import DesktopViews

START_LIMIT_S = 130.0
"""Time limit of a desktop's start; all of a host start at once on few cores. Drivers keep a shorter limit of their own."""
_HEALTH_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """Time limits of a service, in seconds."""

    start_limit_s: float = START_LIMIT_S
    """Time limit of a desktop's start."""
    grace_s: float = 1.0
    """Time after a call's deadline before its desktop counts as hanging. A driver keeps its own deadlines and reports more about
    a failure; the service cuts off only a driver that does not."""
    health_period_s: float = 20.0
    """Time between health checks of an idle desktop."""
    lease_wait_s: float = 5.0
    """Time that a lease request waits for a free desktop before `NoDesktop`: waiting costs nothing here, repeating the request
    does."""


class DesktopFleet:
    """One worker per desktop of ``pool``, each with its driver made by ``make(index)``; none before `start_due`."""

    def __init__(
        self,
        pool: DesktopPool,
        *,
        config: DesktopConfig,
        times: ServiceTimes,
        make: Callable[[int], DesktopDriver],
        events: WorkerEvents,
        views: DesktopViews,
        available_mb: Callable[[], int],
    ) -> None:
        self.workers: dict[int, DesktopWorker] = {}
        """Workers by desktop, without the desktops that were not started yet."""
        self.fatal: ComputerRLError | None = None
        """Reason why the env_server has to end; None while it can go on."""
        self._pool = pool
        self._config = config
        self._times = times
        self._make = make
        self._events = events
        self._views = views
        self._available_mb = available_mb
        self._health_due = [0.0] * config.num_desktops

    def start_due(self, now: float) -> None:
        """Start the desktops that are due and for which the host has memory."""
        starts = self._pool.starts
        if not starts.has_due(now):
            return
        lacked_memory = starts.lacks_memory
        due = starts.due(now, num_fitting=memory.num_fitting(self._config, available_mb=self._available_mb))
        if starts.lacks_memory and not lacked_memory:
            log.get_logger().warning("desktop.no_memory", needed_mb=self._config.memory_per_desktop_mb)
        for index in due:
            self.workers[index] = self._new_worker(index, self.workers.get(index), now)

    def _new_worker(self, index: int, predecessor: DesktopWorker | None, now: float) -> DesktopWorker:
        deadline = now + self._times.start_limit_s
        if predecessor is not None:
            deadline += CLOSE_LIMIT_S
        return DesktopWorker(
            index, make=lambda: self._make(index), events=self._events, start_deadline=deadline, predecessor=predecessor
        )

    def started(self, worker: DesktopWorker, now: float) -> None:
        """The worker's driver is up."""
        worker.start_deadline = None
        self._pool.started(worker.index, now=now)
        self.postpone_health_check(worker.index, now)

    def submit(self, desktop: int, call: DesktopCall) -> None:
        """Have a desktop run ``call`` after those submitted before."""
        worker = self.workers[desktop]
        worker.pending.append(call)
        worker.submit(call)

    # --- failures

    def replace(self, worker: DesktopWorker, error: ComputerRLError, call: DesktopCall | None) -> None:
        """Give up a worker that failed in ``call``, or in its start; its successor starts when the pool has it due."""
        reason = f"{error.code}: {error}"
        where = call.name if call else "none" if worker.start_deadline is None else "start"
        log.get_logger().warning("desktop.broke", desktop=worker.index, call=where, reason=reason)
        if isinstance(error, HostBroken | DiskFull) or not isinstance(error, EnvError):
            self._break_host(error)
        self._pool.broke(worker.index, reason, now=time.monotonic())
        self._views.forget(worker.index)
        if self._pool.starts.host_reason:
            self._break_host(HostBroken(self._pool.starts.host_reason))
        lost = [*([call] if call is not None else []), *worker.pending]
        worker.pending.clear()
        worker.give_up()
        for lost_call in lost:
            lost_call.reply(error_reply(error))

    def replace_excessive(self, desktop: int, pid: int, since: float, reason: str) -> bool:
        """Replace a worker whose processes exceed a limit. Returns False when ``pid`` is not its driver's any more, or a reset
        has ended after ``since`` (monotonic): what was seen then is gone, and is not the next task's."""
        worker = self.workers[desktop]
        if worker.given_up or worker.driver is None or worker.driver.pid != pid or worker.reset_at > since:
            return False
        call = worker.pending.pop(0) if worker.pending else None
        self.replace(worker, DesktopBroken(f"desktop {desktop} {reason}"), call)
        return True

    def replace_hanging(self, now: float) -> None:
        """Replace the workers whose start or call has passed its deadline."""
        for worker in self.workers.values():
            if worker.given_up:
                continue
            if worker.start_deadline is not None and now >= worker.start_deadline:
                self.replace(worker, DesktopBroken(f"did not start within {self._times.start_limit_s:g} s"), None)
            elif worker.pending and now >= worker.pending[0].deadline:
                call = worker.pending.pop(0)
                self.replace(worker, DesktopBroken(f"{call.name} passed its deadline: the desktop hangs"), call)

    def _break_host(self, error: ComputerRLError) -> None:
        """Nothing on this host works: refuse all requests and have the process end."""
        self._pool.starts.host_broke(str(error))
        if self.fatal is None:
            self.fatal = error
            log.get_logger().error("host.broke", error=error.code, reason=str(error))

    # --- health

    def check_health(self, now: float) -> None:
        """Check the idle desktops whose check is due."""
        for index, worker in self.workers.items():
            if self._pool[index].state == "idle" and now >= self._health_due[index] and not worker.pending:
                self.postpone_health_check(index, now)
                self.submit(index, DesktopCall("health", now + _HEALTH_DEADLINE_S, None, calls.health))

    def postpone_health_check(self, desktop: int, now: float) -> None:
        """Check a desktop a whole period from now, because it works at present."""
        self._health_due[desktop] = now + self._times.health_period_s

    def pids(self) -> Mapping[int, int]:
        """Outermost process of each desktop that has one."""
        drivers = {index: worker.driver for index, worker in self.workers.items() if not worker.given_up}
        return {index: driver.pid for index, driver in drivers.items() if driver is not None and driver.pid}

    def next_deadline(self) -> float | None:
        """Time of the next hanging call or start, or health check; None: only after another event."""
        workers = self.workers.values()
        times = [worker.pending[0].deadline for worker in workers if worker.pending]
        times += [worker.start_deadline for worker in workers if worker.start_deadline and not worker.given_up]
        times += [self._health_due[index] for index in self.workers if self._pool[index].state == "idle"]
        return min(times, default=None)
