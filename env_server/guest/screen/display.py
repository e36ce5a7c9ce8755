"""The X server of one desktop: starting Xvfb, mouse and keyboard by XTEST, windows, damage.

Talks EWMH to the window manager. Knows no application and no accessibility.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from Xlib import X, Xatom
from Xlib.display import Display as XDisplay
from Xlib.error import BadDrawable, BadMatch, BadWindow, CatchError, ConnectionClosedError
from Xlib.ext import damage, res, shape, xtest
from Xlib.protocol import event as xevent

from ..faults import DesktopError
from ..processes import Program
from ..reading.visibility import Surface, holds
from ..wire import MAX_TITLE_CHARS
from .keyboard import Keyboard, keysym_of, parse_chord
from .top_level import TopLevelWindows
from .x_state import XState

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}

_STRUCTURE_EVENTS = frozenset({X.CreateNotify, X.ConfigureNotify, X.MapNotify, X.UnmapNotify, X.ReparentNotify, X.DestroyNotify})

_EARLY_S = 0.7
"""Chromium's half second begins a little after its window appears."""
_END_LIMIT_S = 1.0
"""From the end of an X server's output to the end of its process."""
_MAX_EVENTS = 10_000
"""Taken in one go: a program may draw, or change its windows, faster than its events are taken."""
_CLICK_LIMIT_S = 1.0
"""For a click to arrive before the next key."""
_WHOLE = 65536
"""Words asked for of a property, more than any has: to ask for the rest of one that has shrunk meanwhile is an error."""
_DESCRIBING = ("_NET_WM_NAME", "_NET_WM_PID", "_NET_WM_WINDOW_TYPE", "WM_TRANSIENT_FOR", "WM_CLASS")
"""Properties that make up a `Window`."""
_MAXIMISED = frozenset({"_NET_WM_STATE_MAXIMIZED_HORZ", "_NET_WM_STATE_MAXIMIZED_VERT"})
_OTHERWISE_SHOWN = frozenset({"_NET_WM_STATE_FULLSCREEN", "_NET_WM_STATE_HIDDEN", "_NET_WM_STATE_SHADED"})
DisplayGone = (ConnectionClosedError, BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True, slots=True)
class Window:
    """One top-level window as the window manager sees it."""

    xid: int
    pid: int
    title: str
    is_dialog: bool
    kind: str
    """Its WM_CLASS, such as ``libreoffice-calc``: one program may show windows of several applications."""
    instance: str = ""
    """The first part of that, such as ``Mail``."""
    lets_clicks_through: bool = False
    """Nothing below it is harder to click: a tool tip, which leaves with the pointer, or a window that takes no clicks."""
    ignores_early_clicks: bool = False
    """A list of suggestions of Chromium's: it takes no clicks at first, lest one meant for what was there before chooses one."""

    @property
    def window_class(self) -> str:
        """Both parts, as window managers' tools write them."""
        return f"{self.instance}.{self.kind}"


def start_xvfb(
    *, width: int, height: int, frame_folder: Path, log_folder: Path, env: Mapping[str, str], deadline: float
) -> tuple[Program, str]:
    """Start the X server with its frame buffer in ``frame_folder``; gives the program and the display's name. Raises
    `DesktopError` when it is not there by the (monotonic) deadline.

    The abstract socket is off: it would be shared by all containers of a host without network namespaces.
    """
    read_end, write_end = os.pipe()
    xvfb = Program(
        "xvfb",
        [
            "Xvfb",
            "-displayfd",
            str(write_end),
            "-screen",
            "0",
            f"{width}x{height}x24",
            "-fbdir",
            str(frame_folder),
            "-nolisten",
            "tcp",
            "-nolisten",
            "local",
            "-noreset",
            "-nocursor",
            "-s",
            "0",
            "-dpms",
            "-accessx",
            "-br",
        ],
        env=env,
        log_folder=log_folder,
    )
    xvfb.start(pass_fds=(write_end,))
    os.close(write_end)
    poller = select.poll()
    poller.register(read_end, select.POLLIN | select.POLLHUP)
    said = b""
    # Number and newline come in two writes.
    while not said.endswith(b"\n") and poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(read_end, 32)
        if not chunk:
            break
        said += chunk
    os.close(read_end)
    number = said.decode().strip()
    if not number.isdigit():
        raise DesktopError(f"the X server did not start{xvfb.how_it_ended(wait_s=_END_LIMIT_S) or ' in time'}")
    return xvfb, f":{number}"


class Screen:
    """One connection to the X server."""

    def __init__(self, name: str) -> None:
        self._display = XDisplay(name)
        self._root = self._display.screen().root
        self._keyboard = Keyboard(self._display)
        self._atoms: dict[str, int] = {}
        self._ping_serial = 0
        self._pongs: set[int] = set()
        self._described: dict[int, Window] = {}
        """Managed windows as they were described last; a change of one of its properties takes a window out."""
        self._has_changed = False
        """Events that `windows` took in count for the next `pump`."""
        self._top_level = TopLevelWindows(self._root)
        self._num_extents = 0
        self._num_held_back = 0
        """Presses since `sync_clicks`: each goes to the window manager first, which focuses the window and passes it on."""
        self._helper = self._root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
        self.num_damages = 0
        self._root.change_attributes(event_mask=X.PropertyChangeMask | X.SubstructureNotifyMask)
        self._display.damage_query_version()
        self._damage = self._root.damage_create(damage.DamageReportNonEmpty)
        self._display.sync()
        self._state = XState(self._display, self._keyboard)

    def fileno(self) -> int:
        """For poll."""
        return int(self._display.fileno())

    def note(self) -> None:
        """See `XState.note`."""
        self._state.note()

    def describe(self) -> dict[str, str]:
        """What the server remembers for all programs, and the state of every window."""
        return self._state.describe() | {f"window {window.kind}": self._placing(window.xid) for window in self.windows()}

    def put_back(self, *, programs: frozenset[int] | None = None) -> None:
        """What the server remembers for all programs is as it was when the desktop began. Raises `DesktopError`; see `XState`."""
        self._state.put_back(programs=programs)

    # --- events ---

    def pump(self) -> bool:
        """Take pending events without waiting; True when the screen or the windows changed.

        Once it returns, `num_damages` is right for pictures taken from then on: whatever is drawn later raises it.
        """
        changed = self._take_pending() or self._has_changed
        self._has_changed = False
        return changed

    def _take_pending(self) -> bool:
        changed, num_told = False, self.num_damages
        for _ in range(_MAX_EVENTS):
            if self._display.pending_events():
                changed = self._take(self._display.next_event()) or changed
            elif self.num_damages == num_told:
                break
            else:
                num_told = self.num_damages
                # What is drawn before the server has subtracted is not told. Waiting for it takes in whatever else has come,
                # and of that the descriptor will not tell: so look again.
                self._display.sync()
        return changed

    def _take(self, event: Any) -> bool:
        """One event; True when the screen or the windows changed."""
        kind = event.type
        if kind == self._display.extension_event.DamageNotify:
            self._display.damage_subtract(self._damage, X.NONE, X.NONE)
            self.num_damages += 1
            return True
        if kind == X.PropertyNotify and event.window.id == self._root.id:
            return event.atom in (self._atom("_NET_CLIENT_LIST_STACKING"), self._atom("_NET_ACTIVE_WINDOW"))
        if kind == X.PropertyNotify and event.window.id == self._helper.id:
            self._num_extents += 1
        elif kind == X.PropertyNotify:
            if event.atom in map(self._atom, _DESCRIBING):
                self._described.pop(event.window.id, None)
        elif kind in _STRUCTURE_EVENTS and kind != X.CreateNotify and event.event.id != self._root.id:
            # Told of a managed window itself: where it is and whether it shows, the root's events tell.
            if kind == X.DestroyNotify:
                self._described.pop(event.window.id, None)
        elif kind in _STRUCTURE_EVENTS:
            self._top_level.take(event)
            return True
        elif kind == X.ClientMessage and event.client_type == self._atom("WM_PROTOCOLS"):
            self._pongs.add(event.data[1][1])
        return False

    def wait_for_event(self, timeout_s: float) -> None:
        """Wait until the X server says something, and take it in."""
        if not self._display.pending_events():
            select.select([self.fileno()], [], [], timeout_s)
        self.pump()

    def sync(self) -> None:
        """Wait until the server has done all requests."""
        self._display.sync()

    # --- mouse and keyboard ---

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        self._fake(X.MotionNotify, x=x, y=y)
        self._display.sync()

    def click(self, x: int, y: int, *, button: str = "left", num_clicks: int = 1, hold: str = "") -> None:
        """Move there and click, with the keys of the chord ``hold`` down."""
        held = [code for code, _ in self._keyboard.codes(parse_chord(hold))] if hold else []
        self._fake(X.MotionNotify, x=x, y=y)
        for code in held:
            self._fake(X.KeyPress, code)
        for _ in range(num_clicks):
            self._fake(X.ButtonPress, _BUTTONS[button])
            self._fake(X.ButtonRelease, _BUTTONS[button])
        self._num_held_back += num_clicks
        for code in reversed(held):
            self._fake(X.KeyRelease, code)
        self._display.sync()

    def scroll(self, x: int, y: int, direction: str, *, num_clicks: int = 5) -> None:
        """Turn the wheel there."""
        self._fake(X.MotionNotify, x=x, y=y)
        for _ in range(num_clicks):
            self._fake(X.ButtonPress, _WHEEL[direction])
            self._fake(X.ButtonRelease, _WHEEL[direction])
        self._display.sync()

    def press(self, *, button: str = "left") -> None:
        """Hold a mouse button."""
        self._fake(X.ButtonPress, _BUTTONS[button])
        self._num_held_back += 1
        self._display.sync()

    def release(self, *, button: str = "left") -> None:
        """Let it go."""
        self._fake(X.ButtonRelease, _BUTTONS[button])
        self._display.sync()

    def batches(self, text: str) -> list[str]:
        """``text`` in parts that `type_text` can type, see `Keyboard.batches`."""
        return self._keyboard.batches(text)

    def key_codes(self, keys: str) -> list[int]:
        """Key codes of a chord in pressing order. Raises `UnknownKey`."""
        return [code for code, _ in self._keyboard.codes(parse_chord(keys))]

    def press_key(self, code: int) -> None:
        """Hold a key down."""
        self._fake(X.KeyPress, code)
        self._display.sync()

    def release_key(self, code: int) -> None:
        """Let it go."""
        self._fake(X.KeyRelease, code)
        self._display.sync()

    def type_text(self, text: str) -> None:
        """Type any text; raises `UnknownKey` before the first key when a character cannot be typed."""
        shift = self._keyboard.codes([parse_chord("shift")[0]])[0][0]
        for code, shifted in self._keyboard.codes([keysym_of(char) for char in text]):
            if shifted:
                self._fake(X.KeyPress, shift)
            self._fake(X.KeyPress, code)
            self._fake(X.KeyRelease, code)
            if shifted:
                self._fake(X.KeyRelease, shift)
        self._display.sync()

    def press_chord(self, keys: str) -> None:
        """Press keys together, like ``ctrl+s``."""
        codes = self._keyboard.codes(parse_chord(keys))
        shift = self._keyboard.codes([parse_chord("shift")[0]])[0][0]
        held = [code for code, _ in codes]
        if codes[-1][1] and shift not in held:
            held.insert(len(held) - 1, shift)
        for code in held:
            self._fake(X.KeyPress, code)
        for code in reversed(held):
            self._fake(X.KeyRelease, code)
        self._display.sync()

    def _fake(self, kind: int, detail: int = 0, **position: int) -> None:
        if kind in (X.KeyPress, X.KeyRelease):
            self.sync_clicks(_CLICK_LIMIT_S)
        xtest.fake_input(self._display, kind, detail, **position)

    # --- windows ---

    def windows(self) -> list[Window]:
        """Managed windows, topmost last."""
        found = []
        xids = self._root_property("_NET_CLIENT_LIST_STACKING")
        # The server sends events before the answers that come after them: what is still described now was right at the answer.
        self._has_changed = self._take_pending() or self._has_changed
        for xid in xids:
            try:
                found.append(self._description(xid))
            except (BadWindow, BadMatch):
                continue
        return found

    def active_window(self) -> int:
        """X id of the focused window, 0 when there is none."""
        values = self._root_property("_NET_ACTIVE_WINDOW")
        return int(values[0]) if values else 0

    @property
    def num_popups(self) -> int:
        """Visible windows that the window manager does not manage: menus, drop-downs, tool tips."""
        return self._top_level.num_popups

    def surfaces(self) -> list[Surface]:
        """All windows on the screen that take clicks, topmost last; costs one round trip, and some for each new window."""
        found = []
        in_order = self._top_level.in_order()
        self._has_changed = self._take_pending() or self._has_changed
        for xid, box, is_popup in in_order:
            try:
                window = self._description(xid)
            except (BadWindow, BadMatch):
                continue
            if not window.lets_clicks_through:
                found.append(Surface(xid, window.pid, window.title, box, is_popup))
        return found

    def early_s(self, x: int, y: int) -> float:
        """How much longer a click there would be ignored, because what is there has just appeared."""
        if not self.num_popups:
            return 0.0
        above = [surface for surface in self.surfaces() if holds(surface.box, (x, y))]
        if not above or not self._description(above[-1].xid).ignores_early_clicks:
            return 0.0
        return max(0.0, _EARLY_S - self._top_level.age_s(above[-1].xid))

    def activate(self, xid: int) -> None:
        """Ask the window manager to raise and focus a window."""
        self._client_message(xid, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def sync_window_manager(self, timeout_s: float) -> bool:
        """Wait until the window manager has dealt with all that happened before; False when it has not in time.

        It answers requests in their order, and the only one that any window may make, and that changes nothing on the screen,
        is to be told its frame's size (EWMH, _NET_REQUEST_FRAME_EXTENTS).
        """
        deadline = time.monotonic() + timeout_s
        before = self._num_extents
        self._client_message(self._helper.id, "_NET_REQUEST_FRAME_EXTENTS", [0] * 5)
        while self._num_extents == before and time.monotonic() < deadline:
            self.wait_for_event(deadline - time.monotonic())
        return self._num_extents != before

    def sync_clicks(self, timeout_s: float) -> None:
        """Wait until the window manager has passed on every click, at most ``timeout_s``.

        Before, whatever is sent to the application overtakes the click: a key, a ping. The server holds back all clicks until
        the first is passed on, so the window manager hears of one at a time.
        """
        deadline = time.monotonic() + timeout_s
        while self._num_held_back and self.sync_window_manager(deadline - time.monotonic()):
            self._num_held_back -= 1
        self._num_held_back = 0

    def close_window(self, xid: int) -> None:
        """Ask a window to close, as its close button would."""
        self._client_message(xid, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def clipboard_owner(self) -> int:
        """Process id of the program that was copied from last, 0 when there is none."""
        owner = self._display.get_selection_owner(self._atom("CLIPBOARD"))
        if not owner:
            return 0
        found = self._display.res_query_client_ids([{"client": owner.id, "mask": res.LocalClientPIDMask}]).ids
        return int(found[0].value[0]) if found and found[0].value else 0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        screen = self._display.screen()
        return screen.width_in_pixels, screen.height_in_pixels

    def pointer(self) -> tuple[int, int]:
        """Where the pointer is."""
        found = self._root.query_pointer()
        return found.root_x, found.root_y

    def geometry(self, xid: int) -> tuple[int, int, int, int]:
        """x, y, width, height of a window on the screen."""
        window = self._display.create_resource_object("window", xid)
        shape = window.get_geometry()
        place = self._root.translate_coords(window, 0, 0)
        return place.x, place.y, shape.width, shape.height

    def is_fullscreen(self, xid: int) -> bool:
        """Is it in full-screen mode?"""
        return "_NET_WM_STATE_FULLSCREEN" in self._states(xid)

    def fills_screen(self, xid: int) -> bool:
        """Is the window as it opens, if it is no dialog: maximised, neither full-screen nor an icon? True when it is gone."""
        try:
            states = set(self._states(xid))
            has_size = self.geometry(xid) == (0, 0, *self.size)
        except (BadWindow, BadDrawable):
            return True
        return has_size and states >= _MAXIMISED and not states & _OTHERWISE_SHOWN

    def _placing(self, xid: int) -> str:
        return f"{self.geometry(xid)} {[name for name in self._states(xid) if name != '_NET_WM_STATE_FOCUSED']}"

    def _states(self, xid: int) -> list[str]:
        window = self._display.create_resource_object("window", xid)
        return sorted(self._display.get_atom_name(atom) for atom in self._numbers(window, "_NET_WM_STATE", Xatom.ATOM))

    def ping(self, xid: int) -> int | None:
        """Ask the window's program to answer once it has taken all input before this; None when it never would."""
        window = self._display.create_resource_object("window", xid)
        try:
            protocols = window.get_wm_protocols()
        except (BadWindow, BadMatch):
            return None
        if self._atom("_NET_WM_PING") not in protocols:
            return None
        self._ping_serial += 1
        message = xevent.ClientMessage(
            window=window,
            client_type=self._atom("WM_PROTOCOLS"),
            data=(32, [self._atom("_NET_WM_PING"), self._ping_serial, xid, 0, 0]),
        )
        window.send_event(message, event_mask=0)
        self._display.flush()
        return self._ping_serial

    def answered(self, ping: int) -> bool:
        """Has the program answered this ping?"""
        return ping in self._pongs

    def _description(self, xid: int) -> Window:
        known = self._described.get(xid)
        # A number may come back as another program's window after its owner died.
        if known is None or not os.path.exists(f"/proc/{known.pid}"):
            known = self._described[xid] = self._describe(xid)
        return known

    def _describe(self, xid: int) -> Window:
        window = self._display.create_resource_object("window", xid)
        # Before anything is read: what changes from then on is told.
        mask = X.PropertyChangeMask | X.StructureNotifyMask
        window.change_attributes(onerror=CatchError(BadWindow), event_mask=mask)  # gone: the next request says so
        pid = self._numbers(window, "_NET_WM_PID", Xatom.CARDINAL)
        kinds = self._numbers(window, "_NET_WM_WINDOW_TYPE", Xatom.ATOM)
        is_dialog = window.get_wm_transient_for() is not None or self._atom("_NET_WM_WINDOW_TYPE_DIALOG") in kinds
        passing = [self._atom(f"_NET_WM_WINDOW_TYPE_{name}") for name in ("TOOLTIP", "DND")]
        takes_clicks = bool(window.shape_get_rectangles(shape.SK.Input).rectangles)
        title = self._bytes(window, "_NET_WM_NAME", self._atom("UTF8_STRING")).decode("utf-8", "replace")
        instance, kind, *_ = [*self._bytes(window, "WM_CLASS", Xatom.STRING).decode("latin-1").split("\0"), ""]
        return Window(
            xid,
            pid[0] if pid else 0,
            title[:MAX_TITLE_CHARS],
            is_dialog,
            kind,
            instance,
            not takes_clicks or any(atom in kinds for atom in passing),
            self._atom("_NET_WM_WINDOW_TYPE_NOTIFICATION") in kinds,
        )

    def _root_property(self, name: str) -> list[int]:
        return self._numbers(self._root, name, X.AnyPropertyType)

    def _numbers(self, window: Any, name: str, kind: int) -> list[int]:
        """A property's numbers; none where a program has put something else there."""
        found = window.get_full_property(self._atom(name), kind, _WHOLE)
        return [int(value) for value in found.value] if found is not None and found.format == 32 else []

    def _bytes(self, window: Any, name: str, kind: int) -> bytes:
        """A property's text, in the same way."""
        found = window.get_full_property(self._atom(name), kind, _WHOLE)
        return found.value if found is not None and isinstance(found.value, bytes) else b""

    def _client_message(self, xid: int, name: str, data: list[int]) -> None:
        window = self._display.create_resource_object("window", xid)
        message = xevent.ClientMessage(window=window, client_type=self._atom(name), data=(32, data))
        self._root.send_event(message, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self._display.flush()

    def _atom(self, name: str) -> int:
        if name not in self._atoms:
            self._atoms[name] = self._display.intern_atom(name)
        return self._atoms[name]
