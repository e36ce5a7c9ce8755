"""Lease requests that wait for a free desktop, and the spares prepared for the requests after them.

Neither class is thread-safe: the service calls them under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from computerrl.common import log
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import ComputerRLError, NoDesktop
from computerrl.common.messages import LeaseRequest, Message, TaskRef
from computerrl.env_server.judging.untouched import reset_limit_s
from computerrl.env_server.serving import calls
from computerrl.env_server.serving.desktop_worker import DesktopCall, Reply, error_reply
from computerrl.env_server.serving.fleet import DesktopFleet, ServiceTimes
from computerrl.env_server.serving.pool import DesktopPool
from computerrl.env_server.tasks.family import Family


@dataclass(slots=True)
class _WaitingRequest:
    holder: str
    request: LeaseRequest
    expires_at: float
    reply: Reply


class LeaseQueue:
    """Lease requests, first come, first served."""

    def __init__(self, pool: DesktopPool, *, families: Mapping[str, Family], wait_s: float) -> None:
        self._pool = pool
        self._families = families
        self._wait_s = wait_s
        self._waiting: deque[_WaitingRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: LeaseRequest, sender: str, reply: Reply, *, now: float) -> None:
        """Append a request. Leases of an earlier process at the sender's place end."""
        place = _place_of(sender)
        holder = f"{place}:{request.incarnation}"
        for old in self._pool.holders():
            if _place_of(old) == place and old != holder and place != sender:
                log.get_logger().info("lease.holder_replaced", old=old, new=holder)
                self._pool.release_holder(old, now=now)
        self._waiting.append(_WaitingRequest(holder, request, now + self._wait_s, reply))

    def serve(self, now: float) -> Iterator[LeaseRequest]:
        """Answer the requests at the head while desktops are free or the request has waited long enough; yields each one."""
        while self._waiting:
            waiting = self._waiting[0]
            try:
                task = waiting.request.task
                answer: Message = self._pool.lease(waiting.holder, app=app_of(task, self._families), task=task, now=now)
            except ComputerRLError as error:
                if isinstance(error, NoDesktop) and now < waiting.expires_at:
                    return
                answer = error_reply(error)
            self._waiting.popleft()
            waiting.reply(answer)
            yield waiting.request

    def next_expiry(self) -> float | None:
        """Time at which the first request has waited long enough; None when no request waits."""
        return min((waiting.expires_at for waiting in self._waiting), default=None)

    def clear(self) -> list[Reply]:
        """Remove all requests; returns their replies, which the caller has to make."""
        replies = [waiting.reply for waiting in self._waiting]
        self._waiting.clear()
        return replies


class Spares:
    """Idle desktops that show a task before an actor requests it."""

    def __init__(
        self,
        pool: DesktopPool,
        fleet: DesktopFleet,
        *,
        config: DesktopConfig,
        times: ServiceTimes,
        families: Mapping[str, Family],
        setting: calls.TaskSetting,
    ) -> None:
        self._pool = pool
        self._fleet = fleet
        self._config = config
        self._times = times
        self._families = families
        self._setting = setting
        self._not_preparable: TaskRef | None = None
        """Task that failed last; it is not tried again for each member of its group."""

    def prepare(self, task: TaskRef, now: float) -> None:
        """Have an idle desktop show ``task``, when one is idle and the task can be played on this host."""
        if task.family not in self._families or task == self._not_preparable:
            return
        index = self._pool.spare(task, app=app_of(task, self._families), now=now)
        if index is not None:
            deadline = now + reset_limit_s(self._config, task) + self._times.grace_s
            self._fleet.submit(index, DesktopCall("prepare", deadline, None, calls.prepare(task, setting=self._setting)))

    def prepared(self, desktop: int, outcome: Message | ComputerRLError, now: float) -> None:
        """The call of `prepare` ended."""
        failed = isinstance(outcome, ComputerRLError)
        if failed:
            # A lease with a reset of this task fails with the same reason.
            self._not_preparable = self._pool[desktop].task if self._pool[desktop].state == "preparing" else None
            log.get_logger().info("spare.failed", desktop=desktop, reason=str(outcome))
        self._pool.prepared(desktop, done=not failed, now=now)


def app_of(task: TaskRef | None, families: Mapping[str, Family]) -> str:
    """The application in which ``task`` is played; empty where it is not known."""
    family = families.get(task.family) if task is not None else None
    return family.app if family else ""


def _place_of(sender: str) -> str:
    """`actor-0` of `actor-0:incarnation`."""
    return sender.partition(":")[0]
