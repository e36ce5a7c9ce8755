"""Which TCP ports a server should try. Opens no sockets."""

from __future__ import annotations

import random
from pathlib import Path

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
