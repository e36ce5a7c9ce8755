"""AT-SPI's numbers for roles and states (at-spi2-core, atspi-constants.h), with short names."""

from __future__ import annotations

_NAMES = (
    "invalid", "accelerator-label", "alert", "animation", "arrow", "calendar", "canvas", "check-box", "check-menu-item",
    "color-chooser", "column-header", "combo-box", "date-editor", "desktop-icon", "desktop-frame", "dial", "dialog",
    "directory-pane", "drawing-area", "file-chooser", "filler", "focus-traversable", "font-chooser", "frame", "glass-pane",
    "html-container", "icon", "image", "internal-frame", "label", "layered-pane", "list", "list-item", "menu", "menu-bar",
    "menu-item", "option-pane", "page-tab", "page-tab-list", "panel", "password-text", "popup-menu", "progress-bar", "button",
    "radio-button", "radio-menu-item", "root-pane", "row-header", "scroll-bar", "scroll-pane", "separator", "slider",
    "spin-button", "split-pane", "status-bar", "table", "table-cell", "table-column-header", "table-row-header",
    "tearoff-menu-item", "terminal", "text", "toggle-button", "tool-bar", "tool-tip", "tree", "tree-table", "unknown",
    "viewport", "window", "extended", "header", "footer", "paragraph", "ruler", "application", "autocomplete", "editbar",
    "embedded", "entry", "chart", "caption", "document-frame", "heading", "page", "section", "redundant-object", "form", "link",
    "input-method-window", "table-row", "tree-item", "document-spreadsheet", "document-presentation", "document-text",
    "document-web", "document-email", "comment", "list-box", "grouping", "image-map", "notification", "info-bar", "level-bar",
    "title-bar", "block-quote", "audio", "video", "definition", "article", "landmark", "log", "marquee", "math", "rating",
    "timer", "static", "math-fraction", "math-root", "subscript", "superscript", "description-list", "description-term",
    "description-value", "footnote", "content-deletion", "content-insertion", "mark", "suggestion", "push-button-menu",
)  # fmt: skip

ROLE_NAMES = dict(enumerate(_NAMES))

ACTIVE, CHECKED, COLLAPSED, EDITABLE, ENABLED, EXPANDED, FOCUSED = 1, 4, 5, 7, 8, 10, 12
MODAL, MULTI_LINE, SELECTED, SENSITIVE, SHOWING, VISIBLE = 16, 17, 23, 24, 25, 30
"""Bit numbers of states."""
COVERED = 63
"""Not one of AT-SPI's: a click on the object would meet another window, or nothing, as a dialog has to be answered first."""

_SHOWN = (
    (CHECKED, "checked"),
    (SELECTED, "selected"),
    (FOCUSED, "focused"),
    (EXPANDED, "expanded"),
    (EDITABLE, "editable"),
    (COVERED, "covered"),
)


def has_state(states: int, bit: int) -> bool:
    """Is the state with this bit number set?"""
    return bool(states >> bit & 1)


def state_names(states: int) -> list[str]:
    """The states an agent is told of."""
    names = [name for bit, name in _SHOWN if has_state(states, bit)]
    if not has_state(states, SENSITIVE):
        names.append("disabled")
    return names
