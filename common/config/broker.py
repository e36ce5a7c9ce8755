"""Settings of the broker."""

from pydantic import Field

from computerrl.common.config.base import Section


class BrokerConfig(Section):
    """Settings of the broker: staleness bound, assignments, journal, network. Read by the broker, and by every process for the
    address."""

    bind_address: str = "127.0.0.1"
    """Address that the broker listens on: an IPv4 or IPv6 address, `host` (the address of the host's name), `interface:NAME`,
    or a network such as `10.20.0.0/16`. The default, loopback, reaches no other node."""
    port: int = Field(0, ge=0, le=65535)
    """TCP port that the broker listens on. 0: any free port, which the broker writes into the run folder."""
    eta: int = Field(1, ge=0)
    """Staleness bound of admission, in policy versions. A training group begins only while begun < (version + eta + 1) *
    groups_per_batch. With groups of one size this is AReaL's submitted <= (version + eta + 1) * batch. It bounds the mean
    policy age. 0: on policy; only actors with the newest announced version play for training."""
    max_assignment_s: float = Field(120.0, gt=0.0)
    """Deadline for an assigned episode in seconds. An episode that is not submitted in time is assigned to another actor."""
    peer_timeout_s: float = Field(15.0, gt=0.0)
    """Time without a heartbeat, in seconds, after which a process counts as dead. The broker never waits less than three
    heartbeat periods (1 s each; 10 s among 2,000 processes). The assignments of a dead process are free again."""
    fsync: bool = True
    """Whether the broker forces the journal to disk (fdatasync) before it acknowledges. False: a loss of power may lose
    acknowledged work."""
    segment_mb: float = Field(64.0, gt=0.0)
    """Size of a journal segment in MiB after which the broker begins a new segment. Segments that are no longer needed are
    deleted."""
