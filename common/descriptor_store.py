"""Open files that outlive the process that opened them, so that what they hold outlives it too.

As in systemd's file descriptor store (`sd_pid_notify_with_fds`), a role hands its supervisor copies of the descriptors by which
it holds another process. When the role is killed by SIGKILL, the copies keep that process alive, and the role's next incarnation
inherits them. After any other end they are closed: what made a role fail must not make the next one fail.

    role: `DescriptorStore.put` ──socket──► supervisor: `DescriptorKeeper` ──inherited──► next incarnation: `DescriptorStore.take`
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from computerrl.common import log

STORE_VARIABLE = "COMPUTERRL_DESCRIPTOR_STORE"
"""Environment variable: number of the descriptor of the role's end of the socket."""
KEPT_VARIABLE = "COMPUTERRL_KEPT_DESCRIPTORS"
"""Environment variable: what the role inherits, as JSON: name -> [process id, descriptors]."""
_SEND_LIMIT_S = 5.0
_MAX_MESSAGE_BYTES = 1024
_MAX_DESCRIPTORS = 16


@dataclass(frozen=True, slots=True)
class Kept:
    """A process and the descriptors that belong to it, the first of them its pidfd."""

    pid: int
    descriptors: tuple[int, ...]

    @property
    def is_alive(self) -> bool:
        """Whether the process lives; its id can have been given to no other then."""
        return not self.ends_within(0.0)

    def ends_within(self, timeout_s: float | None) -> bool:
        """Wait for the end of the process, at most ``timeout_s``; None: without a limit. Returns whether it has ended."""
        poller = select.poll()
        poller.register(self.descriptors[0], select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class DescriptorStore:
    """The role's end. Thread-safe."""

    def __init__(self, number: int, kept: Mapping[str, Kept]) -> None:
        """``number``: descriptor of the socket. ``kept``: what an earlier incarnation put there."""
        self._socket = socket.socket(fileno=number)
        self._socket.settimeout(_SEND_LIMIT_S)
        self._kept = dict(kept)
        self._lock = threading.Lock()

    @classmethod
    def of_supervisor(cls) -> DescriptorStore | None:
        """The one that this process was given by its supervisor; None: it has none. To be called once."""
        number = os.environ.pop(STORE_VARIABLE, None)
        text = os.environ.pop(KEPT_VARIABLE, "{}")
        if number is None:
            return None
        kept = {name: Kept(pid, tuple(descriptors)) for name, (pid, descriptors) in json.loads(text).items()}
        for descriptor in (int(number), *(one for entry in kept.values() for one in entry.descriptors)):
            os.set_inheritable(descriptor, False)
        return cls(int(number), kept)

    def take(self, name: str) -> Kept | None:
        """What an earlier incarnation put under ``name``, which the caller owns; None: nothing, or its process has ended."""
        with self._lock:
            found = self._kept.pop(name, None)
        if found is None or found.is_alive:
            return found
        found.close()
        return None

    def put(self, name: str, kept: Kept) -> None:
        """Have the supervisor keep copies of the descriptors in place of those that it had under ``name``."""
        message = json.dumps({"name": name, "pid": kept.pid}).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [message], list(kept.descriptors))
        except OSError as error:
            # Nothing depends on it but the time that the next incarnation takes to start.
            log.get_logger().warning("descriptors.not_kept", name=name, reason=str(error))


class DescriptorKeeper:
    """The supervisor's end, for all incarnations of one role."""

    def __init__(self) -> None:
        # Both ends stay open here, so that an incarnation's end is no end of the connection.
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._kept: dict[str, Kept] = {}

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._ours.fileno()

    def environment(self) -> dict[str, str]:
        """What the next incarnation finds in its environment."""
        kept = {name: [entry.pid, entry.descriptors] for name, entry in self._kept.items()}
        return {STORE_VARIABLE: str(self._theirs.fileno()), KEPT_VARIABLE: json.dumps(kept)}

    def descriptors(self) -> Sequence[int]:
        """What the next incarnation inherits."""
        return [self._theirs.fileno(), *(one for entry in self._kept.values() for one in entry.descriptors)]

    def pids(self) -> set[int]:
        """Processes that are kept."""
        return {entry.pid for entry in self._kept.values() if entry.is_alive}

    def receive(self) -> None:
        """Take everything that the role has sent."""
        while True:
            try:
                message, descriptors, flags, _ = socket.recv_fds(self._ours, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
            except BlockingIOError:
                return
            if flags & socket.MSG_CTRUNC:
                # This process may not open more files. The role's next incarnation starts from nothing then.
                _close_all(descriptors)
                continue
            told = json.loads(message)
            self._forget(told["name"])
            self._kept[told["name"]] = Kept(told["pid"], tuple(descriptors))

    def forget_all(self) -> None:
        """Close all copies; what they held ends, unless the role holds it too."""
        for name in list(self._kept):
            self._forget(name)

    def close(self) -> None:
        """Close everything."""
        self.forget_all()
        self._ours.close()
        self._theirs.close()

    def _forget(self, name: str) -> None:
        entry = self._kept.pop(name, None)
        if entry is not None:
            entry.close()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
