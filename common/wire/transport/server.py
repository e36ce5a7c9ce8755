"""The server side: one bound socket, whose requests are polled by one thread and replied to by any."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
from collections.abc import Sequence

import zmq
import zmq.auth.thread
import zmq.utils.monitor

from computerrl.common.errors import DecodeError, MessageTooLarge, Problem, SetupError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import REQUEST_KINDS, ErrorReply, Message
from computerrl.common.wire import codec
from computerrl.common.wire.addresses import is_ipv6, reachable_address, split_address, tcp_address
from computerrl.common.wire.channel import Handler, reply_with
from computerrl.common.wire.codec import Buffer, Envelope
from computerrl.common.wire.keys import AllowList, Keys
from computerrl.common.wire.ports import free_looking_ports
from computerrl.common.wire.refusals import Refusals
from computerrl.common.wire.transport.sockets import TransportContext, receive_frames, set_common_options

_MAX_REQUESTS = 256
"""Maximum number of requests of one `Server.poll`, so that replies and deadlines never wait long."""
_TURN_S = 0.2
"""Longest time until `serve` notices a stop."""
_ZAP_DOMAIN = "run"
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Request:
    """A decoded request that waits for its reply."""

    def __init__(self, server: Server, identity: bytes, envelope: Envelope, frames: Sequence[Buffer]) -> None:
        self.message = envelope.message
        self.sender = envelope.sender
        self.frames = frames
        """Frames that ``message`` was decoded from."""
        self._server = server
        self._identity = identity
        self._message_id = envelope.message_id

    def reply(self, message: Message) -> None:
        """Reply, from any thread. The reply is dropped silently when the client is gone."""
        self._server._reply(self._identity, message, cause_id=self._message_id)


class Server:
    """A bound ROUTER socket. One thread polls; replies may come from any thread."""

    def __init__(self, bind: str, *, keys: Keys, sender: str) -> None:
        """``bind``: `tcp://host:port`; port 0 takes a free one. Raises `SetupError` when it cannot be bound."""
        self._sender = sender
        self._context = TransportContext()
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_ZAP_DOMAIN, credentials_provider=AllowList(keys))
        self._socket = self._context.socket(zmq.ROUTER)
        set_common_options(self._socket)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.server_public, keys.server_secret
        self._socket.zap_domain = _ZAP_DOMAIN.encode()
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._monitor = self._socket.get_monitor_socket(_REFUSED)
        self._refusals = Refusals()
        self.counters = self._refusals.counters
        """Number of refusals since the start, by `transport/<reason>`."""
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
        """Requests that have arrived, after waiting up to ``timeout_s`` for the first. Never raises, whatever a client sent."""
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
                identity, *frames = receive_frames(self._socket, zmq.DONTWAIT)
            except zmq.Again:
                break
            try:
                requests.append(Request(self, bytes(identity), codec.decode(frames, kinds=REQUEST_KINDS), frames))
            except DecodeError as error:
                self._refusals.count("transport.malformed", reason=str(error), num_frames=len(frames))
                self._reply(bytes(identity), ErrorReply(error.code, str(error)), cause_id=codec.peek_message_id(frames))
        return requests

    def wake(self) -> None:
        """End the present or the next `poll` early, from any thread."""
        with self._close_lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # Then the pipe is full of wake-ups already.
                    os.write(self._wake_writer, b"w")

    def close(self) -> None:
        """Send the replies that are due (for up to 0.5 s) and free the port. Call it from the polling thread or after its end."""
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

    def _reply(self, identity: bytes, message: Message, *, cause_id: int | None) -> None:
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


def serve(server: Server, handler: Handler, stop: StopToken) -> None:
    """Poll, handle and reply until ``stop``."""
    while not stop.stopped:
        for request in server.poll(_TURN_S):
            request.reply(reply_with(handler, request.message, request.sender))


def _bind(socket: zmq.Socket[bytes], bind: str) -> str:
    """Bind ``socket`` and return the address to which clients connect."""
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
