"""Live processes by role and index, with their latest heartbeats. Pure: no clock, no I/O.

The table decides only about presence; `broker.core` releases the assignments of a lost process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from computerrl.common.errors import ProtocolError, Superseded, UnknownPeer
from computerrl.common.messages import MAX_PEERS, Heartbeat, Hello, PeerEntry, Role

_NUM_REMEMBERED = 64
"""Ended incarnations remembered per role and index; enough to refuse a zombie that wakes up late."""

_MIN_PERIOD_S = 1.0
_BEATS_PER_S = 200.0
"""Maximum heartbeats per second of all processes together; handling a single one takes the broker 0.2 ms."""
_PERIODS_OF_SILENCE = 3
"""Heartbeat periods without a heartbeat before a process counts as lost: one may be lost, and the next one late."""


@dataclass(slots=True)
class _Peer:
    hello: Hello
    last_seen: float
    period_s: float = _MIN_PERIOD_S
    """Heartbeat period that the process was last told."""
    metrics: dict[str, float] = field(default_factory=dict)
    note: str = ""


class PeerTable:
    """Live processes."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._peers: dict[tuple[Role, int], _Peer] = {}
        """Processes by place, the longest silent first, so that a search for lost ones stops early."""
        self._newest: dict[tuple[Role, int], str] = {}
        """Latest incarnation of each place, also of a lost process: it may only have slept."""
        self._superseded: dict[tuple[Role, int], deque[str]] = {}
        self._place_of_superseded: dict[str, tuple[Role, int]] = {}
        """Place of each superseded incarnation; every request is checked against it."""
        self._last_check: float | None = None
        """Time of the last `remove_lost`."""

    def greet(self, hello: Hello, now: float) -> str | None:
        """Add a process; returns the incarnation that it replaces.

        Raises `Superseded` for a process that was replaced itself, `ProtocolError` when there are too many.
        """
        key = (hello.role, hello.index)
        self.refuse_superseded(hello.incarnation, key)
        self._refuse_when_full(key)
        old = self._peers.get(key)
        replaced = old.hello.incarnation if old is not None and old.hello.incarnation != hello.incarnation else None
        self._seat(hello.incarnation, key)
        if old is not None and replaced is None:
            old.hello = hello
        else:
            self._peers[key] = _Peer(hello, now)
        self._record_seen(key, now)
        return replaced

    def beat(self, beat: Heartbeat, now: float) -> None:
        """Record a heartbeat. Raises `UnknownPeer` or `Superseded`."""
        key = (beat.role, beat.index)
        self.refuse_superseded(beat.incarnation, key)
        peer = self._peers.get(key)
        if peer is None or peer.hello.incarnation != beat.incarnation:
            raise UnknownPeer(f"{beat.role}-{beat.index}:{beat.incarnation} has not said hello to this broker")
        peer.metrics, peer.note = beat.metrics, beat.note
        peer.period_s = self.heartbeat_period_s
        self._record_seen(key, now)

    @property
    def heartbeat_period_s(self) -> float:
        """Seconds between a process's heartbeats; it grows with the number of processes."""
        return max(min(_MIN_PERIOD_S, self._timeout_s / _PERIODS_OF_SILENCE), len(self._peers) / _BEATS_PER_S)

    def refuse_superseded(self, incarnation: str, key: tuple[Role, int] | None = None) -> None:
        """Raises `Superseded` when a newer process has the place of ``incarnation``. ``key`` limits the check to one place."""
        place = self._place_of_superseded.get(incarnation)
        if place is not None and key in (None, place):
            raise Superseded(f"{place[0]}-{place[1]}:{incarnation} was replaced by a newer process")

    def remove_lost(self, now: float) -> list[Hello]:
        """Remove and return the processes whose heartbeats stopped.

        When the last call was long ago, the broker stood still and heartbeats wait unread: that time does not count.
        """
        pause_s = 0.0 if self._last_check is None else now - self._last_check
        self._last_check = now
        if pause_s > self._timeout_s / 3:
            for peer in self._peers.values():
                peer.last_seen = min(now, peer.last_seen + pause_s)
        silent = takewhile(lambda key: now - self._peers[key].last_seen > self._timeout_of(self._peers[key]), self._peers)
        return [self._peers.pop(key).hello for key in list(silent)]

    def _timeout_of(self, peer: _Peer) -> float:
        """Seconds of silence after which ``peer`` is lost."""
        return max(self._timeout_s, _PERIODS_OF_SILENCE * peer.period_s)

    def entries(self, now: float, *, role: Role | None = None) -> tuple[PeerEntry, ...]:
        """Live processes (of one role, if given) by role and index."""
        found = []
        for key in sorted(key for key in self._peers if role is None or key[0] == role):
            peer = self._peers[key]
            hello = peer.hello
            age_s = max(0.0, now - peer.last_seen)
            entry = PeerEntry(hello.role, hello.index, hello.incarnation, hello.host, hello.pid, hello.endpoints, age_s)
            found.append(entry)
        return tuple(found)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Latest metrics by `role-index`."""
        return {f"{role}-{index}": dict(peer.metrics) for (role, index), peer in sorted(self._peers.items())}

    @property
    def notes(self) -> dict[str, str]:
        """Latest note by `role-index`."""
        return {f"{role}-{index}": peer.note for (role, index), peer in sorted(self._peers.items())}

    def _refuse_when_full(self, key: tuple[Role, int]) -> None:
        if key not in self._peers and len(self._peers) >= MAX_PEERS:
            raise ProtocolError(f"{MAX_PEERS} processes are known already; {key[0]}-{key[1]} is one too many")

    def _record_seen(self, key: tuple[Role, int], now: float) -> None:
        peer = self._peers.pop(key)
        peer.last_seen = now
        self._peers[key] = peer

    def _seat(self, incarnation: str, key: tuple[Role, int]) -> None:
        before = self._newest.get(key, incarnation)
        self._newest[key] = incarnation
        if before == incarnation:
            return
        ended = self._superseded.setdefault(key, deque())
        ended.append(before)
        self._place_of_superseded[before] = key
        if len(ended) > _NUM_REMEMBERED:
            del self._place_of_superseded[ended.popleft()]

    # --- learners: a restarted broker must refuse a learner that was replaced before

    def is_new_learner(self, hello: Hello) -> bool:
        """Whether this is a learner whose incarnation is not yet durable. Raises as `greet`."""
        key = (hello.role, hello.index)
        self.refuse_superseded(hello.incarnation, key)
        self._refuse_when_full(key)
        return hello.role == "learner" and self._newest.get(key) != hello.incarnation

    def learners(self) -> list[tuple[int, list[str]]]:
        """Index and incarnations of every learner, the present one last, for snapshots."""
        return [
            (index, [*self._superseded.get((role, index), ()), newest])
            for (role, index), newest in self._newest.items()
            if role == "learner"
        ]

    def restore_learners(self, learners: Iterable[tuple[int, Iterable[str]]]) -> None:
        """Continue from a value that `learners` returned."""
        for index, incarnations in learners:
            for incarnation in incarnations:
                self._seat(incarnation, ("learner", index))
