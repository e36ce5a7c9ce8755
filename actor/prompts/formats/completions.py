"""The parts of a completion, whatever the format: thoughts and fenced blocks.

A call inside a thought is no call, also where the thought has no end. Lines end at line feeds alone: a text in a call may hold
every other character that Unicode counts as a line break.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from computerrl.common.actions import ActionSyntaxError

_NAMES = r"(?:\w+:)?(?:think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad)"
_OPEN = re.compile(rf"<\s*{_NAMES}\s*>|\[think\]|<\|(?:begin|start)_(?:of_)?(?:thought|thinking)\|>|◁think▷", re.IGNORECASE)
_CLOSE = re.compile(rf"<\s*/\s*{_NAMES}\s*>|\[/think\]|<\|end_(?:of_)?(?:thought|thinking)\|>|◁/think▷", re.IGNORECASE)
_OPEN_AT_END = re.compile(rf"(?:{_OPEN.pattern})\s*\Z", re.IGNORECASE)

_FENCE = "```"
_OPENER = re.compile(rf"\s*{_FENCE}|[^`]*\S\s*{_FENCE}[A-Za-z][\w+.-]*\s*\Z")
"""A fence at the start of a line, or one with a language at its end: `Action:` may stand before it."""


_END = 1 << 62
"""Behind every text."""
_NOWHERE = (_END, _END)
_ENDLESS = "the thought has no end: end it, then write the action"


class _Places:
    """Matches in a text, which are asked for by place: texts of a model hold any number of them."""

    def __init__(self, found: Iterable[re.Match[str]]) -> None:
        self._spans = [match.span() for match in found]

    def next(self, place: int) -> tuple[int, int]:
        """Begin and end of the first that begins at ``place`` or later, or `_NOWHERE`."""
        number = bisect_left(self._spans, (place,))
        return self._spans[number] if number < len(self._spans) else _NOWHERE


# --- thoughts --------------------------------------------------------------------------------------------------------


def is_thought_tag(text: str) -> bool:
    """Return whether ``text`` is a tag that begins or ends a thought."""
    return bool(_OPEN.fullmatch(text) or _CLOSE.fullmatch(text))


def without_tags(text: str) -> str:
    """``text`` in which no tag begins or ends a thought."""
    for tag in (_OPEN, _CLOSE):
        text = tag.sub(lambda found: f"({found[0][1:]}", text)
    return text


def opened_thought(prompt: str) -> str:
    """Tag and blanks with which ``prompt`` begins the thought of the completion; empty when it begins none."""
    found = _OPEN_AT_END.search(prompt)
    return found[0] if found else ""


def without_opening(completion: str, opening: str) -> str:
    """``completion`` without ``opening``, with which the prompt ends. One without a thought closes an empty one first."""
    if not opening:
        return completion
    found = _OPEN.match(completion)
    if found is None:
        return f"\n{_closing(opening.strip())}\n\n{completion}"
    rest = completion[found.end() :]
    return rest.removeprefix("\n") if opening.endswith("\n") else rest


def _closing(tag: str) -> str:
    if tag.startswith("<|"):
        return re.sub("begin|start", lambda found: "END" if found[0].isupper() else "end", tag, flags=re.IGNORECASE)
    return f"{tag[0]}/{tag[1:]}"


def after_first_thought(completion: str) -> str:
    """``completion`` without a thought at its start. Raises `ActionSyntaxError` when that has no end."""
    opened = _OPEN.match(completion.lstrip())
    return completion if opened is None else _after_close(completion.lstrip(), opened.end())


def outside_thoughts(completion: str, places: Iterable[int]) -> list[int]:
    """Those of ``places`` in ``completion`` that lie in no thought. Raises `ActionSyntaxError` when a thought before one of them
    has no end."""
    opened = _Places(_OPEN.finditer(completion))
    closed = _Places(_CLOSE.finditer(completion))
    outside: list[int] = []
    end = 0
    for place in sorted(places):
        # The thought that begins first after the last one, if that is before the place.
        while end <= place and (begun := opened.next(end)[1]) <= place:
            end = closed.next(begun)[1]
        if end == _END:
            raise ActionSyntaxError(_ENDLESS)
        if end <= place:
            outside.append(place)
    return outside


def last_part(completion: str) -> str:
    """Part of a whole ``completion`` after a thought at its start."""
    opened = _OPEN.match(completion.lstrip())
    found = _CLOSE.search(completion) if opened else None
    return completion[found.end() :].strip() if found else completion.strip()


def after_thoughts(completion: str) -> str:
    """Part of ``completion`` after its thoughts, up to its end. Raises `ActionSyntaxError` when the thought before the first
    fenced block, or before everything, has no end. Takes time in proportion to the completion's length."""
    opened = _Places(_OPEN.finditer(completion))
    closed = _Places(_CLOSE.finditer(completion))
    text = _Fenced(completion)
    place = 0
    while True:
        # An end without a beginning: the prompt began the thought, or it is the outer one of thoughts within thoughts. A string
        # in the call may hold the tag as well, so it is the first that ends it.
        place = _after_outer_thought(opened, closed, place)
        while (block := text.find(place, before=opened.next(place)[0])) is None:
            _, begun = opened.next(place)
            if begun == _END:
                return completion[place:]
            _, place = closed.next(begun)
            if place == _END:
                raise ActionSyntaxError(_ENDLESS)
        if _after_outer_thought(opened, closed, block.end) == block.end:
            return completion[place:]
        place = block.end


def _after_outer_thought(opened: _Places, closed: _Places, place: int) -> int:
    """The end of the thought in which ``place`` lies, when no other one begins first; else ``place``."""
    (end, after), (begin, _) = closed.next(place), opened.next(place)
    return after if end < begin else place


def _after_close(completion: str, start: int) -> str:
    closed = _CLOSE.search(completion, start)
    if closed is None:
        raise ActionSyntaxError(_ENDLESS)
    return completion[closed.end() :]


# --- fenced blocks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    body: str | None
    """None: the block has no end."""
    end: int
    """Where its last line ends in the text."""


def first_block(text: str) -> str | None:
    """What stands in the first fenced block of ``text``, None when there is none. Raises `ActionSyntaxError` when it has no end,
    or stands within a line."""
    block = _Fenced(text).find(0, before=_END)
    if block is None:
        if text.count(_FENCE) > 1:
            raise ActionSyntaxError("the fences of the Python block stand on lines of their own, the call between them")
        return None
    if block.body is None:
        raise ActionSyntaxError("the Python block has no end")
    return block.body


class _Fenced:
    """A text that may hold fenced blocks."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fences = [found.start() for found in re.finditer(_FENCE, text)]

    def find(self, start: int, *, before: int) -> _Block | None:
        """The first block of ``text[start:]`` whose first fence stands before ``before``."""
        while (number := bisect_left(self._fences, start)) < len(self._fences) and self._fences[number] < before:
            fence, end = self._fences[number], self._line_end(self._fences[number])
            # A second fence on the line ends what the first one began: that is code amid prose.
            is_alone = bisect_left(self._fences, end) == number + 1
            begin = max(start, self._text.rfind("\n", start, fence) + 1)
            if is_alone and _OPENER.match(self._text, begin, end):
                return self._block(end + 1)
            start = end + 1
        return None

    def _block(self, start: int) -> _Block:
        lines: list[str] = []
        while start <= len(self._text):
            end = self._line_end(start)
            line = self._text[start:end]
            if line.strip().startswith(_FENCE):
                return _Block(_dedented(lines), end)
            lines.append(line.removesuffix("\r"))
            start = end + 1
        return _Block(None, len(self._text))

    def _line_end(self, start: int) -> int:
        end = self._text.find("\n", start)
        return len(self._text) if end < 0 else end


def _dedented(lines: list[str]) -> str:
    """``lines`` without the blanks that the first one begins with, where each begins with them; texts stay as they are."""
    first = next((line for line in lines if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(margin) for line in lines)


# --- calls -----------------------------------------------------------------------------------------------------------

_CALL_BEGINS = re.compile(r"\s*[A-Za-z]\w*(\.\w+)?\s*\(")


def first_statement(source: str, *, where: str, example: str) -> ast.Expr:
    """The expression with which ``source`` begins, as a syntax tree; nothing is evaluated. ``where`` and ``example``: place and
    form of a call, for messages. Raises `ActionSyntaxError`."""
    # Prose after the call makes the text no Python; the call is its first line then.
    lines = [line for line in source.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    reason, body = "", list[ast.stmt]()
    for text in (source, *lines[:1]):
        try:
            body = ast.parse(text.strip()).body
        except SyntaxError as error:
            reason = error.msg
        except (ValueError, RecursionError, MemoryError):
            reason = "no valid source"
        if body:
            break
    if not body and lines and _CALL_BEGINS.match(lines[0]):
        raise ActionSyntaxError(f"the call is not valid Python ({reason}): write it like {example}")
    if not body or not isinstance(body[0], ast.Expr):
        raise ActionSyntaxError(f"{where} does not begin with a call")
    return body[0]
