"""An application's tree as XML, as rules of OSWorld's tasks read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from ..reading.roles import state_names
from ..reading.tree_walk import Node

_STATE_SPACE = "urn:accessibility:state"
_COMPONENT_SPACE = "urn:accessibility:component"
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Letters that a window may show and XML cannot hold, such as a form feed."""
_MAX_DEPTH = 200
"""Levels of the XML. Readers of XML refuse more than 256, and a page may nest its lists as it likes."""


def as_xml(nodes: Sequence[Node]) -> str:
    """Tags are roles; attribute ``name``, the text as text, states and places as attributes of namespaces of their own.

    Nodes deeper than the last level are on the last level. ``nodes``: parents before their children.
    """
    root = ElementTree.Element("desktop-frame")
    made: list[tuple[ElementTree.Element, int]] = []
    """For each node the element that its children hang below, and the level of that."""
    for node in nodes:
        above, level = made[node.parent] if node.parent >= 0 else (root, 1)
        item = ElementTree.SubElement(above, node.role or "unknown", {"name": _plain(node.name)})
        item.text = _plain(node.text or "")
        x, y, width, height = node.extents
        item.set(f"{{{_COMPONENT_SPACE}}}screencoord", f"({x}, {y})")
        item.set(f"{{{_COMPONENT_SPACE}}}size", f"({width}, {height})")
        for state in state_names(node.states):
            item.set(f"{{{_STATE_SPACE}}}{state}", "true")
        made.append((item, level + 1) if level + 1 < _MAX_DEPTH else (above, level))
    return ElementTree.tostring(root, encoding="unicode")


def _plain(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
