"""The page of a web task, in the browser that shows nothing else: opened, painted and judged over DevTools.

Rewards are read from the page's globals, raw and binary. The agent acts through real X11 input only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .devtools import DevTools, value_of
from .page_reach import MISSED, Missed, missed_from
from .page_scripts import EVERY_PAGE, MARK, MAX_SHAPES, NEW_PAGE, PAINTED, SHAPES, START, STARTED, STATE

_FILE_LOADED = "new Promise(done => document.readyState === 'complete' ? done(true) : addEventListener('load', () => done(true)))"
_RESULT = "window.result === undefined ? null : window.result"


class PageError(RuntimeError):
    """The page has no such task."""


class TaskPage:
    """The one page of the browser: a MiniWoB++ page, or a task's own."""

    def __init__(self, tools: DevTools, folder: Path) -> None:
        """``folder``: of the MiniWoB++ pages."""
        self._tools, self._folder = tools, folder
        self._session: str | None = None
        """DevTools' session with the page; None: not attached."""
        self._name = ""
        """The page that a task has opened; empty: none."""
        self._is_own = False
        """Is it a task's own page?"""
        self._num_flushes = 0
        self._missed: list[Missed] = []
        self.frame_mark = ""
        """Name of the mark that the tree shows once it is as new as the last flush; empty: no page."""

    @property
    def is_miniwob(self) -> bool:
        """Is a MiniWoB++ page open? None of them begins with a dialog, which would keep the page from being painted."""
        return bool(self._name) and not self._is_own

    def attach(self, *, deadline: float) -> None:
        """Wait until the page can be driven. Raises `ChromiumGone`."""
        if self._session is not None:
            return
        page = self._tools.wait_for_page(deadline=deadline)
        attached = self._call("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True}, deadline=deadline)
        self._session = attached["sessionId"]
        self._call("Page.enable", deadline=deadline)
        self._call("Page.addScriptToEvaluateOnNewDocument", {"source": EVERY_PAGE}, deadline=deadline)

    def detach(self) -> None:
        """The browser is gone, and the session with its page."""
        self._session, self._name = None, ""

    def open(self, page: str, seed: int, *, timeout_s: float) -> None:
        """Load a MiniWoB++ page afresh and start the instance of ``seed``. Raises `PageError`."""
        if not page.replace("-", "").isalnum() or not Path(f"{self._folder}/miniwob/{page}.html").is_file():
            raise PageError(f"there is no page {page!r}")
        deadline = time.monotonic() + timeout_s
        self._close_others(deadline)
        script = self._call("Page.addScriptToEvaluateOnNewDocument", {"source": NEW_PAGE % (START % seed)}, deadline=deadline)
        try:
            self._call("Page.navigate", {"url": f"file://{self._folder}/miniwob/{page}.html"}, deadline=deadline)
            self._name, self._is_own = page, False
            self._evaluate(STARTED, deadline=deadline)
        finally:
            # No later page may start this instance.
            self._call("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script["identifier"]}, deadline=deadline)

    def open_file(self, place: Path, *, timeout_s: float) -> None:
        """Load a task's own page, which keeps its result in ``window.result``. Raises `PageError`."""
        if not place.is_file():
            raise PageError(f"there is no page {place.name}")
        deadline = time.monotonic() + timeout_s
        self._close_others(deadline)
        self._call("Page.navigate", {"url": place.as_uri()}, deadline=deadline)
        self._name, self._is_own = place.name, True
        self._evaluate(_FILE_LOADED, deadline=deadline)

    def leave(self) -> None:
        """Forget the task; the page stays loaded below other windows."""
        self._name = self.frame_mark = ""
        self._missed = []
        self._is_own = False

    # --- facts ---

    def result(self, *, timeout_s: float = 2.0) -> Any:
        """The result that a task's own page keeps for its evaluator; None before that. Raises `PageError`."""
        if not self._is_own:
            raise PageError("no page of a task's own is open")
        return self._evaluate(_RESULT, deadline=time.monotonic() + timeout_s)

    def has_scored(self, *, timeout_s: float) -> bool:
        """Has a MiniWoB++ page given its verdict? Other pages give none."""
        return not self._is_own and bool(self.state(timeout_s=timeout_s)["done"])

    def state(self, *, timeout_s: float) -> dict[str, Any]:
        """State of a MiniWoB++ page's episode. Raises `PageError`."""
        if not self._name or self._is_own:
            raise PageError("no MiniWoB++ page is open")
        return dict(self._evaluate(STATE, deadline=time.monotonic() + timeout_s))

    def shapes(self, *, timeout_s: float = 2.0) -> list[dict[str, Any]]:
        """Leaves and shapes of the page in document order, in screen pixels, as a picture shows them. Raises `PageError`."""
        if not self._name:
            raise PageError("no page is open")
        return list(self._evaluate(SHAPES % MAX_SHAPES, deadline=time.monotonic() + timeout_s))

    # --- painting ---

    def start_flush(self) -> int:
        """Request two painted frames with a new `frame_mark`, and what a click misses in them; `flushed` takes the number."""
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

    def ask_missed(self) -> Callable[[], list[Missed]]:
        """See `page_reach`: as of the last flush."""
        return lambda: self._missed

    # --- calls ---

    def _close_others(self, deadline: float) -> None:
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
