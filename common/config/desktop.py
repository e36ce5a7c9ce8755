"""Desktops and the env_server that serves them."""

from typing import Literal

from pydantic import Field

from computerrl.common.config.base import Section


class DesktopConfig(Section):
    """One env_server's desktops. Read by env_server."""

    driver: Literal["apptainer", "local", "scripted"] = "apptainer"
    """`apptainer`: contained; `local`: the same guest without a container, for development; `scripted`: an imitation without
    processes, for serial mode and unit tests. Never falls back from one to another."""
    image: str = "core"
    """Name of a recipe in env_server/image (built by `computerrl setup`), or the path of a sandbox folder or .sif file."""
    apps: tuple[Literal["calc", "chromium", "files", "editor"], ...] = ("calc", "chromium", "files", "editor")
    """Applications that start with the desktop and stay, if families of the run are played in them; the others start when a task
    opens them (about 2 s)."""
    num_desktops: int = Field(4, ge=1, le=512)
    """Desktops of this env_server. Those beyond the episodes played at a time are spares: idle, they put the task on screen that
    will be asked for next, so that its reset takes a few milliseconds."""
    max_starting: int | None = Field(None, ge=1)
    """So many desktops start at the same time at most; None: half as many as there are cores. Each takes a core for 4 s, which
    learner and actors, that start too, would wait for."""
    memory_per_desktop_mb: int = Field(700, ge=1)
    """What one desktop may take (PSS, MiB). More desktops than the machine's memory holds are refused before anything starts, and
    one that broke is started again only where there is still room for it."""
    memory_limit_mb: int = Field(2500, ge=100)
    """A desktop that takes more (PSS, MiB) is ended and started anew: one runaway application must not take the host down."""
    max_processes: int = Field(600, ge=50)
    """Processes and threads of one desktop at most (about 150 in use with four applications)."""
    allow_shared_network: bool = False
    """Start desktops even where the host refuses network namespaces; their applications can then reach the host's network. Off:
    such a host is an error that says so."""
    screen_width: int = Field(800, ge=320, le=3840)
    """Pixels."""
    screen_height: int = Field(600, ge=240, le=2160)
    """Pixels."""
    observation: Literal["tree", "screenshot", "both"] = "both"
    """What an observation holds. Tree: accessibility rows; screenshot: stored picture."""
    screenshot_format: Literal["webp", "png", "jpeg"] = "webp"
    """Encoding of stored screenshots."""
    max_elements: int = Field(120, ge=1)
    """Rows of the linearised tree at most."""
    settle_quiet_s: float = Field(0.03, ge=0.0)
    """An action has settled when neither X damage nor accessibility events came for this long."""
    settle_deadline_s: float = Field(0.6, gt=0.0)
    """Settling ends here at the latest; the observation says which of the two it was."""
    step_deadline_s: float = Field(10.0, gt=0.0)
    """A desktop that has not answered an action after this long is broken."""
    reset_deadline_s: float = Field(30.0, gt=0.0)
    """The same for a reset (starting applications included)."""
    lease_time_limit_s: float = Field(60.0, gt=0.0)
    """A lease not used for this long is taken back: its actor is dead."""
    bind_address: str = "127.0.0.1"
    """Address the env_server listens on; loopback unless actors run elsewhere."""
