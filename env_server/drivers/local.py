"""The local driver: the same guest without a container, for development on a machine that has the applications installed.

It still runs in namespaces of its own (processes, mounts: its own /tmp and /dev/shm), so that it leaves nothing and desktops do
not meet; but it shares the host's file system and network, so it is no place for an agent that is not trusted. Never chosen
unless the configuration says `driver: local`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.common.errors import Problem, SetupError
from computerrl.env_server.drivers.containment import Findings
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.isolation import GUEST, as_ordinary_user, isolation, pages_folder
from computerrl.env_server.drivers.memory import FILES
from computerrl.env_server.drivers.screenshots import Screenshots

_PYTHON = "/usr/bin/python3"
"""The system's own: python3-uno exists for no other."""

_PROGRAMS = {
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "dbus-daemon": "dbus-daemon",
    "/usr/libexec/at-spi-bus-launcher": "at-spi2-core",
    "/usr/lib/libreoffice/program/soffice.bin": "libreoffice-calc libreoffice-gtk3",
    "/usr/lib/chromium/chromium": "chromium",
    "mousepad": "mousepad",
    "thunar": "thunar",
    "unshare": "util-linux",
    _PYTHON: "python3",
}
"""Program -> Debian package."""

PREPARE = f"""
guest=$1; pages=$2; shift 2; tmp={FILES}/tmp
mkdir -p $tmp/lib/guest $tmp/pages && mount --bind "$guest" $tmp/lib/guest && mount --bind "$pages" $tmp/pages &&
mount --rbind $tmp /tmp && mount --bind {FILES}/var-tmp /var/tmp && mount -t tmpfs tmpfs {FILES} && cd / && exec "$@"
"""
"""The desktop's files become /tmp and /var/tmp, with what the guest needs in the first."""


def missing_programs() -> dict[str, str]:
    """Program or Python module -> Debian package, for everything that this machine lacks."""
    missing = {program: package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    for module, package in (("Xlib", "python3-xlib"), ("uno", "python3-uno")):
        if _PYTHON in missing:
            continue
        probe = subprocess.run([_PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
        if probe.returncode:
            missing[f"python3 module {module}"] = package
    return missing


def make_local_driver(
    config: DesktopConfig, *, index: int, folder: Path, screenshots: Screenshots | None, kept: Kept | None = None
) -> GuestDriver:
    """Desktop ``index`` without a container. Raises `SetupError`, `HostBroken`, `DesktopBroken`."""
    missing = missing_programs()
    if missing:
        raise SetupError(
            Problem(
                "desktop.driver",
                f"`local` runs the applications of this machine, which lacks {', '.join(missing)}",
                f"apt-get install {' '.join(dict.fromkeys(missing.values()))}, or set desktop.driver to apptainer",
            )
        )
    return GuestDriver(LocalLauncher(), config, index=index, folder=folder, screenshots=screenshots, kept=kept)


class LocalLauncher:
    """Starts guests beside the host's own processes."""

    def command(self, settings: dict[str, Any]) -> Sequence[str]:
        """See `GuestLauncher`."""
        guest_settings = {**settings, "home": "/tmp/agent", "user_home": "/tmp/user", "pages": "/tmp/pages"}
        pages = pages_folder()
        return [
            *isolation(max_processes=settings["max_processes"], needs=(GUEST, pages)),
            "sh",
            "-c",
            PREPARE,
            "prepare",
            str(GUEST),
            str(pages),
            *as_ordinary_user(max_processes=settings["max_processes"]),
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH=/tmp/lib",
            "PYTHONDONTWRITEBYTECODE=1",
            _PYTHON,
            "-m",
            "guest.main",
            json.dumps(guest_settings),
        ]

    def differences(self, found: Findings) -> Sequence[str]:
        """See `GuestLauncher`. Nothing is promised of this driver."""
        return ()

    def explain(self, log: str) -> str:
        """See `GuestLauncher`."""
        if "unshare" in log and ("not permitted" in log or "failed" in log):
            hint = "namespaces are refused on this host: allow user namespaces (sysctl user.max_user_namespaces)."
            return f"{hint} {log[-200:].strip()}"
        return ""
