"""Metrics over what the browser shows and what its profile holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from computerrl.env_server.tasks.osworld.metrics.files import opening, read_text
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, whole_number
from computerrl.env_server.tasks.reading.packages import html_of
from computerrl.env_server.tasks.reading.texts import is_found


def same_url(first: str, second: str) -> bool:
    """The same page: scheme, ``www.``, capitals of the host, a slash at the end and escapes do not count."""
    return _normal(first) == _normal(second)


def _normal(url: str, *, with_query: bool = True) -> tuple[str, ...]:
    try:
        parts = urlsplit(url if "://" in url or url.startswith(("chrome:", "about:", "file:")) else f"https://{url}")
        port = str(parts.port or "")
    except ValueError:
        # Pages may have other addresses than those of web sites, such as ``data:text/html,hello``.
        return (url,)
    host = (parts.hostname or "").removeprefix("www.")
    scheme = "" if parts.scheme in ("http", "https") else parts.scheme
    place = (scheme, host, port, unquote(parts.path).rstrip("/"))
    return (*place, unquote(parts.query), parts.fragment) if with_query else place


def _url_of(result: Any) -> str:
    return str(result.get("url", "")) if isinstance(result, Mapping) else str(result)


def is_expected_active_tab(result: Any, rules: Rules) -> float:
    """The page in front is the expected one."""
    if rules["type"] != "url":
        raise BadRule(f"is_expected_active_tab of type {rules['type']!r}")
    return score(same_url(_url_of(result), rules["url"]))


def is_expected_active_tab_approximate(result: Any, rules: Rules) -> float:
    """The same without regard to the query."""
    if rules["type"] != "url":
        raise BadRule(f"is_expected_active_tab_approximate of type {rules['type']!r}")
    return score(_normal(_url_of(result), with_query=False) == _normal(rules["url"], with_query=False))


def is_expected_url_pattern_match(result: Any, rules: Rules) -> float:
    """Every expected pattern is found in the address of the page in front."""
    return score(all(is_found(pattern, _url_of(result)) for pattern in rules["expected"]))


def is_expected_search_query(result: Any, rules: Rules) -> float:
    """The address of the page in front has the pattern of the search."""
    return score(is_found(rules["expect"]["pattern"], _url_of(result)))


def is_expected_tabs(result: Sequence[Mapping[str, str]], rules: Rules) -> float:
    """The open pages are the expected ones, in any order."""
    if rules["type"] != "url":
        raise BadRule(f"is_expected_tabs of type {rules['type']!r}")
    return score(sorted(_normal(tab["url"]) for tab in result) == sorted(map(_normal, rules["urls"])))


def is_expected_bookmarks(result: Mapping[str, Any], rules: Rules) -> float:
    """The bookmark bar has exactly the expected folders or pages; or the folder *Liked Authors* the expected pages."""
    children = result.get("bookmark_bar", {}).get("children", [])
    kind = rules["type"]
    if kind == "bookmark_bar_folders_names":
        return score({child["name"] for child in children if child["type"] == "folder"} == set(rules["names"]))
    if kind == "bookmark_bar_websites_urls":
        return score(_pages(children) == {_normal(url) for url in rules["urls"]})
    if kind == "liked_authors_websites_urls":
        folder = next((child for child in children if child["type"] == "folder" and child["name"] == "Liked Authors"), None)
        # Each author may be at one of several addresses.
        wanted = [{_normal(url) for url in ([entry] if isinstance(entry, str) else entry)} for entry in rules["urls"]]
        found = _pages(folder["children"]) if folder else set()
        return score(folder is not None and all(found & choices for choices in wanted) and found <= set().union(*wanted))
    raise BadRule(f"is_expected_bookmarks of type {kind!r}")


def _pages(children: Iterable[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    return {_normal(child["url"]) for child in children if child["type"] == "url"}


def is_expected_installed_extensions(result: Iterable[str], rules: Rules) -> float:
    """All expected extensions are installed."""
    return score(set(rules["expected"]) <= set(result))


def is_cookie_deleted(result: Iterable[Sequence[Any]], rules: Rules) -> float:
    """No cookie (a row with the host second) of the domains is left."""
    if rules["type"] != "domains":
        raise BadRule(f"is_cookie_deleted of type {rules['type']!r}")
    # A cookie of the whole site is also one of its first page's address.
    domains = [domain.lstrip(".").removeprefix("www.") for domain in rules["domains"]]
    hosts = [str(row[1]).lstrip(".") for row in result]
    return score(not any(host == domain or host.endswith(f".{domain}") for host in hosts for domain in domains))


def check_history_deleted(result: Iterable[Sequence[Any]], rules: Rules) -> float:
    """No page (a row with the address first) with one of the words is left in the history."""
    if rules["type"] != "keywords":
        raise BadRule(f"check_history_deleted of type {rules['type']!r}")
    return score(not any(word in str(row[0]) for row in result for word in rules["keywords"]))


def check_enabled_experiments(result: Iterable[str], rules: Rules) -> float:
    """Exactly the expected experiments are switched on."""
    if rules["type"] != "names":
        raise BadRule(f"check_enabled_experiments of type {rules['type']!r}")
    return score({name.split("@", 1)[0] for name in result} == {name.split("@", 1)[0] for name in rules["names"]})


def check_font_size(result: Mapping[str, Any], rules: Rules) -> float:
    """The standard font has the expected size, or lies strictly between two sizes."""
    size = int(result.get("default_font_size", 16))
    if rules["type"] == "value":
        return score(size == whole_number(rules["value"]))
    if rules["type"] == "range":
        return score(whole_number(rules["min"]) < size < whole_number(rules["max"]))
    raise BadRule(f"check_font_size of type {rules['type']!r}")


def is_added_to_steam_cart(result: Mapping[str, str], rules: Rules) -> float:
    """Every item is named in the page in front."""
    return score(all(item in result.get("content", "") for item in rules["items"]))


def compare_htmls(result: str, expected: str, *, ignore_sdnum: bool | None = None) -> float:
    """Two pages have the same elements with the same attributes and texts, in the same order.

    ``ignore_sdnum``: LibreOffice's attribute of that name, which holds the locale, does not count.
    """
    left_out = {"sdnum"} if ignore_sdnum else set()
    return score(_elements(result, left_out) == _elements(expected, left_out))


def _elements(path: str, left_out: set[str]) -> list[tuple[str, dict[str, str], str, str]]:
    text = read_text(path)
    with opening(path):
        root = html_of(text)
    return [
        (
            str(node.tag),
            {key: value for key, value in node.attrib.items() if key not in left_out},
            " ".join((node.text or "").split()),
            " ".join((node.tail or "").split()),
        )
        for node in root.iter()
        if isinstance(node.tag, str)
    ]
