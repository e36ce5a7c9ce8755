"""Pure parts of the office's tools: patterns with limits, edits over pieces, short reports, sizes of pictures."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.office.patterns import Match, find_matches
from computerrl.env_server.guest.office.pictures import fitted_size, length
from computerrl.env_server.guest.office.process import DocumentError
from computerrl.env_server.guest.office.report import MAX_RESULT_CHARS, fitted
from computerrl.env_server.guest.office.writer.paragraphs import Edit, Piece, edited


def test_find_matches_gives_places_and_expanded_replacements() -> None:
    assert find_matches(r"(\w)@(\w)", ["a@b c@d", "none"], r"\2\1") == [[Match(0, 3, "ba"), Match(4, 7, "dc")], []]
    assert find_matches("x*", ["axxb"]) == [[Match(1, 3, "xx")]]


@pytest.mark.parametrize(
    ("pattern", "replacement", "said"),
    [
        ("(", None, "no pattern that can be used"),
        ("", None, "pattern is empty"),
        ("a", r"\3", "invalid group reference"),
        ("a{99999999999}", None, "repetition"),
        ("a", "b" * 50_000, "too long a text"),
        ("(a+)+$", None, "takes too long"),
    ],
)
def test_find_matches_bad_or_endless_pattern_is_refused(pattern: str, replacement: str | None, said: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(said)):
        find_matches(pattern, ["a" * 50 + "!"], replacement)


@given(st.text("abcd", min_size=1, max_size=12), *[st.lists(st.integers(0, 12), max_size=6)] * 2)
def test_edited_pieces_together_are_the_edited_text(text: str, cuts: list[int], marks: list[int]) -> None:
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    pieces = [Piece(None, start, text[start:end], True) for start, end in itertools.pairwise(bounds)]
    ends = sorted({mark for mark in marks if mark <= len(text)})
    edits = [Edit(start, end, f"<{start}>") for start, end in zip(ends[::2], ends[1::2], strict=False)]
    wanted, at = "", 0
    for edit in edits:
        wanted += text[at : edit.start] + edit.new
        at = edit.end
    assert "".join(edited(piece, edits) for piece in pieces) == wanted + text[at:]


def test_fitted_keeps_short_lines_whole() -> None:
    assert fitted([("0: ", "a\nb"), ("1: ", "")], "paragraphs") == "0: a\\nb\n1: "


@pytest.mark.parametrize(("num", "size"), [(10, 400), (200, 30), (1000, 500), (40, 20)])
def test_fitted_stays_short_and_says_what_is_left_out(num: int, size: int) -> None:
    said = fitted([(f"{index}: ", "x" * size) for index in range(num)], "paragraphs")
    assert len(said) <= MAX_RESULT_CHARS
    lines = said.split("\n")
    if len(lines) <= num and "left out" in lines[-1]:
        assert lines[-1] == f"… {num - len(lines) + 1} more paragraphs left out"
    else:
        assert len(lines) == num


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [((30, 40), (30, 40)), ((50, None), (50, 25)), ((None, 50), (100, 50)), ((None, None), (80, 40))],
)
def test_fitted_size_keeps_proportions_and_room(asked: tuple[int | None, int | None], wanted: tuple[int, int]) -> None:
    assert fitted_size((200, 100), *asked, room=(80, 80)) == wanted


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e9])
def test_length_nothing_can_have_is_refused(value: float) -> None:
    with pytest.raises(DocumentError, match="width must lie above 0"):
        length(value, "width", 1000)
