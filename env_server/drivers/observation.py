"""Elements of an observation, made of the guest's accessibility nodes: ComputerRL's rules, states, and stable numbers.

Pure: nodes in, `Element` rows out; `Numbering` is the only state and lives for one task. The rules follow ComputerRL's
evaluation code (roles kept, what must be showing, near-duplicates removed), with three changes: states are shown, an element
keeps its number while it stays, and content comes before toolbars and menus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from computerrl.common.messages import Element
from computerrl.env_server.guest.reading.visibility import WINDOW_KEY

DUPLICATE_OVERLAP = 0.2
"""Two rows with the same text whose boxes overlap by more than this (intersection over union) are one."""

_KEPT_SUFFIXES = (
    "item",
    "button",
    "heading",
    "label",
    "scrollbar",
    "searchbox",
    "textbox",
    "link",
    "tabelement",
    "textfield",
    "textarea",
    "menu",
)
_KEPT_ROLES = frozenset(
    {"alert", "canvas", "check-box", "combo-box", "entry", "icon", "image", "paragraph", "section", "slider", "static",
     "table-cell", "terminal", "text", "password-text", "spin-button", "page-tab", "list-box", "table-column-header",
     "info-bar", "heading", "shape"}
)  # fmt: skip
_INPUT_ROLES = frozenset(
    {
        "entry",
        "text",
        "password-text",
        "terminal",
        "spin-button",
        "combo-box",
        "check-box",
        "radio-button",
        "slider",
        "button",
        "toggle-button",
        "canvas",
        "list-box",
    }
)
"""Shown even without a name: an agent must be able to click an empty field."""
_OPERATED_ROLES = _INPUT_ROLES - {"text", "terminal", "canvas"}
"""What a table cell around it must not stand for: a field that is filled in would vanish behind its cell."""
_FRAME_ROLES = frozenset({"menu-bar", "tool-bar", "status-bar", "title-bar", "info-bar", "table-column-header", "scroll-bar"})
"""What lies below these is no content."""
_DOCUMENT_ROLES = frozenset(
    {"document-web", "document-spreadsheet", "document-text", "document-presentation", "document-frame", "directory-pane"}
)
_DIALOG_ROLES = frozenset({"dialog", "alert", "file-chooser", "font-chooser", "color-chooser"})
_ICONS = re.compile("[\ue000-\uf8ff]+")
"""Letters of private use, which pages draw icons with."""
_POPUP_ROLES = frozenset({"window", "popup-menu"})


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One accessible object as the guest sent it."""

    key: str
    """Stays while the object lives."""
    parent: int
    """Index in the same list, -1 for the root."""
    role: str
    name: str
    text: str | None
    x: int
    y: int
    width: int
    height: int
    states: tuple[str, ...]


@dataclass(slots=True)
class Numbering:
    """Numbers of elements within one task: given in reading order at first sight, never given again to another element."""

    _numbers: dict[str, int] = field(default_factory=dict)

    def number_of(self, key: str) -> int:
        """The element's number."""
        return self._numbers.setdefault(key, len(self._numbers) + 1)


def linearise(
    nodes: Sequence[TreeNode], *, app: str, width: int, height: int, max_elements: int, numbering: Numbering
) -> tuple[Element, ...]:
    """The rows of a tree, at most ``max_elements``: dialogs and open menus first, then content, then the application's frame."""
    sections = _sections(nodes, app)
    children = _children(nodes)
    rows = []
    shown: dict[int, str] = {}
    for index in _depth_first(children, nodes):
        node = nodes[index]
        text = _text(node, index, nodes, children)
        is_named = bool(text.strip()) or sections[index] != _FRAME
        if is_named and _is_kept(node, text, app) and _is_on_screen(node, width, height):
            if not text or not _says_the_same(nodes, shown, index, text):
                shown[index] = text
                rows.append((sections[index], node, text))
    rows.sort(key=lambda row: row[0])
    kept = _without_duplicates(rows, max_elements)
    return tuple(_element(section, node, text, numbering) for section, node, text in kept)


_DIALOG, _CONTENT, _FRAME = 0, 1, 2


def _sections(nodes: Sequence[TreeNode], app: str) -> list[int]:
    """Dialog, content or frame, for every node; parents come before children."""
    has_document = any(node.role in _DOCUMENT_ROLES for node in nodes)
    found: list[int] = []
    for node in nodes:
        above = found[node.parent] if node.parent >= 0 else (_FRAME if has_document else _CONTENT)
        parent_role = nodes[node.parent].role if node.parent >= 0 else ""
        if node.role in _DIALOG_ROLES and parent_role == "application":
            above = _DIALOG
        elif node.role in _POPUP_ROLES and parent_role in ("application", "menu", "menu-item", "combo-box"):
            above = _DIALOG
        elif node.role == "frame" and parent_role == "application" and not node.name:
            above = _DIALOG  # how Chromium calls its menus and lists
        elif above != _DIALOG and parent_role == "menu":
            above = _DIALOG  # an open menu
        elif above != _DIALOG and node.role in _DOCUMENT_ROLES:
            above = _CONTENT
        elif above == _CONTENT and node.role in _FRAME_ROLES:
            above = _FRAME
        elif node.role == "frame" and not has_document:
            above = _CONTENT
        elif above == _CONTENT and node.role == "table-cell" and _is_detail(node, nodes):
            above = _FRAME
        found.append(above)
    return found


def _is_detail(cell: TreeNode, nodes: Sequence[TreeNode]) -> bool:
    """A file manager's columns of size, type and date: all but the first."""
    table = nodes[cell.parent] if cell.parent >= 0 else None
    if table is None or table.parent < 0 or nodes[table.parent].role != "directory-pane":
        return False
    return cell.x > table.x + table.width // 4


def _children(nodes: Sequence[TreeNode]) -> Mapping[int, list[int]]:
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    return children


def _depth_first(children: Mapping[int, list[int]], nodes: Sequence[TreeNode]) -> list[int]:
    order = []
    pending = list(reversed(children.get(-1, [])))
    while pending:
        index = pending.pop()
        order.append(index)
        pending.extend(reversed(children.get(index, [])))
    assert len(order) <= len(nodes)
    return order


def _text(node: TreeNode, index: int, nodes: Sequence[TreeNode], children: Mapping[int, list[int]]) -> str:
    if node.text is not None:
        return node.text
    name = _ICONS.sub("", node.name).strip()
    if node.role == "table-cell" and any(nodes[child].role in _OPERATED_ROLES for child in children.get(index, [])):
        return ""
    if not name and node.role in ("table-cell", "button", "toggle-button"):
        parts = [nodes[child].text or nodes[child].name for child in children.get(index, [])]
        name = " ".join(part for part in parts if part).strip()
    return name


def _says_the_same(nodes: Sequence[TreeNode], shown: Mapping[int, str], index: int, text: str) -> bool:
    """Is an element around this one shown with the same text (a cell around its text, a button around its label)?"""
    above = nodes[index].parent
    while above >= 0:
        if shown.get(above) == text:
            return True
        above = nodes[above].parent
    return False


def _is_kept(node: TreeNode, text: str, app: str) -> bool:
    role = node.role
    if "covered" in node.states:
        return False  # a click there would meet another window
    if node.key.startswith(WINDOW_KEY):
        return True
    if not (role in _KEPT_ROLES or role.startswith("document") or role.endswith(_KEPT_SUFFIXES)):
        return False
    if role.startswith("document") or role in ("section", "info-bar", "alert"):
        return False  # their children say the same
    if not text.strip():
        is_picture_to_click = role in ("image", "icon") and app == "chromium"
        return role in _INPUT_ROLES or is_picture_to_click or node.key.startswith("cell:")
    return True


def _is_on_screen(node: TreeNode, width: int, height: int) -> bool:
    if node.x < 0 or node.y < 0 or node.width <= 0 or node.height <= 0:
        return False
    return node.x + node.width // 2 < width and node.y + node.height // 2 < height


def _without_duplicates(rows: Sequence[tuple[int, TreeNode, str]], max_elements: int) -> list[tuple[int, TreeNode, str]]:
    kept: list[tuple[int, TreeNode, str]] = []
    seen: dict[str, list[TreeNode]] = {}
    for section, node, text in rows:
        if len(kept) == max_elements:
            break
        plain = "".join(text.lower().split())
        same = seen.setdefault(plain, [])
        if any(_overlap(node, other) > DUPLICATE_OVERLAP for other in same):
            continue
        same.append(node)
        kept.append((section, node, text))
    return kept


def _overlap(a: TreeNode, b: TreeNode) -> float:
    wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    return both / (a.width * a.height + b.width * b.height - both)


def _element(section: int, node: TreeNode, text: str, numbering: Numbering) -> Element:
    return Element(
        number=numbering.number_of(node.key),
        role=node.role,
        text=text,
        x=node.x + node.width // 2,
        y=node.y + node.height // 2,
        width=node.width,
        height=node.height,
        states=node.states,
        in_content=section != _FRAME,
    )
