"""The apptainer driver: the guest in a rootless container of its own.

Processes, from the outside in: `unshare` (a child of this process) makes a user and a PID namespace; its first process is a
small shell, the keeper, below it Apptainer, which makes the container's own namespaces, below it the guest. The keeper ends when
its life line does (this process died or closed the desktop) or when Apptainer does, and the kernel then ends everything below
it at once, whatever state it is in. As root the user namespace maps to an ordinary user, so that the whole stack runs as on a
cluster and applications do not warn of being root.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.config import DesktopConfig
from common.errors import HostBroken, Problem, SetupError
from env_server.apptainer_install import Apptainer, check_fuse, find_apptainer
from env_server.drivers.guest_driver import GuestDriver
from env_server.drivers.private_folder import PrivateFolder
from env_server.image.find import image_path
from env_server.screenshots import ScreenshotStore

GUEST = Path(__file__).resolve().parents[1] / "guest"

KEEPER = """
folder=$1; shift
exec 3<&0 </dev/null
( cat <&3 >/dev/null; kill -KILL -1 ) >/dev/null &
"$@" 3<&- &
exec 3<&- >/dev/null
wait $!
kill -KILL -1
rm -rf "$folder"
exit 0
"""
"""First process of the outer PID namespace. Its standard input is the life line; when that ends, it kills everything but itself,
removes the desktop's folder and ends, and the kernel then ends whatever is still there. Arguments: folder, command."""

_ORDINARY_USER = 1000
_ROOTLESS_HINTS = (
    ("user namespace", "user namespaces are refused: ask an administrator to allow them (sysctl user.max_user_namespaces)"),
    ("unshare failed", "namespaces are refused: ask an administrator to allow user namespaces (sysctl user.max_user_namespaces)"),
    ("No space left", "the disk is full: free space in the temporary folder (TMPDIR)"),
    ("network namespace", "the network namespace is refused by this site: containers cannot be cut off the network"),
)


def make_apptainer_driver(
    config: DesktopConfig, *, index: int, folder: Path, screenshots: ScreenshotStore | None
) -> GuestDriver:
    """Desktop ``index`` in a container of its own. Raises `SetupError`, `HostBroken`, `DesktopBroken`."""
    apptainer = _find_apptainer_once()
    image = image_path(config.image)
    if image.is_file():
        check_fuse(image)
    return GuestDriver(ApptainerLauncher(apptainer, image), config, index=index, folder=folder, screenshots=screenshots)


@functools.cache
def _find_apptainer_once() -> Apptainer:
    # It starts a container to try; once per process is enough.
    return find_apptainer()


def pages_folder() -> Path:
    """MiniWoB++'s HTML files, out of the installed package. Raises `SetupError`."""
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(Problem("miniwob", "the package with the web tasks is not installed", "run `make setup`"))
    return Path(spec.submodule_search_locations[0]) / "html"


def isolation(folder: PrivateFolder) -> list[str]:
    """The command that puts what follows into a user and a PID namespace with the keeper as its first process."""
    for program in ("unshare", "sh"):
        if shutil.which(program) is None:
            raise HostBroken(f"{program} is missing: install util-linux")
    user = str(_ORDINARY_USER if os.geteuid() == 0 else os.geteuid())
    group = str(_ORDINARY_USER if os.geteuid() == 0 else os.getegid())
    return [
        "unshare", "--user", f"--map-user={user}", f"--map-group={group}", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
        "sh", "-c", KEEPER, "keeper", str(folder.path),
    ]  # fmt: skip


class ApptainerLauncher:
    """Starts guests in containers of one image."""

    def __init__(self, apptainer: Apptainer, image: Path) -> None:
        self._apptainer = apptainer
        self._image = image

    def command(self, folder: PrivateFolder, settings: dict[str, Any]) -> Sequence[str]:
        """See `Launcher`."""
        network = ["--net", "--network", "none"] if self._apptainer.network_none else []
        guest_settings = {**settings, "home": "/tmp/agent", "shared": "/run/computerrl"}
        flags = [flag for flag in self._apptainer.extra_flags if flag != "--userns"]
        return [
            *isolation(folder),
            str(self._apptainer.path), "--quiet", "exec", *flags, "--userns", "--containall", "--no-home", "--cleanenv",
            "--writable-tmpfs", *network,
            "--bind", f"{GUEST}:/opt/computerrl/guest:ro",
            "--bind", f"{pages_folder()}:/opt/computerrl/miniwob:ro",
            "--bind", f"{folder.shared}:/run/computerrl",
            "--bind", f"{folder.temporary}:/tmp",
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


