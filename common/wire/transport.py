"""Requests and replies over ZeroMQ with CURVE on every socket. The only importer of zmq (the guest's own socket aside).

                 DEALER  ───── frames of common.codec ─────►  ROUTER
    Client.request(message) -> reply                          Server.poll() -> [Request]; request.reply(message)

A server accepts only the run's client key and those listed beside it (checked by a ZAP handler per server); whoever has another
key cannot exchange a single frame. A client reconnects by itself; a request whose connection breaks is not sent again, because
only the caller knows whether it may be: `PeerTimeout` is raised at once instead of after the deadline.

Does not retry, authorise by role, or know what messages mean.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import create_connection
from typing import Protocol

import zmq
import zmq.auth.thread
import zmq.utils.monitor

from computerrl.common.errors import (
    ChannelClosed,
    ComputerRLError,
    DecodeError,
    MessageTooLarge,
    PeerTimeout,
    Problem,
    RemoteError,
    SetupError,
    error_classes,
)
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import REQUEST_KINDS, ErrorReply, Message
from computerrl.common.wire import codec
from computerrl.common.wire.addresses import is_ipv6, reachable_address, split_address, tcp_address
from computerrl.common.wire.codec import Buffer, Envelope
from computerrl.common.wire.keys import AllowList, Keys, load_keys, store_keys
from computerrl.common.wire.ports import free_looking_ports
from computerrl.common.wire.refusals import Refusals

__all__ = [
    "Channel",
    "Client",
    "Handler",
    "Keys",
    "LocalChannel",
    "Request",
    "Server",
    "answer_with",
    "create_keys",
    "error_from_reply",
    "generate_keys",
    "load_keys",
    "serve",
]

Handler = Callable[[Message, str], Message]
"""(message, sender) -> answer; raises `ComputerRLError` for what shall become an `ErrorReply`."""

MAX_FRAME_BYTES = 1 << 30
"""A peer that announces a longer frame is disconnected before memory is taken for it."""
_PING_MS, _PONG_TIMEOUT_MS = 15_000, 30_000
"""Clients ping, ZeroMQ's own threads answer, so that a busy Python process is not taken for a dead one. Servers do not: pings to
and from 2,000 clients every 5 s cost the broker as much as their requests."""
_KEEPALIVE_IDLE_S, _KEEPALIVE_PERIOD_S, _KEEPALIVE_COUNT = 30, 10, 3
"""The kernel's own way to find out that the other host is gone while nothing is under way."""
_UNACKNOWLEDGED_MS, _CONNECT_MS = 15_000, 2_000
"""Data that a host has not acknowledged for this long, or a connection that it has not accepted, is given up and made anew. By
itself TCP tries less and less often: after a cut of a minute it would not notice for another that the network is back."""
_POLL_SLICE_S = 0.2
"""Longest time until a waiting request notices that its client was closed."""
_MAX_REQUESTS = 256
"""Taken in one turn at most, so that answers and deadlines never wait long."""
_COPIED_BYTES = 64 << 10
"""Larger frames are not copied when they come in: of a trajectory of 1 MB that is a tenth of the broker's work."""
_ZAP_DOMAIN = "run"
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class _Context(zmq.Context[zmq.Socket[bytes]]):
    """Never ended by the garbage collector, which may come to it before its sockets: it would wait for them for ever."""

    def __del__(self) -> None:
        """Whoever closes client or server ends it."""


# --- keys ------------------------------------------------------------------------------------------------------------


def generate_keys() -> Keys:
    """Fresh keys, for one run."""
    return Keys(*zmq.curve_keypair(), *zmq.curve_keypair())


def create_keys(folder: Path) -> Keys:
    """Put fresh keys into ``folder``; keep those that are there."""
    return store_keys(folder, generate_keys)


# --- client side -----------------------------------------------------------------------------------------------------


class Channel(Protocol):
    """Where requests go; thread-safe."""

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The answer. Raises `PeerTimeout`, or the error that the peer answered with."""
        ...

    def close(self) -> None:
        """Waiting requests end with `ChannelClosed`."""
        ...


def error_from_reply(reply: ErrorReply, *, peer: str) -> ComputerRLError:
    """The error that ``reply`` stands for; `RemoteError` when its code is unknown or its class needs more than a text."""
    cls = error_classes().get(reply.code)
    if cls is DecodeError:
        return DecodeError(f"refused by {peer}: {reply.message}", kind="request", sender="this side")
    if cls is None or cls.__init__ is not ComputerRLError.__init__:
        return RemoteError(f"{peer} answered {reply.code}: {reply.message}", remote_code=reply.code)
    return cls(reply.message)


def client_socket(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> zmq.Socket[bytes]:
    """A DEALER with a client's keys and options, not connected: what `Client` makes its connections of."""
    socket = context.socket(zmq.DEALER)
    _set_common_options(socket)
    socket.curve_serverkey = keys.server_public
    socket.curve_publickey, socket.curve_secretkey = keys.client_public, keys.client_secret
    socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PONG_TIMEOUT_MS)
    return socket


class _Connection:
    """One DEALER socket with at most one request in flight."""

    def __init__(self, context: _Context, address: str, keys: Keys, *, gives_up_refused: bool) -> None:
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
        """Forget late replies and connections that broke before this request."""
        while self.socket.poll(0):
            self.socket.recv_multipart()
        self.take_failure()

    def take_failure(self) -> str:
        """What happened to the connection since the last call, empty when nothing did."""
        failure = ""
        while self.monitor.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_CONNECT_RETRIED:
                # Says that an attempt failed, not why: a host that is away for a while may be back before the deadline.
                failure = failure or ("is gone: nothing listens there" if _is_refused(self._address) else "")
            else:
                failure = "refused our keys" if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else failure or "broke the connection"
        return failure

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


def _is_refused(address: str) -> bool:
    """Whether the host answers that nothing listens at ``address`` (tcp://HOST:PORT)."""
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
        """``gives_up_refused``: a server that ends never comes back at this address, so that a request which finds nothing
        listening there fails at once. Without it the request waits for the server until its deadline."""
        self.address = address
        self._gives_up_refused = gives_up_refused
        self.sender = sender
        self._keys = keys
        self._context: _Context = _Context()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._num_busy = 0
        self._ids = itertools.count(1)
        self._closed = False

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The peer's answer. Raises `PeerTimeout` or the error that the peer answered with."""
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
                envelope = codec.decode(_receive(connection.socket))
                # A server that could not even read our header answers without a cause.
                unread = envelope.cause_id is None and isinstance(envelope.message, ErrorReply)
                if envelope.cause_id == message_id or unread:
                    return envelope.message
            elif connection.monitor in ready and (failure := connection.take_failure()):
                raise PeerTimeout(f"{self.address} {failure} before it answered {kind}")
        raise ChannelClosed(f"the channel to {self.address} was closed while waiting for the answer to {kind}")

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


class LocalChannel:
    """A `Channel` to a handler in this process, through the codec both ways. For serial mode and tests."""

    def __init__(self, handler: Handler, *, sender: str = "local") -> None:
        self.sender = sender
        self._handler = handler
        self._lock = threading.RLock()
        self._ids = itertools.count(1)

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The handler's answer; ``timeout_s`` is not enforced, since the handler runs in the calling thread."""
        del timeout_s
        with self._lock:
            request = codec.decode(codec.encode(message, sender=self.sender, message_id=next(self._ids)))
            answer = answer_with(self._handler, request.message, request.sender)
            reply = codec.decode(codec.encode(answer, sender="local", message_id=0, cause_id=request.message_id)).message
        if isinstance(reply, ErrorReply):
            raise error_from_reply(reply, peer="local")
        return reply

    def close(self) -> None:
        """Nothing to close."""


# --- server side -----------------------------------------------------------------------------------------------------


class Request:
    """A decoded request that waits for its answer."""

    def __init__(self, server: Server, identity: bytes, envelope: Envelope, frames: Sequence[Buffer]) -> None:
        self.message = envelope.message
        self.sender = envelope.sender
        self.frames = frames
        """What ``message`` was decoded from."""
        self._server = server
        self._identity = identity
        self._message_id = envelope.message_id

    def reply(self, message: Message) -> None:
        """Answer, from any thread; silently dropped when the asker is gone."""
        self._server._answer(self._identity, message, cause_id=self._message_id)


class Server:
    """A bound ROUTER socket. One thread polls; replies may come from any thread."""

    def __init__(self, bind: str, *, keys: Keys, sender: str) -> None:
        """``bind``: `tcp://host:port`; port 0 takes a free one. Raises `SetupError` when it cannot be bound."""
        self._sender = sender
        self._context: _Context = _Context()
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_ZAP_DOMAIN, credentials_provider=AllowList(keys))
        self._socket = self._context.socket(zmq.ROUTER)
        _set_common_options(self._socket)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.server_public, keys.server_secret
        self._socket.zap_domain = _ZAP_DOMAIN.encode()
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._monitor = self._socket.get_monitor_socket(_REFUSED)
        self._refusals = Refusals()
        self.counters = self._refusals.counters
        """What was refused since the start: `transport/<what>`."""
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._outgoing: collections.deque[tuple[bytes, list[bytes]]] = collections.deque()
        self._ids = itertools.count(1)
        self._polling_thread = threading.get_ident()
        self._close_lock = threading.Lock()
        self._closed = False
        try:
            self.address = _bind(self._socket, bind)
        except SetupError:
            self.close()
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_reader, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def poll(self, timeout_s: float) -> list[Request]:
        """Requests that came, waiting up to ``timeout_s`` for the first. Never raises for what a peer sent."""
        self._polling_thread = threading.get_ident()
        self._flush()
        ready = dict(self._poller.poll(max(0, round(1000 * timeout_s))))
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
            self._flush()
        if self._monitor in ready:
            self._count_refused_handshakes()
        requests: list[Request] = []
        while len(requests) < _MAX_REQUESTS:
            try:
                identity, *frames = _receive(self._socket, zmq.DONTWAIT)
            except zmq.Again:
                break
            try:
                requests.append(Request(self, bytes(identity), codec.decode(frames, kinds=REQUEST_KINDS), frames))
            except DecodeError as error:
                self._refusals.count("transport.malformed", reason=str(error), num_frames=len(frames))
                self._answer(bytes(identity), ErrorReply(error.code, str(error)), cause_id=codec.peek_message_id(frames))
        return requests

    def wake(self) -> None:
        """End the present or next `poll` early; from any thread."""
        with self._close_lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # Then the pipe is full of wake-ups already.
                    os.write(self._wake_writer, b"w")

    def close(self) -> None:
        """Send what is due (up to 0.5 s) and free the port. From the polling thread, or once it has ended."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self._flush()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=500)
        self._authenticator.stop()
        self._context.term()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _answer(self, identity: bytes, message: Message, *, cause_id: int | None) -> None:
        message_id = next(self._ids)
        try:
            frames = codec.encode(message, sender=self._sender, message_id=message_id, cause_id=cause_id)
        except MessageTooLarge as error:
            self._refusals.count("transport.too_large", reason=str(error))
            refusal = ErrorReply(error.code, str(error))
            frames = codec.encode(refusal, sender=self._sender, message_id=message_id, cause_id=cause_id)
        self._outgoing.append((identity, frames))
        if threading.get_ident() == self._polling_thread:
            self._flush()
            return
        self.wake()

    def _count_refused_handshakes(self) -> None:
        while self._monitor.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self._monitor)
            self._refusals.count("transport.unauthorised", cause=zmq.Event(event["event"]).name)

    def _flush(self) -> None:
        while self._outgoing:
            identity, frames = self._outgoing.popleft()
            self._socket.send_multipart([identity, *frames])


def answer_with(handler: Handler, message: Message, sender: str) -> Message:
    """The handler's answer, with errors of the error tree as `ErrorReply`."""
    try:
        return handler(message, sender)
    except ComputerRLError as error:
        return ErrorReply(error.code, str(error))


def serve(server: Server, handler: Handler, stop: StopToken) -> None:
    """Poll, handle, reply, until ``stop``."""
    while not stop.stopped:
        for request in server.poll(_POLL_SLICE_S):
            request.reply(answer_with(handler, request.message, request.sender))


def _receive(socket: zmq.Socket[bytes], flags: int = 0) -> list[Buffer]:
    """The frames of a message. Large ones stay where ZeroMQ has put them, for as long as anybody looks at them."""
    frames = socket.recv_multipart(flags, copy=False)
    return [frame.buffer.toreadonly() if len(frame) > _COPIED_BYTES else frame.bytes for frame in frames]


def _set_common_options(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_PERIOD_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
    socket.setsockopt(zmq.LINGER, 0)


def _bind(socket: zmq.Socket[bytes], bind: str) -> str:
    """Bind and return the address that others connect to."""
    host, port = split_address(bind)
    socket.setsockopt(zmq.IPV6, is_ipv6(host))
    candidates: Sequence[int | str] = [port] if port else [*free_looking_ports(50), "*"]
    for candidate in candidates:
        try:
            socket.bind(tcp_address(host, candidate))
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE and candidate != candidates[-1]:
                continue
            in_use = error.errno == zmq.EADDRINUSE
            step = "end what listens there, or choose another port (0 takes a free one)" if in_use else "correct the bind address"
            raise SetupError(Problem(tcp_address(host, candidate), f"cannot be bound: {error.strerror}", step)) from None
        break
    bound_host, bound_port = split_address(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    return tcp_address(reachable_address(bound_host), bound_port)
