"""Which web sites a task needs, and whether pages that only keep their addresses will do for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from computerrl.env_server.tasks.osworld.format import Judge, OpenTabsStep, TaskFile
from computerrl.env_server.tasks.osworld.network.wishes import network_wishes

_OWN_DATA = frozenset({"check_history_deleted", "is_cookie_deleted", "is_shortcut_on_desktop", "is_expected_search_query"})
"""Metrics over what the browser and the desktop keep themselves, and over the address of a search."""
_ADDRESS_LISTS = frozenset({"is_expected_tabs", "is_expected_bookmarks"})
"""Metrics over addresses, which their rule lists as `urls`."""
PAGE_GETTERS = frozenset(
    {
        "active_url_from_accessTree",
        "active_tab_url_parse",
        "active_tab_info",
        "open_tabs_info",
        "url_dashPart",
        "page_info",
    }
)
"""Getters that look at open pages."""
_ADDRESS = re.compile(r"https?:\\?/\\?/(?!localhost\b|127\.)([a-z0-9.-]+)", re.IGNORECASE)


def is_remote(url: str) -> bool:
    """Does the address lie outside the desktop?"""
    match = re.match(r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):)?(?://)?(?P<host>\[[^\]]*\]|[^/:]*)", url.strip(), re.IGNORECASE)
    assert match is not None
    if (match["scheme"] or "https").lower() not in ("http", "https", "ftp"):
        return False
    return match["host"].lower() not in ("localhost", "127.0.0.1", "[::1]")


def opened_pages(task: TaskFile) -> list[str]:
    """Addresses outside the desktop that the set-up opens in the browser."""
    steps = (*task.config, *task.evaluator.postconfig)
    return [
        url
        for step in steps
        if isinstance(step.parameters, OpenTabsStep)
        for url in step.parameters.urls_to_open
        if is_remote(url)
    ]


def hosts_of(task: TaskFile) -> tuple[str, ...]:
    """Names of all sites that the task's file shows it to need, in order; none for a task without web pages."""
    hosts = [*filter(None, map(host_of, opened_pages(task)))]
    if not task.evaluator.infeasible:
        hosts += [host for wish in network_wishes(task.instruction) for host in wish.sites]
        hosts += [host for judge in task.evaluator.judges() for host in judged_hosts(judge)]
    return tuple(dict.fromkeys(hosts))


def host_of(address: str) -> str:
    """The host's name in an address, which may lack its scheme; empty: it names none."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""


def judged_hosts(judge: Judge) -> list[str]:
    """Hosts that the rule of a metric over open pages names with their addresses."""
    if judge.result is None or judge.result.type not in PAGE_GETTERS:
        return []
    return [found.replace("\\", "") for source in _expected(judge) for found in _ADDRESS.findall(str(source.args.get("rules")))]


def stand_ins_do(task: TaskFile) -> bool:
    """Whether the task can be done and judged on pages that have nothing but their addresses.

    Its judges look at addresses, or at what the browser keeps of them: at least one of them does, and none at what pages hold.
    Every address that counts is opened by the set-up, a file of the desktop, or the first page of a site, so that no link of a
    page leads the way. The instruction may name sites, but asks for nothing that is on them.
    """
    if task.evaluator.infeasible:
        return True
    given = {_plain(url) for url in opened_pages(task)}
    judges = task.evaluator.judges()
    by_address = [judge for judge in judges if judge.func in _OWN_DATA | _ADDRESS_LISTS]
    return (
        bool(by_address)
        and all(judge in by_address or not _looks_at_pages(judge) for judge in judges)
        and all(_is_known(url, given) for judge in by_address for url in _listed_urls(judge))
        and all(wish.stand_in_does for wish in network_wishes(task.instruction))
    )


def _looks_at_pages(judge: Judge) -> bool:
    return judge.result is not None and judge.result.type in PAGE_GETTERS


def _listed_urls(judge: Judge) -> Iterator[str]:
    if judge.func in _ADDRESS_LISTS:
        for source in _expected(judge):
            for entry in source.args.get("rules", {}).get("urls", ()):
                yield from [entry] if isinstance(entry, str) else entry


def _is_known(url: str, given: set[str]) -> bool:
    if _plain(url) in given or not is_remote(url):
        return True
    parts = urlsplit(url)
    return parts.path in ("", "/") and not parts.query


def _plain(url: str) -> str:
    return url.strip().rstrip("/")


def _expected(judge: Judge) -> list[Any]:
    expected = judge.expected if isinstance(judge.expected, list) else [judge.expected]
    return [source for source in expected if source is not None]
