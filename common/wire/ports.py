"""TCP ports for a server to try, and reservations of ports that must be known before a process listens on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Self

from computerrl.common.errors import Problem, SetupError
from computerrl.common.wire.addresses import is_ipv6

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_looking_ports(count: int) -> list[int]:
    """Ports outside the ephemeral range.

    A client that reconnects to a dead server on an ephemeral port of the same host may be given that very port as its own
    source port; it is then connected to itself, and the restarted server finds its port taken.
    """
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    low = 20000 if first_ephemeral > 21000 else 1024
    if first_ephemeral <= low + count:
        return []
    return random.SystemRandom().sample(range(low, first_ephemeral), count)


_CANDIDATES = 64


class PortLease:
    """Reservation of a port on this host against all other runs, of any user, for as long as this object lives.

    The reservation is a name in the kernel's abstract socket namespace: all users of the host see it, it leaves no file, and it
    ends with its process. The port itself stays free for the process that will listen on it.
    """

    def __init__(self, address: str) -> None:
        """``address``: address to listen on. Raises `SetupError` when none of many candidates is free."""
        for port in free_looking_ports(_CANDIDATES):
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                holder.bind(f"\0computerrl-port-{port}")
                _try(address, port)
            except OSError:
                holder.close()
                continue
            self._holder = holder
            self.port = port
            return
        step = "look for what takes them (`ss -ltn`), or end other runs on this host"
        raise SetupError(Problem("ports", f"none of {_CANDIDATES} ports is free on {address}", step))

    def close(self) -> None:
        """End the reservation."""
        self._holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _try(address: str, port: int) -> None:
    family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
