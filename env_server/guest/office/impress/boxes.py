"""Impress's API: how boxes and their texts look, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..process import DocumentError
from ..report import counted
from ..uno_values import colour
from ..writer import text_values
from ..writer.paragraphs import elements
from .base import ImpressBase, kind_of, texts, whole

_NO_STRIKEOUT = 0


class ImpressBoxes(ImpressBase):
    """Methods on one box, or on all texts of a slide."""

    def set_style(self, slide_index: int, box_index: int, bold: bool | None, italic: bool | None, underline: bool | None) -> str:
        """Switch bold, italic, underline on or off; None leaves it."""
        if bold is None and italic is None and underline is None:
            raise DocumentError("say at least one of bold, italic, underline")
        for text in self.texts_of(slide_index, box_index):
            target = whole(text)
            if bold is not None:
                text_values.set_bold(target, bold)
            if italic is not None:
                text_values.set_italic(target, italic)
            if underline is not None:
                target.setPropertyValue("CharUnderline", text_values.SINGLE if underline else 0)
        named = (("bold", bold), ("italic", italic), ("underline", underline))
        said = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in named if on is not None)
        return f"box {box_index} of slide {slide_index}: {said}"

    def set_slide_font(self, slide_index: int, font_name: str) -> str:
        """Font of all texts of a slide."""
        name = text_values.font_name(font_name)
        slide, num = self.slide(slide_index), 0
        for index in range(slide.Count):
            found = list(texts(slide.getByIndex(index)))
            for text in found:
                text_values.set_font(whole(text), name)
            num += bool(found)
        return f"{counted(num, 'box', 'boxes')} of slide {slide_index} in {name}"

    def set_text_color(self, slide_index: int, box_index: int, color: str) -> str:
        """Colour of a box's text."""
        return self._set_on_texts(slide_index, box_index, "CharColor", colour(color))

    def set_textbox_alignment(self, slide_index: int, box_index: int, alignment: str) -> str:
        """Alignment of a box's text."""
        return self._set_on_texts(slide_index, box_index, "ParaAdjust", text_values.alignment(alignment))

    def set_text_strikethrough(self, slide_index: int, box_index: int, line_numbers: Sequence[int], apply: bool) -> str:
        """Strike some lines (paragraphs) of a box through, or take that away."""
        lines = [text.createTextCursorByRange(line) for text in self.texts_of(slide_index, box_index) for line in elements(text)]
        if not line_numbers:
            raise DocumentError("line_numbers is empty")
        for number in line_numbers:
            if not 0 <= number < len(lines):
                raise DocumentError(f"box {box_index} of slide {slide_index} has no line {number}: it has 0 to {len(lines) - 1}")
        for number in line_numbers:
            lines[number].setPropertyValue("CharStrikeout", text_values.SINGLE if apply else _NO_STRIKEOUT)
        return f"{counted(len(set(line_numbers)), 'line')} {'struck through' if apply else 'no longer struck through'}"

    def set_background_color(self, slide_index: int, box_index: int, color: str) -> str:
        """Fill a box with a colour."""
        value = colour(color)
        for part in _filled_parts(self.box(slide_index, box_index)):
            part.setPropertyValue("FillStyle", _solid())
            part.setPropertyValue("FillColor", value)
        return f"box {box_index} of slide {slide_index} is filled with {color}"

    def position_box(self, slide_index: int, box_index: int, position: str) -> str:
        """Move a box to a named place of its slide."""
        box = self.box(slide_index, box_index)
        self.place(box, self.slide(slide_index), position)
        at = box.Position
        return f"box {box_index} of slide {slide_index} is {position}: at {at.X / 1000:.1f}, {at.Y / 1000:.1f} cm"

    def delete_content(self, slide_index: int, box_index: int) -> str:
        """Delete a box; those behind it move up by one."""
        box, slide = self.box(slide_index, box_index), self.slide(slide_index)
        kind = kind_of(box)
        slide.remove(box)
        return f"deleted box {box_index} ({kind}) of slide {slide_index}; {counted(slide.Count, 'box', 'boxes')} left"

    def _set_on_texts(self, slide_index: int, box_index: int, name: str, value: Any) -> str:
        for text in self.texts_of(slide_index, box_index):
            whole(text).setPropertyValue(name, value)
        return f"set on box {box_index} of slide {slide_index}"


def _filled_parts(box: Any) -> list[Any]:
    kind = kind_of(box)
    if kind == "group":
        return [part for index in range(box.Count) for part in _filled_parts(box.getByIndex(index))]
    return list(texts(box)) if kind == "table" else [box]


def _solid() -> Any:
    import uno

    return uno.Enum("com.sun.star.drawing.FillStyle", "SOLID")
