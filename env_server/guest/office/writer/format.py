"""Writer's API: how text and paragraphs look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..process import DocumentError
from ..registry import write_options
from ..report import counted, fitted
from ..uno_values import colour, struct
from . import text_values
from .base import WriterBase
from .paragraphs import Paragraph, Paragraphs, places

_HIGHLIGHTS = ("CharBackColor", "CharHighlight")
"""The office's own background of characters, and the one that .docx files call highlighting."""
_NO_COLOUR = -1
_MIN_SPACING, _MAX_SPACING = 0.1, 20
_MM100_PER_POINT = 2540 / 72


class WriterFormat(WriterBase):
    """Methods that write no text."""

    def set_color(self, pattern: str, color: str, paragraph_indices: Sequence[int] | None) -> str:
        """Font colour of matches."""
        value = colour(color)
        return self._format(pattern, paragraph_indices, lambda target: target.setPropertyValue("CharColor", value))

    def set_font_size(self, font_size: float, pattern: str, paragraph_indices: Sequence[int] | None) -> str:
        """Font size of matches, in points."""
        size = text_values.font_size(font_size)
        return self._format(pattern, paragraph_indices, lambda target: text_values.set_size(target, size))

    def set_strikethrough(self, pattern: str, paragraph_indices: Sequence[int] | None) -> str:
        """Strike matches through."""
        return self._format(
            pattern, paragraph_indices, lambda target: target.setPropertyValue("CharStrikeout", text_values.SINGLE)
        )

    def set_font(self, font_name: str, paragraph_indices: Sequence[int] | None) -> str:
        """Font of whole paragraphs."""
        name = text_values.font_name(font_name)
        chosen = Paragraphs(self.document).chosen(paragraph_indices)
        for paragraph in chosen:
            text_values.set_font(paragraph.uno, name)
        return f"{counted(len(chosen), 'paragraph')} in {name}"

    def set_default_font(self, font_name: str, font_size: float | None) -> str:
        """Font of text to come, here and in new documents; what is written stays as it looks."""
        name = text_values.font_name(font_name)
        size = None if font_size is None else text_values.font_size(font_size)
        portions = [piece.portion for paragraph in self._all_paragraphs() for piece in paragraph.pieces()]
        before = [(portion.CharFontName, portion.CharHeight) for portion in portions]
        style = self.document.StyleFamilies.getByName("ParagraphStyles").getByName("Standard")
        text_values.set_font(style, name)
        if size is not None:
            text_values.set_size(style, size)
        for portion, (old_name, old_size) in zip(portions, before, strict=True):
            if portion.CharFontName != old_name:
                text_values.set_font(portion, old_name)
            if portion.CharHeight != old_size:
                text_values.set_size(portion, old_size)
        if self.view.isCollapsed():
            text_values.set_font(self.view, name)
            if size is not None:
                text_values.set_size(self.view, size)
        options: dict[str, Any] = {"Standard": name}
        if size is not None:
            options["StandardHeight"] = round(size * _MM100_PER_POINT)
        write_options(self.office, "/org.openoffice.Office.Writer/DefaultFont", **options)
        return f"new text is in {name}" + ("" if size is None else f", {size:g} points")

    def set_line_spacing(self, spacing_value: float, paragraph_indices: Sequence[int] | None) -> str:
        """Line spacing as a multiple of single."""
        if not math.isfinite(spacing_value) or not _MIN_SPACING <= spacing_value <= _MAX_SPACING:
            raise DocumentError(f"line spacing is between {_MIN_SPACING} and {_MAX_SPACING} (1 is single), not {spacing_value}")
        spacing = struct("style.LineSpacing", 0, round(spacing_value * 100))  # PROP: per cent
        return self._set_on_paragraphs("ParaLineSpacing", spacing, paragraph_indices)

    def set_paragraph_alignment(self, alignment: str, paragraph_indices: Sequence[int] | None) -> str:
        """Alignment of whole paragraphs."""
        return self._set_on_paragraphs("ParaAdjust", text_values.alignment(alignment), paragraph_indices)

    def remove_highlighting(self, paragraph_indices: Sequence[int] | None) -> str:
        """Take the highlighting away."""
        num = 0
        for paragraph in Paragraphs(self.document).chosen(paragraph_indices):
            for piece in paragraph.pieces():
                num += _remove_highlight(piece.portion)
            num += not paragraph.text and _remove_highlight(paragraph.uno)
        return f"took highlighting from {counted(num, 'place')}"

    def find_highlighted_text(self, highlight_color: str) -> str:
        """Texts highlighted in this colour, with their paragraphs."""
        wanted = colour(highlight_color)
        found: list[tuple[Paragraph, int, int]] = []
        for paragraph in Paragraphs(self.document).all:
            for piece in paragraph.pieces():
                if wanted not in piece.portion.getPropertyValues(_HIGHLIGHTS):
                    continue
                if found and found[-1][0] is paragraph and found[-1][2] == piece.start:
                    found[-1] = (paragraph, found[-1][1], piece.end)
                else:
                    found.append((paragraph, piece.start, piece.end))
        if not found:
            return f"nothing is highlighted in {highlight_color}"
        lines = [(f"{paragraph.label}: ", paragraph.text[start:end]) for paragraph, start, end in found]
        return fitted(lines, "highlighted texts")

    def _format(self, pattern: str, paragraph_indices: Sequence[int] | None, apply: Any) -> str:
        hits = Paragraphs(self.document).find(pattern, paragraph_indices)
        for paragraph, start, end in places(hits):
            apply(paragraph.cursor(start, end))
        num = sum(len(matches) for _, matches in hits)
        if not num:
            return "no match, nothing changed"
        return f"{counted(num, 'match', 'matches')} in {counted(len(hits), 'paragraph')}"

    def _set_on_paragraphs(self, name: str, value: Any, paragraph_indices: Sequence[int] | None) -> str:
        chosen = Paragraphs(self.document).chosen(paragraph_indices)
        for paragraph in chosen:
            paragraph.uno.setPropertyValue(name, value)
        return f"set on {counted(len(chosen), 'paragraph')}"

    def _all_paragraphs(self) -> list[Paragraph]:
        found = list(Paragraphs(self.document).all)
        for style in self.page_styles():
            for side in ("Header", "Footer"):
                if style.getPropertyValue(f"{side}IsOn"):
                    for text in self.side_texts(style, side):
                        found += Paragraphs.of_text(text)
        return found


def _remove_highlight(target: Any) -> bool:
    """Take the highlighting from a range; False when it had none."""
    if all(value == _NO_COLOUR for value in target.getPropertyValues(_HIGHLIGHTS)):
        return False
    for name in _HIGHLIGHTS:
        # Back to the style first: a file then says nothing about it, instead of saying "none".
        target.setPropertyToDefault(name)
        if target.getPropertyValue(name) != _NO_COLOUR:
            target.setPropertyValue(name, _NO_COLOUR)
    return True
