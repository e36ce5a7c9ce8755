"""Small pure parts of the guest: cell names and texts, refused shortcuts, settings files, role names."""

from __future__ import annotations

import xml.etree.ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.office import profile
from computerrl.env_server.guest.office.calc import sheet
from computerrl.env_server.guest.office.process import DocumentError
from computerrl.env_server.guest.reading import roles
from computerrl.env_server.guest.web import chromium


@pytest.mark.parametrize(("cell", "place"), [("A1", (0, 0)), ("b3", (2, 1)), ("$AA$10", (9, 26)), (" XFD1 ", (0, 16383))])
def test_cell_index_of_a_cell_is_row_and_column(cell: str, place: tuple[int, int]) -> None:
    assert sheet.cell_index(cell) == place


@pytest.mark.parametrize("cell", ["", "A", "1", "A0", "XFE1", "A1048577", "A1:B2", "Ä1", "A1; drop"])
def test_cell_index_of_something_else_is_refused(cell: str) -> None:
    with pytest.raises(DocumentError):
        sheet.cell_index(cell)


@given(st.integers(0, 16383), st.integers(0, 1048575))
def test_cell_index_reads_back_every_name(column: int, row: int) -> None:
    assert sheet.cell_index(f"{sheet.column_name(column)}{row + 1}") == (row, column)


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (0.1, "0.1"), (-2.50, "-2.5"), ("x", "x"), ("", ""), (None, ""), (1e20, "1e+20")]
)
def test_cell_text_has_no_trailing_zeros(value: object, text: str) -> None:
    assert sheet.cell_text(value) == text


@pytest.mark.parametrize(
    "keys",
    ["ctrl+t", "ctrl+n", "ctrl+l", "f12", "ctrl+shift+i", "ctrl+u", "alt+left", "super+x", "ctrl+o", "F5", "Ctrl + T", "ctrl+w"],
)
def test_shortcuts_of_the_browser_itself_are_refused(keys: str) -> None:
    assert chromium.refused_keys(keys)


@pytest.mark.parametrize(
    "keys", ["ctrl+a", "enter", "shift+tab", "tab", "a", "ctrl+c", "shift+left", "ctrl+shift+left", "f", "down"]
)
def test_shortcuts_of_editing_are_not_refused(keys: str) -> None:
    assert not chromium.refused_keys(keys)


def test_settings_file_of_the_office_is_well_formed() -> None:
    assert len(xml.etree.ElementTree.fromstring(profile.settings_file().encode())) > 10


def test_role_and_state_numbers_name_what_the_headers_name() -> None:
    named = {7: "check-box", 43: "button", 44: "radio-button", 56: "table-cell", 79: "entry", 95: "document-web", 116: "static"}
    assert {number: roles.ROLE_NAMES[number] for number in named} == named
    shown = 1 << roles.CHECKED | 1 << roles.SENSITIVE
    assert roles.state_names(shown) == ["checked"]
    assert roles.state_names(0) == ["disabled"]
