"""Writer's and Impress's trees as an agent can use them: cells by content, slides of the side pane, boxes without text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .roles import EDITABLE, ENABLED, SENSITIVE, has_state
from .tree_walk import Node

_PAGE = "PageShape"
"""How Impress names the page itself among the boxes on it."""


def as_agents_see(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, in the same order; parents come before children.

    Boxes are plain panels in the tree. Those with text are seen by that; the others become ``shape``, else nobody could point at
    them. The slides of the side pane become list items. A table's cell is named by what it holds, as long as that is something.
    What can be edited is enabled: Writer does not say so of its paragraphs.
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
