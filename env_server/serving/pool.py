"""The desktop pool's decisions: leases with fencing tokens, expiry, failures, recycling, quarantine. No I/O, no clock.

                                    preparing ──lease──► leased, broke ──► broken
                                      ▲   │
                                spare │   │ prepared
                                      │   ▼
    new ──due──► starting ──started──► idle ◄──release/expiry── leased
                    ▲                   │                         │
                    │                 broke                     broke
                    └──due (backoff)── broken ◄───────────────────┘

A spare is an idle desktop that shows a task before anybody asked for it.

Methods are events; they return the desktops that have to be started (`DesktopPool.due`), refuse by raising `LeaseRefused`
or `NoDesktop`, and never wait. Whoever holds the pool brings the lock, the clock and the drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from computerrl.common.errors import HostBroken, LeaseRefused, NoDesktop
from computerrl.common.messages import Lease, TaskRef

DesktopState = Literal["new", "starting", "idle", "preparing", "leased", "broken"]

_NOT_FREE: tuple[DesktopState, ...] = ("leased", "new", "starting", "broken")

NO_ROOM_PAUSE_S = 2.0
"""A desktop that the host's memory does not hold is tried again after this long."""

QUARANTINE_FAILURES = 3
"""A desktop that failed this often in a row is quarantined: started again only after the long backoff. When all are, the
host is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The pool's numbers, in seconds."""

    lease_time_limit_s: float
    backoff_s: float = 0.5
    """Wait before a broken desktop's second start in a row; doubles each time. The first is at once."""
    max_backoff_s: float = 60.0
    max_starting: int | None = None
    """So many desktops start at the same time at most: more would only get in each other's way. None: all."""


@dataclass(slots=True)
class _Slot:
    """One desktop's place in the pool."""

    state: DesktopState = "new"
    token: int = 0
    holder: str = ""
    busy: bool = False
    """A call is running on it: its lease does not expire (the call has its own deadline)."""
    given_back: bool = False
    """Released while a call was running: free as soon as that ends."""
    expires_at: float = 0.0
    app: str = ""
    """Application it showed last; its windows are warm."""
    task: TaskRef | None = None
    """What it shows beforehand, or will as soon as it is prepared."""
    last_used: float = 0.0
    failures: int = 0
    """In a row, without a finished call in between."""
    restart_at: float = 0.0
    reason: str = ""


class DesktopPool:
    """``num_desktops`` desktops, none started (see `due`). ``first_token`` must exceed every token given out before."""

    def __init__(self, num_desktops: int, *, limits: PoolLimits, first_token: int = 1) -> None:
        self._slots = [_Slot() for _ in range(num_desktops)]
        self._limits = limits
        self._next_token = first_token
        self._host_reason = ""
        self.lacks_memory = False
        """The last time desktops were to be started, the host's memory did not hold them all."""
        self.num_restarts = 0
        self.num_expired = 0
        self.num_spares_used = 0

    # --- leases ------------------------------------------------------------------------------------------------------

    def lease(self, holder: str, *, app: str, now: float, task: TaskRef | None = None) -> Lease:
        """A free desktop for ``holder``: one that shows ``task`` already, else one that showed ``app`` last.

        Where only such are left, one that is being prepared: what is asked of it is done after that. Raises `NoDesktop` or
        `HostBroken`.
        """
        self._refuse_when_host_broken()
        self.expire(now)
        free = [index for index, slot in enumerate(self._slots) if slot.state in ("idle", "preparing")]
        if not free:
            raise NoDesktop(self._why_none())
        index = min(free, key=lambda i: self._badness(self._slots[i], app, task))
        slot = self._slots[index]
        if task is not None and slot.task == task:
            self.num_spares_used += 1
        slot.state, slot.holder, slot.token = "leased", holder, self._next_token
        slot.expires_at = now + self._limits.lease_time_limit_s
        slot.app, slot.task = app or slot.app, None
        self._next_token += 1
        return Lease(desktop=index, token=slot.token, time_limit_s=self._limits.lease_time_limit_s)

    def spare(self, task: TaskRef, *, app: str, now: float) -> int | None:
        """An idle desktop that should show ``task`` beforehand, to be reported by `prepared`. None: there is none to spare."""
        self.expire(now)
        free = [i for i, slot in enumerate(self._slots) if slot.state == "idle" and slot.task != task]
        if not free or self._host_reason:
            return None
        index = min(free, key=lambda i: self._badness(self._slots[i], app, None))
        slot = self._slots[index]
        slot.state, slot.task, slot.app = "preparing", task, app or slot.app
        return index

    def prepared(self, desktop: int, *, done: bool, now: float) -> None:
        """Preparing came to its end; not ``done``: the task could not be put on screen."""
        slot = self._slots[desktop]
        if slot.state == "preparing":
            slot.state, slot.last_used, slot.task = "idle", now, slot.task if done else None
            slot.failures = 0

    def prepares(self, desktop: int) -> TaskRef | None:
        """The task that the desktop is being prepared for."""
        slot = self._slots[desktop]
        return slot.task if slot.state == "preparing" else None

    def begin_call(self, lease: Lease, *, now: float) -> None:
        """A call under ``lease`` starts. Raises `LeaseRefused` for an old token, or while another call is running."""
        self._refuse_when_host_broken()
        self.expire(now)
        slot = self._slot_of(lease)
        if slot.given_back:
            raise LeaseRefused(f"lease {lease.token} of desktop {lease.desktop} was given back")
        if slot.busy:
            raise LeaseRefused(f"desktop {lease.desktop} is busy with another call of this lease")
        slot.busy = True

    def end_call(self, desktop: int, token: int, *, now: float) -> None:
        """The call under ``token`` came to its end (with a result or the task's own failure)."""
        slot = self._slots[desktop]
        if slot.state == "leased" and slot.token == token:
            slot.busy = False
            slot.failures = 0
            slot.expires_at = now + self._limits.lease_time_limit_s
            if slot.given_back:
                self._free(slot, now)

    def release(self, lease: Lease, *, now: float) -> None:
        """Give back; an old token is refused. A call still running (its caller gave up) keeps the desktop until it ends."""
        self._give_back(self._slot_of(lease), now)

    def holders(self) -> set[str]:
        """Who holds leases now."""
        return {slot.holder for slot in self._slots if slot.state == "leased"}

    def release_holder(self, holder: str, *, now: float) -> None:
        """Give back all leases of ``holder``, who is dead."""
        for slot in self._slots:
            if slot.state == "leased" and slot.holder == holder:
                self._give_back(slot, now)

    def expire(self, now: float) -> int:
        """Take back leases past their limit; gives how many."""
        count = 0
        for slot in self._slots:
            if slot.state == "leased" and not slot.busy and now >= slot.expires_at:
                self._free(slot, now)
                count += 1
        self.num_expired += count
        return count

    # --- health ------------------------------------------------------------------------------------------------------

    def started(self, desktop: int, *, now: float) -> None:
        """The desktop is up."""
        slot = self._slots[desktop]
        assert slot.state == "starting", f"desktop {desktop} started while {slot.state}"
        slot.state, slot.reason, slot.last_used = "idle", "", now

    def broke(self, desktop: int, reason: str, *, now: float) -> None:
        """The desktop does not work any more or did not start; its lease, if any, is void and `due` names it in time."""
        slot = self._slots[desktop]
        backoff = 0.0
        if slot.failures:
            backoff = min(self._limits.max_backoff_s, self._limits.backoff_s * 2.0 ** (slot.failures - 1))
        slot.failures += 1
        slot.state, slot.reason, slot.app, slot.task, slot.holder, slot.token = "broken", reason, "", None, "", 0
        slot.busy = slot.given_back = False
        slot.restart_at = now + backoff
        if all(other.failures >= QUARANTINE_FAILURES for other in self._slots):
            self.host_broke(f"every desktop failed {QUARANTINE_FAILURES} times in a row, the last with: {reason}")

    def due(self, now: float, *, num_fitting: int | None = None) -> list[int]:
        """Desktops to start now: new ones, and broken ones whose wait is over; they count as starting from here on.

        ``num_fitting``: so many more the host's memory holds, those that are just starting included; None: all. Too little is
        nobody's failure: what does not fit is asked for again after a pause.
        """
        if self._host_reason:
            return []
        found = self._waiting_for_start(now)[: self._num_may_start()]
        num_now = len(found) if num_fitting is None else min(len(found), max(0, num_fitting - self.count("starting")))
        self.lacks_memory = num_now < len(found)
        for index in found[:num_now]:
            slot = self._slots[index]
            self.num_restarts += int(slot.state == "broken")
            slot.state = "starting"
        for index in found[num_now:]:
            self._slots[index].restart_at = now + NO_ROOM_PAUSE_S
        return found[:num_now]

    def wants_start(self, now: float) -> bool:
        """Would `due` name a desktop if all fitted?"""
        return not self._host_reason and self._num_may_start() > 0 and bool(self._waiting_for_start(now))

    def host_broke(self, reason: str) -> None:
        """Nothing on this host works; every lease is refused from now on."""
        self._host_reason = self._host_reason or reason

    def next_deadline(self) -> float | None:
        """When `expire` or `due` have something to do next; None: only after another event."""
        times = [slot.expires_at for slot in self._slots if slot.state == "leased" and not slot.busy]
        if not self._host_reason and self._num_may_start():
            times += [slot.restart_at for slot in self._slots if slot.state in ("new", "broken")]
        return min(times, default=None)

    # --- for displays and tests --------------------------------------------------------------------------------------

    def state(self, desktop: int) -> DesktopState:
        """What the desktop is doing."""
        return self._slots[desktop].state

    def look(self, desktop: int) -> tuple[str, str, str]:
        """(state, why it failed last, holder) for displays."""
        slot = self._slots[desktop]
        if slot.state == "leased":
            return "leased", "", slot.holder
        state = "quarantined" if slot.failures >= QUARANTINE_FAILURES else slot.state
        return state, slot.reason if slot.failures else "", ""

    def count(self, state: DesktopState) -> int:
        """Desktops in ``state``."""
        return sum(slot.state == state for slot in self._slots)

    @property
    def num_quarantined(self) -> int:
        """Broken desktops that failed too often in a row."""
        return sum(slot.state != "leased" and slot.failures >= QUARANTINE_FAILURES for slot in self._slots)

    @property
    def host_reason(self) -> str:
        """Why the host is broken; empty when it is not."""
        return self._host_reason

    def check(self) -> None:
        """Assert the invariants."""
        tokens = [slot.token for slot in self._slots if slot.state == "leased"]
        assert len(set(tokens)) == len(tokens) and all(0 < token < self._next_token for token in tokens)
        assert all(slot.state == "leased" or not slot.busy for slot in self._slots)
        assert all(slot.state == "leased" or not slot.holder for slot in self._slots)
        assert all(slot.state in ("idle", "preparing") or slot.task is None for slot in self._slots)

    # --- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _badness(slot: _Slot, app: str, task: TaskRef | None) -> tuple[bool, bool, bool, bool, float]:
        # Best one that shows the task or soon will, then one that shows nothing for anybody else, then one whose windows are
        # warm, then the one unused for longest: its windows are the least likely to be wanted again soon.
        is_other = task is None or slot.task != task
        return is_other, slot.state == "preparing", slot.task is not None, slot.app != app or not app, slot.last_used

    def _waiting_for_start(self, now: float) -> list[int]:
        return [i for i, slot in enumerate(self._slots) if slot.state in ("new", "broken") and now >= slot.restart_at]

    def _num_may_start(self) -> int:
        limit = self._limits.max_starting
        return len(self._slots) if limit is None else max(0, limit - self.count("starting"))

    def _slot_of(self, lease: Lease) -> _Slot:
        if not 0 <= lease.desktop < len(self._slots):
            raise LeaseRefused(f"there is no desktop {lease.desktop} (0..{len(self._slots) - 1})")
        slot = self._slots[lease.desktop]
        if slot.state != "leased" or slot.token != lease.token:
            raise LeaseRefused(f"lease {lease.token} of desktop {lease.desktop} is over: {slot.reason or 'taken back'}")
        return slot

    def _give_back(self, slot: _Slot, now: float) -> None:
        if slot.busy:
            slot.given_back = True
        else:
            self._free(slot, now)

    def _free(self, slot: _Slot, now: float) -> None:
        slot.state, slot.token, slot.holder, slot.last_used = "idle", 0, "", now
        slot.busy = slot.given_back = False

    def _refuse_when_host_broken(self) -> None:
        if self._host_reason:
            raise HostBroken(self._host_reason)

    def _why_none(self) -> str:
        counts = ", ".join(f"{self.count(state)} {state}" for state in _NOT_FREE if self.count(state))
        last = next((slot.reason for slot in self._slots if slot.reason), "")
        memory = "; the host's memory holds no more of them now" if self.lacks_memory else ""
        return f"no desktop is free: {counts}{memory}" + (f"; last failure: {last}" if last else "")
