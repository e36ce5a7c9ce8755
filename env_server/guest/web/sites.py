"""Web sites on a desktop without a network: the browser's requests to them are answered here, of a copy or with a stand-in.

DevTools pause each request before it leaves the browser, so neither names nor certificates are needed, and the address stays.
Only tasks that ask for it have sites; `Sites.leave` ends it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .devtools import ChromiumGone, DevTools
from .site_copy import SiteCopy

_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Servers of a task run on the desktop itself."""
_COOKIE_LIFE_S = 30 * 24 * 3600
_STAND_IN = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{address}</title></head>
<body style="font: 16px sans-serif; margin: 3em">
<h1>No network</h1>
<p>This desktop has no network. This page is a stand-in for</p>
<p><b>{address}</b></p>
</body>
</html>
"""


class Sites:
    """Answers one browser's requests to web sites."""

    def __init__(self, tools: DevTools, copy: SiteCopy | None) -> None:
        self._tools, self._copy = tools, copy
        self._shown_copy: SiteCopy | None = None
        """The copy, where the task has pages of it."""
        self._is_shown = self._is_paused = False
        """Does the task have sites; does the browser, as it runs now, pause its requests?"""
        self._waiting: list[dict[str, Any]] = []
        """Requests that the copy is to answer, once it can be asked."""
        self._num_answered = 0

    def fileno(self) -> int | None:
        """Descriptor that tells of requests, for poll; None: there are none to come."""
        return self._tools.fileno() if self._is_paused else None

    def show(self, *, of_copy: bool) -> None:
        """Answer requests from the browser's next start on: with the copy's pages (``of_copy``), and stand-ins for all others."""
        self._is_shown, self._shown_copy = True, self._copy if of_copy else None

    def leave(self) -> None:
        """Answer none any more. The browser ends with the task, and the next one starts without."""
        self._is_shown = False
        self.stop()

    def stop(self) -> None:
        """The browser has ended."""
        self._is_paused = False
        self._tools.on_paused = None
        self._waiting.clear()

    def begin(self, *, deadline: float) -> None:
        """The browser has started: have it pause its requests, if the task has sites. Raises `ChromiumGone`."""
        if not self._is_shown or self._is_paused:
            return
        patterns = [{"urlPattern": f"{scheme}://*"} for scheme in ("http", "https")]
        self._tools.on_paused = self._answer_paused
        self._tools.call("Fetch.enable", {"patterns": patterns}, deadline=deadline)
        self._is_paused = True

    def pump(self) -> bool:
        """Answer what waits; gives whether there was anything."""
        if not self._is_paused:
            return False
        before = self._num_answered
        try:
            self._tools.take_messages()
            self._answer_paused()
        except ChromiumGone:  # it is ending, or has ended
            self._is_paused = False
        return self._num_answered > before

    def _answer_paused(self) -> None:
        requests = [*self._waiting, *self._tools.take_paused()]
        self._waiting = []
        for request in requests:
            address = request["request"]["url"]
            if urlsplit(address).hostname in _OWN_HOSTS:
                self._tools.tell("Fetch.continueRequest", {"requestId": request["requestId"]})
            elif self._shown_copy is not None and not self._shown_copy.host_listens:
                self._waiting.append(request)
            else:
                found = None if self._shown_copy is None else self._shown_copy.find(address)
                self._tools.tell("Fetch.fulfillRequest", fulfilled(request, found))
        self._num_answered += len(requests) - len(self._waiting)


def fulfilled(request: Mapping[str, Any], found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer to a paused request: the copy's file, else a stand-in for a page, and for what belongs to a page nothing (404).

    A stand-in sets a cookie for its site, as sites do: tasks ask for the removal of cookies.
    """
    address = request["request"]["url"]
    headers = {"Cache-Control": "no-store"}
    if found is not None:
        status, body = int(found["status"]), bytes(found["body"])
        headers |= {"Content-Type": str(found["type"]), "Access-Control-Allow-Origin": "*"}
        if found["location"]:
            headers["Location"] = str(found["location"])
    elif request.get("resourceType") == "Document":
        status, body = 200, _STAND_IN.format(address=html.escape(address)).encode()
        domain = (urlsplit(address).hostname or "").removeprefix("www.")
        headers |= {
            "Content-Type": "text/html; charset=utf-8",
            "Set-Cookie": f"stand_in=1; Domain={domain}; Path=/; Max-Age={_COOKIE_LIFE_S}",
        }
    else:
        status, body = 404, b""
    return {
        "requestId": request["requestId"],
        "responseCode": status,
        "responseHeaders": [{"name": name, "value": value} for name, value in headers.items()],
        "body": base64.b64encode(body).decode("ascii"),
    }
