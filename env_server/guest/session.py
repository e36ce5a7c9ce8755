"""Everything below the applications: folders, X server, window manager, buses. Made once at start; its death is the desktop's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .accessibility import Accessibility
from .dbus import Bus, Call, DBusError
from .display import Screen, start_xvfb
from .processes import Program

FRAME_NAME = "Xvfb_screen0"
"""The frame buffer's file, as Xvfb names it (XWD format)."""

_ACCESSIBILITY_BUS = "org.a11y.Bus"

OPENBOX_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse></focus>
  <placement><policy>Smart</policy><center>yes</center></placement>
  <theme><name>Clearlooks</name><animateIconify>no</animateIconify></theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <resize><drawContents>yes</drawContents><popupShow>Never</popupShow></resize>
  <keyboard><rebindOnMappingNotify>no</rebindOnMappingNotify></keyboard>
  <mouse><dragThreshold>8</dragThreshold><doubleClickTime>400</doubleClickTime>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Titlebar"><mousebind button="Left" action="Drag"><action name="Move"/></mousebind></context>
    <context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
  </mouse>
  <menu></menu>
  <applications><application type="normal"><decor>no</decor><maximized>yes</maximized></application></applications>
</openbox_config>
"""
"""No keys (and no search for them whenever a character borrows a key code: openbox takes half a second for each), no root menu,
windows without frames fill the screen: nothing but the applications can be operated."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one desktop, as the guest sees them."""

    home: Path
    """The desktop's own: what no task and no application looks for."""
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

    def __init__(self, places: Places, *, width: int, height: int, base_env: Mapping[str, str]) -> None:
        self.log_folder = places.logs
        openbox_settings = places.home / "openbox.xml"
        openbox_settings.write_text(OPENBOX_SETTINGS, encoding="utf-8")
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
            ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={bus_path}"],
            env=env,
            log_folder=places.logs,
        )
        self._dbus.start()
        self._xvfb, name = start_xvfb(width=width, height=height, frame_folder=places.frame, log_folder=places.logs, env=env)
        self.env = {**env, "DISPLAY": name}
        self._openbox = Program(
            "openbox", ["openbox", "--sm-disable", "--config-file", str(openbox_settings)], env=self.env, log_folder=places.logs
        )
        self._openbox.start()
        self._atspi = Program(
            "atspi", ["/usr/libexec/at-spi-bus-launcher", "--launch-immediately"], env=self.env, log_folder=places.logs
        )
        self._atspi.start()
        self.screen = Screen(name)
        try:
            self.bus = _connect(f"unix:path={bus_path}", time.monotonic() + 10)
        except DBusError as error:
            raise DBusError(f"{error}; {self.broken()}") from error
        self.accessibility = Accessibility(_accessibility_address(self.bus))

    def broken(self) -> str:
        """Which of the parts that nothing works without is dead; empty when all live."""
        for program in (self._xvfb, self._openbox, self._dbus, self._atspi):
            if not program.running:
                return f"{program.name} died: {program.log_tail()}"
        return ""

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
            # The bus tells nobody when it listens; this happens once per desktop and takes a few milliseconds.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _accessibility_address(bus: Bus) -> str:
    deadline = time.monotonic() + 10
    # Called before it has its name, the session bus would start a second one, and the one that comes too late to the name ends.
    while not bus.has_owner(_ACCESSIBILITY_BUS):
        if time.monotonic() > deadline:
            raise DBusError("the accessibility bus did not come up in 10 s")
        time.sleep(0.005)
    return str(bus.call(Call(_ACCESSIBILITY_BUS, "/org/a11y/bus", _ACCESSIBILITY_BUS, "GetAddress"))[0])
