"""The apptainer driver: the guest in a rootless container of its own.

Apptainer itself runs below a keeper (see `env_server.drivers.isolation`), which ends everything whatever is killed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.config import DesktopConfig
from common.errors import Problem, SetupError
from env_server.apptainer_install import Apptainer, check_fuse, find_apptainer
from env_server.drivers.guest_driver import GuestDriver
from env_server.drivers.isolation import FILES, GUEST, as_ordinary_user, isolation, pages_folder
from env_server.image.find import image_path
from env_server.screenshots import ScreenshotStore

_ROOTLESS_HINTS = (
    ("user namespace", "user namespaces are refused: ask an administrator to allow them (sysctl user.max_user_namespaces)"),
    ("unshare failed", "namespaces are refused: ask an administrator to allow user namespaces (sysctl user.max_user_namespaces)"),
    ("mount:", "this host refuses mounts inside user namespaces, which containers need: ask an administrator to allow them"),
    ("No space left", "the disk is full: free space where Apptainer and the image lie"),
    ("network namespace", "the network namespace is refused by this site: containers cannot be cut off the network"),
)


def make_apptainer_driver(config: DesktopConfig, *, index: int, folder: Path, screenshots: ScreenshotStore | None) -> GuestDriver:
    """Desktop ``index`` in a container of its own. Raises `SetupError`, `HostBroken`, `DesktopBroken`."""
    apptainer = _find_apptainer_once()
    if not apptainer.network_none and not config.allow_shared_network:
        raise SetupError(
            Problem(
                "desktop.allow_shared_network",
                "this host refuses containers a network namespace of their own, so agents could reach its network",
                "ask an administrator to allow network namespaces (Apptainer's `--net --network none`), or accept it with "
                "`--set desktop.allow_shared_network=true`",
            )
        )
    image = image_path(config.image)
    if image.is_file():
        check_fuse(image)
    return GuestDriver(ApptainerLauncher(apptainer, image), config, index=index, folder=folder, screenshots=screenshots)


@functools.cache
def _find_apptainer_once() -> Apptainer:
    # It starts a container to try; once per process is enough.
    return find_apptainer()


class ApptainerLauncher:
    """Starts guests in containers of one image."""

    def __init__(self, apptainer: Apptainer, image: Path) -> None:
        self._apptainer = apptainer
        self._image = image

    def command(self, settings: dict[str, Any]) -> Sequence[str]:
        """See `Launcher`."""
        network = ["--net", "--network", "none"] if self._apptainer.network_none else []
        guest_settings = {**settings, "home": "/tmp/agent", "pages": "/opt/computerrl/miniwob"}
        flags = [flag for flag in self._apptainer.extra_flags if flag != "--userns"]
        return [
            *isolation(max_processes=settings["max_processes"]),
            *as_ordinary_user(max_processes=settings["max_processes"]),
            str(self._apptainer.path), "--quiet", "exec", *flags, "--userns", "--containall", "--no-home", "--cleanenv",
            "--writable-tmpfs", *network,
            "--bind", f"{GUEST}:/opt/computerrl/guest:ro",
            "--bind", f"{pages_folder()}:/opt/computerrl/miniwob:ro",
            "--bind", f"{FILES}/tmp:/tmp",
            # What task files from elsewhere call the user's home.
            "--bind", f"{FILES}/tmp/agent/work:/home/user",
            "--pwd", "/",
            "--env", "PYTHONPATH=/opt/computerrl,PYTHONDONTWRITEBYTECODE=1",
            str(self._image), "python3", "-m", "guest.main", json.dumps(guest_settings),
        ]  # fmt: skip

    def explain(self, log: str) -> str:
        """See `Launcher`."""
        for words, meaning in _ROOTLESS_HINTS:
            if words in log:
                return f"{meaning}. Apptainer said: {log.strip().splitlines()[-1][:300]}"
        return ""
