"""Requests of a browser to web sites, as DevTools pause them, and their answers."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.guest.processes import Program
from computerrl.env_server.guest.web.devtools import ChromiumGone, DevTools
from computerrl.env_server.guest.web.site_copy import SiteCopy
from computerrl.env_server.guest.web.sites import Sites

PAGE = "https://www.shop.invalid/bags?a=<b>"


class Pausing(DevTools):
    """A browser whose requests a test makes; it notes what it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Program("browser", ["browser"], env={}, log_folder=folder))
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.is_gone = False

    def fileno(self) -> int:
        return 9

    def call(self, method: str, params: Mapping[str, Any] | None = None, **how: Any) -> dict[str, Any]:
        self.told.append((method, params or {}))
        return {}

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self.told.append((method, params))

    def take_messages(self) -> None:
        if self.is_gone:
            raise ChromiumGone("it has ended")

    def ask(self, address: str, kind: str = "Document") -> None:
        """One request."""
        self._paused.append({"requestId": str(len(self._paused)), "request": {"url": address}, "resourceType": kind})


class Copy(SiteCopy):
    """A copy with one page."""

    def __init__(self, *, host_listens: bool = True) -> None:
        self.host_listens = host_listens

    def find(self, address: str) -> Mapping[str, Any] | None:
        found = {"status": 200, "type": "text/html", "body": b"<h1>Bags", "location": ""}
        return found if address == PAGE else None


def begun(browser: Pausing, copy: SiteCopy | None = None) -> Sites:
    sites = Sites(browser, copy)
    sites.show(of_copy=copy is not None)
    sites.begin(deadline=time.monotonic() + 1)
    (begin,) = browser.told
    assert begin[0] == "Fetch.enable"
    browser.told.clear()
    return sites


def answer(browser: Pausing) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of the one answer that was given."""
    ((method, params),) = browser.told
    assert method == "Fetch.fulfillRequest"
    headers = {entry["name"]: entry["value"] for entry in params["responseHeaders"]}
    return params["responseCode"], headers, base64.b64decode(params["body"]).decode()


def test_page_of_a_site_is_a_stand_in_with_its_address_and_a_cookie(tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser)
    browser.ask(PAGE)
    assert sites.pump() and not sites.pump()
    status, headers, text = answer(browser)
    assert status == 200 and "Domain=shop.invalid;" in headers["Set-Cookie"]
    assert "bags?a=&lt;b&gt;" in text and "<b>" not in text.replace("<p><b>https", "").replace("</b></p>", "")
    assert "href" not in text and "<script" not in text


def test_part_of_a_page_is_not_found(tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser)
    browser.ask("https://www.shop.invalid/logo.png", "Image")
    sites.pump()
    assert answer(browser)[0] == 404 and answer(browser)[2] == ""


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:80"])
def test_server_on_the_desktop_itself_is_asked(host: str, tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser, Copy())
    browser.ask(f"http://{host}/")
    sites.pump()
    assert [method for method, _ in browser.told] == ["Fetch.continueRequest"]


@pytest.mark.parametrize(("address", "text"), [(PAGE, "<h1>Bags"), ("https://www.shop.invalid/other", "No network")])
def test_page_of_the_copy_is_shown_and_a_stand_in_for_others(address: str, text: str, tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser, Copy())
    browser.ask(address)
    sites.pump()
    assert text in answer(browser)[2]


def test_request_waits_for_the_copy_while_the_host_does_not_listen(tmp_path: Path) -> None:
    browser, copy = Pausing(tmp_path), Copy(host_listens=False)
    sites = begun(browser, copy)
    browser.ask(PAGE)
    assert not sites.pump() and not browser.told
    copy.host_listens = True
    assert sites.pump()
    assert answer(browser)[2] == "<h1>Bags"


def test_browser_that_ends_is_no_failure_and_is_not_waited_for(tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser)
    assert sites.fileno() == 9
    browser.is_gone = True
    assert not sites.pump()
    assert sites.fileno() is None


def test_task_without_sites_leaves_the_browser_alone(tmp_path: Path) -> None:
    browser = Pausing(tmp_path)
    sites = begun(browser)
    sites.leave()
    assert sites.fileno() is None and browser.on_paused is None
    sites.begin(deadline=time.monotonic() + 1)
    assert not sites.pump() and not browser.told


def test_address_longer_than_any_is_not_asked_for() -> None:
    copy = SiteCopy(None)  # type: ignore[arg-type]  # nothing may be sent
    assert copy.find("https://shop.invalid/" + "a" * 20_000) is None
