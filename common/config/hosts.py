"""Machines without a scheduler, for `computerrl up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from computerrl.common.config.base import Section, VariableName
from computerrl.common.config.reading import read_section
from computerrl.common.config.site import SiteProfile

Host = Annotated[str, Field(pattern=r"^[^\s-]\S*$")]
"""As `ssh` takes it; what begins with a hyphen would be an option."""


class HostList(Section):
    """Hosts that this one reaches by ssh without a password, and that see the run folder and these packages under the same path.
    Read by launch."""

    learner: tuple[Host, ...] = Field(min_length=1)
    """As `ssh` takes them. The first has the broker; `cluster.num_learner_nodes` is their number."""
    workers: tuple[Host, ...] = ()
    """Desktops, actors and engines; none: they are on the first learner host."""
    gpus_per_learner: int = Field(0, ge=0)
    """GPUs of each learner host; ranks take the first ones."""
    gpus_per_worker: int = Field(0, ge=0)
    """GPUs of each worker host, given to its engines in turn."""
    network: str = "host"
    """As in a site profile."""
    python: str | None = None
    """The interpreter on the hosts; None: as here."""
    container: str | None = None
    """As in a site profile."""
    binds: tuple[str, ...] = ()
    """As in a site profile."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Variables for all processes."""
    ssh: tuple[str, ...] = ()
    """More options for every `ssh`, one each (`-p`, `2222`)."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them, learner hosts first."""
        return (*self.learner, *self.workers)

    def as_site(self) -> SiteProfile:
        """What the plan wants to know of them."""
        tree = {
            "network": self.network,
            "python": self.python,
            "container": self.container,
            "binds": self.binds,
            "environment": self.environment,
            "learner": {"has_gpus": self.gpus_per_learner > 0},
            "worker": {"has_gpus": self.gpus_per_worker > 0},
        }
        return SiteProfile.model_validate(tree)


def load_hosts(path: Path) -> HostList:
    """Read ``path``. Raises `ConfigError`."""
    return read_section(path, HostList)
