"""Chromium: one app-mode window that shows MiniWoB++ pages or a task's own; DevTools over a pipe opens and reads them, no more.

The agent has no address bar and no developer tools: it acts through real X11 input only, and the browser's own shortcuts are
refused by name (`refused_keys`). Rewards are read from the page's globals, raw and binary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files.folder import remove
from ..processes import Program
from .devtools import ChromiumGone, DevTools, value_of
from .page_reach import MISSED, Missed, missed_from
from .page_scripts import EVERY_PAGE, MARK, MAX_SHAPES, NEW_PAGE, PAINTED, SHAPES, START, STARTED, STATE

__all__ = ["FLAGS", "MARK", "PROGRAM", "Chromium", "ChromiumGone", "PageError", "refused_keys"]

PROGRAM = "/usr/lib/chromium/chromium"
FLAGS = (
    "--no-sandbox", "--test-type", "--disable-gpu", "--no-first-run", "--no-default-browser-check",
    "--force-renderer-accessibility", "--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--disable-breakpad", "--disable-crash-reporter", "--password-store=basic",
    "--no-pings", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling", "--disable-smooth-scrolling", "--disable-infobars",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,PasswordManagerOnboarding,"
    "BackForwardCache",  # keeps pages that nothing goes back to
    "--disable-dev-shm-usage", "--blink-settings=caretBlinkInterval=0", "--disable-search-engine-choice-screen",
    "--disable-session-crashed-bubble", "--hide-crash-restore-bubble",
    "--disable-input-event-activation-protection",  # else clicks within half a second of a dialog's appearance do nothing
)  # fmt: skip
"""What every Chromium here is started with."""

_EDIT_KEYS = frozenset("acvxzy") | {"left", "right", "home", "end", "backspace", "delete", "up", "down", "enter", "return"}
_TEMPORARY = "tmp"
"""Folder of the profile for sockets and memory that it shares with its helpers."""
_TASK_WIDTH, _TASK_HEIGHT = 160, 210
"""CSS pixels of a MiniWoB++ page's task area."""

_FILE_LOADED = "new Promise(done => document.readyState === 'complete' ? done(true) : addEventListener('load', () => done(true)))"
_RESULT = "window.result === undefined ? null : window.result"


class PageError(RuntimeError):
    """The page has no such task."""


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
    """The browser and its DevTools pipe."""

    name = "chromium"
    window_kind = ""

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, width: int, height: int, pages: Path) -> None:
        self._pages = pages
        self.folder = Path(env["HOME"]) / "chromium"
        """Its profile."""
        self._first: frozenset[Path] = frozenset()
        """What its profile holds by its own doing; empty: not known."""
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
        )
        self._tools = DevTools(self.program)
        self._session: str | None = None
        self._page = ""
        self._is_own = False
        self._num_flushes = 0
        self._missed: list[Missed] = []
        self.frame_mark = ""
        """Name of the mark the tree shows once it is as new as the last flush; empty: no page."""

    @property
    def is_web_task(self) -> bool:
        """Is a MiniWoB++ page open? None of them begins with a dialog, which would keep the page from being painted."""
        return bool(self._page) and not self._is_own

    def fileno(self) -> int:
        """For poll."""
        return self._tools.fileno()

    def start(self) -> None:
        """Start the browser; it is ready once `connect` returns."""
        self._session, self._page = None, ""
        (self.folder / _TEMPORARY).mkdir(parents=True, exist_ok=True)
        self._tools.start()

    def end(self) -> None:
        """End it and forget its profile; it is started anew when it is needed."""
        self._tools.close()
        self.program.kill()
        self._session, self._first = None, frozenset()
        remove(self.folder)

    def note(self) -> None:
        """No agent has had more than its page: what its profile holds by now is its own."""
        found = (*self.folder.glob("*"), *self.folder.glob("*/*"))
        self._first |= frozenset(path for path in found if path.parent.name != _TEMPORARY)

    def changes(self, *, timeout_s: float) -> list[str]:
        """An agent has nothing but the page: its settings stay. See `kept` for what others put beside them."""
        return []

    def profile(self) -> list[Path]:
        """Where all its files lie."""
        return [self.folder]

    def kept(self) -> list[Path]:
        """Its own files and folders; what came later it can do without."""
        parents = {path.parent for path in self._first}
        return sorted(self._first - parents)

    def connect(self, *, timeout_s: float) -> None:
        """Wait until the page can be driven. Raises `ChromiumGone`."""
        if self._session is not None:
            return
        deadline = time.monotonic() + timeout_s
        page = self._tools.wait_for_page(deadline=deadline)
        attached = self._call("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True}, deadline=deadline)
        self._session = attached["sessionId"]
        self._call("Page.enable", deadline=deadline)
        self._call("Page.addScriptToEvaluateOnNewDocument", {"source": EVERY_PAGE}, deadline=deadline)

    def open_page(self, page: str, seed: int, *, timeout_s: float) -> None:
        """Load a MiniWoB++ page afresh and start the instance of ``seed``."""
        if not page.replace("-", "").isalnum() or not Path(f"{self._pages}/miniwob/{page}.html").is_file():
            raise PageError(f"there is no page {page!r}")
        deadline = time.monotonic() + timeout_s
        self._close_other_pages(deadline)
        script = self._call("Page.addScriptToEvaluateOnNewDocument", {"source": NEW_PAGE % (START % seed)}, deadline=deadline)
        try:
            self._call("Page.navigate", {"url": f"file://{self._pages}/miniwob/{page}.html"}, deadline=deadline)
            self._page, self._is_own = page, False
            self._evaluate(STARTED, deadline=deadline)
        finally:
            # No later page may start this instance.
            self._call("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script["identifier"]}, deadline=deadline)

    def open_file(self, place: Path, *, timeout_s: float) -> None:
        """Load a task's own page. It keeps what `result` reads in ``window.result``."""
        if not place.is_file():
            raise PageError(f"there is no page {place.name}")
        deadline = time.monotonic() + timeout_s
        self._close_other_pages(deadline)
        self._call("Page.navigate", {"url": place.as_uri()}, deadline=deadline)
        self._page, self._is_own = place.name, True
        self._evaluate(_FILE_LOADED, deadline=deadline)

    def leave_page(self) -> None:
        """Forget the task; the page stays loaded below other windows."""
        self._page = self.frame_mark = ""
        self._missed = []
        self._is_own = False

    def result(self, *, timeout_s: float = 2.0) -> Any:
        """What a task's own page keeps for its evaluator; None before that."""
        if not self._is_own:
            raise PageError("no page of a task's own is open")
        return self._evaluate(_RESULT, deadline=time.monotonic() + timeout_s)

    def has_scored(self, *, timeout_s: float) -> bool:
        """Has a MiniWoB++ page given its verdict? Other pages give none."""
        return not self._is_own and bool(self.state(timeout_s=timeout_s)["done"])

    def state(self, *, timeout_s: float) -> dict[str, Any]:
        """What the page says about its episode."""
        if not self._page or self._is_own:
            raise PageError("no MiniWoB++ page is open")
        return dict(self._evaluate(STATE, deadline=time.monotonic() + timeout_s))

    def shapes(self, *, timeout_s: float = 2.0) -> list[dict[str, Any]]:
        """What a picture of the page shows: its leaves and shapes in document order, in screen pixels."""
        if not self._page:
            raise PageError("no page is open")
        return list(self._evaluate(SHAPES % MAX_SHAPES, deadline=time.monotonic() + timeout_s))

    def ask_missed(self) -> Callable[[], list[Missed]]:
        """See `page_reach`: as of the last flush."""
        return lambda: self._missed

    def start_flush(self) -> int:
        """Ask for two painted frames with a new `frame_mark`, and what is missed then; `flushed` tells when they are there."""
        self._num_flushes += 1
        self.frame_mark = f"{MARK}{self._num_flushes}"
        self._missed = []
        script = PAINTED % (self.frame_mark, MISSED)
        params = {"expression": script, "awaitPromise": True, "returnByValue": True}
        return self._tools.send("Runtime.evaluate", params, session=self._session)

    def flushed(self, request: int) -> bool:
        """Has the page painted since `start_flush`?"""
        answer = self._tools.answer(request)
        if answer is None:
            return False
        self._missed = missed_from(value_of(answer))
        return True

    def _close_other_pages(self, deadline: float) -> None:
        pages = self._tools.pages(deadline=deadline)
        for target in pages:
            if not target["attached"] and len(pages) > 1:
                self._tools.close_page(target["targetId"], deadline=deadline)

    def _evaluate(self, expression: str, *, deadline: float) -> Any:
        params = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self._call("Runtime.evaluate", params, deadline=deadline)
        if "exceptionDetails" in answer:
            raise PageError(f"page script failed: {answer['exceptionDetails'].get('exception', {}).get('description', '')[:200]}")
        return answer["result"].get("value")

    def _call(self, method: str, params: Mapping[str, Any] | None = None, *, deadline: float) -> dict[str, Any]:
        session = None if method.startswith("Target.") else self._session
        return self._tools.call(method, params, deadline=deadline, session=session)
