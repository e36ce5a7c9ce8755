"""Chromium for web tasks: one app-mode window that shows MiniWoB++ pages or a task's own, its process and its profile.

The agent has no address bar and no developer tools, and the browser's own shortcuts are refused by name (`refused_keys`). The
page itself is `task_page`'s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ..files.folder import remove
from ..processes import Program
from .devtools import DevTools
from .task_page import TaskPage

PROGRAM = "/usr/lib/chromium/chromium"
PIPE = "--remote-debugging-pipe"
FLAGS = (
    "--no-sandbox", "--test-type", "--disable-gpu", "--no-first-run", "--no-default-browser-check",
    "--force-renderer-accessibility", PIPE, "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--disable-breakpad", "--disable-crash-reporter", "--password-store=basic",
    "--no-pings", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling", "--disable-smooth-scrolling", "--disable-infobars",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,PasswordManagerOnboarding,"
    "BackForwardCache",  # keeps pages that nothing goes back to
    "--disable-dev-shm-usage", "--blink-settings=caretBlinkInterval=0", "--disable-search-engine-choice-screen",
    "--disable-session-crashed-bubble", "--hide-crash-restore-bubble",
    "--disable-input-event-activation-protection",  # else clicks within half a second of a dialog's appearance do nothing
)  # fmt: skip
"""Options of every Chromium here."""

_EDIT_KEYS = frozenset("acvxzy") | {"left", "right", "home", "end", "backspace", "delete", "up", "down", "enter", "return"}
_TEMPORARY = "tmp"
"""Folder of the profile for sockets and memory that it shares with its helpers."""
_TASK_WIDTH, _TASK_HEIGHT = 160, 210
"""CSS pixels of a MiniWoB++ page's task area."""


def refused_keys(keys: str) -> bool:
    """Is this chord one of the browser's own shortcuts (new window, address, source, tools)?"""
    *modifiers, key = [part.strip().lower() for part in keys.split("+")]
    held = {name for name in modifiers if name not in ("shift", "")}
    if key.startswith("f") and key[1:].isdigit():
        return True
    if "shift" in modifiers and held:
        return key not in {"left", "right", "home", "end", "z"}
    return bool(held - {"ctrl", "control"}) or (bool(held) and key not in _EDIT_KEYS)


class Chromium:
    """The browser of web tasks."""

    name = "chromium"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, width: int, height: int, pages: Path) -> None:
        self.folder = Path(env["HOME"]) / "chromium"
        """Its profile."""
        self._first: frozenset[Path] = frozenset()
        """Files and folders of the profile that the browser itself has made; empty: not known."""
        self.scale = max(1.0, int(min(width / _TASK_WIDTH, height / _TASK_HEIGHT) * 4) / 4)
        """Device pixels per CSS pixel: the task area fills the screen's height."""
        self.program = Program(
            self.name,
            [
                PROGRAM,
                f"--user-data-dir={self.folder}",
                *FLAGS,
                "--disable-extensions",
                "--renderer-process-limit=1",
                f"--force-device-scale-factor={self.scale}",
                "--window-position=0,0",
                f"--window-size={width},{height}",
                f"--app=file://{pages}/miniwob/click-button.html",
            ],
            env={**env, "TMPDIR": str(self.folder / _TEMPORARY)},
            log_folder=log_folder,
            sends_files=True,
        )
        self._tools = DevTools(self.program)
        self.page = TaskPage(self._tools, pages)
        """The page of the web task."""

    def fileno(self) -> int:
        """Descriptor of the DevTools pipe, for poll."""
        return self._tools.fileno()

    def start(self) -> None:
        """Start the browser; it is ready once `connect` returns."""
        self.page.detach()
        (self.folder / _TEMPORARY).mkdir(parents=True, exist_ok=True)
        self._tools.start()

    def end(self) -> None:
        """End it and forget its profile; it is started anew when it is needed."""
        self._tools.close()
        self.program.kill()
        self.page.detach()
        self._first = frozenset()
        remove(self.folder)

    def note(self) -> None:
        """Count the profile's files so far as the browser's own: no agent has had more than its page."""
        found = (*self.folder.glob("*"), *self.folder.glob("*/*"))
        self._first |= frozenset(path for path in found if path.parent.name != _TEMPORARY)

    def changes(self, *, timeout_s: float) -> list[str]:
        """An agent has nothing but the page: its settings stay. See `kept` for what others put beside them."""
        return []

    def profile(self) -> list[Path]:
        """Where all its files lie."""
        return [self.folder]

    def kept(self) -> list[Path]:
        """Its own files and folders; it can do without those that came later."""
        parents = {path.parent for path in self._first}
        return sorted(self._first - parents)

    def connect(self, *, timeout_s: float) -> None:
        """Wait until the page can be driven. Raises `ChromiumGone`."""
        self.page.attach(deadline=time.monotonic() + timeout_s)
