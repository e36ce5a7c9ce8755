"""The agent's API of Writer; see `common.actions.tables.writer`. Here: reading, writing, replacing; more in its two bases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..report import MAX_RESULT_CHARS, counted, fitted
from . import text_values
from .format import WriterFormat
from .insert import WriterInsert
from .paragraphs import Edit, Paragraphs

_WORD_START = re.compile(r"(?<![\w'\u2019])[^\W\d_]")
"""A letter that no letter, digit or apostrophe stands before."""


class WriterTools(WriterFormat, WriterInsert):
    """One method per action."""

    def env_info(self) -> str:
        """The paragraphs with their numbers, those in tables with their cells, and where the cursor is."""
        paragraphs = Paragraphs(self.document)
        head = f"{self.file_name}: {counted(len(paragraphs.body), 'paragraph')}; cursor in {self._place_of_cursor(paragraphs)}"
        lines = [(f"{paragraph.label}: ", paragraph.text) for paragraph in paragraphs.all]
        return f"{head}\n{fitted(lines, 'paragraphs', limit=MAX_RESULT_CHARS - len(head))}"

    def write_text(self, text: str, bold: bool, italic: bool, size: float | None) -> str:
        """Write at the cursor as if it was typed, in place of a selection; a line end starts a new paragraph."""
        if size is not None:
            size = text_values.font_size(size)
        text = text_values.plain(text)
        start = self.take_cursor()
        if text:
            written = self.insert_paragraphs(start, text)
            text_values.set_written(written, bold=bold, italic=italic, size=size)
            self.view.gotoRange(written.End, False)
        return f"wrote {counted(len(text), 'character')}"

    def find_and_replace(self, pattern: str, replacement: str, paragraph_indices: Sequence[int] | None) -> str:
        """Replace matches; ``\\1`` in the replacement is the first group."""
        hits = Paragraphs(self.document).find(pattern, paragraph_indices, replacement)
        for paragraph, matches in hits:
            paragraph.replace([Edit(match.start, match.end, text_values.plain(match.new)) for match in matches])
        return _outcome("replaced", hits)

    def change_text_case(self, case_type: str, pattern: str, paragraph_indices: Sequence[int] | None) -> str:
        """Lower or upper case for matches; formatting stays."""
        hits = Paragraphs(self.document).find(pattern, paragraph_indices)
        for paragraph, matches in hits:
            edits = []
            for match in matches:
                for at in range(match.start, match.end):
                    char = paragraph.text[at]
                    edits.append(Edit(at, at + 1, char.upper() if case_type == "uppercase" else char.lower()))
            paragraph.replace(edits)
        return _outcome(f"set in {case_type}", hits)

    def capitalize_words(self, paragraph_indices: Sequence[int] | None) -> str:
        """Make the first letter of every word a capital; the others stay as they are."""
        num = 0
        for paragraph in Paragraphs(self.document).chosen(paragraph_indices):
            if paragraph.text == _capitalised(paragraph.text):
                continue
            paragraph.pieces()
            starts = [match.start() for match in _WORD_START.finditer(paragraph.text)]
            num += paragraph.replace([Edit(at, at + 1, paragraph.text[at].upper()) for at in starts])
        return f"changed {counted(num, 'paragraph')}"

    def _place_of_cursor(self, paragraphs: Paragraphs) -> str:
        view = self.view
        if not self.in_body(view):
            return "a table, a frame, a header or a note"
        low, high = 0, len(paragraphs.body) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.document.Text.compareRegionStarts(paragraphs.body[middle].uno.Start, view.Start) >= 0:
                low = middle
            else:
                high = middle - 1
        return f"paragraph {low}"


def _capitalised(text: str) -> str:
    return _WORD_START.sub(lambda match: match.group().upper(), text)


def _outcome(done: str, hits: Sequence[tuple[Any, Sequence[Any]]]) -> str:
    num = sum(len(matches) for _, matches in hits)
    if not num:
        return "no match, nothing changed"
    return f"{done}: {counted(num, 'match', 'matches')} in {counted(len(hits), 'paragraph')}"
