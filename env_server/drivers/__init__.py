"""The choice of a driver by configuration. A driver is imported only when chosen, and none ever stands in for another."""

from __future__ import annotations

from pathlib import Path

from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.env_server.driver import LiveDesktop
from computerrl.env_server.drivers.screenshots import Screenshots


def make_driver(
    config: DesktopConfig, *, index: int, folder: Path, screenshots: Screenshots | None, kept: Kept | None = None
) -> LiveDesktop:
    """Desktop ``index``, started; ``folder`` is for its logs; without ``screenshots`` its observations hold no pictures.
    ``kept``: `LiveDesktop.handles` of a desktop that another process started with this configuration, to be taken over as it is.

    Raises `SetupError`, `DesktopBroken`, `HostBroken`.
    """
    if config.driver == "scripted":
        from computerrl.env_server.drivers.scripted import ScriptedDriver

        return ScriptedDriver(config, screenshots=screenshots)
    if config.driver == "local":
        from computerrl.env_server.drivers.local import make_local_driver

        return make_local_driver(config, index=index, folder=folder, screenshots=screenshots, kept=kept)
    from computerrl.env_server.drivers.apptainer import make_apptainer_driver

    return make_apptainer_driver(config, index=index, folder=folder, screenshots=screenshots, kept=kept)
