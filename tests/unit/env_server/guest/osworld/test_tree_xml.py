"""The tree as XML: it can be parsed, whatever names and texts an application shows and however deep it nests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.guest.osworld.tree_xml import as_xml
from computerrl.env_server.guest.reading.tree_walk import Node
from computerrl.env_server.tasks.reading.packages import xml_of


def _node(parent: int, name: str = "", text: str | None = None) -> Node:
    return Node("/a", parent, "label", name, text, (1, 2, 3, 4), 0)


@given(st.text(), st.none() | st.text())
def test_tree_with_any_letters_can_be_parsed(name: str, text: str | None) -> None:
    (label,) = xml_of(as_xml([_node(-1, name, text)]).encode())
    assert len(label.get("name")) == len(name) and (text or "").isprintable() <= ((label.text or "") == (text or ""))


def test_tree_of_any_depth_can_be_parsed_and_holds_every_node() -> None:
    root = xml_of(as_xml([_node(index - 1, str(index)) for index in range(2000)]).encode())
    assert [label.get("name") for label in root.iter("label")] == [str(index) for index in range(2000)]
    assert root.xpath("label/label/label/@name") == ["2"]
