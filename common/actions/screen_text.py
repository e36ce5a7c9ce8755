"""What a desktop shows, as the text an agent reads: one line for the application, one for each element.

Pure, and the only place that writes these lines: the actor's prompt is built from them, and so is the observation that other
programs get (`env_server.gym`). Rows are short, since a small model on a CPU pays for every token of a prompt:

    radio Bella selected      `click("Bella")` means this element and no other: its row has no number
    button OK 3               two buttons are called OK: only the number tells them apart
    entry 5                   no text

A number stands after the text: a model that copies what followed an earlier mention of a word finds it there (cloned on 485
steps, SmolLM2-135M clicked right in 20 of 21 held-out steps, against 12 with the number in front).
"""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.common.actions.targets import named_alone, plain
from computerrl.common.config import PromptConfig
from computerrl.common.messages import Element, Observation

SHOWN_STATES = ("checked", "selected", "focused", "disabled", "expanded")
"""`editable` is left out: the role says it."""

_SHORT_ROLES = {
    "push-button": "button",
    "toggle-button": "toggle",
    "radio-button": "radio",
    "check-box": "check",
    "combo-box": "combo",
    "spin-button": "spin",
    "table-cell": "cell",
    "page-tab": "tab",
    "list-item": "item",
    "menu-item": "item",
    "tree-item": "item",
    "check-menu-item": "check",
    "radio-menu-item": "radio",
    "password-text": "password",
    "table-column-header": "column",
    "table-row-header": "row",
    "column-header": "column",
    "row-header": "row",
}
"""Roles of several words, each as one word that tokenizers of language models know as one token."""

MAX_TITLE_CHARS = 32


def app_line(observation: Observation, *, window_title: bool = True) -> str:
    """`App: calc, Untitled 1`: what is in front."""
    title = one_line(observation.window_title, MAX_TITLE_CHARS) if window_title else ""
    app = one_line(observation.app, MAX_TITLE_CHARS)
    return f"App: {app}, {title}" if title else f"App: {app}"


def element_rows(elements: Sequence[Element], config: PromptConfig, *, instruction: str = "") -> list[str]:
    """One line per shown element: content first, then toolbars and menus, both in the order of the observation.

    Plain text that the instruction says already is left out: a page that shows its own task would double the prompt, and
    what is to be clicked would be found in the task's text first.
    """
    observed = elements
    said = one_line(instruction)
    elements = [e for e in elements if not (e.is_plain_text and one_line(e.text) in said)]
    content = [element for element in elements if element.in_content]
    others = [element for element in elements if not element.in_content]
    shown = [*content, *others[: config.max_toolbar_elements]][: config.max_elements]
    alone = named_alone(observed)
    return [_row(element, config.max_element_chars, is_named_alone=element.number in alone) for element in shown]


def _row(element: Element, max_chars: int, *, is_named_alone: bool) -> str:
    """``is_named_alone``: an action may name the element by its text, as it stands in the row."""
    role, text = _SHORT_ROLES.get(element.role, element.role), one_line(element.text, max_chars)
    parts = [one_line(role, max_chars), text]
    parts.extend(state for state in SHOWN_STATES if state in element.states)
    if not (is_named_alone and text == plain(element.text)):
        parts.append(str(element.number))
    return " ".join(part for part in parts if part)


def one_line(text: str, max_chars: int | None = None) -> str:
    """``text`` on one line, `cut`: line breaks are written as \\n, runs of blanks as one."""
    # splitlines knows every line break there is; a tokenizer or a model may take any of them for one.
    whole = text if max_chars is None else text[: 4 * max_chars]
    line = " ".join("\\n".join(whole.splitlines()).split())
    return line if max_chars is None else cut(line, max_chars)


def cut(text: str, max_chars: int) -> str:
    """``text``, its end left out where it is longer, which a mark at its end tells."""
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"
