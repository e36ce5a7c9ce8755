"""Which objects can be clicked: windows in stacking order, menus and lists in popups, windows that are alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.reading.roles import ACTIVE, COVERED, MODAL, SHOWING, VISIBLE, has_state
from computerrl.env_server.guest.reading.tree_walk import Extents, Node
from computerrl.env_server.guest.reading.visibility import WINDOW_KEY, Arrangement, Surface, match, visible_parts

SCREEN = (0, 0, 80, 60)
PID = 7
SHOWN = 1 << SHOWING | 1 << VISIBLE
BOXES = st.tuples(st.integers(-5, 80), st.integers(-5, 60), st.integers(1, 60), st.integers(1, 50))


def surface(xid: int, title: str = "", box: Extents = SCREEN, *, pid: int = PID, popup: bool = False) -> Surface:
    return Surface(xid, pid, title, box, popup)


def node(path: str, parent: int, role: str, name: str = "", box: Extents = SCREEN, *, states: int = SHOWN) -> Node:
    return Node(path, parent, role, name, None, box, states)


APPLICATION = node("root", -1, "application", box=(0, 0, 0, 0))


def seen(surfaces: Sequence[Surface], *nodes: Node, active: int = 1) -> tuple[list[str], list[str]]:
    """Names of the buttons and items that can be clicked, and of the windows about which nothing is known."""
    arrangement = Arrangement(surfaces, pid=PID, active=active, screen=SCREEN)
    assert not arrangement.left_out([one for one in nodes if one.parent == 0])
    found = [one for one in arrangement.seen([APPLICATION, *nodes]) if not has_state(one.states, COVERED)]
    bare = [one.name for one in found if one.path.startswith(WINDOW_KEY)]
    return [one.name for one in found if one.role in ("button", "menu", "menu-item")], bare


PAGE = node("page", 0, "frame", "Page")
ORDER = node("order", 1, "button", "Order now", (30, 25, 9, 9))


def test_main_window_that_another_covers_is_left_out() -> None:
    arrangement = Arrangement([surface(1, "Page"), surface(2, "Popup")], pid=PID, active=2, screen=SCREEN)
    assert arrangement.left_out([PAGE, node("popup", 0, "frame", "Popup")]) == {"page"}


def test_what_a_dialog_leaves_open_of_its_window_can_be_clicked() -> None:
    dialog, box = node("dialog", 0, "dialog", "Sure?", (20, 20, 40, 20)), (20, 20, 40, 20)
    help_button, yes = node("help", 1, "button", "Help", (0, 0, 9, 9)), node("yes", 2, "button", "Yes", (30, 25, 9, 9))
    surfaces = [surface(1, "Page"), surface(2, "Sure?", box)]
    assert seen(surfaces, PAGE, dialog, ORDER, help_button, yes, active=2) == (["Help", "Yes"], [])


@pytest.mark.parametrize("active", [1, 2, 4])
def test_modal_dialog_with_the_focus_blocks_the_other_windows_of_its_process(active: int) -> None:
    dialog = node("dialog", 0, "dialog", "Sure?", (20, 20, 40, 20), states=SHOWN | 1 << MODAL)
    tools, pen = node("tools", 0, "frame", "Tools", (70, 0, 10, 9)), node("pen", 3, "button", "Pen", (71, 1, 5, 5))
    menu, copy = node("menu", 2, "menu", "Copies", (21, 21, 9, 5)), item("copy", 5, "Twice", 21, 26)
    help_button, yes = node("help", 1, "button", "Help", (0, 0, 9, 9)), node("yes", 2, "button", "Yes", (30, 35, 9, 4))
    surfaces = [surface(1, "Page"), surface(4, "Tools", (70, 0, 10, 9)), surface(2, "Sure?", (20, 20, 40, 20))]
    surfaces.append(surface(3, box=(21, 26, 30, 5), popup=True))
    found, _ = seen(surfaces, PAGE, dialog, tools, pen, menu, copy, help_button, yes, active=active)
    inside = ["Copies", "Twice", "Yes"]
    assert sorted(found) == sorted(inside if active == 2 else ["Help", "Pen", *inside])


def item(path: str, parent: int, name: str, x: int, y: int, *, role: str = "menu-item", states: int = SHOWN) -> Node:
    """An item, 30 pixels wide, of an open menu."""
    return node(path, parent, role, name, (x, y, 30, 5), states=states)


def test_items_of_an_open_menu_are_seen_and_what_it_covers_is_not() -> None:
    menu_bar, file = node("bar", 1, "menu-bar", box=(0, 0, 80, 5)), node("file", 2, "menu", "File", (0, 0, 9, 5))
    items = [item("new", 3, "New", 0, 5), item("more", 3, "More", 0, 10, role="menu"), item("deep", 5, "Deep", 28, 10)]
    rest = [node("under", 1, "button", "Under", (10, 11, 5, 4)), node("free", 1, "button", "Free", (60, 40, 5, 4))]
    menus = [surface(3, box=(0, 5, 30, 10), popup=True), surface(4, box=(28, 10, 30, 5), popup=True)]
    found = seen([surface(1, "Page"), *menus], PAGE, menu_bar, file, *items, *rest)
    assert found == (["File", "New", "More", "Deep", "Free"], [])


def test_items_of_a_closed_menu_that_keep_their_places_are_not_seen() -> None:
    """GTK 2 does not count items as showing, and leaves those of a menu that was open where they were."""
    titles = [node("file", 1, "menu", "File", (0, 0, 9, 5)), node("edit", 1, "menu", "Edit", (9, 0, 9, 5))]
    names = (("New", 2, 0, 5), ("Save", 2, 0, 10), ("Cut", 3, 9, 5), ("Copy", 3, 9, 10))
    items = [item(name, parent, name, x, y, states=1 << VISIBLE) for name, parent, x, y in names]
    popup = surface(3, box=(9, 5, 30, 10), popup=True)
    assert seen([surface(1, "Page"), popup], PAGE, *titles, *items) == (["File", "Edit", "Cut", "Copy"], [])
    assert seen([surface(1, "Page")], PAGE, *titles, *items) == (["File", "Edit"], [])


def test_list_of_a_page_is_known_by_its_place() -> None:
    box = (10, 20, 30, 20)
    nodes = [
        node("popup", 0, "frame", box=box),
        node("day", 1, "date-editor", box=(10, 15, 30, 5)),
        node("panel", 3, "panel", box=box),
    ]
    inside, under = node("next", 4, "button", "Next month", (30, 22, 5, 5)), node("under", 1, "button", "Under", (12, 30, 5, 5))
    assert seen([surface(1, "Page"), surface(3, box=box, popup=True)], PAGE, *nodes, inside, under) == (["Next month"], [])


def test_bubble_without_a_window_of_its_own_covers_the_page_that_it_is_drawn_on() -> None:
    bubble, allow = node("ask", 0, "alert", "Wants to", (10, 10, 30, 25)), node("yes", 2, "button", "Allow", (12, 14, 5, 5))
    assert seen([surface(1, "Page")], PAGE, bubble, allow, ORDER) == (["Allow"], [])


def test_window_without_objects_is_told_with_its_title_and_place() -> None:
    dialog = surface(2, "Open File", (20, 20, 40, 30))
    assert seen([surface(1, "Page"), dialog], PAGE, ORDER, active=2) == ([], ["Open File (window without elements)"])
    found = Arrangement([surface(1, "Page"), dialog], pid=PID, active=2, screen=SCREEN).seen([])
    assert [one.extents for one in found] == [dialog.box]


def test_window_behind_the_one_in_front_needs_no_objects() -> None:
    surfaces = [surface(1, "Other", pid=99), surface(2, "Page", (20, 20, 40, 30))]
    assert seen(surfaces, PAGE, ORDER, active=2) == (["Order now"], [])


def test_windows_of_other_programs_cover_too() -> None:
    surfaces = [surface(1, "Page"), surface(2, "Note", (25, 20, 30, 30), pid=99)]
    assert seen(surfaces, PAGE, ORDER) == ([], ["Note (window without elements)"])


@pytest.mark.parametrize("active", [1, 2, 3])
def test_of_windows_that_are_alike_the_focused_one_is_the_active_one(active: int) -> None:
    tops = [node(f"w{xid}", 0, "frame", "New Tab", states=SHOWN | (1 << ACTIVE if xid == active else 0)) for xid in (1, 2, 3)]
    surfaces = [surface(xid, "New Tab") for xid in (3, 1, 2)]
    assert match(tops, surfaces, active=active)[f"w{active}"].xid == active


def test_windows_that_are_alike_are_told_apart_by_age_when_a_dialog_has_the_focus() -> None:
    tops = [
        node("old", 0, "frame", "New Tab"),
        node("new", 0, "frame", "New Tab"),
        node("dialog", 0, "dialog", "Print", (9, 9, 50, 40)),
    ]
    found = match(tops, [surface(5, "New Tab"), surface(4, "New Tab"), surface(6, "Print", (9, 9, 50, 40))], active=6)
    assert {path: one.xid for path, one in found.items()} == {"old": 4, "new": 5, "dialog": 6}


@pytest.mark.parametrize(
    ("name", "title"), [("New Tab (Incognito)", "New Tab"), ("Page - Permission requested", "Page - Chromium")]
)
def test_window_is_found_though_its_name_is_not_the_title(name: str, title: str) -> None:
    tops = [node("a", 0, "frame", name), node("b", 0, "frame", "Other", (0, 0, 40, 30))]
    found = match(tops, [surface(1, title), surface(2, "Other", (0, 0, 40, 30))], active=0)
    assert {path: one.xid for path, one in found.items()} == {"a": 1, "b": 2}


def painted(surfaces: Sequence[Surface]) -> dict[tuple[int, int], int]:
    """Pixel -> the surface that shows there, by painting one over the other."""
    pixels = {}
    for one in surfaces:
        x, y, width, height = one.box
        for column in range(max(0, x), min(SCREEN[2], x + width)):
            for row in range(max(0, y), min(SCREEN[3], y + height)):
                pixels[column, row] = one.xid
    return pixels


@given(st.lists(BOXES, max_size=6))
def test_visible_parts_are_what_painting_leaves(boxes: list[Extents]) -> None:
    surfaces = [surface(xid, box=box) for xid, box in enumerate(boxes)]
    parts = visible_parts(surfaces, screen=SCREEN)
    pixels: dict[tuple[int, int], int] = {}
    for xid, rectangles in parts.items():
        for x, y, width, height in rectangles:
            for place in ((column, row) for column in range(x, x + width) for row in range(y, y + height)):
                assert place not in pixels
                pixels[place] = xid
    assert pixels == painted(surfaces)


@given(st.lists(BOXES, min_size=1, max_size=5), st.lists(st.tuples(st.integers(0, 4), BOXES), max_size=8), st.data())
def test_object_is_covered_where_another_window_is_painted(
    boxes: list[Extents], buttons: list[tuple[int, Extents]], data: st.DataObject
) -> None:
    surfaces = [surface(number + 1, f"Window {number}", box) for number, box in enumerate(boxes)]
    pixels = painted(surfaces)
    tops = [node(f"top{number}", 0, "dialog", f"Window {number}", box) for number, box in enumerate(boxes)]
    below = [node(f"b{place}", 1 + number % len(tops), "button", "b", box) for place, (number, box) in enumerate(buttons)]
    active = data.draw(st.sampled_from(surfaces)).xid
    arrangement = Arrangement(surfaces, pid=PID, active=active, screen=SCREEN)
    arrangement.left_out(tops)
    found = arrangement.seen([APPLICATION, *tops, *below])
    for one in (one for one in found if one.path.startswith("b")):
        x, y, width, height = one.extents
        shown = pixels.get((x + width // 2, y + height // 2))
        if shown is not None:
            assert has_state(one.states, COVERED) == (shown != one.parent)
