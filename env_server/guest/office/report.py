"""Results as the agent reads them: short, and saying what was left out."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RESULT_CHARS = 1500
_MAX_LINE = 500
_MIN_LINE = 24


def fitted(lines: Sequence[tuple[str, str]], what: str, *, limit: int = MAX_RESULT_CHARS) -> str:
    """Lines of (head, text) within ``limit`` characters: first long texts are cut, then lines at the end are left out."""
    cap = _MAX_LINE
    while cap > _MIN_LINE and _size(lines, cap) > limit:
        cap = max(_MIN_LINE, cap * 3 // 4)
    rows: list[str] = []
    left = limit - 60  # for the line about what was left out
    for head, text in lines:
        row = head + shown(text, cap)
        left -= len(row) + 1
        if left < 0:
            rows.append(f"… {len(lines) - len(rows)} more {what} left out")
            break
        rows.append(row)
    return "\n".join(rows)


def shown(text: str, limit: int) -> str:
    """The text in one line, cut at ``limit`` characters."""
    plain = text.replace("\n", "\\n").replace("\t", "\\t")
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 match``, ``2 matches``."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def _size(lines: Sequence[tuple[str, str]], cap: int) -> int:
    return sum(len(head) + min(len(text), cap) + 1 for head, text in lines) + 60
