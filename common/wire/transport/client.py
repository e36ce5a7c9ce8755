"""The client side: a pool of connections to one server, each with at most one request in flight."""

from __future__ import annotations

import itertools
import threading
import time
from socket import create_connection

import zmq
import zmq.utils.monitor

from computerrl.common.errors import ChannelClosed, PeerTimeout
from computerrl.common.messages import ErrorReply, Message
from computerrl.common.wire import codec
from computerrl.common.wire.addresses import is_ipv6, split_address
from computerrl.common.wire.channel import error_from_reply
from computerrl.common.wire.keys import Keys
from computerrl.common.wire.transport.sockets import TransportContext, receive_frames, set_common_options

_PING_MS, _PONG_TIMEOUT_MS = 15_000, 30_000
"""ZeroMQ heartbeats of clients. ZeroMQ's own threads reply, so a busy Python process does not look dead. Servers send none: pings
to and from 2,000 clients every 5 s cost the broker as much as their requests."""
_CONNECT_MS = 2_000
"""Deadline for a connection to be accepted, after which it is made anew."""
_POLL_SLICE_S = 0.2
"""Longest time until a waiting request notices that its client was closed."""


def client_socket(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> zmq.Socket[bytes]:
    """An unconnected DEALER socket with a client's keys and options."""
    socket = context.socket(zmq.DEALER)
    set_common_options(socket)
    socket.curve_serverkey = keys.server_public
    socket.curve_publickey, socket.curve_secretkey = keys.client_public, keys.client_secret
    socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PONG_TIMEOUT_MS)
    return socket


class _Connection:
    """One DEALER socket with at most one request in flight."""

    def __init__(self, context: TransportContext, address: str, keys: Keys, *, gives_up_refused: bool) -> None:
        self._address = address
        self.socket = client_socket(context, keys)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        self.monitor = self.socket.get_monitor_socket(events | (zmq.EVENT_CONNECT_RETRIED if gives_up_refused else 0))
        self.socket.setsockopt(zmq.IPV6, is_ipv6(split_address(address)[0]))
        self.socket.connect(address)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(self.monitor, zmq.POLLIN)

    def drain(self) -> None:
        """Discard late replies, and events of connections that broke before this request."""
        while self.socket.poll(0):
            self.socket.recv_multipart()
        self.take_failure()

    def take_failure(self) -> str:
        """Failure of the connection since the last call, as a verb phrase; empty when it did not fail."""
        failure = ""
        while self.monitor.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_CONNECT_RETRIED:
                # The event does not tell why: an unreachable host may be back before the deadline, a refusing one is not.
                failure = failure or ("is gone: nothing listens there" if _is_refused(self._address) else "")
            else:
                failure = "refused our keys" if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else failure or "broke the connection"
        return failure

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


def _is_refused(address: str) -> bool:
    """Whether the host refuses connections to ``address`` (tcp://HOST:PORT) because nothing listens there."""
    try:
        create_connection(split_address(address), timeout=_POLL_SLICE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


class Client:
    """A `Channel` to the server at ``address``. Threads may share it: each request in flight has its own socket."""

    def __init__(self, address: str, *, keys: Keys, sender: str, gives_up_refused: bool = False) -> None:
        """``gives_up_refused``: fail at once when nothing listens at ``address``, because the server never comes back there.
        Without it, a request waits for the server until its deadline."""
        self.address = address
        self._gives_up_refused = gives_up_refused
        self.sender = sender
        self._keys = keys
        self._context = TransportContext()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._num_busy = 0
        self._ids = itertools.count(1)
        self._closed = False

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The server's reply. Raises `PeerTimeout`, or the error of an `ErrorReply`."""
        message_id = next(self._ids)
        frames = codec.encode(message, sender=self.sender, message_id=message_id)
        kind = type(message).__name__
        connection = self._take()
        try:
            connection.drain()
            connection.socket.send_multipart(frames)
            reply = self._await(connection, message_id, kind=kind, timeout_s=timeout_s)
        finally:
            self._give_back(connection)
        if isinstance(reply, ErrorReply):
            raise error_from_reply(reply, peer=self.address)
        return reply

    def close(self) -> None:
        """Close idle sockets now, busy ones when their request ends (within 0.2 s)."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            if self._num_busy == 0:
                self._context.term()

    def _await(self, connection: _Connection, message_id: int, *, kind: str, timeout_s: float) -> Message:
        deadline = time.monotonic() + timeout_s
        while not self._closed:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise PeerTimeout(f"{self.address} did not answer {kind} within {timeout_s:g} s")
            ready = dict(connection.poller.poll(round(1000 * min(left_s, _POLL_SLICE_S)) + 1))
            if connection.socket in ready:
                envelope = codec.decode(receive_frames(connection.socket))
                # A server that cannot read our header replies without a cause.
                unread = envelope.cause_id is None and isinstance(envelope.message, ErrorReply)
                if envelope.cause_id == message_id or unread:
                    return envelope.message
            elif connection.monitor in ready and (failure := connection.take_failure()):
                raise PeerTimeout(f"{self.address} {failure} before it answered {kind}")
        raise ChannelClosed(f"the channel to {self.address} was closed while waiting for the reply to {kind}")

    def _take(self) -> _Connection:
        with self._lock:
            if self._closed:
                raise ChannelClosed(f"the channel to {self.address} is closed")
            self._num_busy += 1
            if self._idle:
                return self._idle.pop()
        return _Connection(self._context, self.address, self._keys, gives_up_refused=self._gives_up_refused)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            self._num_busy -= 1
            if not self._closed:
                self._idle.append(connection)
                return
            connection.close()
            if self._num_busy == 0:
                self._context.term()
