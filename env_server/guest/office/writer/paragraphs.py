"""A text document's paragraphs and how places in their texts map to the office's positions.

A paragraph consists of pieces, each of one formatting: plain text, where one character is one position, or a field, where the
whole shown text is one position. Footnote marks, anchored pictures and the like have no text here. Only in the office's calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..patterns import Match, find_matches
from ..process import DocumentError

_PARAGRAPH = "com.sun.star.text.Paragraph"
_TABLE = "com.sun.star.text.TextTable"
_TEXT = "Text"
_SHOWN_AS_ONE = frozenset({"TextField", "LineBreak"})
_MAX_MOVE = 30_000
"""A cursor's single move is a 16-bit number."""
MAX_PLACES = 1000
"""Formatting takes a millisecond a place, many times that on a busy machine; more might not be done within a step's deadline."""


class Piece(NamedTuple):
    """Text of one formatting."""

    portion: Any
    start: int
    """Where in the paragraph's text it begins."""
    text: str
    is_plain: bool
    """One position a character."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Edit(NamedTuple):
    """New text for a place of a paragraph."""

    start: int
    end: int
    new: str


class Paragraph:
    """One paragraph."""

    def __init__(self, uno: Any, number: int | None, label: str) -> None:
        self.uno = uno
        self.number = number
        """From 0, as the agent counts; None inside tables."""
        self.label = label
        self.text = str(uno.String)
        self._pieces: list[Piece] | None = None
        self._cursors: dict[int, tuple[Any, Any]] = {}

    def pieces(self) -> list[Piece]:
        """What it consists of; ``text`` is from then on exactly these together."""
        if self._pieces is None:
            self._pieces, start = [], 0
            for portion in elements(self.uno):
                kind = portion.TextPortionType
                text = str(portion.String) if kind == _TEXT or kind in _SHOWN_AS_ONE else ""
                if text:
                    self._pieces.append(Piece(portion, start, text, kind == _TEXT))
                    start += len(text)
            self.text = "".join(piece.text for piece in self._pieces)
        return self._pieces

    def cursor(self, start: int, end: int) -> Any:
        """A cursor over this part of the text (never empty), good until the next one is asked for."""
        first, last = self._piece_of(start), self._piece_of(end - 1)
        found = self._at_start_of(first)
        if first is last and first.is_plain:
            move(found, start - first.start)
            move(found, end - start, select=True)
            return found
        if first.is_plain:
            move(found, start - first.start)
        until = self._at_start_of(last)
        if last.is_plain:
            move(until, end - last.start)
        else:
            until.gotoRange(last.portion.End, False)
        found.gotoRange(until, True)
        return found

    def replace(self, edits: Sequence[Edit]) -> bool:
        """Make the edits (in order, not overlapping); new text looks like the first character it replaces."""
        changed = False
        for piece in reversed(self.pieces()):
            new = edited(piece, edits)
            if new != piece.text:
                self._rewrite(piece, new)
                changed = True
        if changed:
            self._pieces, self._cursors = None, {}
        return changed

    def _piece_of(self, offset: int) -> Piece:
        return next(piece for piece in self.pieces() if piece.start <= offset < piece.end)

    def _at_start_of(self, piece: Piece) -> Any:
        """The piece's cursor at its beginning. One for all its places: a new object costs as much as ten calls."""
        if piece.start not in self._cursors:
            start = piece.portion.Start
            self._cursors[piece.start] = start, self.uno.Text.createTextCursorByRange(start)
        start, cursor = self._cursors[piece.start]
        cursor.gotoRange(start, False)
        return cursor

    def _rewrite(self, piece: Piece, new: str) -> None:
        text, old = self.uno.Text, piece.text
        if not piece.is_plain:
            text.createTextCursorByRange(piece.portion).String = new
            return
        start = _common(old, new)
        kept_end = _common(old[start:][::-1], new[start:][::-1])
        added, num_removed = new[start : len(new) - kept_end], len(old) - kept_end - start
        if not num_removed:
            start, num_removed, added = (start - 1, 1, old[start - 1] + added) if start else (0, 1, added + old[0])
        cursor = self._at_start_of(piece)
        move(cursor, start)
        if added:
            # Inserted behind the first old character, which goes afterwards: otherwise the formatting would go with the old text.
            cursor.goRight(1, False)
            text.insertString(cursor, added, False)
            move(cursor, num_removed - 1, select=True)
            cursor.String = ""
            move(cursor, -len(added))
            cursor.goLeft(1, True)
        else:
            move(cursor, num_removed, select=True)
        cursor.String = ""


class Paragraphs:
    """Those of one document: the body's, numbered from 0, and those in its tables."""

    def __init__(self, document: Any) -> None:
        self.all = list(_paragraphs(document))
        self.body = [paragraph for paragraph in self.all if paragraph.number is not None]

    @staticmethod
    def of_text(text: Any) -> list[Paragraph]:
        """Those of another text than the body, such as a header; without numbers."""
        return [Paragraph(element, None, "") for element in elements(text) if element.supportsService(_PARAGRAPH)]

    def chosen(self, indices: Sequence[int] | None) -> list[Paragraph]:
        """Those with these numbers, or all of body and tables. Raises `DocumentError`."""
        if indices is None:
            return self.all
        if not indices:
            raise DocumentError("paragraph_indices is empty: give numbers, or leave it out to mean all paragraphs")
        for index in indices:
            if not 0 <= index < len(self.body):
                raise DocumentError(f"there is no paragraph {index}: the document has 0 to {len(self.body) - 1}")
        return [self.body[index] for index in sorted(set(indices))]

    def find(
        self, pattern: str, indices: Sequence[int] | None, replacement: str | None = None
    ) -> list[tuple[Paragraph, list[Match]]]:
        """Paragraphs in which the pattern matches, with the matches. Raises `DocumentError`."""
        paragraphs = self.chosen(indices)
        matches = find_matches(pattern, [paragraph.text for paragraph in paragraphs], replacement)
        hits = [(paragraph, found) for paragraph, found in zip(paragraphs, matches, strict=True) if found]
        before = [paragraph.text for paragraph, _ in hits]
        for paragraph, _ in hits:
            paragraph.pieces()
        if [paragraph.text for paragraph, _ in hits] != before:
            # Footnote marks are part of the text that the office gives at first, but not of the pieces.
            matches = find_matches(pattern, [paragraph.text for paragraph, _ in hits], replacement)
            hits = [(paragraph, found) for (paragraph, _), found in zip(hits, matches, strict=True) if found]
        return hits


def elements(container: Any) -> Iterator[Any]:
    """What UNO's enumeration of ``container`` gives."""
    enumeration = container.createEnumeration()
    while enumeration.hasMoreElements():
        yield enumeration.nextElement()


def move(cursor: Any, num: int, *, select: bool = False) -> None:
    """Move a text cursor by ``num`` characters, to the left when negative."""
    step = cursor.goRight if num > 0 else cursor.goLeft
    num = abs(num)
    while num:
        step(min(num, _MAX_MOVE), select)
        num -= min(num, _MAX_MOVE)


def places(hits: Sequence[tuple[Paragraph, Sequence[Match]]]) -> list[tuple[Paragraph, int, int]]:
    """(paragraph, start, end) of all matches, adjacent ones joined. Raises `DocumentError` for too many."""
    found: list[tuple[Paragraph, int, int]] = []
    for paragraph, matches in hits:
        for match in matches:
            if found and found[-1][0] is paragraph and found[-1][2] == match.start:
                found[-1] = (paragraph, found[-1][1], match.end)
            else:
                found.append((paragraph, match.start, match.end))
    if len(found) > MAX_PLACES:
        raise DocumentError(f"the pattern matches in {len(found)} places: at most {MAX_PLACES} can be changed at once")
    return found


def _paragraphs(document: Any) -> Iterator[Paragraph]:
    number = num_tables = 0
    for element in elements(document.Text):
        if element.supportsService(_PARAGRAPH):
            yield Paragraph(element, number, str(number))
            number += 1
        elif element.supportsService(_TABLE):
            num_tables += 1
            yield from _in_table(element, f"table {num_tables}")


def _in_table(table: Any, label: str) -> Iterator[Paragraph]:
    for name in table.CellNames:
        for element in elements(table.getCellByName(name)):
            if element.supportsService(_PARAGRAPH):
                yield Paragraph(element, None, f"{label} {name}")
            elif element.supportsService(_TABLE):
                yield from _in_table(element, f"{label} {name}")


def edited(piece: Piece, edits: Sequence[Edit]) -> str:
    """The piece's text after the edits; one that spans several pieces puts its new text into the first of them."""
    parts, at = [], piece.start
    for edit in edits:
        start, end = max(edit.start, piece.start), min(edit.end, piece.end)
        if start < end:
            parts += [piece.text[at - piece.start : start - piece.start], edit.new if edit.start >= piece.start else ""]
            at = end
    parts.append(piece.text[at - piece.start :])
    return "".join(parts)


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    num = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        num += 1
    return num
