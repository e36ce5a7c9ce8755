"""Receivers of weights as the learner knows them: which wait for an invitation, which are alive, which version each serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from computerrl.common.messages import MAX_PEERS, WeightJoin, WeightLoaded
from computerrl.common.wire.transport import Request
from computerrl.learner.client import PARK_S

LIVE_S = 3 * PARK_S
"""A receiver that sent nothing for this long counts as dead."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A receiver that waits for an invitation."""

    request: Request
    """The open `WeightJoin` request."""
    loaded_version: int
    held: str
    """`WeightJoin.held`."""
    since: float
    """Time of arrival, by the monotonic clock."""


class Receivers:
    """All receivers that the learner remembers, at most `MAX_PEERS`. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Lock of all tables, notified when a receiver is parked. A caller may hold it over several calls."""
        self._parked: dict[str, Parked] = {}
        self._seen: dict[str, float] = {}
        """Time of the last message of each receiver, oldest first."""
        self._loaded: dict[str, int] = {}
        self._left: set[str] = set()

    def park(self, message: WeightJoin, request: Request) -> None:
        """Keep ``request`` open until there is an invitation. A receiver waits once: a new request replaces the old one."""
        now = time.monotonic()
        with self.changed:
            self._record(message.receiver, now)
            self._parked[message.receiver] = Parked(request, message.loaded_version, message.held, now)
            self.changed.notify_all()

    def report(self, message: WeightLoaded) -> None:
        """Note the version that a receiver serves now, or its failure. A receiver that failed has left its group, which is of no
        use to the other members either."""
        with self.changed:
            self._record(message.receiver, time.monotonic())
            if message.error:
                self._left.add(message.receiver)
            else:
                self._loaded[message.receiver] = message.policy_version

    def loaded_versions(self) -> dict[str, int]:
        """Version that each receiver reported to serve."""
        with self.changed:
            return dict(self._loaded)

    def num_live(self) -> int:
        """Number of receivers that count as alive."""
        with self.changed:
            return len(self._live())

    def is_any_parked_below(self, policy_version: int) -> bool:
        """Whether a parked receiver lacks this version."""
        with self.changed:
            return any(parked.loaded_version < policy_version for parked in self._parked.values())

    def is_any_live_away(self) -> bool:
        """Whether a live receiver is not parked, for example because it still loads the version before."""
        with self.changed:
            return any(name not in self._parked for name in self._live())

    def take_below(self, policy_version: int) -> dict[str, Parked]:
        """Remove the parked receivers that lack this version. They are given by name, in the order of their names."""
        with self.changed:
            names = [name for name, parked in self._parked.items() if parked.loaded_version < policy_version]
            return {name: self._parked.pop(name) for name in sorted(names)}

    def take_parked_for(self, duration_s: float) -> list[Parked]:
        """Remove the receivers that have been parked for at least this long."""
        limit = time.monotonic() - duration_s
        with self.changed:
            return [self._parked.pop(name) for name, parked in list(self._parked.items()) if parked.since <= limit]

    def take_left(self) -> bool:
        """Whether a receiver has left its group since the last call."""
        with self.changed:
            found = bool(self._left)
            self._left.clear()
            return found

    def presume_dead(self, names: Iterable[str]) -> None:
        """Count these receivers as dead until their next message."""
        with self.changed:
            for name in names:
                self._seen.pop(name, None)

    def _live(self) -> list[str]:
        now = time.monotonic()
        return [name for name, seen in self._seen.items() if now - seen < LIVE_S]

    def _record(self, name: str, now: float) -> None:
        self._seen.pop(name, None)
        self._seen[name] = now
        if len(self._seen) > MAX_PEERS:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._loaded.pop(oldest, None)
            self._left.discard(oldest)
