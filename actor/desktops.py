"""Choice of the env_server for an episode: the live one with the fewest episodes, by the broker's directory.

This file leases nothing itself. A server that did not reply is left out until the directory is read again and a pause has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from computerrl.actor.choosing import DesktopCalls
from computerrl.common import log
from computerrl.common.clock import Clock, monotonic_s
from computerrl.common.errors import HostBroken, NoDesktop, PeerTimeout
from computerrl.common.messages import Assignment, PeerEntry, TaskRef

DESKTOPS_ENDPOINT = "desktops"
"""Name under which an env_server announces its socket in `Hello.endpoints`."""

REFRESH_S = 2.0
"""Time after which the directory is read again; a failure shortens it."""

AVOID_S = 3.0
"""Time for which a server that failed as a whole is left out, unless there is no other."""


class DesktopSource(Protocol):
    """Source of desktop clients for episodes."""

    def pick(self, assignment: Assignment | None = None) -> AbstractContextManager[DesktopCalls]:
        """A client for one episode, if possible of the server that prepared its task. Raises `NoDesktop` without any server."""

    def close(self) -> None:
        """Close all clients; requests under way raise `PeerTimeout`."""


class Closable(DesktopCalls, Protocol):
    """A client that is closed by its source."""

    def close(self) -> None: ...


class OneServer:
    """A `DesktopSource` of one client that is always there (serial mode, tests)."""

    def __init__(self, desktops: DesktopCalls) -> None:
        self._desktops = desktops

    @contextmanager
    def pick(self, assignment: Assignment | None = None) -> Iterator[DesktopCalls]:
        yield self._desktops

    def close(self) -> None:
        """Do nothing: the caller of the constructor closes the client."""


@dataclass(slots=True)
class _Server:
    entry: PeerEntry
    client: Closable
    num_episodes: int = 0
    avoid_until: float = 0.0
    prepares: TaskRef | None = None
    """Next task that the latest episode there announced; a spare desktop may show it."""


class DesktopDirectory:
    """A `DesktopSource` over all env_servers of the run."""

    def __init__(
        self,
        find: Callable[[], tuple[PeerEntry, ...]],
        connect: Callable[[str], Closable],
        *,
        clock: Clock = monotonic_s,
    ) -> None:
        """``find`` returns the broker's directory; ``connect`` makes a client for an address."""
        self._find = find
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[tuple[int, str], _Server] = {}
        self._alive: set[tuple[int, str]] = set()
        self._refresh_at = 0.0
        self._closed = False

    @contextmanager
    def pick(self, assignment: Assignment | None = None) -> Iterator[DesktopCalls]:
        server = self._take(assignment)
        try:
            yield server.client
        except (PeerTimeout, HostBroken, NoDesktop) as error:
            with self._lock:
                server.avoid_until = self._clock() + AVOID_S
                self._refresh_at = 0.0
            log.get_logger().info("env_server.avoided", env_server=server.entry.index, error=error.code)
            raise
        finally:
            with self._lock:
                server.num_episodes -= 1
                self._forget_gone()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.client.close()

    def _take(self, assignment: Assignment | None) -> _Server:
        if self._clock() >= self._refresh_at:
            self._refresh()
        with self._lock:
            now = self._clock()
            known = [server for key, server in self._servers.items() if key in self._alive]
            if self._closed or not known:
                raise NoDesktop("no env_server is known to the broker")
            task = assignment.task if assignment is not None else None

            def badness(server: _Server) -> tuple[bool, int, bool, int]:
                # A spare desktop there counts as one episode less.
                is_prepared = task is not None and server.prepares == task
                return server.avoid_until > now, server.num_episodes - is_prepared, not is_prepared, server.entry.index

            server = min(known, key=badness)
            server.num_episodes += 1
            server.prepares = assignment.next_task if assignment is not None else None
            return server

    def _refresh(self) -> None:
        entries = [entry for entry in self._find() if DESKTOPS_ENDPOINT in entry.endpoints]
        with self._lock:
            if self._closed:
                return
            self._alive = {(entry.index, entry.incarnation) for entry in entries}
            for entry in entries:
                key = (entry.index, entry.incarnation)
                if key not in self._servers:
                    self._servers[key] = _Server(entry, self._connect(entry.endpoints[DESKTOPS_ENDPOINT]))
            self._forget_gone()
            self._refresh_at = self._clock() + (REFRESH_S if entries else 0.0)

    def _forget_gone(self) -> None:
        """Close clients of servers that are gone and have no episode of this actor left."""
        for key, server in list(self._servers.items()):
            if key not in self._alive and server.num_episodes == 0:
                del self._servers[key]
                server.client.close()
