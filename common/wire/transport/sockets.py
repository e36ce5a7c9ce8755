"""Properties that the sockets of clients and servers share, and the keys of a run."""

from __future__ import annotations

from pathlib import Path

import zmq

from computerrl.common.wire.codec import Buffer
from computerrl.common.wire.keys import Keys, store_keys

MAX_FRAME_BYTES = 1 << 30
"""A peer that announces a longer frame is disconnected before memory is taken for it."""
_KEEPALIVE_IDLE_S, _KEEPALIVE_PERIOD_S, _KEEPALIVE_COUNT = 30, 10, 3
"""TCP keepalive, by which the kernel notices a dead host on an idle connection."""
_UNACKNOWLEDGED_MS = 15_000
"""A connection is made anew when the other host has not acknowledged data for this long. TCP alone retries less and less often:
after a cut of a minute it would notice only a minute later that the network is back."""
_COPIED_BYTES = 64 << 10
"""Maximum size of a frame that is copied on arrival. Copying a trajectory of 1 MB would take a tenth of the broker's time."""


class TransportContext(zmq.Context[zmq.Socket[bytes]]):
    """A context that the garbage collector does not terminate: that would block for ever while its sockets are still open."""

    def __del__(self) -> None:
        """Do nothing; `Client.close` and `Server.close` terminate the context."""


def generate_keys() -> Keys:
    """New keys for one run."""
    return Keys(*zmq.curve_keypair(), *zmq.curve_keypair())


def create_keys(folder: Path) -> Keys:
    """Write new keys into ``folder``, unless there are keys already. Returns the keys in the folder."""
    return store_keys(folder, generate_keys)


def set_common_options(socket: zmq.Socket[bytes]) -> None:
    """Set the options that all sockets of clients and servers have."""
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_PERIOD_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
    socket.setsockopt(zmq.LINGER, 0)


def receive_frames(socket: zmq.Socket[bytes], flags: int = 0) -> list[Buffer]:
    """Frames of the next message. Large ones are views of ZeroMQ's memory, which lives as long as the views."""
    frames = socket.recv_multipart(flags, copy=False)
    return [frame.buffer.toreadonly() if len(frame) > _COPIED_BYTES else frame.bytes for frame in frames]
