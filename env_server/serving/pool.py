"""The desktop pool's decisions: leases with fencing tokens, expiry, failures, recycling, quarantine. No I/O, no clock.

                                    preparing ──lease──► leased, broke ──► broken
                                      ▲   │
                                spare │   │ prepared
                                      │   ▼
    new ──due──► starting ──started──► idle ◄──release/expiry── leased
                    ▲                   │                         │
                    │                 broke                     broke
                    └──due (backoff)── broken ◄───────────────────┘

A spare is an idle desktop that shows a task before an actor requests it.

Methods are events. They refuse by raising `LeaseRefused` or `NoDesktop`, and never wait. The owner of the pool brings the lock,
the clock and the drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from computerrl.common.errors import HostBroken, LeaseRefused, NoDesktop
from computerrl.common.messages import Lease, TaskRef

DesktopState = Literal["new", "starting", "idle", "preparing", "leased", "broken"]

_NOT_FREE: tuple[DesktopState, ...] = ("leased", "new", "starting", "broken")

NO_ROOM_PAUSE_S = 2.0
"""Pause before another start of a desktop for which the host had no memory."""

QUARANTINE_FAILURES = 3
"""Number of failures in a row after which a desktop is quarantined: it starts again only after the long backoff. When all are,
the host is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of a pool, in seconds."""

    lease_time_limit_s: float
    backoff_s: float = 0.5
    """Pause before a broken desktop's second start in a row; it doubles each time. The first start is at once."""
    max_backoff_s: float = 60.0
    max_starting: int | None = None
    """Maximum number of desktops that start at the same time: more would only get in each other's way. None: no limit."""


@dataclass(slots=True)
class PooledDesktop:
    """One desktop of the pool."""

    state: DesktopState = "new"
    token: int = 0
    holder: str = ""
    busy: bool = False
    """Whether a call is running: the lease does not expire then, because the call has its own deadline."""
    given_back: bool = False
    """Whether the lease was released while a call was running: the desktop is free as soon as the call ends."""
    expires_at: float = 0.0
    app: str = ""
    """Application shown last; its windows are warm."""
    task: TaskRef | None = None
    """Task that a spare shows, or will show as soon as it is prepared."""
    last_used: float = 0.0
    failures: int = 0
    """Number of failures in a row, without a finished call in between."""
    restart_at: float = 0.0
    reason: str = ""
    """Reason of the last failure; empty once the desktop has started again."""

    @property
    def is_free(self) -> bool:
        """Whether it can be leased. A call on a desktop that is being prepared runs after that."""
        return self.state in ("idle", "preparing")

    @property
    def is_quarantined(self) -> bool:
        """Whether it failed too often in a row, and has no lease."""
        return self.state != "leased" and self.failures >= QUARANTINE_FAILURES

    @property
    def shown_state(self) -> str:
        """State for displays."""
        return "quarantined" if self.is_quarantined else self.state

    @property
    def shown_reason(self) -> str:
        """Reason of the failures of a desktop without a lease, for displays."""
        return self.reason if self.state != "leased" and self.failures else ""

    def unfitness(self, app: str, task: TaskRef | None) -> tuple[bool, bool, bool, bool, float]:
        """Sort key of the choice for ``task``; the smallest is best.

        A desktop that shows the task or soon will comes first, then one that shows nothing for another actor, then one whose
        windows are warm, then the one unused for longest: its windows are the least likely to be wanted again soon.
        """
        is_other = task is None or self.task != task
        return is_other, self.state == "preparing", self.task is not None, self.app != app or not app, self.last_used

    def free(self, now: float) -> None:
        """End the lease."""
        self.state, self.token, self.holder, self.last_used = "idle", 0, "", now
        self.busy = self.given_back = False

    def give_back(self, now: float) -> None:
        """End the lease, or have it end with the call that is running."""
        if self.busy:
            self.given_back = True
        else:
            self.free(now)

    def fail(self, reason: str, *, restart_at: float) -> None:
        """Note a failure; it voids the lease."""
        self.failures += 1
        self.state, self.reason, self.app, self.task, self.holder, self.token = "broken", reason, "", None, "", 0
        self.busy = self.given_back = False
        self.restart_at = restart_at


class StartSchedule:
    """Decides which desktops start when: memory, concurrent starts, backoff, quarantine, and the broken host."""

    def __init__(self, desktops: Sequence[PooledDesktop], limits: PoolLimits) -> None:
        self._desktops = desktops
        self._limits = limits
        self.host_reason = ""
        """Reason why the host is broken; empty while it works."""
        self.lacks_memory = False
        """Whether the host had no memory for some of the desktops that were due last."""
        self.num_restarts = 0

    def due(self, now: float, *, num_fitting: int | None = None) -> list[int]:
        """Desktops to start now, which are starting from here on: new ones, and broken ones whose backoff is over.

        ``num_fitting``: number of desktops for which the host has memory, those that are starting included; None: no limit. Too
        little memory is no failure: the desktops that do not fit are due again after a pause.
        """
        if self.host_reason:
            return []
        found = self._waiting(now)[: self._num_may_start()]
        num_now = len(found) if num_fitting is None else min(len(found), max(0, num_fitting - self._num_starting()))
        self.lacks_memory = num_now < len(found)
        for index in found[:num_now]:
            desktop = self._desktops[index]
            self.num_restarts += int(desktop.state == "broken")
            desktop.state = "starting"
        for index in found[num_now:]:
            self._desktops[index].restart_at = now + NO_ROOM_PAUSE_S
        return found[:num_now]

    def has_due(self, now: float) -> bool:
        """Whether `due` would return a desktop if all fitted."""
        return not self.host_reason and self._num_may_start() > 0 and bool(self._waiting(now))

    def next_start(self) -> float | None:
        """Time at which `due` has the next desktop; None: only after another event."""
        if self.host_reason or not self._num_may_start():
            return None
        return min((desktop.restart_at for desktop in self._desktops if desktop.state in ("new", "broken")), default=None)

    def fail(self, desktop: PooledDesktop, reason: str, *, now: float) -> None:
        """Schedule the next start of a desktop that failed; the host is broken when all are quarantined."""
        backoff = 0.0
        if desktop.failures:
            backoff = min(self._limits.max_backoff_s, self._limits.backoff_s * 2.0 ** (desktop.failures - 1))
        desktop.fail(reason, restart_at=now + backoff)
        if all(other.failures >= QUARANTINE_FAILURES for other in self._desktops):
            self.host_broke(f"every desktop failed {QUARANTINE_FAILURES} times in a row, the last with: {reason}")

    def host_broke(self, reason: str) -> None:
        """Nothing on this host works: start nothing more."""
        self.host_reason = self.host_reason or reason

    def refuse_when_host_broken(self) -> None:
        """Raises `HostBroken` when nothing on this host works."""
        if self.host_reason:
            raise HostBroken(self.host_reason)

    def _waiting(self, now: float) -> list[int]:
        return [i for i, one in enumerate(self._desktops) if one.state in ("new", "broken") and now >= one.restart_at]

    def _num_starting(self) -> int:
        return sum(desktop.state == "starting" for desktop in self._desktops)

    def _num_may_start(self) -> int:
        limit = self._limits.max_starting
        return len(self._desktops) if limit is None else max(0, limit - self._num_starting())


class DesktopPool:
    """``num_desktops`` desktops, none started (see `starts`). ``first_token`` must exceed every token issued before."""

    def __init__(self, num_desktops: int, *, limits: PoolLimits, first_token: int = 1) -> None:
        self._desktops = [PooledDesktop() for _ in range(num_desktops)]
        self.starts = StartSchedule(self._desktops, limits)
        self._limits = limits
        self._next_token = first_token
        self.num_expired = 0
        self.num_spares_used = 0

    def __getitem__(self, desktop: int) -> PooledDesktop:
        return self._desktops[desktop]

    # --- leases

    def lease(self, holder: str, *, app: str, now: float, task: TaskRef | None = None) -> Lease:
        """A free desktop for ``holder``: one that shows ``task`` already, else one that showed ``app`` last.

        A desktop that is being prepared is leased only when no other is free. Raises `NoDesktop` or `HostBroken`.
        """
        self.starts.refuse_when_host_broken()
        self.expire(now)
        free = [index for index, desktop in enumerate(self._desktops) if desktop.is_free]
        if not free:
            raise NoDesktop(self._why_none())
        index = min(free, key=lambda i: self._desktops[i].unfitness(app, task))
        desktop = self._desktops[index]
        if task is not None and desktop.task == task:
            self.num_spares_used += 1
        desktop.state, desktop.holder, desktop.token = "leased", holder, self._next_token
        desktop.expires_at = now + self._limits.lease_time_limit_s
        desktop.app, desktop.task = app or desktop.app, None
        self._next_token += 1
        return Lease(desktop=index, token=desktop.token)

    def begin_call(self, lease: Lease, *, now: float) -> None:
        """A call under ``lease`` starts. Raises `LeaseRefused` for an old token, or while another call is running."""
        self.starts.refuse_when_host_broken()
        self.expire(now)
        desktop = self._leased(lease)
        if desktop.given_back:
            raise LeaseRefused(f"lease {lease.token} of desktop {lease.desktop} was given back")
        if desktop.busy:
            raise LeaseRefused(f"desktop {lease.desktop} is busy with another call of this lease")
        desktop.busy = True

    def end_call(self, index: int, token: int, *, now: float) -> None:
        """The call under ``token`` ended, with a result or the task's own failure."""
        desktop = self._desktops[index]
        if desktop.state == "leased" and desktop.token == token:
            desktop.busy = False
            desktop.failures = 0
            desktop.expires_at = now + self._limits.lease_time_limit_s
            if desktop.given_back:
                desktop.free(now)

    def release(self, lease: Lease, *, now: float) -> None:
        """End a lease; an old token is refused. A call still running (its caller gave up) keeps the desktop until it ends."""
        self._leased(lease).give_back(now)

    def holders(self) -> set[str]:
        """Holders of leases."""
        return {desktop.holder for desktop in self._desktops if desktop.state == "leased"}

    def release_holder(self, holder: str, *, now: float) -> None:
        """End all leases of ``holder``, which is dead."""
        for desktop in self._desktops:
            if desktop.state == "leased" and desktop.holder == holder:
                desktop.give_back(now)

    def expire(self, now: float) -> int:
        """End the leases past their limit; returns their number."""
        expired = [one for one in self._desktops if one.state == "leased" and not one.busy and now >= one.expires_at]
        for desktop in expired:
            desktop.free(now)
        self.num_expired += len(expired)
        return len(expired)

    # --- spares

    def spare(self, task: TaskRef, *, app: str, now: float) -> int | None:
        """An idle desktop to show ``task`` beforehand, to be reported by `prepared`; None when none can be spared."""
        self.expire(now)
        free = [i for i, desktop in enumerate(self._desktops) if desktop.state == "idle" and desktop.task != task]
        if not free or self.starts.host_reason:
            return None
        index = min(free, key=lambda i: self._desktops[i].unfitness(app, None))
        desktop = self._desktops[index]
        desktop.state, desktop.task, desktop.app = "preparing", task, app or desktop.app
        return index

    def prepared(self, index: int, *, done: bool, now: float) -> None:
        """Preparing ended; not ``done``: the task could not be put on screen."""
        desktop = self._desktops[index]
        if desktop.state == "preparing":
            desktop.state, desktop.last_used, desktop.task = "idle", now, desktop.task if done else None
            desktop.failures = 0

    # --- health

    def started(self, index: int, *, now: float) -> None:
        """The desktop is up."""
        desktop = self._desktops[index]
        assert desktop.state == "starting", f"desktop {index} started while {desktop.state}"
        desktop.state, desktop.reason, desktop.last_used = "idle", "", now

    def broke(self, index: int, reason: str, *, now: float) -> None:
        """The desktop failed or did not start. Its lease, if any, is void, and it starts again after its backoff."""
        self.starts.fail(self._desktops[index], reason, now=now)

    def next_deadline(self) -> float | None:
        """Time of the next expiry or start; None: only after another event."""
        times = [desktop.expires_at for desktop in self._desktops if desktop.state == "leased" and not desktop.busy]
        start = self.starts.next_start()
        return min([*times, start] if start is not None else times, default=None)

    # --- for displays and tests

    def count(self, *states: DesktopState) -> int:
        """Number of desktops in one of ``states``."""
        return sum(desktop.state in states for desktop in self._desktops)

    @property
    def num_quarantined(self) -> int:
        """Number of desktops that failed too often in a row."""
        return sum(desktop.is_quarantined for desktop in self._desktops)

    def check(self) -> None:
        """Assert the invariants."""
        tokens = [desktop.token for desktop in self._desktops if desktop.state == "leased"]
        assert len(set(tokens)) == len(tokens) and all(0 < token < self._next_token for token in tokens)
        for desktop in self._desktops:
            assert desktop.state == "leased" or not (desktop.busy or desktop.holder)
            assert desktop.is_free or desktop.task is None

    # --- inside

    def _leased(self, lease: Lease) -> PooledDesktop:
        """The desktop of a lease. Raises `LeaseRefused` when the lease is over."""
        if not 0 <= lease.desktop < len(self._desktops):
            raise LeaseRefused(f"there is no desktop {lease.desktop} (0..{len(self._desktops) - 1})")
        desktop = self._desktops[lease.desktop]
        if desktop.state != "leased" or desktop.token != lease.token:
            raise LeaseRefused(f"lease {lease.token} of desktop {lease.desktop} is over: {desktop.reason or 'taken back'}")
        return desktop

    def _why_none(self) -> str:
        counts = ", ".join(f"{self.count(state)} {state}" for state in _NOT_FREE if self.count(state))
        last = next((desktop.reason for desktop in self._desktops if desktop.reason), "")
        memory = "; the host's memory holds no more of them now" if self.starts.lacks_memory else ""
        return f"no desktop is free: {counts}{memory}" + (f"; last failure: {last}" if last else "")
