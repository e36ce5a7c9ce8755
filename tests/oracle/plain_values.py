"""Metrics over values: texts, lists, addresses, objects, and databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracle.pairs import Judge, Pair, each_alone, write

_URLS = [
    "https://www.shop.com/a?q=1",
    "https://shop.com/a?q=1",
    "http://shop.com/a?q=1",
    "shop.com/a?q=1",
    "https://shop.com/a",
    "https://shop.com/a/",
    "https://shop.com/",
    "https://shop.com",
    "https://SHOP.com/a?q=1",
    "https://shop.com/A?q=1",
    "https://shop.co.uk/a?q=1",
    "https://m.shop.com/a?q=1",
    "https://shop.com/a?q=1#top",
    "https://shop.com/a%20b",
    "https://shop.com/a b",
    "https://shop.com/a?q=2",
    "chrome://settings/",
    "chrome://settings",
    "about:blank",
    "file:///a/b.txt",
    "https://shop.com:8080/a?q=1",
    "",
]
_TREE = (
    '<desktop-frame xmlns:st="https://accessibility.ubuntu.example.org/ns/state"><application name="x">'
    '<label name="l" st:showing="true">Hello</label><label>World</label><panel/></application></desktop-frame>'
)
_ZONES = {
    "utc": "UTC (UTC, +0000)",
    "faroe": "Atlantic/Faroe (WET, +0000)",
    "berlin": "Europe/Berlin (CET, +0100)",
    "empty": "",
}


def _calls() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    values: list[Any] = ["a", "A", "a ", "", 1, 1.0, "1", True, None, ["a"], ["a", "b"], ["A", "b"], {"a": 1}]
    for one in values:
        for other in values:
            yield "exact_match", f"{one!r} = {other!r}", (one, {"expected": other}), {}
            for ignore in (False, True):
                yield "literal_match", f"{one!r} = {other!r} ({ignore})", (one, other), {"ignore_case": ignore}
            if isinstance(one, list) or isinstance(other, list):
                yield "literal_match", f"{one!r} = {other!r} (list)", (one, other), {"type": "list"}
        yield "match_in_list", repr(one), (one, {"expected": ["a", 1, None]}), {}
    for one in ("a b c", "a", "", "A B", "abc"):
        for include, exclude in ((["a"], []), (["a", "b"], ["z"]), ([], ["a"]), ([], []), (["A"], [])):
            yield "check_include_exclude", f"{one!r} {include} {exclude}", (one, {"include": include, "exclude": exclude}), {}
        for other in ("a b c", "", "x", "a b d"):
            yield "fuzzy_match", f"{one!r} = {other!r}", (one, {"expected": other}), {}
        yield "is_in_vm_clickboard", repr(one), ({"expected": ["a", "b"]}, one), {}
        yield "is_in_vm_clickboard", f"{one!r} (text)", ({"expected": "a"}, one), {}
        for kind in ("contain", "not_contain"):
            yield "is_extension_installed", f"{one!r} ({kind})", (one, {"type": kind, "expected": "b"}), {}
    for found in ([], ["a"], ["a", "b"], ["ab"]):
        yield "is_in_list", repr(found), (found, {"expected": "a"}), {}
        yield "is_expected_installed_extensions", repr(found), (found, {"expected": ["a"]}), {}
        names = [f"{name}@1" for name in found]
        yield "check_enabled_experiments", repr(found), (names, {"type": "names", "names": ["a"]}), {}
        yield "check_enabled_experiments", f"{found!r} (two)", (names, {"type": "names", "names": ["b", "a"]}), {}
        yield "check_gnome_favorite_apps", repr(found), (repr(found), {"expected": ["b", "a"]}), {}
        children = {"children": [{"name": name, "type": "file"} for name in found]}
        yield "check_moved_jpgs", repr(found), (children, {"expected": ["b", "a"]}), {}
    for text in ("1.0", "1.25", "0.9", "1", "2.0\n"):
        yield "check_text_enlarged", text, (text,), {}
    for name, zone in _ZONES.items():
        yield "is_utc_0", name, (f"Local time: x\n Universal time: x\n RTC time: x\n Time zone: {zone}\n NTP: yes\n",), {}
    for size in (16, 20, 8, 100000):
        yield "check_font_size", str(size), ({"default_font_size": size}, {"type": "value", "value": 20}), {}
        yield "check_font_size", f"{size} (range)", ({"default_font_size": size}, {"type": "range", "min": 16, "max": 99999}), {}
        sizes = {"width": size, "height": 20}
        yield "is_vlc_fullscreen", str(size), (sizes, {"width": 20, "height": 20}), {}
    yield from _browser_calls()
    yield from _object_calls()
    for rule in (
        [{"xpath": "//label[@name='l']"}],
        [{"selectors": ["application label"]}],
        [{"xpath": "//label", "text": "World", "exact": True}],
        [{"xpath": "//label", "text": "Worlds", "exact": True}],
        [{"xpath": "//label", "text": "Worlds", "exact": False}],
        [{"selectors": ["panel"]}, {"selectors": ["button"]}],
        [{"xpath": "//label[@st:showing='true']", "text": "Hello", "exact": True}],
        [{"selectors": ["button", "panel"]}],
        [],
    ):
        yield "check_accessibility_tree", json.dumps(rule), (_TREE, rule), {}
    for name in ("Slides View", "Notes View", "Slides"):
        for tag in ("document-frame", "panel"):
            yield "check_left_panel", f"{name} {tag}", (f"<root><{tag} name='{name}'/></root>",), {}


def _browser_calls() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    for one in _URLS:
        for other in (_URLS[0], _URLS[4], _URLS[6], "chrome://settings"):
            kind = f"{one} = {other}"
            yield "is_expected_active_tab", kind, ({"url": one}, {"type": "url", "url": other}), {}
            yield "is_expected_active_tab", f"{kind} (text)", (one, {"type": "url", "url": other}), {}
            yield "is_expected_active_tab_approximate", kind, ({"url": one}, {"type": "url", "url": other}), {}
        tabs = [{"url": one}, {"url": "https://b.com"}]
        yield "is_expected_tabs", one, (tabs, {"type": "url", "urls": ["https://b.com", _URLS[0]]}), {}
        yield "is_expected_tabs", f"{one} (one)", (tabs, {"type": "url", "urls": [_URLS[0]]}), {}
        yield "is_expected_url_pattern_match", one, ({"url": one}, {"expected": [r"shop\.com", "q=1"]}), {}
        yield "is_expected_url_pattern_match", f"{one} (text)", (one, {"expected": [r"^https://"]}), {}
        yield "is_expected_search_query", one, ({"url": one}, {"expect": {"pattern": "q=1"}}), {}
        pages = [{"type": "url", "url": one, "name": "n"}, {"type": "folder", "name": "Favorites", "children": []}]
        bar: dict[str, Any] = {"bookmark_bar": {"children": pages}}
        yield "is_expected_bookmarks", one, (bar, {"type": "bookmark_bar_websites_urls", "urls": [_URLS[0]]}), {}
        liked = {"bookmark_bar": {"children": [{"type": "folder", "name": "Liked Authors", "children": pages[:1]}]}}
        rule = {"type": "liked_authors_websites_urls", "urls": [[_URLS[0], _URLS[4]]]}
        yield "is_expected_bookmarks", f"{one} (liked)", (liked, rule), {}
        yield "check_history_deleted", one, ([[one, "t", 1]], {"type": "keywords", "keywords": ["shop"]}), {}
    for names in (["Favorites"], ["Other"], ["Favorites", "Other"], []):
        folders = [{"type": "folder", "name": name, "children": []} for name in names]
        rule = {"type": "bookmark_bar_folders_names", "names": ["Favorites"]}
        yield "is_expected_bookmarks", repr(names), ({"bookmark_bar": {"children": folders}}, rule), {}
    for host in ("shop.com", ".shop.com", "www.shop.com", ".www.shop.com", "other.com", "myshop.com", "shop.co.uk", "a.shop.com"):
        for domain in (".shop.com", "shop.com", "www.shop.com"):
            rows = [[1, host, "n"]]
            yield "is_cookie_deleted", f"{host} {domain}", (rows, {"type": "domains", "domains": [domain]}), {}
    desktop = "[Desktop Entry]\nName=Play\nExec=/bin/play\nURL=https://a.b\n"
    for kind in (
        {"type": "name", "name": "Play"},
        {"type": "exec", "exec": "/bin/play"},
        {"type": "name", "name": "Pla"},
        {"type": "exec", "exec": "/bin/pla"},
    ):
        for name, content in {"whole": desktop, "no line end": desktop.replace("\nExec", "")[:-1], "empty": ""}.items():
            yield "is_shortcut_on_desktop", f"{name} {kind}", ({"a.desktop": content}, kind), {}
    for content in ("Cart: Game One, Game Two", "Cart: Game One", ""):
        yield "is_added_to_steam_cart", content, ({"content": content}, {"items": ["Game One", "Game Two"]}), {}


def _object_calls() -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    results: dict[str, Any] = {
        "equal": {"a": "x", "b": "y"},
        "longer text": {"a": "xx", "b": "y"},
        "other": {"a": "z", "b": "y"},
        "key less": {"a": "x"},
        "list": {"a": ["x", "z"], "b": "y"},
        "other order": {"a": ["z", "x"], "b": "y"},
        "text": "{'a': 'x', 'b': 'y'}",
        "JSON": '{"a": "x", "b": "y"}',
        "apostrophe": '{"a": "it\'s", "b": "y"}',
        "null": {"a": None, "b": "y"},
        "none": None,
        "no JSON": "a=x",
        "number": {"a": 1, "b": "y"},
    }
    wishes: dict[str, Any] = {
        "texts": {"expected": {"a": "x", "b": "y"}},
        "one": {"expected": {"a": "x"}},
        "list": {"expected": {"a": ["x", "z"]}},
        "contained": {"expected": {"a": "x", "b": "y"}, "expect_in_result": True},
        "one of": {"expected": {"a": ["x", "q"]}, "expect_in_result": True},
        "number": {"expected": {"a": 1}},
        "nothing": {"expected": {}},
        "apostrophe": {"expected": {"a": "it's"}},
    }
    for name, result in results.items():
        for word, rules in wishes.items():
            yield "check_direct_json_object", f"{name} {word}", (result, rules), {}


def values(folder: Path) -> Iterator[Pair]:
    """Metrics over values, over a database and over a player's status."""
    for name, kind, args, options in _calls():
        yield Pair(name, kind, args, options)
    folder.joinpath("values").mkdir()
    for number, rows in enumerate(([1], [], [0], [1, 1], [None])):
        place = folder / "values" / f"{number}.db"
        with sqlite3.connect(place) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.executemany("INSERT INTO t VALUES (?)", [(row,) for row in rows])
        for sql in (
            "SELECT count(*) FROM t WHERE x = 1",
            "SELECT max(x) FROM t",
            "SELECT count(*) = 1 FROM t",
            "SELECT x FROM t",
        ):
            yield Pair("run_sqlite3", f"{rows} {sql}", (str(place), {"sql": sql}))
    info = '<info name="{}">{}</info>'
    states = {
        "name": ("playing", info.format("filename", "A b.mp4")),
        "paused": ("paused", info.format("filename", "A b.mp4")),
        "title": ("playing", info.format("title", "A b.mp4")),
        "address": ("playing", info.format("url", "https://a.b/c/A%20b.mp4")),
        "path": ("playing", info.format("filename", "/x/A b.mp4")),
        "longer": ("playing", info.format("filename", "AA b.mp4")),
        "nothing": ("playing", ""),
    }
    wishes = (
        {"type": "file_name", "file_name": "A b.mp4"},
        {"type": "url", "url": "https://a.b/c/A%20b.mp4"},
        {"type": "url", "url": "https://a.b/c/A b.mp4"},
    )
    contents: dict[str, Any] = {
        name: f'<root><state>{state}</state><information><category name="meta">{text}</category></information></root>'
        for name, (state, text) in states.items()
    }
    files = write(folder / "status", ".xml", {**contents, "empty": "", "no XML": "<root>"})
    yield from each_alone([Judge("is_vlc_playing", rules=rule, word=str(number)) for number, rule in enumerate(wishes)], files)
