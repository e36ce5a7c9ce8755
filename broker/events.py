"""What happens to the broker core (events, past tense) and what it wants done (effects, imperative)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from computerrl.common.messages import AssignmentRequest, Message, ReceiptBatch, Trajectory, TrajectoryBatch

Context = AssignmentRequest | ReceiptBatch
"""What an answer needs beside what was put on disk first: the request that waited for a record of our own, or the receipts for
all of a batch of which only some went there; those that say so are still open."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A request came in; it is answered by exactly one `Reply` with the same ticket, now or after its `Persist`."""

    ticket: int
    message: Message
    sender: str
    """`role-index:incarnation`"""


@dataclass(frozen=True, slots=True)
class MessagePersisted:
    """A message is on disk and counts from now on; also how a journal is replayed (without a ticket)."""

    ticket: int | None
    message: Message
    context: Context | None = None
    """As in `Persist`."""


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """A message could not be written; it has changed nothing."""

    ticket: int
    message: Message
    code: str
    """`ComputerRLError.code` for the answer."""
    reason: str


@dataclass(frozen=True, slots=True)
class StateRestored:
    """First record of a journal's newest segment: what `BrokerCore.snapshot` gave."""

    snapshot: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrajectoryRestored:
    """A trajectory that was held when the snapshot was made; already counted in it."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Look at deadlines."""


@dataclass(frozen=True, slots=True)
class AdmissionSet:
    """A person has paused the run, or goes on with it."""

    is_paused: bool


Event = MessageReceived | MessagePersisted | PersistFailed | StateRestored | TrajectoryRestored | TimePassed | AdmissionSet


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request of this ticket."""

    ticket: int
    message: Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the message to the journal, then report `MessagePersisted` or `PersistFailed`."""

    ticket: int
    message: Message
    """The request, or a record of our own."""
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """Write a log line."""

    event: str
    """`noun.verb`"""
    fields: Mapping[str, Any]


Effect = Reply | Persist | Log


def trajectories_of(message: Message) -> tuple[Trajectory, ...]:
    """What a message hands in."""
    if isinstance(message, TrajectoryBatch):
        return message.trajectories
    return (message,) if isinstance(message, Trajectory) else ()
