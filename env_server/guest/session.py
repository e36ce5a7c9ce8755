"""Everything below the applications: folders, X server, window manager, buses. It is made once; its end is the desktop's."""

from __future__ import annotations

import contextlib
import stat
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import processes
from .faults import DesktopError
from .files.folder import remove
from .processes import Program
from .reading.accessibility import Accessibility
from .reading.dbus import XFCONF, Bus, Call, DBusError, path_of
from .screen.display import Screen, start_xvfb

FRAME_NAME = "Xvfb_screen0"
"""The frame buffer's file, as Xvfb names it (XWD format)."""

_ACCESSIBILITY_BUS = "org.a11y.Bus"
_ACCESSIBILITY_STATUS = "org.a11y.Status"

_SERVICE_LIMIT_S = 10.0
"""Time for the settings service to end, at a reset."""

_OWN = Path(__file__).parent
"""A folder that no agent can write to: the window manager and the bus read their settings again on request."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one desktop, as the guest sees them."""

    home: Path
    """The desktop's own files, which no task and no application looks for."""
    logs: Path
    frame: Path
    agent: Path
    """The user's home: the agent's folder, with the settings of all applications in it."""
    runtime: Path

    @classmethod
    def make(cls, *, home: Path, user_home: Path) -> Places:
        """Make them, all but the user's home below ``home``."""
        places = cls(home, home / "logs", home / "frame", user_home, home / "run")
        for folder in (home, places.logs, places.frame, places.agent, places.runtime):
            folder.mkdir(parents=True, exist_ok=True)
        places.runtime.chmod(0o700)
        return places


class Session:
    """X server, window manager, session bus and accessibility bus."""

    def __init__(self, places: Places, *, width: int, height: int, base_env: Mapping[str, str], deadline: float) -> None:
        """Start them; raises `DesktopError` or `DBusError` for those that are not there by the (monotonic) deadline."""
        self.log_folder = places.logs
        self._stored_settings = places.agent / ".config/xfce4"
        bus_path = places.runtime / "bus"
        env = {
            **{name: base_env[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in base_env},
            "HOME": str(places.agent),
            "XDG_RUNTIME_DIR": str(places.runtime),
            "TMPDIR": "/tmp",
            "LC_ALL": "C.UTF-8",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "USER": "agent",
            "SHELL": "/bin/bash",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus_path}",
            "GSETTINGS_BACKEND": "keyfile",
            "GTK_IM_MODULE": "gtk-im-context-simple",
            "GTK_MODULES": "",
            "NO_AT_BRIDGE": "0",
            "ACCESSIBILITY_ENABLED": "1",
            "GNOME_ACCESSIBILITY": "1",
            "SAL_USE_VCLPLUGIN": "gtk3",
            "SAL_NO_MOUSEGRABS": "1",
            "NO_AT_SPI_WARNINGS": "1",
            "GDK_BACKEND": "x11",
        }
        self._make_socket_folder()
        self._dbus = Program(
            "dbus",
            [
                "dbus-daemon",
                f"--config-file={_OWN / 'session_bus.conf'}",
                "--nofork",
                "--nopidfile",
                f"--address=unix:path={bus_path}",
            ],
            env=env,
            log_folder=places.logs,
            sends_files=True,
        )
        self._dbus.start()
        self._xvfb, name = start_xvfb(
            width=width, height=height, frame_folder=places.frame, log_folder=places.logs, env=env, deadline=deadline
        )
        self.env = {**env, "DISPLAY": name}
        command = ["openbox", "--sm-disable", "--config-file", str(_OWN / "openbox.xml")]
        # Themes and fonts that an agent put into the home would stay in its memory.
        self._openbox = Program("openbox", command, env={**self.env, "HOME": "/nonexistent"}, log_folder=places.logs)
        self._openbox.start()
        command = ["/usr/libexec/at-spi-bus-launcher", "--launch-immediately"]
        self._atspi = Program("atspi", command, env=self.env, log_folder=places.logs, sends_files=True)
        self._atspi.start()
        self.screen = Screen(name)
        try:
            self.bus = _connect(f"unix:path={bus_path}", deadline)
        except DBusError as error:
            raise DBusError(f"{error}; {self.broken()}") from error
        accessibility_address = _accessibility_address(self.bus, deadline)
        self.accessibility = Accessibility(accessibility_address)
        self._accessibility_settings = self.accessibility_settings()
        self._start_settings_service()
        self._frame = places.frame / FRAME_NAME
        self._frame_head, self._frame_bytes = _frame_head(self._frame), self._frame.stat().st_size
        self._sockets = (bus_path, Path(f"/tmp/.X11-unix/X{name.removeprefix(':')}"), Path(path_of(accessibility_address)))
        self._first_sockets = _placing(self._sockets)
        self._socket_folders = {socket.parent: stat.S_IMODE(socket.parent.stat().st_mode) for socket in self._sockets}

    @property
    def programs(self) -> Sequence[Program]:
        """Those that nothing works without."""
        return (self._xvfb, self._openbox, self._dbus, self._atspi)

    @property
    def x_server_pid(self) -> int:
        """The process that all drawing goes through."""
        return self._xvfb.pid

    @property
    def window_manager_pid(self) -> int:
        """The process that every click, and every window that appears, goes through."""
        return self._openbox.pid

    def broken(self) -> str:
        """Which of the parts that nothing works without is dead; empty when all live."""
        for program in self.programs:
            if not program.running:
                return program.how_it_ended(wait_s=0.0).removeprefix("; ")
        return ""

    def accessibility_settings(self) -> dict[str, bool]:
        """Which aids are on (org.a11y.Status)."""
        values = self._ask_accessibility("GetAll", "s", (_ACCESSIBILITY_STATUS,))[0]
        return {name: bool(value) for name, value in values}

    def put_back(self) -> None:
        """Undo the changes that programs have made to the session's services.

        The settings service does not report all its settings, so it is started anew. Aids are turned on and off as they were
        when the desktop began. Raises `DesktopError` where programs would not find a service any more.
        """
        for folder, mode in self._socket_folders.items():
            if folder.is_dir():
                folder.chmod(mode)
        if _placing(self._sockets) != self._first_sockets:
            raise DesktopError("a socket of the session is not where it was")
        self._put_back_frame()
        processes.empty_logs()
        self._end_settings_service()
        self._start_settings_service()
        processes.keep_services()
        for name, value in self.accessibility_settings().items():
            if value != self._accessibility_settings[name]:
                args = (_ACCESSIBILITY_STATUS, name, ("b", self._accessibility_settings[name]))
                self._ask_accessibility("Set", "ssv", args)

    def _put_back_frame(self) -> None:
        """The X server writes pixels alone into the frame buffer's file."""
        with open(self._frame, "r+b") as file:
            file.write(self._frame_head)
            file.truncate(self._frame_bytes)

    def _end_settings_service(self) -> None:
        """End it and forget what it has stored, as often as an application that runs starts it again meanwhile."""
        limit = time.monotonic() + _SERVICE_LIMIT_S
        while self.bus.has_owner(XFCONF):
            with contextlib.suppress(DBusError):  # it has just ended
                processes.end_service(self.bus.pid_of(XFCONF))
            remove(self._stored_settings)
            if time.monotonic() > limit:
                raise DesktopError("the settings service did not end in time")
        remove(self._stored_settings)

    def _start_settings_service(self) -> None:
        # Before any program of an agent's does: a process that such a program starts is no service.
        self.bus.call(Call(XFCONF, "/org/xfce/Xfconf", "org.freedesktop.DBus.Peer", "Ping"))

    def _ask_accessibility(self, member: str, signature: str, args: tuple[Any, ...]) -> list[Any]:
        call = Call(_ACCESSIBILITY_BUS, "/org/a11y/bus", "org.freedesktop.DBus.Properties", member, signature, args)
        return self.bus.call(call)

    @staticmethod
    def _make_socket_folder() -> None:
        # Xvfb makes this folder only as root; it may be shared with others when there is no container.
        folder = Path("/tmp/.X11-unix")
        if not folder.exists():
            folder.mkdir(mode=0o1777)
            folder.chmod(0o1777)


def _connect(address: str, deadline: float) -> Bus:
    while True:
        try:
            return Bus(address)
        except DBusError:
            # The bus does not report when it listens; this happens once per desktop and takes a few milliseconds.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _frame_head(frame: Path) -> bytes:
    """All before the first pixel (XWDFile.h)."""
    with open(frame, "rb") as file:
        fields = struct.unpack(">25I", file.read(100))
        file.seek(0)
        return file.read(fields[0] + 12 * fields[19])


def _placing(sockets: Sequence[Path]) -> list[tuple[int, int]]:
    """Which files these are, and who may use them; zeros for those that are gone."""
    found = [place.lstat() if place.exists() else None for place in sockets]
    return [(0, 0) if facts is None else (facts.st_ino, facts.st_mode) for facts in found]


def _wait_for(condition: Callable[[], bool], deadline: float, problem: str) -> None:
    while not condition():
        if time.monotonic() > deadline:
            raise DBusError(problem)
        time.sleep(0.005)


def _accessibility_address(bus: Bus, deadline: float) -> str:
    # Called before it has its name, the session bus would start a second one, and the one that comes too late to the name ends.
    _wait_for(lambda: bus.has_owner(_ACCESSIBILITY_BUS), deadline, "the accessibility bus did not come up in time")
    return str(bus.call(Call(_ACCESSIBILITY_BUS, "/org/a11y/bus", _ACCESSIBILITY_BUS, "GetAddress"))[0])
