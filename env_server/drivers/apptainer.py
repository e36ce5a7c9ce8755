"""The apptainer driver: the guest in a rootless container of its own.

Apptainer itself runs below a keeper (see `env_server.drivers.isolation`), which ends everything whatever is killed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.common.errors import Problem, SetupError
from computerrl.env_server.drivers.containment import Findings, differences
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.isolation import GUEST, as_ordinary_user, isolation, ordinary_user, pages_folder
from computerrl.env_server.drivers.memory import FILES
from computerrl.env_server.drivers.screenshots import Screenshots
from computerrl.env_server.image.apptainer_install import ISOLATION, Apptainer, check_fuse, find_apptainer
from computerrl.env_server.image.find import image_path

_ACCOUNT_FILES = ("passwd", "group", "resolv.conf")
"""Apptainer makes a copy of the host's for each container, with what this host calls its users, and leaves it writable."""

_MAX_TERMINALS = 64
"""Terminals that a desktop may have open. All containers of a host share about 3,000."""

PREPARE = f"""
user=$1; group=$2; stage=$3; fuse=$4
shift 4
mkdir {FILES}/etc
echo "root:x:0:0:root:/root:/bin/sh
agent:x:$user:$group:agent:/home/user:/bin/bash
nobody:x:65534:65534:nobody:/:/bin/false" > {FILES}/etc/passwd
echo "root:x:0:
agent:x:$group:
nogroup:x:65534:" > {FILES}/etc/group
: > {FILES}/etc/resolv.conf
mkdir {FILES}/dev
mount --bind {FILES} $stage
cd $stage/dev
mount -t tmpfs -o mode=0755,size=64k tmpfs .
cd $stage/dev
for name in full null random tty urandom zero $fuse; do
  touch $name
  mount --bind /dev/$name $name
done
mkdir shm pts
mount --bind $stage/shm shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,max={_MAX_TERMINALS} devpts pts
ln -s pts/ptmx ptmx
ln -s /proc/self/fd fd
ln -s fd/0 stdin
ln -s fd/1 stdout
ln -s fd/2 stderr
mount -o remount,bind,ro .
mount --rbind . /dev
cd /
exec "$@"
"""
"""What the container has of its own: names of users, and devices. Apptainer shows the /dev that it finds; the one it makes itself
can be written to, and the memory behind its /dev/shm is bounded by nothing."""

_STAGES = ("/boot", "/media", "/srv", "/mnt", "/opt")
"""Folders over which the desktop's files may be mounted, for itself alone: the first that holds nothing it needs."""

_HOW = (
    "(sysctl user.max_user_namespaces; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0 as well; in a Docker container "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
)
_ROOTLESS_HINTS = (
    ("user namespace", f"user namespaces are refused: ask an administrator to allow them {_HOW}"),
    ("unshare failed", f"namespaces are refused: ask an administrator to allow user namespaces {_HOW}"),
    ("mount:", f"this host refuses mounts in user namespaces, which containers need: ask an administrator to allow them {_HOW}"),
    ("setpriv:", "root cannot become another user here: start as an ordinary user, or with the capabilities SETUID and SETGID"),
    ("No space left", "the disk is full: free space where Apptainer and the image lie"),
    ("network namespace", "the network namespace is refused by this site: containers cannot be cut off the network"),
)


def make_apptainer_driver(
    config: DesktopConfig, *, index: int, folder: Path, screenshots: Screenshots | None, kept: Kept | None = None
) -> GuestDriver:
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
    launcher = ApptainerLauncher(apptainer, image, index=index)
    return GuestDriver(launcher, config, index=index, folder=folder, screenshots=screenshots, kept=kept)


def _stage(needs: Sequence[Path]) -> str:
    above = {folder for path in needs for folder in (path.resolve(), *path.resolve().parents)}
    free = [name for name in _STAGES if Path(name).is_dir() and Path(name) not in above]
    if not free:
        raise SetupError(Problem("desktop.driver", f"none of {', '.join(_STAGES)} is there and unused", "make /media, as root"))
    return free[0]


@functools.cache
def _find_apptainer_once() -> Apptainer:
    # It starts a container to try; once per process is enough.
    return find_apptainer()


class ApptainerLauncher:
    """Starts guests in containers of one image."""

    def __init__(self, apptainer: Apptainer, image: Path, *, index: int = 0) -> None:
        self._apptainer = apptainer
        self._image = image
        self._index = index

    def command(self, settings: dict[str, Any]) -> Sequence[str]:
        """See `GuestLauncher`."""
        network = ["--net", "--network", "none"] if self._apptainer.network_none else []
        guest_settings = {**settings, "home": "/tmp/agent", "user_home": "/home/user", "pages": "/opt/computerrl/miniwob"}
        flags = [flag for flag in self._apptainer.extra_flags if flag != "--userns"]
        pages, max_processes = pages_folder(), settings["max_processes"]
        needs = (self._apptainer.folder, self._image, GUEST, pages)
        stage = _stage(needs)
        return [
            *isolation(max_processes=max_processes, needs=needs, index=self._index),
            "sh",
            "-ec",
            PREPARE,
            "prepare",
            *ordinary_user(),
            stage,
            "fuse" if self._image.is_file() else "",
            *as_ordinary_user(max_processes=max_processes),
            str(self._apptainer.path),
            "--quiet",
            "exec",
            *flags,
            "--userns",
            *ISOLATION,
            *network,
            "--bind",
            f"{GUEST}:/opt/computerrl/guest:ro",
            "--bind",
            f"{pages}:/opt/computerrl/miniwob:ro",
            "--bind",
            f"{stage}/tmp:/tmp",
            "--bind",
            f"{stage}/var-tmp:/var/tmp",
            *(word for name in _ACCOUNT_FILES for word in ("--bind", f"{stage}/etc/{name}:/etc/{name}:ro")),
            # As task files from elsewhere call it.
            "--bind",
            f"{stage}/user:/home/user",
            "--pwd",
            "/",
            "--env",
            "PYTHONPATH=/opt/computerrl,PYTHONDONTWRITEBYTECODE=1",
            str(self._image),
            "python3",
            "-m",
            "guest.main",
            json.dumps(guest_settings),
        ]

    def differences(self, found: Findings) -> Sequence[str]:
        """See `GuestLauncher`."""
        return differences(found, is_cut_off=self._apptainer.network_none)

    def explain(self, log: str) -> str:
        """See `GuestLauncher`."""
        for words, meaning in _ROOTLESS_HINTS:
            if words in log:
                return f"{meaning}. Apptainer said: {log.strip().splitlines()[-1][:300]}"
        return ""
