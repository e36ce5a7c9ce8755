"""Channels: the protocol by which requests reach a server, and the channel inside one process. Imports no socket library."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Protocol

from computerrl.common.errors import ComputerRLError, DecodeError, RemoteError, error_classes
from computerrl.common.messages import ErrorReply, Message
from computerrl.common.wire import codec

Handler = Callable[[Message, str], Message]
"""Function (message, sender) -> reply. A `ComputerRLError` that it raises becomes an `ErrorReply`."""


class Channel(Protocol):
    """A way to a server; thread-safe."""

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The server's reply. Raises `PeerTimeout` when there is none in time, or the error of an `ErrorReply`."""
        ...

    def close(self) -> None:
        """Close the channel; waiting requests raise `ChannelClosed`."""
        ...


def error_from_reply(reply: ErrorReply, *, peer: str) -> ComputerRLError:
    """The error with the code of ``reply``; `RemoteError` when the code is unknown or its class needs more than a text."""
    cls = error_classes().get(reply.code)
    if cls is DecodeError:
        return DecodeError(f"refused by {peer}: {reply.message}", kind="request", sender="this side")
    if cls is None or cls.__init__ is not ComputerRLError.__init__:
        return RemoteError(f"{peer} replied {reply.code}: {reply.message}", remote_code=reply.code)
    return cls(reply.message)


class LocalChannel:
    """A `Channel` to a handler in this process, through the codec both ways. For serial mode and tests."""

    def __init__(self, handler: Handler, *, sender: str = "local") -> None:
        self.sender = sender
        self._handler = handler
        self._lock = threading.RLock()
        self._ids = itertools.count(1)

    def request(self, message: Message, *, timeout_s: float) -> Message:
        """The handler's reply. ``timeout_s`` is not enforced, since the handler runs in the calling thread."""
        del timeout_s
        with self._lock:
            request = codec.decode(codec.encode(message, sender=self.sender, message_id=next(self._ids)))
            handled = reply_with(self._handler, request.message, request.sender)
            reply = codec.decode(codec.encode(handled, sender="local", message_id=0, cause_id=request.message_id)).message
        if isinstance(reply, ErrorReply):
            raise error_from_reply(reply, peer="local")
        return reply

    def close(self) -> None:
        """Do nothing: there is no socket to close."""


def reply_with(handler: Handler, message: Message, sender: str) -> Message:
    """The handler's reply, with an `ErrorReply` for errors of `common.errors`."""
    try:
        return handler(message, sender)
    except ComputerRLError as error:
        return ErrorReply(error.code, str(error))
