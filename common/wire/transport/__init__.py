"""Requests and replies over ZeroMQ with CURVE on every socket. The only importer of zmq (the guest's own socket aside).

                 DEALER  ───── frames of common.wire.codec ─────►  ROUTER
    Client.request(message) -> reply                               Server.poll() -> [Request]; request.reply(message)

A server accepts only the run's client key and those listed beside it, which a ZAP handler per server checks. A client with
another key cannot exchange a single frame. A client reconnects by itself. It does not repeat a request whose connection broke,
because only the caller knows whether it may arrive twice: it raises `PeerTimeout` at once instead of after the deadline.

The transport does not retry, authorise by role, or know the meaning of messages.
"""

from computerrl.common.wire.channel import Channel, Handler, LocalChannel, error_from_reply, reply_with
from computerrl.common.wire.keys import Keys, load_keys
from computerrl.common.wire.transport.client import Client, client_socket
from computerrl.common.wire.transport.server import Request, Server, serve
from computerrl.common.wire.transport.sockets import MAX_FRAME_BYTES, create_keys, generate_keys

__all__ = [
    "MAX_FRAME_BYTES",
    "Channel",
    "Client",
    "Handler",
    "Keys",
    "LocalChannel",
    "Request",
    "Server",
    "client_socket",
    "create_keys",
    "error_from_reply",
    "generate_keys",
    "load_keys",
    "reply_with",
    "serve",
]
