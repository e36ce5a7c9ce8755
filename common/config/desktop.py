"""Settings of the desktops and of the env_server that serves them."""

from typing import Literal

from pydantic import Field

from computerrl.common.config.base import Section


class DesktopConfig(Section):
    """Settings of the desktops of one env_server. Read by the env_servers and by launch."""

    driver: Literal["apptainer", "local", "scripted"] = "apptainer"
    """Driver that runs the desktops. `apptainer`: in a container. `local`: the same guest without a container, for development.
    `scripted`: an imitation without processes, for serial mode and unit tests. One driver never replaces another."""
    image: str = "core"
    """Container image of the desktops: the name of a recipe in env_server/image (built by `computerrl setup`), or the path of a
    sandbox folder or .sif file."""
    apps: tuple[Literal["calc", "chromium", "files", "editor"], ...] = ("calc", "chromium", "files", "editor")
    """Applications that start with the desktop and stay open, as far as families of the run use them. Other applications start
    when a task opens them, which takes about 2 s."""
    num_desktops: int = Field(4, ge=1, le=512)
    """Number of desktops of one env_server. Desktops beyond the episodes played at a time are spares. A spare prepares the task
    that will be requested next, so that its reset takes a few milliseconds."""
    max_starting: int | None = Field(None, ge=1)
    """Maximum number of desktops that start at the same time. None: half the number of cores, at least 1. A starting desktop
    takes a core for 4 s, and the learner and the actors start on the same cores."""
    memory_per_desktop_mb: int = Field(700, ge=1)
    """Memory (PSS) in MiB that is planned for one desktop. Desktops that do not fit the machine's memory are refused before
    anything starts. A desktop that broke is started again only where this much memory is free."""
    memory_limit_mb: int = Field(2500, ge=100)
    """Maximum memory (PSS) of one desktop in MiB. A desktop that takes more is ended and started again, so that one runaway
    application does not bring the host down."""
    max_processes: int = Field(600, ge=50)
    """Maximum number of processes and threads of one desktop. About 150 are in use with four applications."""
    allow_shared_network: bool = False
    """Whether desktops may start on a host that refuses network namespaces. Their applications can then reach the host's
    network. False: such a host is an error."""
    screen_width: int = Field(800, ge=320, le=3840)
    """Width of the screen in pixels."""
    screen_height: int = Field(600, ge=240, le=2160)
    """Height of the screen in pixels."""
    observation: Literal["tree", "screenshot", "both"] = "both"
    """Content of an observation. `tree`: accessibility rows. `screenshot`: a stored screenshot. `both`: rows and screenshot."""
    screenshot_format: Literal["webp", "png", "jpeg"] = "webp"
    """File format of stored screenshots. The default is png where `actor.prompt.format` shows images: a policy sees what is
    stored, and the lossy formats blur small texts."""
    max_elements: int = Field(120, ge=1)
    """Maximum number of accessibility rows in an observation."""
    settle_quiet_s: float = Field(0.03, ge=0.0)
    """Time in seconds without X damage and accessibility events after which an action counts as settled."""
    settle_deadline_s: float = Field(0.6, gt=0.0)
    """Deadline for settling in seconds after an action. The observation records which came first, quiet or the deadline."""
    step_deadline_s: float = Field(10.0, gt=0.0)
    """Deadline for an action in seconds. A desktop that does not reply in time is broken."""
    reset_deadline_s: float = Field(30.0, gt=0.0)
    """Deadline for a reset in seconds, the start of applications included. A desktop that does not reply in time is broken."""
    lease_time_limit_s: float = Field(60.0, gt=0.0)
    """Time in seconds after which an unused lease is taken back. Its actor counts as dead."""
    bind_address: str = "127.0.0.1"
    """Address that the env_server listens on. The default, loopback, reaches no actors on other nodes."""
