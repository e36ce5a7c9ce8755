"""What the parts of Impress's API share: slides by number, boxes by index, places on a slide, texts inside boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..process import DocumentError
from ..tools import OfficeTools
from ..uno_values import struct

_KINDS = {
    "TitleTextShape": "title", "SubtitleShape": "subtitle", "OutlinerShape": "outline", "TextShape": "text",
    "CustomShape": "shape", "RectangleShape": "shape", "EllipseShape": "shape", "GraphicObjectShape": "picture",
    "TableShape": "table", "MediaShape": "media", "GroupShape": "group", "OLE2Shape": "object", "ChartShape": "chart",
    "ConnectorShape": "connector", "LineShape": "line", "SlideNumberShape": "slide number", "FooterShape": "footer",
    "DateTimeShape": "date", "HeaderShape": "header",
}  # fmt: skip
_WITHOUT_TEXT = frozenset({"picture", "media", "object", "chart", "table", "group"})
"""Boxes that no text is written into as a whole."""
_COLUMNS = {"left": 0.0, "right": 1.0}
_ROWS = {"top": 0.0, "bottom": 1.0}


class ImpressBase(OfficeTools):
    """Slides count from 1, boxes and lines from 0."""

    def slide(self, index: int) -> Any:
        """Raises `DocumentError` when there is none."""
        slides = self.document.DrawPages
        if not 1 <= index <= slides.Count:
            raise DocumentError(f"there is no slide {index}: the presentation has 1 to {slides.Count}")
        return slides.getByIndex(index - 1)

    def slides(self, index: int | None) -> list[tuple[int, Any]]:
        """(number, slide) of one slide, or of all."""
        count = self.document.DrawPages.Count
        return [(number, self.slide(number)) for number in (range(1, count + 1) if index is None else (index,))]

    def box(self, slide_index: int, box_index: int) -> Any:
        """Raises `DocumentError` when there is none."""
        slide = self.slide(slide_index)
        if not slide.Count:
            raise DocumentError(f"slide {slide_index} has no boxes")
        if not 0 <= box_index < slide.Count:
            raise DocumentError(f"slide {slide_index} has no box {box_index}: it has 0 to {slide.Count - 1}")
        return slide.getByIndex(box_index)

    def texts_of(self, slide_index: int, box_index: int) -> list[Any]:
        """The box's texts: its own, or those of a table's cells or a group's parts. Raises `DocumentError` when it holds none."""
        box = self.box(slide_index, box_index)
        found = list(texts(box))
        if not found:
            raise DocumentError(f"box {box_index} of slide {slide_index} is a {kind_of(box)}: it holds no text")
        return found

    def place(self, box: Any, slide: Any, position: str) -> None:
        """Move a box to one of nine places: in the corners, at the middle of the edges, in the centre."""
        words = position.split("-")
        across = next((_COLUMNS[word] for word in words if word in _COLUMNS), 0.5)
        down = next((_ROWS[word] for word in words if word in _ROWS), 0.5)
        size, wide, high = box.Size, slide.Width, slide.Height
        left, top = slide.BorderLeft, slide.BorderTop
        free = wide - left - slide.BorderRight - size.Width, high - top - slide.BorderBottom - size.Height
        box.Position = struct("awt.Point", left + round(free[0] * across), top + round(free[1] * down))


def kind_of(box: Any) -> str:
    """What the agent calls such a box."""
    name = str(box.ShapeType).rpartition(".")[2]
    return _KINDS.get(name, name.removesuffix("Shape").lower())


def texts(box: Any) -> Iterator[Any]:
    """All texts inside a box (com.sun.star.text.XText)."""
    kind = kind_of(box)
    if kind == "table":
        model = box.Model
        for row in range(model.RowCount):
            for column in range(model.ColumnCount):
                yield model.getCellByPosition(column, row)
    elif kind == "group":
        for index in range(box.Count):
            yield from texts(box.getByIndex(index))
    elif kind not in _WITHOUT_TEXT and hasattr(box, "createTextCursor"):
        yield box


def whole(text: Any) -> Any:
    """What to set properties on that all of the text shall have: a cursor over it, the box itself while it is empty."""
    if not text.String:
        return text
    cursor = text.createTextCursor()
    cursor.gotoStart(False)
    cursor.gotoEnd(True)
    return cursor
