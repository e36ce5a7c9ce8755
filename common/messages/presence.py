"""Presence: which processes are there, where each serves, how they are doing, and the two general replies."""

from __future__ import annotations

from computerrl.common.messages.base import (
    Endpoints,
    Id,
    Incarnation,
    Index,
    Line,
    Metrics,
    Name,
    Number,
    Role,
    Text,
    Version,
    Wire,
    cut_lines,
    cut_texts,
)


class Hello(Wire, frozen=True):
    """First message of every process to the broker, sent again after either side restarted. The reply is `Welcome`."""

    role: Role
    index: Index
    incarnation: Incarnation
    """Identifier of this process start. A new one releases everything that the previous one held."""
    host: Id
    pid: Number
    endpoints: Endpoints
    """Addresses that this process serves, by name (`{"desktops": "tcp://127.0.0.1:5001"}`). Other processes look them up at the
    broker."""


class Welcome(Wire, frozen=True):
    """The broker's reply to `Hello`."""

    policy_version: Version
    """Highest version announced in this run, -1 before the first. A restarted learner continues above it."""


class Heartbeat(Wire, frozen=True):
    """Sign of life of a process, sent to the broker about once a second. The reply, `HeartbeatAck`, sets the period."""

    role: Role
    index: Index
    incarnation: Incarnation
    metrics: Metrics
    """Latest values by `area/name`. The broker keeps the newest ones of each process and shows them in `Status`."""
    note: Line = ""
    """Present activity of the process, for people."""

    def __post_init__(self) -> None:
        cut_lines(self, "note")


class HeartbeatAck(Wire, frozen=True):
    """The broker's reply to `Heartbeat`."""

    period_s: float
    """Seconds until the next heartbeat is due. The period grows with the number of processes, to bound the broker's load."""


class Ack(Wire, frozen=True):
    """The request was carried out; there is nothing else to say."""


class ErrorReply(Wire, frozen=True):
    """The request failed. Any request may get this reply instead of its own."""

    code: Name
    """`ComputerRLError.code` of the error that was raised."""
    message: Text

    def __post_init__(self) -> None:
        cut_texts(self, "message")


class DirectoryRequest(Wire, frozen=True):
    """Request for the live processes of ``role``. The reply is `Directory`."""

    role: Role


class PeerEntry(Wire, frozen=True):
    """One live process."""

    role: Role
    index: Index
    incarnation: Incarnation
    host: Id
    pid: Number
    endpoints: Endpoints
    age_s: float
    """Seconds since its last heartbeat."""


class Directory(Wire, frozen=True):
    """Live processes of one role, sorted by index."""

    peers: tuple[PeerEntry, ...]


class StatusRequest(Wire, frozen=True):
    """Request for the state of the run. The reply is `Status`."""


class Status(Wire, frozen=True):
    """State of the run as the broker knows it, for displays and tests."""

    run_id: Id
    policy_version: Version
    counters: dict[str, int]
    """Counts of trajectories and assignments: `received`, `accepted`, `delivered`, `held`, `rejected`, `rejected/<reason>`,
    `assigned`, `returned/<reason>`, ..."""
    gauges: dict[str, float]
    """Queue depths by name."""
    peers: tuple[PeerEntry, ...]
    metrics: dict[str, Metrics]
    """Metrics of the latest heartbeat, by `role-index`."""
    notes: dict[str, str]
    """Notes of the latest heartbeat, by `role-index`."""
