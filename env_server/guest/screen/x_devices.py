"""What X extensions keep for the whole screen and no application owns: buttons of pointers, the keyboard, RANDR's screen.

A program can change all of it, and mouse and keyboard cannot. It is read as the server sends it, to be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from Xlib import X
from Xlib.display import Display as XDisplay
from Xlib.protocol import rq

_INPUT, _KEYBOARD = "XInputExtension", "XKEYBOARD"
_SLAVE_POINTER = 3
"""Use of an input device (XI2.h)."""
_GET_BUTTONS = 28
"""Request about one device (XIproto.h)."""
_HEAD_BYTES = 24
"""Of a reply, after its first eight bytes."""
_CORE_KEYBOARD = 0x100
_MAP_WITHOUT_SYMBOLS = 0xF1
"""Types, actions, behaviours and virtual modifiers; symbols are compared by themselves, without those that typing borrows."""
_KEYBOARD_REQUESTS: Mapping[str, tuple[int, bytes]] = {
    "map": (8, b"".join(number.to_bytes(2, "little") for number in (_CORE_KEYBOARD, _MAP_WITHOUT_SYMBOLS, 0)) + bytes(18)),
    "compatibility": (10, _CORE_KEYBOARD.to_bytes(2, "little") + b"\x0f\x01" + bytes(4)),
    "indicators": (13, _CORE_KEYBOARD.to_bytes(2, "little") + bytes(2) + b"\xff" * 4),
    "names": (17, _CORE_KEYBOARD.to_bytes(2, "little") + bytes(2) + b"\xff\x3f\0\0"),
}
"""Part of the keyboard extension's description -> request and its arguments (XKBproto.h)."""
_WHOLE = 65536


class _Ask(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Card8("minor"), rq.RequestLength(), rq.Binary("arguments"))
    _reply = rq.Struct(
        rq.ReplyCode(),
        rq.Card8("kind"),
        rq.Card16("sequence_number"),
        rq.ReplyLength(),
        rq.FixedBinary("head", _HEAD_BYTES),
        rq.Binary("rest"),
    )


def read(display: Any) -> dict[str, Any]:
    """All of it."""
    keyboard = {name: _ask(display, _KEYBOARD, *request) for name, request in _KEYBOARD_REQUESTS.items()}
    pointers = [device.deviceid for device in display.xinput_query_device(0).devices if device.use == _SLAVE_POINTER]
    buttons = {device: _buttons(display, device) for device in pointers}
    return {"parts of the keyboard": keyboard, "buttons of devices": buttons, "screen": _screen(display)}


def _ask(display: Any, extension: str, minor: int, arguments: bytes) -> bytes:
    opcode = display.query_extension(extension).major_opcode
    reply = _Ask(display=display.display, opcode=opcode, minor=minor, arguments=arguments)
    return bytes(reply.head) + bytes(reply.rest)


def _buttons(display: Any, device: int) -> bytes:
    found = _ask(display, _INPUT, _GET_BUTTONS, bytes([device, 0, 0, 0]))
    return found[_HEAD_BYTES : _HEAD_BYTES + found[0]]


def _screen(display: Any) -> dict[str, Any]:
    root = display.screen().root
    resources = root.xrandr_get_screen_resources()
    connection = XDisplay(display.get_display_name())  # the size in millimetres is told to new clients alone
    try:
        size = connection.screen()
        millimetres = (size.width_in_mms, size.height_in_mms)
    finally:
        connection.close()
    return {
        "millimetres": millimetres,
        "modes": (str(resources.mode_names), [mode.id for mode in resources.modes]),
        "primary output": root.xrandr_get_output_primary().output,
        "monitors": [(m.name, m.primary, m.automatic, m.width_in_millimeters) for m in root.xrandr_get_monitors().monitors],
        "outputs": {output: _output(display, output, resources.config_timestamp) for output in resources.outputs},
        "gamma": [_gamma(display, crtc) for crtc in resources.crtcs],
    }


def _output(display: Any, output: int, timestamp: int) -> tuple[Any, ...]:
    properties = {}
    for atom in display.xrandr_list_output_properties(output).atoms:
        value = display.xrandr_get_output_property(output, atom, X.AnyPropertyType, 0, _WHOLE).value
        properties[display.get_atom_name(atom)] = repr(value)
    return list(display.xrandr_get_output_info(output, timestamp).modes), properties


def _gamma(display: Any, crtc: int) -> list[list[int]]:
    found = display.xrandr_get_crtc_gamma(crtc)
    return [list(found.red), list(found.green), list(found.blue)]
