"""Objects of a page that a click in the middle would miss: out of reach, or met at another place."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.env_server.guest.reading.roles import COVERED, SHOWING, has_state
from computerrl.env_server.guest.reading.tree_walk import Extents, Node
from computerrl.env_server.guest.web.page_reach import missed_from, within_reach


def node(path: str, parent: int, role: str, box: Extents) -> Node:
    return Node(path, parent, role, path, None, box, 1 << SHOWING)


def test_missed_objects_of_the_largest_page_are_covered_or_moved() -> None:
    nodes = [
        node("browser", -1, "application", (0, 0, 0, 0)),
        node("page", 0, "document-web", (0, 100, 800, 500)),
        node("bubble", 0, "document-web", (600, 100, 100, 100)),
        node("back", 0, "button", (10, 10, 30, 20)),
        node("under", 1, "button", (10, 110, 31, 21)),
        node("cut", 1, "button", (50, 110, 30, 20)),
        node("free", 1, "button", (10, 210, 30, 20)),
        node("inside", 4, "static", (12, 112, 20, 10)),
        node("frame", 1, "document-web", (300, 300, 100, 100)),
        node("framed", 8, "button", (10, 110, 30, 20)),
        node("other", 2, "button", (10, 110, 30, 20)),
    ]
    missed = missed_from([[[10.4, 9.6, 30, 20], None], [[50, 10, 30, 20], [60, 10, 10, 6.7]], [[12, 12, 20, 10], None]])
    found = {one.path: one for one in within_reach(nodes, missed)}
    assert [path for path, one in found.items() if has_state(one.states, COVERED)] == ["under", "inside"]
    assert [path for path, one in found.items() if one.extents != nodes[list(found).index(path)].extents] == ["cut"]
    assert found["cut"].extents == (60, 110, 10, 7)


def test_browser_without_a_page_is_left_as_it_is() -> None:
    nodes = [node("browser", -1, "application", (0, 0, 0, 0)), node("back", 0, "button", (10, 10, 30, 20))]
    assert within_reach(nodes, [((10, 10, 30, 20), None)]) == nodes


@pytest.mark.parametrize(
    "found",
    [
        None,
        5,
        "x",
        {},
        [5],
        [[]],
        [[[1, 2, 3]]],
        [[[1, 2, 3, 4]]],
        [["abcd", None]],
        [[[1, 2, 3, "4"], None]],
        [[None, None]],
        [[[1, 2, 3, 1e300], None]],
        [[[1, 2, 3, float("nan")], None]],
        [[[1, 2, 3, 4], [1]]],
        [[[1, 2, 3, 4], 0]],
    ],
)
def test_what_a_page_s_own_scripts_made_of_the_question_is_no_answer(found: Any) -> None:
    assert missed_from(found) == []
