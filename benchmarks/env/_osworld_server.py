"""OSWorld's own server of a virtual machine, started inside one of our desktops. Part of `bench serve`.

Its user names a folder with the program (desktop_env/server of a checkout of OSWorld) and one with the packages that it imports.
Both are copied into the desktop; nothing of them is part of this project. The desktop has no network, so each connection is made
by a process that has joined the desktop's network namespace and hands the socket over: nothing lies between client and server.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

from computerrl.common.errors import ConfigError, Problem
from computerrl.env_server.drivers.memory import processes_below

Dial = Callable[[], socket.socket]
"""Opens a connection to a server."""

PROGRAM = "main.py"
PORT = 5000
"""Port of the program, which does not let it be chosen."""
_PLACE = "/home/user/.osworld-server"
_START = """
cd "$0/server"
: > ../xauthority
export XAUTHORITY=$0/xauthority PATH=$0/packages/usr/bin:$PATH PYTHONPATH=$1
python3 "$2" > ../log 2>&1
echo $? > ../ended
"""
"""Our display asks for no key; python3-xlib wants a file of keys all the same."""
_MODULES = f"{_PLACE}/packages:{_PLACE}/packages/usr/lib/python3/dist-packages"
_START_LIMIT_S = 180.0
_PART_BYTES = 16 << 20
"""Size of an upload; the server takes 45 MiB at once."""
_WHEELS = (
    "flask werkzeug jinja2 markupsafe itsdangerous click blinker pyautogui==0.9.54 python3-xlib==0.15 pymsgbox pytweening "
    "pyscreeze Pillow==10.1.0 numpy==1.26.4 lxml requests urllib3 idna certifi charset-normalizer"
)
_DEBIAN = "python3-pyatspi gnome-screenshot"
PACKAGES = (
    f"pip install --no-deps --python-version 3.11 --target DIR {_WHEELS}; and with Debian 12: "
    f"apt-get download {_DEBIAN}; for file in *.deb; do dpkg -x $file DIR; done"
)
"""Commands that fill a folder DIR with the packages that the program imports on Linux, for the Python of our images. Without
dependencies: MouseInfo, which pyautogui can do without, ends the program where there is no tkinter. pyscreeze takes a screenshot
only where there is a program gnome-screenshot, which it does not start."""
_JOINED = """
import socket
wire = socket.socket(fileno=0)
while wire.recv(1):
    try:
        with socket.create_connection(("127.0.0.1", %d)) as made:
            socket.send_fds(wire, [b"+"], [made.fileno()])
    except ConnectionRefusedError:
        wire.sendall(b"-")
"""


@contextlib.contextmanager
def original_server(client: httpx2.Client, front_pid: int, folder: Path, packages: Path | None) -> Iterator[Dial]:
    """The program of ``folder`` in the only desktop of process ``front_pid``, until that desktop is reset.

    ``client`` makes requests of a session that has this desktop and may run commands. Raises `ConfigError` where there is no
    program, or where it does not start.
    """
    require_program(folder)
    _upload(client, folder, f"{_PLACE}/server")
    if packages is not None:
        _upload(client, packages, f"{_PLACE}/packages")
    _launch(client)
    with _dialler(_wait_for_server(client, front_pid)) as dial:
        yield dial


def require_program(folder: Path) -> None:
    """Raise `ConfigError` where ``folder`` has no program."""
    if not (folder / PROGRAM).is_file():
        step = "name the folder desktop_env/server of a checkout of OSWorld"
        raise ConfigError([Problem("--osworld-server", f"{str(folder)!r} has no {PROGRAM}", step)])


def _upload(client: httpx2.Client, folder: Path, place: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=lambda member: None if "__pycache__" in member.name else _readable(member))
    parts = [packed.getvalue()[start : start + _PART_BYTES] for start in range(0, packed.tell(), _PART_BYTES)]
    for number, part in enumerate(parts):
        data, files = {"file_path": f"{place}/part-{number:04}"}, {"file_data": ("part", part)}
        client.post("/setup/upload", data=data, files=files).raise_for_status()
    _output(client, f"cd {shlex.quote(place)} && cat part-* | tar -xf - && rm part-*")


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode |= 0o755 if member.isdir() else 0o644
    member.uid = member.gid = 0
    return member


def _launch(client: httpx2.Client) -> None:
    command = ["sh", "-c", _START, _PLACE, _MODULES, PROGRAM]
    client.post("/setup/launch", json={"command": command, "shell": False}).raise_for_status()


def _output(client: httpx2.Client, script: str) -> str:
    answer = client.post("/execute", json={"command": ["sh", "-ec", script], "shell": False}).raise_for_status().json()
    if answer["returncode"]:
        raise RuntimeError(f"{script!r} failed in the desktop: {answer}")
    return str(answer["output"])


def _wait_for_server(client: httpx2.Client, front_pid: int) -> int:
    """A process of the desktop, as soon as the program listens there."""
    deadline = time.monotonic() + _START_LIMIT_S
    while (pid := process_beside_listener(front_pid)) is None:
        if _output(client, f"cat {_PLACE}/ended || true") or time.monotonic() > deadline:
            raise _not_started(_output(client, f"cat {_PLACE}/log"))
        time.sleep(0.2)
    return pid


def _not_started(log: str) -> ConfigError:
    last = log.strip().splitlines()[-1] if log.strip() else f"it does not listen on port {PORT} and prints nothing"
    is_import = re.match(r"(ModuleNotFoundError|ImportError)\b", last) is not None
    step = f"fill the folder of --server-packages: {PACKAGES}" if is_import else "try it on the machine that it was written for"
    return ConfigError([Problem("--osworld-server", f"{PROGRAM} does not start in the desktop: {last:.500}", step)])


def process_beside_listener(front_pid: int) -> int | None:
    """A process below ``front_pid`` in whose network namespace, another one than ours, something listens on the port."""
    own = os.stat("/proc/self/ns/net").st_ino
    for pid in processes_below(front_pid):
        try:
            listens = re.search(rf"^ *\d+: \w+:{PORT:04X} \w+:0000 0A ", Path(f"/proc/{pid}/net/tcp").read_text(), re.MULTILINE)
            if listens and os.stat(f"/proc/{pid}/ns/net").st_ino != own:
                return pid
        except OSError:
            continue  # it has ended, or no one may look into it
    return None


@contextlib.contextmanager
def _dialler(pid: int) -> Iterator[Dial]:
    """Opens connections to the port in the network namespace of process ``pid``."""
    ours, theirs = socket.socketpair()
    # Who is not root may join a network only from within the user namespace that owns it.
    join = ["--net"] if os.geteuid() == 0 else ["--user", "--preserve-credentials", "--net"]
    command = ["nsenter", f"--target={pid}", *join, sys.executable, "-I", "-c", _JOINED % PORT]
    process = subprocess.Popen(command, stdin=theirs.fileno())
    theirs.close()

    def dial() -> socket.socket:
        ours.sendall(b"+")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise ConnectionRefusedError(f"nothing listens on port {PORT} in the desktop")
        return socket.socket(fileno=descriptors[0])

    try:
        yield dial
    finally:
        ours.close()
        process.wait()
