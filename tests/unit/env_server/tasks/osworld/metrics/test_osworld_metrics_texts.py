"""Text files in every encoding: the same text agrees, another one differs, and a file is read line by line as it was written."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.texts import decoded, lines_of

TEXT = "name,city\nJosé,Málaga\n"
OTHER = "name,city\nJosè,Mélaga\n"
ENCODINGS = {
    "utf-8": TEXT.encode(),
    "utf-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16, big-endian": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "utf-16 without a mark": TEXT.encode("utf-16-le"),
    "utf-16, big-endian, without a mark": TEXT.encode("utf-16-be"),
    "utf-32": TEXT.encode("utf-32"),
    "latin-1": TEXT.encode("latin-1"),
    "windows line ends": TEXT.replace("\n", "\r\n").encode(),
    "old line ends": TEXT.replace("\n", "\r").encode(),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_decoded_any_encoding_same_text(encoding: str) -> None:
    assert decoded(ENCODINGS[encoding]) == TEXT


BODY = "<html><head><style>body {{ {} }}</style></head><body style=\"background-image: url('b.png')\">p</body></html>"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (BODY.format("color: red; background-image: url('a.png');"), 1.0),
        (f"<style>p {{}}</style>{BODY.format(chr(10) + '  background-image: url(' + chr(39) + 'a.png' + chr(39) + ')')}", 1.0),
        (BODY.format("background-image: url('b.png')"), 0.0),
        (BODY.format("background-image: url(a.png)"), 0.0),
        ("<p>background-image: url('a.png')</p><!-- <style>background-image: url('a.png')</style> -->", 0.0),
        ("", 0.0),
    ],
)
def test_background_is_that_of_a_style_sheet(tmp_path: Path, page: str, expected: float) -> None:
    (tmp_path / "index.html").write_text(page)
    assert metric("check_html_background_image")(str(tmp_path / "index.html"), {"value": "a.png"}) == expected


def test_decoded_windows_letters() -> None:
    assert decoded("“5 €”".encode("cp1252")) == "“5 €”"


def test_decoded_different_bytes_different_text() -> None:
    texts = {decoded(bytes([ord("a"), byte, ord("b")])) for byte in range(256) if byte != 13}
    assert len(texts) == 255


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["compare_csv", "compare_text_file", "compare_result_files", "compare_python_pure_text"])
def test_text_metric_any_encoding_text_decides(name: str, encoding: str, tmp_path: Path) -> None:
    found, gold, other = (tmp_path / part for part in ("found", "gold", "other"))
    found.write_bytes(ENCODINGS[encoding])
    gold.write_text(TEXT, encoding="utf-8")
    other.write_text(OTHER, encoding="utf-8")
    assert metric(name)(str(found), str(gold)) == 1.0
    assert metric(name)(str(found), str(other)) == 0.0


@pytest.mark.parametrize("code", ["latin-1", "cp1252", "iso8859-15"])
@pytest.mark.parametrize("name", ["compare_csv", "compare_text_file"])
def test_text_metric_both_files_foreign_letters_count(name: str, code: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(TEXT.encode(code))
    other.write_bytes(OTHER.encode(code))
    assert metric(name)(str(one), str(other)) == 0.0


@pytest.mark.parametrize("letter", ["\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_check_csv_cell_with_line_break_is_one_cell(letter: str, tmp_path: Path) -> None:
    place = tmp_path / "table.csv"
    place.write_bytes(f'a,b\n"x{letter}y",1\nz,2\n'.encode())
    expect: list[dict[str, Any]] = [{"a": f"x{letter}y".replace("\r\n", "\n"), "b": "1"}, {"a": "z"}]
    assert metric("check_csv")(str(place), {"expect": expect}) == 1.0
    assert metric("check_csv")(str(place), {"unexpect": [{"a": "y"}]}) == 1.0


def test_check_csv_cell_of_any_length_is_read(tmp_path: Path) -> None:
    place = tmp_path / "table.csv"
    place.write_text(f"a,b\n{'x' * 1_000_000},1\n")
    assert metric("check_csv")(str(place), {"expect": [{"b": "1"}]}) == 1.0
    assert metric("compare_csv")(str(place), str(place), strict=False) == 1.0


def test_compare_csv_loose_cells_not_quotes(tmp_path: Path) -> None:
    for name, text in {"a": '"x, y" , 1\n\n', "b": '"x, y",1\n', "c": "x, y,1\n"}.items():
        (tmp_path / name).write_text(text)
    found, same, other = (str(tmp_path / name) for name in "abc")
    assert metric("compare_csv")(found, same) == 0.0
    assert metric("compare_csv")(found, same, strict=False) == 1.0
    assert metric("compare_csv")(found, other, strict=False) == 0.0


def test_lines_of_only_line_feeds_end_a_line() -> None:
    assert lines_of("a\x0cb\u2028c\nd\n\n") == ["a\x0cb\u2028c", "d", ""]
    assert lines_of("") == []


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ("#!/usr/bin/env python3\nx=1\n", True),
        ("# -*- coding: utf-8 -*-\nx=1\n", True),
        ("#!/bin/sh\n# coding=utf-8\nx=1\n", True),
        ("x=1  \n\n", True),
        ("# a remark\nx=1\n", False),
        ("x=1\n#!/usr/bin/env python3\n", False),
        (" x=1\n", False),
    ],
)
def test_compare_python_pure_text_leading_remarks(found: str, same: bool, tmp_path: Path) -> None:
    (tmp_path / "found").write_text(found)
    (tmp_path / "gold").write_text("x=1\n")
    assert metric("compare_python_pure_text")(str(tmp_path / "found"), str(tmp_path / "gold")) == float(same)


def test_compare_python_pure_text_tabs_are_spaces(tmp_path: Path) -> None:
    (tmp_path / "found").write_text("if x:\n\ty = 1\n")
    (tmp_path / "gold").write_text("if x:\n    y = 1\n")
    assert metric("compare_python_pure_text")(str(tmp_path / "found"), str(tmp_path / "gold")) == 1.0


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ("12.5", 1.0),
        ("12.50001\n", 1.0),
        ("about 12.5 s", 1.0),
        ("12.6", 0.0),
        ("112.5", 0.0),
        ("12.57", 0.0),
        ("v12.5.1", 0.0),
        ("", 0.0),
    ],
)
def test_compare_result_files_expected_number_stands_in_the_answer(found: str, same: float, tmp_path: Path) -> None:
    (tmp_path / "found").write_text(found)
    (tmp_path / "gold").write_text("12.5\n")
    assert metric("compare_result_files")(str(tmp_path / "found"), str(tmp_path / "gold")) == same


@pytest.mark.parametrize(
    ("host", "domain", "deleted"),
    [
        (".shop.com", "www.shop.com", 0.0),
        ("a.shop.com", "shop.com", 0.0),
        ("myshop.com", "shop.com", 1.0),
        ("shop.com.evil.org", "shop.com", 1.0),
    ],
)
def test_is_cookie_deleted_cookies_of_the_site(host: str, domain: str, deleted: float) -> None:
    assert metric("is_cookie_deleted")([(1, host, "n")], {"type": "domains", "domains": [domain]}) == deleted


@pytest.mark.parametrize(("wanted", "found"), [("/bin/play", 1.0), ("/bin/pla", 0.0), ("/bin/other", 1.0)])
def test_is_shortcut_on_desktop_whole_command(wanted: str, found: float) -> None:
    content = "[Desktop Entry]\nExec=/bin/play\n[Desktop Action x]\nExec=/bin/other\n"
    assert metric("is_shortcut_on_desktop")({"a.desktop": content}, {"type": "exec", "exec": wanted}) == found


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("--app-id=poahllcmmahlafplfhgjomkjmeblpapf", 1.0),
        ("--ignore-profile-directory-if-not-exists https://www.mathsisfun.com/games/2048.html", 1.0),
        ("--ignore-profile-directory-if-not-exists https://www.mathsisfun.com/", 0.0),
        ("", 0.0),
    ],
)
def test_is_shortcut_on_desktop_of_today_s_browser_for_the_page_of_an_older_one(page: str, found: float) -> None:
    program = "/usr/lib/chromium/chromium --user-data-dir=/home/user/.config/chromium --profile-directory=Default"
    wanted = "/opt/google/chrome/google-chrome --profile-directory=Default --app-id=poahllcmmahlafplfhgjomkjmeblpapf"
    content = f"[Desktop Entry]\nExec={program} {page}\n"
    assert metric("is_shortcut_on_desktop")({"a.desktop": content}, {"type": "exec", "exec": wanted}) == found


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("xx", ["x"], 0.0),
        ("x", ["x", "y"], 1.0),
        (["x", "z"], ["y", "z"], 1.0),
        ("xx", "x", 1.0),
        (["x"], "x", 1.0),
        (1, "1", 0.0),
        ("1", 1, 0.0),
    ],
)
def test_check_direct_json_object_contained(found: Any, wanted: Any, same: float) -> None:
    assert metric("check_direct_json_object")({"a": found}, {"expected": {"a": wanted}, "expect_in_result": True}) == same


@pytest.mark.parametrize("key", [["color", "mode"], ["color", "(mode"]])
def test_check_config_status_nested_key_with_or_without_bracket(key: list[str], tmp_path: Path) -> None:
    (tmp_path / "gimprc").write_text("(color (mode none))\n")
    assert metric("check_config_status")(str(tmp_path / "gimprc"), {"key": key, "value": "none"}) == 1.0
