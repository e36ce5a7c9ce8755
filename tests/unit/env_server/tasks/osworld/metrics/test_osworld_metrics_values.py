"""Metrics over texts, settings, mail and the browser: each with a pass and a near miss."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.tasks.osworld.metrics import METRICS, metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, matches

TREE = """<desktop-frame xmlns:st="urn:accessibility:state">
<application name="soffice"><panel name="Slides View"/>
<push-button name="OK" st:enabled="true">Save now</push-button></application>
</desktop-frame>"""
VALUES: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("check_include_exclude", ("a b", {"include": ["a"], "exclude": ["c"]}), ("a c", {"include": ["a"], "exclude": ["c"]})),
    ("exact_match", ("100\n", {"expected": "100\n"}), ("100", {"expected": "100\n"})),
    ("match_in_list", ("x", {"expected": ["x", "y"]}), ("z", {"expected": ["x", "y"]})),
    ("is_in_list", (["x", "y"], {"expected": "x"}), (["xy"], {"expected": "x"})),
    ("literal_match", ("A", {"expected": "A"}), ("A", {"expected": "a"})),
    ("fuzzy_match", ("abc", {"expected": "abc"}), ("xyz", {"expected": "abc"})),
    ("is_in_vm_clickboard", ({"expected": ["a", "b"]}, "a b"), ({"expected": ["a", "c"]}, "a b")),
    ("check_direct_json_object", ("{'a': 1}", {"expected": {"a": 1}}), ("{'a': ", {"expected": {"a": 1}})),
    (
        "check_direct_json_object",
        ({"a": "x y"}, {"expected": {"a": "x"}, "expect_in_result": True}),
        ({"a": "z"}, {"expected": {"a": "x"}, "expect_in_result": True}),
    ),
    (
        "check_direct_json_object",
        ({"a": "x"}, {"expected": {"a": ["x", "y"]}, "expect_in_result": True, "result_not_list": True}),
        ({"a": "xy"}, {"expected": {"a": ["x", "y"]}, "expect_in_result": True, "result_not_list": True}),
    ),
    ("check_direct_json_object", ({"a": "1"}, {"expected": {"a": "1"}}), ({"a": "2"}, {"expected": {"a": "1"}})),
    (
        "check_accessibility_tree",
        (TREE, [{"xpath": "//push-button[@st:enabled='true']", "text": "Save now"}, {"selectors": ["panel"]}]),
        (TREE, [{"selectors": ["push-button"], "text": "Save"}]),
    ),
    ("check_left_panel", (TREE,), (TREE.replace("Slides View", "Notes"),)),
    ("is_utc_0", ("Time zone: Etc/UTC (UTC, +0000)",), ("Time zone: Europe/Berlin (CET, +0100)",)),
    ("check_gnome_favorite_apps", ("['b', 'a']", {"expected": ["a", "b"]}), ("['a']", {"expected": ["a", "b"]})),
    ("check_text_enlarged", ("1.25",), ("1.0",)),
    (
        "check_moved_jpgs",
        ({"children": [{"name": "a.jpg"}]}, {"expected": ["a.jpg"]}),
        ({"children": [{"name": "a.jpg"}, {"name": "b.png"}]}, {"expected": ["a.jpg"]}),
    ),
    (
        "is_shortcut_on_desktop",
        ({"a.desktop": "[Desktop Entry]\nName=Mail\nExec=x --app-id=q"}, {"type": "name", "name": "Mail"}),
        ({"a.desktop": "[Desktop Entry]\nName=Mails\nExec=x"}, {"type": "name", "name": "Mail"}),
    ),
    (
        "is_extension_installed",
        ("ms.python\nx.y", {"type": "contain", "expected": "ms.python"}),
        ("ms.python", {"type": "not_contain", "expected": "ms.python"}),
    ),
    (
        "is_expected_active_tab",
        ({"url": "https://www.site.invalid/a/"}, {"type": "url", "url": "site.invalid/a"}),
        ({"url": "https://www.site.invalid/a?b=1"}, {"type": "url", "url": "site.invalid/a"}),
    ),
    (
        "is_expected_active_tab_approximate",
        ({"url": "https://site.invalid/a?b=1"}, {"type": "url", "url": "https://site.invalid/a"}),
        ({"url": "https://site.invalid/ab"}, {"type": "url", "url": "https://site.invalid/a"}),
    ),
    (
        "is_expected_url_pattern_match",
        ("chrome://settings/passwords", {"expected": ["settings", "pass.*s$"]}),
        ("chrome://settings/payments", {"expected": ["settings", "pass.*s$"]}),
    ),
    (
        "is_expected_search_query",
        ({"url": "x://y/?q=cats"}, {"expect": {"pattern": "q=cats$"}}),
        ({"url": "x://y/?q=cats2"}, {"expect": {"pattern": "q=cats$"}}),
    ),
    (
        "is_expected_tabs",
        ([{"url": "a.invalid"}, {"url": "b.invalid/"}], {"type": "url", "urls": ["https://b.invalid", "https://a.invalid"]}),
        ([{"url": "a.invalid"}], {"type": "url", "urls": ["https://b.invalid", "https://a.invalid"]}),
    ),
    (
        "is_expected_bookmarks",
        (
            {"bookmark_bar": {"children": [{"type": "folder", "name": "Favorites", "children": []}]}},
            {"type": "bookmark_bar_folders_names", "names": ["Favorites"]},
        ),
        (
            {"bookmark_bar": {"children": [{"type": "folder", "name": "Favourites", "children": []}]}},
            {"type": "bookmark_bar_folders_names", "names": ["Favorites"]},
        ),
    ),
    ("is_expected_installed_extensions", (["a", "b"], {"expected": ["a"]}), (["b"], {"expected": ["a"]})),
    (
        "is_cookie_deleted",
        ([(1, ".other.invalid", "n")], {"type": "domains", "domains": [".shop.invalid"]}),
        ([(1, "www.shop.invalid", "n")], {"type": "domains", "domains": [".shop.invalid"]}),
    ),
    (
        "check_history_deleted",
        ([("https://a.invalid", "t", 1)], {"type": "keywords", "keywords": ["video"]}),
        ([("https://video.invalid", "t", 1)], {"type": "keywords", "keywords": ["video"]}),
    ),
    (
        "check_enabled_experiments",
        (["tabs@1"], {"type": "names", "names": ["tabs"]}),
        (["tabs@1", "more@1"], {"type": "names", "names": ["tabs"]}),
    ),
    (
        "check_font_size",
        ({"default_font_size": 20}, {"type": "range", "min": 16, "max": 99999}),
        ({"default_font_size": 16}, {"type": "range", "min": 16, "max": 99999}),
    ),
    (
        "is_added_to_steam_cart",
        ({"content": "Cart: Game One"}, {"items": ["Game One"]}),
        ({"content": "Cart: Game"}, {"items": ["Game One"]}),
    ),
    (
        "is_vlc_fullscreen",
        ({"width": 8, "height": 6}, {"width": 8, "height": 6}),
        ({"width": 8, "height": 5}, {"width": 8, "height": 6}),
    ),
]

XCU = (
    '<oor:items xmlns:oor="http://openoffice.org/2001/registry"><item oor:path="{path}">'
    '<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item></oor:items>'
)
VLC = "input-record-path={}\nqt-bgcone={}\nqt-max-volume={}\nqt-minimal-view={}\nglobal-key-play-pause={}\nqt-slider-colours={}\n"
FILTER = 'version="9"\nname="f"\nenabled="yes"\naction="Mark read"\ncondition="AND (subject,contains,{})"\n'
MAIL = "From - Sat Jan 1 00:00:00 2022\nX-Mozilla-Status: {}\nSubject: {}\n\nText\n\n"
FILES: list[tuple[str, str, str, Any]] = [
    # metric, content that passes, content that misses, rules
    ("check_list", "one 1\ntwo", "one\ntwo", {"expect": [r"one \d"], "unexpect": ["three"]}),
    ("check_csv", "a,b\n1,2\n3,4\n", "a,b\n1,3\n", {"expect": [{"a": "1", "b": "2"}], "unexpect": [{"b": "3"}]}),
    ("file_contains", "x y", "x", {"expected": ["x", "y"]}),
    ("check_line_number", "12:30:01 a\nno\n23:59:59 b", "12:30:01 a\n24:00:00 b", {"expected": "2"}),
    (
        "check_json",
        '{"a": {"b": [1, 2]}}',
        '{"a": {"b": [3, 2]}}',
        {"expect": [{"key": ["a", "b", 0], "method": "eq", "ref": 1}]},
    ),
    ("check_config_status", '# c\n(theme "Light")\n', '(theme "Dark")\n', {"key": "theme", "value": '"Light"'}),
    ("check_json_settings", '{"a": 1, // c\n "b": 2,}', '{"a": 2}', {"expected": {"a": 1}}),
    ("check_json_keybindings", '[{"key": "ctrl+j"}]', '[{"key": "ctrl+k"}]', {"expected": {"key": "ctrl+j"}}),
    ("compare_config", "abc\n", "abc", {"expected": "abc\n"}),
    (
        "check_auto_saving_time",
        XCU.format(path="/x", name="AutoSaveTimeIntervall", value=3),
        XCU.format(path="/x", name="AutoSaveTimeIntervall", value=30),
        {"minutes": 3},
    ),
    (
        "find_default_font",
        XCU.format(path="/org.openoffice.Office.Writer/DefaultFont", name="Standard", value="Times New Roman"),
        XCU.format(path="/org.openoffice.Office.Writer/DefaultFont", name="Heading", value="Times New Roman"),
        {"font_name": "Times New Roman"},
    ),
    (
        "check_presenter_console_disable",
        XCU.format(path="/x", name="EnablePresenterScreen", value="false"),
        XCU.format(path="/x", name="EnablePresenterScreen", value="true"),
        None,
    ),
    (
        "is_vlc_recordings_folder",
        VLC.format("/home/user/Desktop", 1, 1, 1, "", "1"),
        VLC.format("/home/user", 1, 1, 1, "", "1"),
        {"recording_file_path": "/home/user/Desktop"},
    ),
    ("check_qt_bgcone", "qt-bgcone=0\n", "#qt-bgcone=0\n", {"expected_qt_bgcone": 0}),
    ("check_qt_max_volume", "qt-max-volume=200\n", "qt-max-volume=20\n", {"expected_qt_max_volume": 200}),
    ("check_qt_minimal_view", "qt-minimal-view=1\n", "#qt-minimal-view=1\n", {"expected_qt_minimal_view": 1}),
    (
        "check_one_instance_when_started_from_file",
        "one-instance-when-started-from-file=0\n",
        "#one-instance-when-started-from-file=0\n",
        {"expected_one_instance_when_started_from_file": 0},
    ),
    ("check_play_and_exit", "#play-and-exit=1\n", "play-and-exit=1\n", {"expected_play_and_exit": 0}),
    (
        "check_global_key_play_pause",
        "global-key-play-pause=Space\n",
        "global-key-play-pause=\n",
        {"expected_global_key_play_pause": 1},
    ),
    ("check_qt_slider_colours", "qt-slider-colours=60;60;99\n", "qt-slider-colours=60;60;100\n", {"type": "blackish"}),
    (
        "check_thunderbird_prefs",
        'user_pref("a.b", "x y");\n',
        'user_pref("a.b", "x");\n',
        {"expect": {"a.b": {"method": "eq", "ref": "x y"}}},
    ),
    (
        "check_thunderbird_filter",
        FILTER.format("sale"),
        FILTER.format("sales"),
        {"expect": [{"enabled": "yes", "condition": ["AND (subject,contains,sale)"]}]},
    ),
    (
        "is_vlc_playing",
        '<root><state>playing</state><information><category name="meta"><info name="filename">A b.mp4</info></category>'
        "</information></root>",
        '<root><state>paused</state><information><category name="meta"><info name="filename">A b.mp4</info></category>'
        "</information></root>",
        {"type": "file_name", "file_name": "A b.mp4"},
    ),
]
PAIRS: list[tuple[str, str, str, str]] = [
    # metric, expected content, content that passes, content that misses
    ("diff_text_file", "a\nb\n", "a\nb\n", "c\n"),
    ("compare_text_file", "a b\n", "a b\n", "a  b\n"),
    ("compare_python_pure_text", "def f():\n    return 1\n", "def f():\n\n    return 1  \n", "def f():\n  return 1\n"),
    ("compare_result_files", "a\n", "a", "a b"),
    ("compare_csv", "a,b\n1,2\n", "a,b\n1,2\n", "a,b\n1,3\n"),
    ("compare_htmls", "<p class='x'>a</p>", "<html><body><p class='x'>a </p></body></html>", "<p class='y'>a</p>"),
    (
        "check_thunderbird_folder",
        MAIL.format("0001", "a"),
        MAIL.format("0001", "a") + MAIL.format("0008", "b"),
        MAIL.format("0001", "b"),
    ),
]


@pytest.mark.parametrize(("name", "passes", "misses"), VALUES, ids=[case[0] for case in VALUES])
def test_value_metric_pass_and_near_miss(name: str, passes: tuple[Any, ...], misses: tuple[Any, ...]) -> None:
    assert metric(name)(*passes) == 1.0
    assert metric(name)(*misses) == 0.0


@pytest.mark.parametrize(("name", "passes", "misses", "rules"), FILES, ids=[case[0] for case in FILES])
def test_file_metric_pass_and_near_miss(name: str, passes: str, misses: str, rules: Any, tmp_path: Path) -> None:
    place = tmp_path / "result"
    extra = () if rules is None else (rules,)
    place.write_text(passes)
    assert metric(name)(str(place), *extra) == 1.0
    place.write_text(misses)
    assert metric(name)(str(place), *extra) == 0.0
    place.unlink()
    with pytest.raises(BrokenFile):
        metric(name)(str(place), *extra)


@pytest.mark.parametrize(("name", "expected", "passes", "misses"), PAIRS, ids=[case[0] for case in PAIRS])
def test_pair_metric_pass_and_near_miss(name: str, expected: str, passes: str, misses: str, tmp_path: Path) -> None:
    result, gold = tmp_path / "result", tmp_path / "gold"
    gold.write_text(expected)
    result.write_text(passes)
    assert metric(name)(str(result), str(gold)) == 1.0
    result.write_text(misses)
    assert metric(name)(str(result), str(gold)) == 0.0


def test_compare_terminal_and_txt_same_and_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    assert metric("compare_terminal_and_txt")(str(tmp_path / "a"), "x\n") == 1.0
    assert metric("compare_terminal_and_txt")(str(tmp_path / "a"), "y\n") == 0.0


def test_check_json_yaml_file_read_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n  - 1\n")
    rules = {"expect": [{"key": ["a", 0], "method": "eq", "ref": 1}], "unexpect": [{"key": ["b"], "method": "eq", "ref": 1}]}
    assert metric("check_json")(str(tmp_path / "a.yaml"), rules, is_yaml=True) == 1.0


def test_run_sqlite3_query_gives_the_score(tmp_path: Path) -> None:
    place = tmp_path / "a b.db"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1)")
    assert metric("run_sqlite3")(str(place), {"sql": "SELECT count(*) FROM t"}) == 1.0
    assert metric("run_sqlite3")(str(place), {"sql": "SELECT count(*) FROM t WHERE x = 2"}) == 0.0


def _zip(place: Path, files: dict[str, str]) -> str:
    with zipfile.ZipFile(place, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return str(place)


@pytest.mark.parametrize("name", ["compare_archive", "compare_zip_files", "compare_epub"])
def test_archive_metrics_same_and_changed_member(name: str, tmp_path: Path) -> None:
    gold = _zip(tmp_path / "gold.zip", {"a.html": "<p>x</p>", "b/c.txt": "y"})
    assert metric(name)(_zip(tmp_path / "1.zip", {"b/c.txt": "y", "a.html": "<p>x</p>"}), gold) == 1.0
    assert metric(name)(_zip(tmp_path / "2.zip", {"a.html": "<p>x</p>", "b/c.txt": "z"}), gold) < 1.0
    assert metric(name)(_zip(tmp_path / "3.zip", {"a.html": "<p>x</p>"}), gold) == 0.0


def test_compare_archive_folder_only_that_folder_counts(tmp_path: Path) -> None:
    gold = _zip(tmp_path / "gold.zip", {"in/a.txt": "x", "other": "1"})
    found = _zip(tmp_path / "found.zip", {"in/a.txt": "x", "other": "2"})
    assert metric("compare_archive")(found, gold, file_path="in") == 1.0


@pytest.mark.parametrize(
    ("method", "reference", "hit", "miss"),
    [
        ("eq", 3, 3, 4),
        ("ne", 3, 4, 3),
        ("lt", 3, 2, 3),
        ("ge", 3, 3, 2),
        ("re", "^a", "ab", "ba"),
        ("re.IGNORECASE", "^A", "ab", "ba"),
        ("approx:0.1", 1, "1.05", 1.2),
        ("in", [1, 2], 1, 3),
        ("not_in", [1, 2], 3, 1),
        ("str_list_eq", ["a", "b"], "a,b", "b,a"),
        ("str_set_eq", ["a", "b"], "b,a", "a"),
        ("range.[)", [1, 2], 1, 2),
        ("range.lelt", [1, 2], 1, 2),
        ("lt", 3, 2, "text"),
    ],
)
def test_matches_method_hit_and_miss(method: str, reference: Any, hit: Any, miss: Any) -> None:
    assert matches(hit, {"method": method, "ref": reference})
    assert not matches(miss, {"method": method, "ref": reference})


def test_matches_unknown_method_is_a_bad_rule() -> None:
    with pytest.raises(BadRule):
        matches(1, {"method": "like", "ref": 1})


def test_bookmarks_of_authors_one_of_several_addresses(tmp_path: Path) -> None:
    def tree(*urls: str) -> dict[str, Any]:
        pages = [{"type": "url", "url": url, "name": url} for url in urls]
        return {"bookmark_bar": {"children": [{"type": "folder", "name": "Liked Authors", "children": pages}]}}

    rules = {"type": "liked_authors_websites_urls", "urls": [["https://a.invalid", "https://b.invalid"], "https://c.invalid"]}
    assert metric("is_expected_bookmarks")(tree("https://b.invalid/", "https://c.invalid/"), rules) == 1.0
    assert metric("is_expected_bookmarks")(tree("https://b.invalid/"), rules) == 0.0


def test_every_metric_is_named_in_a_test() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_osworld_*.py"))
    loaded: list[Callable[..., float]] = [metric(name) for name in METRICS]
    assert all(function.__doc__ for function in loaded)
    assert [name for name in METRICS if name not in text] == []
    json.dumps(sorted(METRICS))
