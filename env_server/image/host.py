"""What set-up asks of the host: its package manager, its own Debian mirror, locks and logged commands.

Standard library only, since it runs before anything is installed. No archive host is written here or anywhere: the mirror is
the one in the machine's own apt sources, or the one a person gives.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from computerrl.common.errors import Problem, SetupError

Progress = Callable[[str], None]
"""Takes one short line about what is being done; the caller adds the stage's name and the time."""

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

_APT_LOCK_WAIT_S = 180
"""Another apt (unattended upgrades, a second set-up) may hold the lock for minutes on a fresh machine."""

_APT_TURN = threading.RLock()
"""Held by the lane of set-up that runs apt: the lock of apt's lists, unlike dpkg's, is not waited for."""

_LOG_TAIL_LINES = 15


def is_root() -> bool:
    """True when this process may install packages."""
    return os.geteuid() == 0


def no_progress(line: str) -> None:
    """A `Progress` that says nothing."""


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """The host's distribution, as /etc/os-release tells it (ID, VERSION_CODENAME, ...); empty where there is no such file."""
    if not path.is_file():
        return {}
    pairs = (line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}


def debian_mirror(etc_apt: Path = Path("/etc/apt"), release: dict[str, str] | None = None) -> str | None:
    """The archive this Debian machine itself installs from, or None (not Debian, or no usable entry).

    It is the first source of type deb whose suites hold the machine's own release (not its security or backports archive,
    which carry no other suites) and whose components hold main.
    """
    release = os_release() if release is None else release
    if release.get("ID") != "debian":
        return None
    suites = {release.get("VERSION_CODENAME", ""), "stable", "testing", "unstable", "sid", "oldstable"} - {""}
    for uri, found_suites, components in _apt_sources(etc_apt):
        if suites & set(found_suites) and "main" in components:
            return uri.rstrip("/")
    return None


def require_mirror(mirror: str | None, *, purpose: str) -> str:
    """``mirror`` when given, else the machine's own; `SetupError` when there is none."""
    found = mirror or debian_mirror()
    if found is None:
        raise SetupError(
            Problem(
                "Debian mirror",
                f"{purpose} needs a Debian archive, and the apt sources of this machine name none",
                "give yours with `computerrl setup --mirror URL` (make: `make setup MIRROR=URL`)",
            )
        )
    return found


def _apt_sources(etc_apt: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(URI, suites, components) of every enabled binary source, one-line and deb822 format."""
    one_line = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*.list"))]
    for file in (file for file in one_line if file.is_file()):
        for line in file.read_text(encoding="utf-8").splitlines():
            match = re.match(r"deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
            if match:
                yield match[1], [match[2]], match[3].split()
    for file in sorted((etc_apt / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, flags=re.MULTILINE))
            if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes").strip() != "no":
                for uri in fields.get("URIs", "").split():
                    yield uri, fields.get("Suites", "").split(), fields.get("Components", "").split()


def missing_commands(commands: Sequence[str]) -> list[str]:
    """Those of ``commands`` that are not on PATH (sbin folders included: a user's PATH often lacks them)."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    return [command for command in commands if shutil.which(command, path=path) is None]


def apt_candidate(package: str) -> bool:
    """True when apt could install ``package`` from the machine's own sources."""
    if missing_commands(["apt-cache"]):
        return False
    answer = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, check=False, env=command_environment()
    )
    return bool(re.search(r"^\s*Candidate:\s*(?!\(none\))\S", answer.stdout, flags=re.MULTILINE))


def apt_install(packages: Sequence[str], *, log: Path, progress: Progress = no_progress) -> None:
    """Install Debian ``packages`` as root, refreshing apt's lists only when they do not do. Raises `SetupError`."""
    names = " ".join(packages)
    if not is_root() or missing_commands(["apt-get"]):
        raise SetupError(
            Problem(
                names, "not installed, and this user cannot install packages", f"ask an administrator: apt-get install {names}"
            )
        )
    lock = ["-o", f"DPkg::Lock::Timeout={_APT_LOCK_WAIT_S}"]
    install = ["apt-get", *lock, "install", "-y", "-q", "--no-install-recommends", *packages]
    with _APT_TURN:
        progress(f"apt-get install {names}")
        try:
            run_logged(install, log=log)
        except SetupError:
            # A fresh machine has no lists, an old one names versions that the mirror has dropped.
            apt_refresh(log=log)
            run_logged(install, log=log)


def apt_refresh(*, log: Path) -> None:
    """`apt-get update`. One unreachable third-party source makes it fail although the rest is there: what follows decides."""
    with _APT_TURN, suppress(SetupError):
        run_logged(["apt-get", "-o", f"DPkg::Lock::Timeout={_APT_LOCK_WAIT_S}", "update", "-q"], log=log)


def run_logged(
    command: Sequence[str | Path], *, log: Path, on_line: Progress = no_progress, environment: dict[str, str] | None = None
) -> None:
    """Run ``command``, its output appended to ``log`` and each line shown to ``on_line``.

    Raises `SetupError` with the last lines of the output when it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    shown = " ".join(str(part) for part in command)
    tail: list[str] = []
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"$ {shown}\n")
        with subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=command_environment() if environment is None else environment,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                stream.write(line)
                tail = [*tail[1 - _LOG_TAIL_LINES :], line.rstrip()]
                on_line(line.rstrip())
    if process.returncode != 0:
        text = "\n      ".join(tail)
        short = shown if len(shown) < 160 else shown[:160] + " ..."
        raise SetupError(
            Problem(str(command[0]), f"`{short}` ended with {process.returncode}:\n      {text}", f"the whole output is in {log}")
        )


def command_environment() -> dict[str, str]:
    """The environment for system commands: plain English, no questions, sbin folders on PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "PATH": path}


@contextmanager
def exclusive(lock: Path, *, progress: Progress = no_progress) -> Iterator[None]:
    """Hold ``lock`` while a shared folder is made, so that two set-ups at once do the work once."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another set-up is at work on this; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
