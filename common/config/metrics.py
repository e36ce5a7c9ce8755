"""What a run tells to others than its pages."""

from __future__ import annotations

from computerrl.common.config.base import Section


class MetricsConfig(Section):
    """Read by all processes."""

    prometheus: bool = False
    """Each process answers `GET /metrics` on a port of its own, written to `metrics/` in the run folder (configs/prometheus.yml).
    Whoever reaches the port may read the figures, nothing else."""
    wandb: bool = False
    """The numbers of each update for Weights & Biases, offline: below `wandb/` in the run folder; `wandb sync` uploads them.
    Needs the package wandb (`pip install computerrl[wandb]`)."""
    bind_address: str = "127.0.0.1"
    """An address, `host`, `interface:NAME` or a network (10.0.0.0/8), as in `broker.bind_address`."""
