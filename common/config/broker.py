"""The broker: staleness bound, delivery, network."""

from pydantic import Field

from computerrl.common.config.base import Section


class BrokerConfig(Section):
    """Read by broker, and by every process for the address."""

    bind_address: str = "127.0.0.1"
    """Address the broker listens on; loopback unless other nodes take part."""
    port: int = Field(0, ge=0, le=65535)
    """TCP port; 0 picks a free one and writes it into the run folder."""
    eta: int = Field(1, ge=0)
    """Admission: a training group begins only while begun < (version + eta + 1) * groups_per_batch, which with groups of one size
    is AReaL's submitted <= (version + eta + 1) * batch. Bounds the mean age; 0 is on policy: only the version announced last
    plays for training."""
    max_assignment_s: float = Field(120.0, gt=0.0)
    """An episode not submitted after this long is given to somebody else."""
    peer_timeout_s: float = Field(15.0, gt=0.0)
    """A process without heartbeat for this long, and for three times as long as it was told to wait with the next one (1 s; 10 s
    among 2,000 processes), counts as dead; what it held is free again."""
    fsync: bool = True
    """fdatasync the journal before acknowledging; off only where losing power may lose work."""
    segment_mb: float = Field(64.0, gt=0.0)
    """A segment of the journal that has grown to so many MiB is followed by a new one; those not needed any more are deleted."""
