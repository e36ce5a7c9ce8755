"""Settings of metrics for other programs."""

from __future__ import annotations

from computerrl.common.config.base import Section


class MetricsConfig(Section):
    """Settings of metrics for other programs than ComputerRL's own pages. Read by all processes."""

    prometheus: bool = False
    """Whether each process serves `GET /metrics` for Prometheus. Each has a port of its own, which it writes to `metrics/` in
    the run folder (configs/prometheus.yml). A program that reaches the port can read the figures and nothing else."""
    wandb: bool = False
    """Whether the figures of each update are also written for Weights & Biases, below `wandb/` in the run folder. The run is
    offline, and `wandb sync` uploads it, unless the environment variable WANDB_MODE names another mode. This needs the
    package wandb (`pip install computerrl[wandb]`)."""
    bind_address: str = "127.0.0.1"
    """Address that the Prometheus ports listen on, written as in `broker.bind_address`: an address, `host`, `interface:NAME` or
    a network (10.0.0.0/8)."""
