"""Linearising a tree: which nodes become rows, in which order, with which numbers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.messages import Element
from computerrl.env_server.drivers.observation import Numbering, TreeNode, linearise


def node(
    key: str,
    parent: int,
    role: str,
    name: str = "",
    *,
    text: str | None = None,
    box: tuple[int, int, int, int] = (10, 10, 40, 20),
) -> TreeNode:
    return TreeNode(key, parent, role, name, text, *box, states=())


def rows(
    nodes: list[TreeNode], *, app: str = "editor", numbering: Numbering | None = None, most: int = 100
) -> tuple[Element, ...]:
    return linearise(nodes, app=app, width=800, height=600, max_elements=most, numbering=numbering or Numbering())


APPLICATION = node("app", -1, "application", "app", box=(0, 0, 800, 600))
FRAME = node("frame", 0, "frame", "window", box=(0, 0, 800, 600))


def test_rows_of_a_button_and_an_empty_entry_are_kept_and_panels_are_not() -> None:
    found = rows([APPLICATION, FRAME, node("p", 1, "panel", "Panel"), node("b", 2, "button", "Save"), node("e", 2, "entry")])
    assert [(element.role, element.text) for element in found] == [("button", "Save"), ("entry", "")]


def test_row_of_a_text_field_shows_its_content_not_its_name() -> None:
    assert rows([APPLICATION, FRAME, node("t", 1, "text", "Label", text="typed")])[0].text == "typed"


def test_rows_leave_out_icons_that_pages_draw_with_letters_of_private_use() -> None:
    found = rows(
        [APPLICATION, FRAME, node("i", 1, "static", "\ueab6"), node("n", 1, "button", "\ueaf0 Files", box=(90, 9, 9, 9))]
    )
    assert [element.text for element in found] == ["Files"]


def test_rows_off_the_screen_or_without_size_are_left_out() -> None:
    outside = [
        node("a", 1, "button", "a", box=(-5, 10, 40, 20)),
        node("b", 1, "button", "b", box=(10, 10, 0, 20)),
        node("c", 1, "button", "c", box=(790, 10, 100, 20)),
        node("d", 1, "button", "d", box=(10, 595, 20, 40)),
    ]
    assert rows([APPLICATION, FRAME, *outside]) == ()


def test_rows_put_dialogs_first_then_content_then_toolbars() -> None:
    nodes = [
        APPLICATION,
        FRAME,
        node("bar", 1, "tool-bar"),
        node("tool", 2, "button", "Tool", box=(0, 0, 20, 20)),
        node("text", 1, "text", text="content", box=(0, 50, 300, 300)),
        node("dialog", 0, "dialog", "Sure?"),
        node("yes", 5, "button", "Yes", box=(300, 300, 40, 20)),
    ]
    found = rows(nodes)
    assert [element.text for element in found] == ["Yes", "content", "Tool"]
    assert [element.in_content for element in found] == [True, True, False]


def test_rows_of_an_open_menu_come_first() -> None:
    nodes = [
        APPLICATION,
        FRAME,
        node("text", 1, "text", text="content", box=(0, 50, 300, 300)),
        node("bar", 1, "menu-bar"),
        node("file", 3, "menu", "File"),
        node("open", 4, "menu-item", "Open", box=(10, 40, 80, 20)),
    ]
    assert [element.text for element in rows(nodes)] == ["Open", "content", "File"]


def test_row_inside_another_with_the_same_text_is_left_out() -> None:
    cell = node("cell", 1, "table-cell", "1995", box=(0, 0, 200, 40))
    assert len(rows([APPLICATION, FRAME, cell, node("inner", 2, "static", "1995", box=(5, 5, 30, 20))])) == 1


def test_rows_that_overlap_with_the_same_text_are_one_and_apart_they_are_two() -> None:
    first = node("a", 1, "label", "Same", box=(0, 0, 40, 20))
    assert len(rows([APPLICATION, FRAME, first, node("b", 1, "label", "same ", box=(2, 0, 40, 20))])) == 1
    assert len(rows([APPLICATION, FRAME, first, node("b", 1, "label", "same", box=(200, 0, 40, 20))])) == 2


def test_nameless_toolbar_buttons_are_left_out_and_nameless_content_buttons_are_not() -> None:
    nodes = [APPLICATION, FRAME, node("bar", 1, "tool-bar"), node("x", 2, "button"), node("y", 1, "button", box=(100, 100, 9, 9))]
    assert [element.y for element in rows(nodes)] == [104]


def test_file_manager_rows_count_as_content_only_in_their_first_column() -> None:
    nodes = [
        APPLICATION,
        FRAME,
        node("pane", 1, "directory-pane", "Details", box=(0, 60, 800, 500)),
        node("table", 2, "table", box=(0, 60, 800, 500)),
        node("name", 3, "table-cell", box=(2, 90, 400, 26)),
        node("label", 4, "table-cell", "a.txt", box=(30, 90, 300, 26)),
        node("size", 3, "table-cell", "12 bytes", box=(420, 90, 60, 26)),
    ]
    found = {element.text: element.in_content for element in rows(nodes, app="files")}
    assert found == {"a.txt": True, "12 bytes": False}


def test_numbers_stay_while_elements_come_and_go() -> None:
    numbering = Numbering()
    a, b, c = (node(key, 1, "button", key, box=(x, 0, 20, 20)) for key, x in (("a", 0), ("b", 100), ("c", 200)))
    assert [e.number for e in rows([APPLICATION, FRAME, a, b], numbering=numbering)] == [1, 2]
    assert {e.text: e.number for e in rows([APPLICATION, FRAME, c, b], numbering=numbering)} == {"c": 3, "b": 2}
    assert [e.number for e in rows([APPLICATION, FRAME, a], numbering=numbering)] == [1]


def test_covered_elements_have_no_rows_but_give_their_text_to_what_is_around_them() -> None:
    hidden = replace(node("label", 2, "label", "Save", box=(0, 0, 9, 9)), states=("covered",))
    covered = replace(node("x", 1, "button", "x"), states=("covered",))
    found = rows([APPLICATION, FRAME, node("button", 1, "button"), hidden, covered])
    assert [element.text for element in found] == ["Save"]


def test_row_of_a_window_without_elements_comes_first() -> None:
    window = node("window:77", 0, "window", "Open File (window without elements)", box=(200, 100, 400, 300))
    found = rows([APPLICATION, FRAME, node("b", 1, "button", "Save"), window])
    assert (found[0].text, found[0].x, found[0].y) == (window.name, 400, 250)


def test_list_in_a_window_without_a_name_comes_before_the_page() -> None:
    nodes = [
        APPLICATION,
        FRAME,
        node("page", 1, "document-web"),
        node("b", 2, "button", "Save"),
        node("popup", 0, "frame"),
        node("list", 4, "list-box", "Autofill"),
        node("item", 5, "list-item", "One", box=(300, 300, 40, 20)),
    ]
    assert [element.text for element in rows(nodes, app="browser")] == ["Autofill", "One", "Save"]


def test_rows_are_cut_at_the_limit() -> None:
    nodes = [APPLICATION, FRAME, *(node(str(i), 1, "button", str(i), box=(0, 10 * i, 20, 9)) for i in range(50))]
    assert len(rows(nodes, most=7)) == 7


ROLES = ("panel", "button", "text", "dialog", "menu", "tool-bar", "document-web", "table-cell", "static", "frame")


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(ROLES), st.text(max_size=4), st.integers(-9, 900)), max_size=30))
def test_rows_of_any_tree_are_on_screen_and_numbered_once(tree: list[tuple[int, str, str, int]]) -> None:
    nodes = [APPLICATION]
    for index, (parent, role, name, place) in enumerate(tree):
        nodes.append(node(str(index), min(parent, len(nodes) - 1), role, name, box=(place, place, 30, 20)))
    found = rows(nodes)
    assert len({element.number for element in found}) == len(found)
    assert all(0 <= element.x < 800 and 0 <= element.y < 600 for element in found)


def test_field_in_a_table_cell_is_shown_with_and_without_content() -> None:
    cell, box = node("cell", 1, "table-cell", "typed", box=(0, 0, 50, 20)), (5, 2, 40, 16)
    for content in ("", "typed"):
        found = rows([APPLICATION, FRAME, cell, node("field", 2, "entry", text=content, box=box)], app="chromium")
        assert [(element.role, element.text) for element in found] == [("entry", content)]
    link = rows([APPLICATION, FRAME, cell, node("link", 2, "link", "typed", box=box)], app="chromium")
    assert [element.role for element in link] == ["table-cell"]
