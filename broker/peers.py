"""Who is alive: processes by role and index, their latest heartbeat. Pure: no clock, no I/O.

Decides only about presence; what a lost process held is the core's business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.errors import ProtocolError, Superseded, UnknownPeer
from common.messages import MAX_PEERS, Heartbeat, Hello, PeerEntry, Role

_NUM_REMEMBERED = 64
"""Ended incarnations remembered per role and index; enough to refuse a zombie that wakes up late."""


@dataclass(slots=True)
class _Peer:
    hello: Hello
    last_seen: float
    metrics: dict[str, float] = field(default_factory=dict)
    note: str = ""


class PeerTable:
    """Live processes."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._peers: dict[tuple[Role, int], _Peer] = {}
        self._superseded: dict[tuple[Role, int], deque[str]] = {}
        self._last_look: float | None = None

    def greet(self, hello: Hello, now: float) -> str | None:
        """Take a process in; returns the incarnation that it replaces. Raises `Superseded` for one that was replaced,
        `ProtocolError` when there are too many."""
        key = (hello.role, hello.index)
        self.refuse_superseded(hello.incarnation, key)
        old = self._peers.get(key)
        if old is None and len(self._peers) >= MAX_PEERS:
            raise ProtocolError(f"{MAX_PEERS} processes are known already; {hello.role}-{hello.index} is one too many")
        replaced = old.hello.incarnation if old is not None and old.hello.incarnation != hello.incarnation else None
        if replaced is not None:
            self._superseded.setdefault(key, deque(maxlen=_NUM_REMEMBERED)).append(replaced)
        if old is not None and replaced is None:
            old.hello, old.last_seen = hello, now
        else:
            self._peers[key] = _Peer(hello, now)
        return replaced

    def beat(self, beat: Heartbeat, now: float) -> None:
        """Note a heartbeat. Raises `UnknownPeer` or `Superseded`."""
        key = (beat.role, beat.index)
        self.refuse_superseded(beat.incarnation, key)
        peer = self._peers.get(key)
        if peer is None or peer.hello.incarnation != beat.incarnation:
            raise UnknownPeer(f"{beat.role}-{beat.index}:{beat.incarnation} has not said hello to this broker")
        peer.last_seen, peer.metrics, peer.note = now, beat.metrics, beat.note

    def refuse_superseded(self, incarnation: str, key: tuple[Role, int] | None = None) -> None:
        """Raises `Superseded` when a newer process has the place of ``incarnation``."""
        for place in [key] if key is not None else list(self._superseded):
            if incarnation in self._superseded.get(place, ()):
                raise Superseded(f"{place[0]}-{place[1]}:{incarnation} was replaced by a newer process")

    def take_lost(self, now: float) -> list[Hello]:
        """Remove and return those whose heartbeats stopped.

        When nobody looked for long (this process stood still), the peers' heartbeats wait unread: that time does not count.
        """
        pause_s = 0.0 if self._last_look is None else now - self._last_look
        self._last_look = now
        if pause_s > self._timeout_s / 3:
            for peer in self._peers.values():
                peer.last_seen = min(now, peer.last_seen + pause_s)
        lost = [key for key, peer in self._peers.items() if now - peer.last_seen > self._timeout_s]
        return [self._peers.pop(key).hello for key in lost]

    def entries(self, now: float, *, role: Role | None = None) -> tuple[PeerEntry, ...]:
        """Live processes, by role and index."""
        found = []
        for key in sorted(self._peers):
            peer = self._peers[key]
            hello = peer.hello
            if role is None or hello.role == role:
                age_s = max(0.0, now - peer.last_seen)
                entry = PeerEntry(hello.role, hello.index, hello.incarnation, hello.host, hello.pid, hello.endpoints, age_s)
                found.append(entry)
        return tuple(found)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """`role-index` -> latest metrics."""
        return {f"{role}-{index}": dict(peer.metrics) for (role, index), peer in sorted(self._peers.items())}

    @property
    def notes(self) -> dict[str, str]:
        """`role-index` -> latest note."""
        return {f"{role}-{index}": peer.note for (role, index), peer in sorted(self._peers.items())}
