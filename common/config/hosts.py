"""The host list: machines without a scheduler, for `computerrl up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from computerrl.common.config.base import Section, VariableName
from computerrl.common.config.reading import read_section
from computerrl.common.config.site import SiteProfile

Host = Annotated[str, Field(pattern=r"^[^\s-]\S*$")]
"""Name of a host, as `ssh` takes it. A text that begins with a hyphen would be an option."""


class HostList(Section):
    """Machines without a scheduler: a file such as `configs/hosts.yaml`, for `computerrl up --hosts`. Read by launch.

    This machine reaches each host by ssh without a password. All of them see the run folder and the installed packages under
    the same path.
    """

    learner: tuple[Host, ...] = Field(min_length=1)
    """Names of the learner hosts, as `ssh` takes them. The first one has the broker. Their number is
    `cluster.num_learner_nodes`."""
    workers: tuple[Host, ...] = ()
    """Names of the hosts with desktops, actors and engines. Empty: these processes run on the first learner host."""
    gpus_per_learner: int = Field(0, ge=0)
    """Number of GPUs of each learner host. Learner ranks take the first ones."""
    gpus_per_worker: int = Field(0, ge=0)
    """Number of GPUs of each worker host. Its engines take them in turn."""
    network: str = "host"
    """Address of a host that its processes use: `host` (the address of its name), `interface:NAME`, or a network such as
    `10.20.0.0/16`."""
    python: str | None = None
    """Path of the Python interpreter on the hosts. None: the path of the interpreter that runs this command."""
    container: str | None = None
    """Path of an image in which learner, actors and engines run, with `--nv`. None: they run as installed."""
    binds: tuple[str, ...] = ()
    """Folders that the container sees, as `apptainer --bind` takes them. The current folder, the run folder and the cache are
    always among them."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Environment variables for all processes."""
    ssh: tuple[str, ...] = ()
    """Options for every `ssh` command, one word each (`-p`, `2222`)."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, the learner hosts first."""
        return (*self.learner, *self.workers)

    def as_site(self) -> SiteProfile:
        """The site profile that a plan uses for these hosts."""
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
    """The host list in the file ``path``. Raises `ConfigError`."""
    return read_section(path, HostList)
