"""Inputs of the broker core (events, past tense) and its outputs (effects, imperative), and the decision on one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from computerrl.common.messages import AssignmentRequest, Message, ReceiptBatch, Trajectory, TrajectoryBatch

Context = AssignmentRequest | ReceiptBatch
"""Extra input for the reply once the record is durable: the assignment request that needed the record, or the receipts of a whole
batch of which only the accepted part was written."""


# --- events


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A request arrived. Exactly one `Reply` with the same ticket answers it, now or after its `Persist`."""

    ticket: int
    message: Message
    sender: str
    """Sender as `role-index:incarnation`."""


@dataclass(frozen=True, slots=True)
class MessagePersisted:
    """A message is durable and takes effect. Replaying a journal sends the same event without a ticket."""

    ticket: int | None
    message: Message
    context: Context | None = None
    """Context of the `Persist` effect."""


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """A message could not be written. It has changed nothing."""

    ticket: int
    message: Message
    code: str
    """`ComputerRLError.code` of the reply."""
    reason: str


@dataclass(frozen=True, slots=True)
class StateRestored:
    """The first record of a journal's newest segment was read: a value that `BrokerCore.snapshot` returned."""

    snapshot: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrajectoryRestored:
    """A trajectory that was held at the time of the snapshot was read. The snapshot's counters include it."""

    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has moved on, so deadlines may have passed."""


@dataclass(frozen=True, slots=True)
class AdmissionSet:
    """A person paused or resumed the run."""

    is_paused: bool


Event = MessageReceived | MessagePersisted | PersistFailed | StateRestored | TrajectoryRestored | TimePassed | AdmissionSet


# --- effects


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
    """The request, or a record that the broker made."""
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """Write a log line."""

    event: str
    """Name of the line, `noun.verb`."""
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SendImages:
    """Answer the request of this ticket with images from the journal."""

    ticket: int
    names: Sequence[str]


Effect = Reply | Persist | Log | SendImages


class LogEvent(Protocol):
    """Adds a `Log` effect to those of the event that is being handled."""

    def __call__(self, event: str, **fields: Any) -> None: ...


# --- decisions


@dataclass(frozen=True, slots=True)
class PersistFirst:
    """Decision on a request that takes effect, and is answered, only once ``record`` is durable."""

    record: Message
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class ReadImages:
    """Decision on a request whose reply is read from the journal."""

    names: Sequence[str]


Decision = Message | PersistFirst | ReadImages
"""Result of handling one request: its reply, the record that must be durable before there is one, or what to read for it."""


def trajectories_of(message: Message) -> tuple[Trajectory, ...]:
    """Trajectories that a message submits."""
    if isinstance(message, TrajectoryBatch):
        return message.trajectories
    return (message,) if isinstance(message, Trajectory) else ()
