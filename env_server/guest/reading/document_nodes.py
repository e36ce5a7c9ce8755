"""Trees of the office's documents as an agent can use them: true places, cells by content, slides, boxes without text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .roles import EDITABLE, ENABLED, SENSITIVE, has_state
from .tree_walk import Extents, Node

_PAGE = "PageShape"
"""How Impress names the page itself among the boxes on it."""


def shift_root_panes(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with their true places, in the same order.

    LibreOffice counts the places in its own area from below the menu bar; the GTK panel around it has the true place. GTK widgets
    inside that area (name box, input line) report true places again: known by their being where their parent, shifted, is. The
    office's own menu bar, which GTK replaces, is left out with its menus.
    """
    shifts: list[tuple[int, int]] = []
    moved: list[Node] = []
    for node in nodes:
        x, y, width, height = node.extents
        shift = shifts[node.parent] if node.parent >= 0 else (0, 0)
        if node.parent >= 0:
            outer: Extents = moved[node.parent].extents
            if node.role == "root-pane":
                shift = (outer[0] - x, outer[1] - y)
            elif shift != (0, 0) and all(abs(a - b) <= 2 for a, b in zip(node.extents, outer, strict=True)):
                shift = (0, 0)
        is_replaced = node.parent >= 0 and moved[node.parent].role == "menu-bar" and moved[node.parent].extents[3] == 0
        shifts.append(shift)
        role = "unknown" if is_replaced else node.role
        moved.append(replace(node, role=role, extents=(x + shift[0], y + shift[1], width, height)))
    return moved


def as_agents_see(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of Writer or Impress, in the same order; parents come before children.

    Boxes are plain panels in the tree. Those with text are seen by that; the others become ``shape``, else no agent could point
    at them. The slides of the side pane become list items. A table's cell is named by its content, unless that is empty. Every
    object that can be edited is enabled: Writer does not report that of its paragraphs.
    """
    texts = _texts_inside(nodes)
    found = []
    for index, node in enumerate(nodes):
        above = nodes[node.parent].role if node.parent >= 0 else ""
        role, name, states = node.role, node.name, node.states
        if role == "table-cell":
            name = " ".join(texts[index]) or name
        elif role == "panel" and above == "document-frame":
            role = "list-item"
        elif role == "panel" and above == "document-presentation" and not texts[index] and not name.startswith(_PAGE):
            role = "shape"
        if has_state(states, EDITABLE):
            states |= 1 << ENABLED | 1 << SENSITIVE
        found.append(replace(node, role=role, name=name, states=states))
    return found


def _texts_inside(nodes: Sequence[Node]) -> list[list[str]]:
    """For every node the texts below it, in order."""
    texts: list[list[str]] = [[] for _ in nodes]
    for node in nodes:
        above = node.parent if node.text else -1
        while above >= 0:
            texts[above].append(node.text or "")
            above = nodes[above].parent
    return texts
