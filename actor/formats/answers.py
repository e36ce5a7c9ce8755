"""The parts of an answer, whatever the format: thoughts and fenced blocks.

A call inside a thought is no call, also where the thought has no end. Lines end at line feeds alone: a text in a call may hold
every other character that Unicode counts as a line break.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.actions import ActionSyntaxError

_NAMES = r"(?:\w+:)?(?:think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad)"
_OPEN = re.compile(rf"<\s*{_NAMES}\s*>|\[think\]|<\|(?:begin|start)_(?:of_)?(?:thought|thinking)\|>|◁think▷", re.IGNORECASE)
_CLOSE = re.compile(rf"<\s*/\s*{_NAMES}\s*>|\[/think\]|<\|end_(?:of_)?(?:thought|thinking)\|>|◁/think▷", re.IGNORECASE)
_OPEN_AT_END = re.compile(rf"(?:{_OPEN.pattern})\s*\Z", re.IGNORECASE)

_FENCE = "```"
_OPENER = re.compile(rf"\s*{_FENCE}|[^`]*\S\s*{_FENCE}[A-Za-z][\w+.-]*\s*\Z")
"""A fence at the start of a line, or one with a language at its end: `Action:` may stand before it."""


# --- thoughts --------------------------------------------------------------------------------------------------------


def is_thought_tag(text: str) -> bool:
    """Return whether ``text`` is a tag that begins or ends a thought."""
    return bool(_OPEN.fullmatch(text) or _CLOSE.fullmatch(text))


def opened_thought(prompt: str) -> str:
    """The tag, and the blanks after it, with which ``prompt`` begins the thought of the answer; empty when it does not."""
    found = _OPEN_AT_END.search(prompt)
    return found[0] if found else ""


def without_opening(answer: str, opening: str) -> str:
    """``answer`` as it goes on after a prompt that ends with ``opening``; one without a thought ends an empty one first."""
    if not opening:
        return answer
    found = _OPEN.match(answer)
    if found is None:
        return f"\n{_closing(opening.strip())}\n\n{answer}"
    rest = answer[found.end() :]
    return rest.removeprefix("\n") if opening.endswith("\n") else rest


def _closing(tag: str) -> str:
    if tag.startswith("<|"):
        return re.sub("begin|start", lambda found: "END" if found[0].isupper() else "end", tag, flags=re.IGNORECASE)
    return f"{tag[0]}/{tag[1:]}"


def after_first_thought(answer: str) -> str:
    """``answer`` without a thought at its start. Raises `ActionSyntaxError` when that has no end."""
    opened = _OPEN.match(answer.lstrip())
    return answer if opened is None else _after_close(answer.lstrip(), opened.end())


def last_part(answer: str) -> str:
    """What a whole ``answer`` says after a thought at its start."""
    opened = _OPEN.match(answer.lstrip())
    found = _CLOSE.search(answer) if opened else None
    return answer[found.end() :].strip() if found else answer.strip()


def after_thoughts(answer: str) -> str:
    """What ``answer`` says after its thoughts, up to its end. Raises `ActionSyntaxError` when the thought before the first fenced
    block, or before everything, has no end."""
    closed = _CLOSE.search(answer)
    if closed and not _OPEN.search(answer, 0, closed.start()):
        # The prompt began the thought. A string in the call may hold the tag as well, so it is the first that ends it.
        answer = answer[closed.end() :]
    block = _find(answer)
    while (opened := _OPEN.search(answer, 0, block.start if block else len(answer))) is not None:
        answer = _after_close(answer, opened.end())
        block = _find(answer)
    if block is None:
        return answer
    closed = _CLOSE.search(answer, block.end)
    if closed and not _OPEN.search(answer, block.end, closed.start()):
        # Thoughts within thoughts: the outer one ends here, after the block.
        return after_thoughts(answer[closed.end() :])
    return answer


def _after_close(answer: str, start: int) -> str:
    closed = _CLOSE.search(answer, start)
    if closed is None:
        raise ActionSyntaxError("the thought has no end: end it, then write the action")
    return answer[closed.end() :]


# --- fenced blocks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    body: str | None
    """None: the block has no end."""
    start: int
    end: int
    """Its place in the text, fences included."""


def first_block(text: str) -> str | None:
    """What stands in the first fenced block of ``text``, None when there is none. Raises `ActionSyntaxError` when it has no end,
    or stands within a line."""
    block = _find(text)
    if block is None:
        if text.count(_FENCE) > 1:
            raise ActionSyntaxError("the fences of the Python block stand on lines of their own, the call between them")
        return None
    if block.body is None:
        raise ActionSyntaxError("the Python block has no end")
    return block.body


def _find(text: str) -> _Block | None:
    start, place = None, 0
    lines: list[str] = []
    for line in text.split("\n"):
        end = place + len(line)
        if start is None:
            # A second fence on the line ends what the first one began: that is code amid prose.
            if line.count(_FENCE) == 1 and _OPENER.match(line):
                start = place
        elif line.strip().startswith(_FENCE):
            return _Block(_dedented(lines), start, end)
        else:
            lines.append(line.removesuffix("\r"))
        place = end + 1
    return None if start is None else _Block(None, start, len(text))


def _dedented(lines: list[str]) -> str:
    """``lines`` without the blanks that the first one begins with, where each begins with them; texts stay as they are."""
    first = next((line for line in lines if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(margin) for line in lines)
