"""What the X server remembers for everybody: locks, selections, settings of keyboard and pointer. A reset puts it back.

No application owns it, so no application's end takes it away. What cannot be put back is an error: the desktop is started anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from Xlib import X
from Xlib.display import Display as XDisplay
from Xlib.error import BadWindow
from Xlib.ext import res, xtest
from Xlib.protocol import request

from ..faults import DesktopError
from . import x_devices
from .x_keyboard_state import KeyboardExtension

if TYPE_CHECKING:
    from .keyboard import Keyboard

_SELECTIONS = ("PRIMARY", "SECONDARY", "CLIPBOARD")
_KEYBOARD = ("key_click_percent", "bell_percent", "bell_pitch", "bell_duration")
_LOCKS = 0x60FF
"""Modifiers and the layout in use, as `query_pointer` shows them."""
_BUTTONS = {mask: number for number, mask in enumerate((1 << bit for bit in range(8, 13)), start=1)}
"""A button held down, as `query_pointer` shows it -> its number."""
_CHANGING = ("_NET_ACTIVE_WINDOW", "_NET_CLIENT_LIST", "_NET_CLIENT_LIST_STACKING")
"""Properties of the root window that the window manager changes all the time."""
_OF_THE_WINDOW_MANAGER = ("_NET_", "_OB_", "_OPENBOX_")
"""Beginnings of properties by which it only tells: written by another program, they do not say what it does."""
_ATTRIBUTES = ("backing_store", "bit_gravity", "win_gravity", "save_under", "do_not_propagate_mask")
"""Of the root window, which has no owner that would set them again."""
_OF_TOOLKITS = ("GDK_VISUALS",)
"""Properties that come with the first application of a kind."""
_WHOLE = 65536
_ALL_DEVICES = 0


class XState:
    """As it was when the desktop began."""

    def __init__(self, display: XDisplay, keyboard: Keyboard) -> None:
        self._display, self._keyboard = display, keyboard
        self._root = display.screen().root
        self._extension = KeyboardExtension(display)
        self._first = self._settings()
        self._properties: dict[str, Any] = {}
        self._manager_windows: Mapping[int, Mapping[str, Any]] = {}
        """Properties of each window of the window manager's own, by the window's id."""
        self._surroundings: Mapping[str, Any] = {}
        self._names: dict[int, str] = {}
        """Of atoms."""

    def note(self) -> None:
        """All applications run: what they and the window manager have told by now belongs to the desktop."""
        self._properties = self._read_properties(self._property_names())
        self._manager_windows = self._read_manager_windows()
        self._surroundings = self._read_surroundings()

    def describe(self) -> dict[str, str]:
        """All that `put_back` cares for, as text."""
        owners = {name: bool(self._display.get_selection_owner(self._display.get_atom(name))) for name in _SELECTIONS}
        properties = self._read_properties(self._property_names())
        now = {**self._settings(), **self._read_surroundings(), **properties, **owners}
        windows = self._read_manager_windows().values()  # without their ids, which change with the manager's settings
        now["properties of the window manager's windows"] = sorted(repr(sorted(found.items())) for found in windows if found)
        return {name: repr(value) for name, value in now.items() if name not in _OF_TOOLKITS}

    def release_primary(self, pid: int) -> None:
        """Take the selection PRIMARY from process ``pid`` if it owns it."""
        owner = self._display.get_selection_owner(self._display.get_atom("PRIMARY"))
        if owner == X.NONE:
            return
        found = self._display.res_query_client_ids([{"client": owner.id, "mask": res.LocalClientPIDMask}]).ids
        if any(pid in client.value for client in found):
            self._disown("PRIMARY")

    def _disown(self, selection: str) -> None:
        request.SetSelectionOwner(
            display=self._display.display, window=X.NONE, selection=self._display.get_atom(selection), time=X.CurrentTime
        )

    def put_back(self, *, programs: frozenset[int] | None = None) -> None:
        """Make it so again. Raises `DesktopError` naming what stays different.

        ``programs``: process ids of the desktop's own, after programs of the agent's have run: those can change things that
        mouse and keyboard cannot.
        """
        display = self._display
        for name in _SELECTIONS:
            self._disown(name)
        self._let_go()
        different = self._put_back_settings() + self._put_back_properties(programs is not None)
        if programs is not None:
            self._end_clients(programs)
            self._put_back_manager_windows()
            self._root.change_attributes(background_pixel=display.screen().black_pixel, cursor=X.NONE)
            now = self._read_surroundings()
            different += [name for name, value in self._surroundings.items() if now[name] != value]
        if different:
            raise DesktopError(f"the X server does not take back: {', '.join(different)}")

    def _let_go(self) -> None:
        """Release keys and buttons that a program holds down."""
        for byte, bits in enumerate(self._display.query_keymap()):
            for bit in range(8):
                if bits >> bit & 1:
                    xtest.fake_input(self._display, X.KeyRelease, byte * 8 + bit)
        held = self._root.query_pointer().mask
        for mask, number in _BUTTONS.items():
            if held & mask:
                xtest.fake_input(self._display, X.ButtonRelease, number)

    def _put_back_settings(self) -> list[str]:
        display, first, now = self._display, self._first, self._settings()
        if now == first:
            return []
        if now["locks"] != first["locks"]:
            self._extension.unlock(first["locks"])
        if now["keyboard"] != first["keyboard"] or now["repeat"] != first["repeat"]:
            display.change_keyboard_control(**first["keyboard"], auto_repeat_mode=first["repeat"])
        if now["pointer"] != first["pointer"]:
            numerator, denominator, threshold = first["pointer"]
            display.change_pointer_control(accel=(numerator, denominator), threshold=threshold)
        if now["buttons"] != first["buttons"]:
            display.set_pointer_mapping(first["buttons"])
        if now["saver"] != first["saver"]:
            display.set_screen_saver(*first["saver"])
        left = self._settings()
        return [name for name in first if left[name] != first[name]]

    def _put_back_properties(self, with_values: bool) -> list[str]:
        names = self._property_names()
        for name in names:
            may_be_new = name.startswith(_OF_THE_WINDOW_MANAGER) or name in _OF_TOOLKITS
            if name not in self._properties and (with_values or not may_be_new):
                self._root.delete_property(self._display.get_atom(name))
        if not with_values:
            return []
        different = []
        now = self._read_properties(names)
        for name, (kind, format_, value) in self._properties.items():
            if now.get(name) == (kind, format_, value):
                continue
            if name.startswith(_OF_THE_WINDOW_MANAGER):
                different.append(name)
            else:
                self._root.change_property(self._display.get_atom(name), kind, format_, value)
        return different

    def _put_back_manager_windows(self) -> None:
        """Its windows live as long as the desktop, and every program may write to them."""
        known = {repr(item) for first in self._manager_windows.values() for item in first.items()}
        for number, found in self._read_manager_windows().items():
            window, first = self._window(number), self._manager_windows.get(number)
            if first is None:  # made anew, as the manager does when it reads its settings
                first = {name: value for name, value in found.items() if repr((name, value)) in known}
            for name in found.keys() - first.keys():
                window.delete_property(self._display.get_atom(name))
            for name, (kind, format_, value) in first.items():
                if found.get(name) != (kind, format_, value):
                    window.change_property(self._display.get_atom(name), kind, format_, value)

    def _read_manager_windows(self) -> dict[int, dict[str, Any]]:
        """Windows without a frame of an application in them: those are gone with it."""
        owner = self._root.get_full_property(self._display.get_atom("_NET_SUPPORTING_WM_CHECK"), X.AnyPropertyType)
        if owner is None:
            return {}
        clients = self._display.res_query_clients().clients
        bases = {client.resource_base for client in clients if owner.value[0] & ~client.resource_mask == client.resource_base}
        masks = {client.resource_mask for client in clients}
        found, pending = {}, list(self._root.query_tree().children)
        while pending:
            window = pending.pop()
            if not any(window.id & ~mask in bases for mask in masks):
                continue
            try:
                names = [self._name(atom) for atom in window.list_properties()]
                found[window.id] = self._read_properties(names, window)
                pending += window.query_tree().children
            except BadWindow:
                continue  # a frame that went meanwhile
        return found

    def _window(self, number: int) -> Any:
        return self._display.create_resource_object("window", number)

    def _property_names(self) -> list[str]:
        names = [self._name(atom) for atom in self._root.list_properties()]
        return [name for name in names if name not in _CHANGING]

    def _name(self, atom: int) -> str:
        if atom not in self._names:
            self._names[atom] = self._display.get_atom_name(atom)
        return self._names[atom]

    def _read_properties(self, names: Collection[str], window: Any = None) -> dict[str, Any]:
        """Properties of ``window``; None: of the root window."""
        found = {}
        for name in names:
            read = (window or self._root).get_full_property(self._display.get_atom(name), X.AnyPropertyType, _WHOLE)
            if read is not None:
                value = read.value
                found[name] = (read.property_type, read.format, value if isinstance(value, bytes) else list(value))
        return found

    def _end_clients(self, programs: frozenset[int]) -> None:
        """Forget what programs that have ended asked the server to keep."""
        bases = [client.resource_base for client in self._display.res_query_clients().clients if client.resource_base]
        specs = [{"client": base, "mask": res.LocalClientPIDMask} for base in bases]
        owners = {found.spec.client: found.value for found in self._display.res_query_client_ids(specs).ids}
        for base in bases:
            if not programs.intersection(owners.get(base, ())):
                request.KillClient(display=self._display.display, resource=base)

    def _read_surroundings(self) -> Mapping[str, Any]:
        """What is no setting of the core protocol: input devices with their properties, fonts, hosts, monitors."""
        display = self._display
        devices = display.xinput_query_device(_ALL_DEVICES).devices
        access = display.list_hosts()
        attributes = self._root.get_attributes()
        return {
            **x_devices.read(display),
            "attributes of the root window": {name: getattr(attributes, name) for name in _ATTRIBUTES},
            "lights": display.get_keyboard_control().led_mask,
            "controls": self._extension.controls(ignore=self._keyboard.spare_codes()),
            "devices": [(d.deviceid, d.use, d.attachment, d.enabled, d.name) for d in devices],
            "properties of devices": {device.deviceid: self._device_properties(device.deviceid) for device in devices},
            "fonts": display.get_font_path(),
            "hosts": (access.mode, [repr(host) for host in access.hosts]),
            "monitors": [
                (monitor.x, monitor.y, monitor.width_in_pixels, monitor.height_in_pixels)
                for monitor in self._root.xrandr_get_monitors().monitors
            ],
        }

    def _device_properties(self, device: int) -> dict[str, Any]:
        found = {}
        for atom in self._display.xinput_list_device_properties(device).atoms:
            read = self._display.xinput_get_device_property(device, atom, X.AnyPropertyType, 0, _WHOLE)
            found[self._name(atom)] = repr(read.value)
        return found

    def _settings(self) -> Mapping[str, Any]:
        display = self._display
        size = self._root.get_geometry()
        keyboard, pointer, saver = display.get_keyboard_control(), display.get_pointer_control(), display.get_screen_saver()
        return {
            "locks": self._root.query_pointer().mask & _LOCKS,
            "keyboard": {name: getattr(keyboard, name) for name in _KEYBOARD},
            "repeat": keyboard.global_auto_repeat,
            "pointer": (pointer.accel_num, pointer.accel_denom, pointer.threshold),
            "buttons": list(display.get_pointer_mapping()),
            "saver": (saver.timeout, saver.interval, saver.prefer_blanking, saver.allow_exposures),
            "size": (size.width, size.height),
            "keys": self._keyboard.fixed_codes(),
            "modifiers": [list(row) for row in display.get_modifier_mapping()],
        }
