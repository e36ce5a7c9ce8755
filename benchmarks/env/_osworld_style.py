"""The baseline of `bench env`: observing and acting as OSWorld's server does, inside the same desktop, in the same run.

Written for the benchmark from the published description: one interpreter per call, the tree walked node by node through
the accessibility library, a screenshot by XGetImage encoded as PNG at level 6, fixed pauses (2 s after an action). It runs
as a command of a task does.
"""

from __future__ import annotations

from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop

PAUSE_S = 2.0
"""OSWorld's `DesktopEnv.step(pause=2)`."""

_TREE = """
import sys, xml.etree.ElementTree as ET
import gi
gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib
def node(item, depth):
    element = ET.Element(item.get_role_name().replace(" ", "-") or "unknown")
    element.set("name", item.get_name() or "")
    states = item.get_state_set()
    for state in (Atspi.StateType.SHOWING, Atspi.StateType.VISIBLE, Atspi.StateType.ENABLED, Atspi.StateType.FOCUSED):
        if states.contains(state):
            element.set(state.value_nick, "true")
    component = item.get_component_iface()
    if component is not None:
        box = component.get_extents(Atspi.CoordType.SCREEN)
        element.set("box", f"{box.x},{box.y},{box.width},{box.height}")
    text = item.get_text_iface()
    if text is not None:
        element.text = text.get_text(0, text.get_character_count())
    if depth < 50:
        for index in range(min(item.get_child_count(), 1024)):
            try:
                child = item.get_child_at_index(index)
                if child is not None:
                    element.append(node(child, depth + 1))
            except GLib.GError:  # It went away while it was looked at.
                continue
    return element
desktop = Atspi.get_desktop(0)
root = ET.Element("desktop-frame")
for index in range(desktop.get_child_count()):
    app = desktop.get_child_at_index(index)
    if app is not None and app.get_name() == sys.argv[1]:
        root.append(node(app, 0))
print(len(ET.tostring(root)), sum(1 for _ in root.iter()))
"""

_SCREENSHOT = """
import struct, sys, zlib
from Xlib import X, display
screen = display.Display().screen()
width, height = screen.width_in_pixels, screen.height_in_pixels
data = screen.root.get_image(0, 0, width, height, X.ZPixmap, 0xFFFFFFFF).data
rows = bytearray()
for y in range(height):
    row = data[y * width * 4:(y + 1) * width * 4]
    rgb = bytearray(width * 3)
    rgb[0::3], rgb[1::3], rgb[2::3] = row[2::4], row[1::4], row[0::4]
    rows += b"\\0" + rgb
def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
png += chunk(b"IDAT", zlib.compress(bytes(rows), 6)) + chunk(b"IEND", b"")
print(len(png))
"""


def tree(driver: GuestDriver, app: str) -> tuple[int, int]:
    """Walk the tree of ``app`` (its accessible name, such as ``soffice``) once: (bytes of XML, nodes)."""
    num_bytes, num_nodes = _run(driver, _TREE, app).split()
    return int(num_bytes), int(num_nodes)


def screenshot(driver: GuestDriver) -> int:
    """Take a screenshot once; its size as PNG."""
    return int(_run(driver, _SCREENSHOT))


def _run(driver: GuestDriver, script: str, *args: str) -> str:
    """Run a script with a fresh interpreter inside the desktop, as every call of OSWorld's execute route does."""
    done = CalledDesktop(driver.get).run(["python3", "-c", script, *args], timeout_s=120.0)
    if done.returncode != 0:
        raise RuntimeError(f"the baseline failed inside the desktop: {done.stderr.strip()[-500:]}")
    return done.stdout
