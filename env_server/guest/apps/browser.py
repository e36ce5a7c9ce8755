"""The free browser: an ordinary Chromium window with tabs and an address bar, beside the locked one of the web tasks.

A process and profile of its own, so nothing done here reaches the pages that give rewards. DevTools open pages and tell which
are open; clicks and keys are real input.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..web import chromium
from ..web.devtools import ChromiumGone, DevTools
from ..web.page_reach import MISSED, Missed, missed_from
from ..web.sites import Sites
from .on_demand import OnDemandApp, Surroundings, Tools

PAGE_ENDINGS = (".html", ".htm", ".pdf", ".svg", ".mhtml")
_SETTINGS = ".config/chromium"
_CALL_LIMIT_S = 3.0
_LOAD_LIMIT_S = 10.0
_PAGE_LIMIT_S = 1.0
"""For what one page says of itself: a script that never ends, or a dialog, keeps it from answering."""
_PAGES_LIMIT_S = 5.0
"""For what all pages say of themselves: an agent may open any number of them."""
_MISSED_LIMIT_S = 0.5
_QUIT_LIMIT_S = 5.0
_POLL_S = 0.05
_MAX_CONTENT_CHARS, _MAX_ADDRESS_CHARS = 2_000_000, 10_000
"""Of a page's HTML, and of its address and title: a script may make them as long as it likes."""
_CONTENT = f"document.visibilityState === 'visible' ? document.documentElement.outerHTML.slice(0, {_MAX_CONTENT_CHARS}) : ''"
_BLANK = "about:blank"
_LOADED = f"location.href !== '{_BLANK}' && document.readyState === 'complete'"
PAGES: Mapping[str, str] = {
    "open_profile_settings": "chrome://settings/people",
    "open_password_settings": "chrome://password-manager/passwords",
    "open_privacy_settings": "chrome://settings/privacy",
    "open_appearance_settings": "chrome://settings/appearance",
    "open_search_engine_settings": "chrome://settings/search",
    "open_extensions": "chrome://extensions/",
    "open_bookmarks": "chrome://bookmarks/",
}


class Browser(OnDemandApp):
    """Chromium with its whole window."""

    name = "browser"
    label = "the browser"
    program_file = chromium.PROGRAM

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._devtools = DevTools(self.program)
        self.sites = Sites(self._devtools, around.copy)
        """Web sites, for tasks that have some."""

    @cached_property
    def tools(self) -> BrowserTools:
        """See `BrowserTools`."""
        return BrowserTools(self)

    def arguments(self) -> Sequence[str]:
        """One window on an empty page."""
        return [f"--user-data-dir={self.settings_folder}", *chromium.FLAGS, "--start-maximized", _BLANK]

    def settings(self) -> Mapping[str, str]:
        """Downloads go to the agent's folder; no questions, no bubbles."""
        preferences = {
            "download": {"default_directory": str(self.around.folder.root), "prompt_for_download": False},
            "browser": {
                "show_home_button": False,
                "check_default_browser": False,
                "custom_chrome_frame": False,
                "has_seen_welcome_page": True,
            },
            "bookmark_bar": {"show_on_all_tabs": False},
            "credentials_enable_service": True,
            "signin": {"allowed": False},
            "savefile": {"default_directory": str(self.around.folder.root)},
        }
        return {f"{_SETTINGS}/Default/Preferences": json.dumps(preferences)}

    def launch(self) -> None:
        """Start it with its pipe."""
        self.sites.stop()
        self._devtools.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait for its first page."""
        deadline = time.monotonic() + timeout_s
        self._devtools.wait_for_page(deadline=deadline)
        self._devtools.watch_pages(deadline=deadline)
        self.sites.begin(deadline=deadline)

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Show a file in a tab and wait until it has loaded."""
        self.open_and_wait(place.as_uri(), limit_s=min(_LOAD_LIMIT_S, timeout_s / 2))

    def close(self) -> None:
        """See `OnDemandApp`."""
        self.sites.stop()
        self._devtools.close()
        super().close()

    def quit(self) -> None:
        """End it as a person would, so that its settings are on disk."""
        if not self.program.running:
            return
        with suppress(ChromiumGone):  # it may end before it has answered
            self._devtools.call("Browser.close", deadline=time.monotonic() + _CALL_LIMIT_S)
        deadline = time.monotonic() + _QUIT_LIMIT_S
        while self.program.running and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.program.kill()

    @property
    def settings_folder(self) -> Path:
        """Where its settings lie."""
        return self.home / _SETTINGS

    def open_page(self, address: str) -> str:
        """Show a page in a new tab, which takes the place of the empty one that the window began with; gives its id."""
        deadline = time.monotonic() + _CALL_LIMIT_S
        empty = [page["targetId"] for page in self.pages() if page["url"] == _BLANK]
        made = self._devtools.call("Target.createTarget", {"url": address}, deadline=deadline)
        for target in empty:
            self._devtools.close_page(target, deadline=deadline)
        return str(made["targetId"])

    def open_and_wait(self, address: str, *, limit_s: float = _LOAD_LIMIT_S) -> None:
        """Show a page in a new tab and wait until it has loaded, at most ``limit_s``."""
        target = self.open_page(address)
        deadline = time.monotonic() + (limit_s if address != _BLANK else 0.0)
        while time.monotonic() < deadline:
            # A tab has the address before it has the page: until then an empty document answers, which is complete.
            if self._evaluate(target, _LOADED):
                return
            time.sleep(_POLL_S)

    def close_pages(self, addresses: Collection[str]) -> None:
        """Close every tab that shows one of these."""
        wanted = {address.rstrip("/") for address in addresses}
        for page in self.pages():
            if page["url"].rstrip("/") in wanted:
                deadline = time.monotonic() + _CALL_LIMIT_S
                self._devtools.close_page(page["targetId"], deadline=deadline)

    def tabs(self) -> list[dict[str, str]]:
        """``url``, ``title`` and ``html`` of every tab, the one in front first; the others' content is empty."""
        shown: list[dict[str, str]] = []
        silent: list[dict[str, str]] = []
        hidden: list[dict[str, str]] = []
        deadline = time.monotonic() + _PAGES_LIMIT_S
        for page in self.pages():
            content = self._evaluate(page["targetId"], _CONTENT) if time.monotonic() < deadline else None
            url, title = (str(page[name])[:_MAX_ADDRESS_CHARS] for name in ("url", "title"))
            tab = {"url": url, "title": title, "html": str(content or "")}
            (silent if content is None else shown if content else hidden).append(tab)
        return [*shown, *silent, *hidden]

    def ask_missed(self) -> Callable[[], list[Missed]]:
        """See `page_reach`; nothing where several windows are open: it is not known whose page is seen."""
        try:
            asked = self._devtools.ask_pages(MISSED, deadline=time.monotonic() + _MISSED_LIMIT_S)
        except ChromiumGone:  # it is just ending
            return list
        return partial(self._missed, asked)

    def _missed(self, asked: Mapping[str, int]) -> list[Missed]:
        try:
            answers = self._devtools.answers_of(asked, deadline=time.monotonic() + _MISSED_LIMIT_S)
        except ChromiumGone:
            return []
        shown = [answer for answer in answers if answer is not None]
        return missed_from(shown[0]) if len(shown) == 1 else []

    def _evaluate(self, target: str, expression: str) -> Any:
        """What a page says of itself; None where it does not answer."""
        deadline = time.monotonic() + _PAGE_LIMIT_S
        try:
            attached = self._devtools.call("Target.attachToTarget", {"targetId": target, "flatten": True}, deadline=deadline)
            session = attached["sessionId"]
            params = {"expression": expression, "returnByValue": True}
            answer = self._devtools.call("Runtime.evaluate", params, deadline=deadline, session=session)
            self._devtools.call("Target.detachFromTarget", {"sessionId": session}, deadline=deadline)
        except ChromiumGone:
            if not self.program.running:
                raise
            return None
        return answer["result"].get("value")

    def pages(self) -> list[dict[str, Any]]:
        """Open pages, the newest first: address and title among the rest."""
        return self._devtools.pages(deadline=time.monotonic() + _CALL_LIMIT_S)


class BrowserTools(Tools):
    """One method per action."""

    def __init__(self, browser: Browser) -> None:
        super().__init__(browser.around.folder)
        self._browser = browser

    def open_profile_settings(self) -> str:
        """Page of profiles and people."""
        return self._open("open_profile_settings")

    def open_password_settings(self) -> str:
        """Page of stored passwords."""
        return self._open("open_password_settings")

    def open_privacy_settings(self) -> str:
        """Page of privacy and security."""
        return self._open("open_privacy_settings")

    def open_appearance_settings(self) -> str:
        """Page of appearance."""
        return self._open("open_appearance_settings")

    def open_search_engine_settings(self) -> str:
        """Page of search engines."""
        return self._open("open_search_engine_settings")

    def open_extensions(self) -> str:
        """Page of extensions."""
        return self._open("open_extensions")

    def open_bookmarks(self) -> str:
        """Page of bookmarks."""
        return self._open("open_bookmarks")

    def bring_back_last_tab(self) -> None:
        """The tab closed last comes back."""
        self._press("ctrl+shift+t")

    def print(self) -> None:
        """The print dialog of the page in front."""
        self._press("ctrl+p")

    def delete_browsing_data(self) -> None:
        """The dialog that deletes browsing data."""
        self._press("ctrl+shift+delete")

    def bookmark_page(self) -> None:
        """Bookmark the page in front."""
        self._press("ctrl+d")

    def _press(self, keys: str) -> None:
        self._browser.around.press(self._browser.name, keys)

    def _open(self, method: str) -> str:
        self._browser.open_page(PAGES[method])
        return f"opened {PAGES[method]}"
