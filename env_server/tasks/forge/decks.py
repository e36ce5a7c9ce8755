"""Presentations that the families make: boxes as data, written by python-pptx. Facts of saved ones are in `deck_facts`."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from computerrl.env_server.tasks.forge.packing import repack

FONT = "Liberation Sans"
WIDTH_CM, HEIGHT_CM = 25.4, 19.05
_TITLE_ONLY = 5
"""Layout of python-pptx's template; it has an outline of its own for the title and for nothing else."""
_BLANK = 6


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a slide. All looks are written out: what a file leaves to its template, an office may write out."""

    lines: tuple[str, ...] = ()
    left: float = 2.0
    top: float = 5.0
    width: float = 12.0
    height: float = 3.0
    """Centimetres."""
    is_title: bool = False
    bold: bool = False
    italic: bool = False
    underline: bool = False
    size: float = 20
    color: str = "000000"
    font: str = FONT
    fill: str | None = None
    align: str = "left"
    struck: frozenset[int] = frozenset()
    """Lines (from 0) that are struck through."""
    picture: bytes = b""
    """A PNG instead of text."""


@dataclass(slots=True)
class Slide:
    """One slide."""

    boxes: list[Box]
    background: str | None = None

    def change(self, index: int, **changes: Any) -> None:
        """Other looks or words for a box."""
        self.boxes[index] = dataclasses.replace(self.boxes[index], **changes)


@dataclass(slots=True)
class Deck:
    """A presentation in the making; families change it in place."""

    slides: list[Slide]
    is_portrait: bool = False

    def each_box(self, change: Callable[[Box], Box], *, slide: int) -> None:
        """Change all boxes of a slide (from 0)."""
        self.slides[slide].boxes = [change(box) for box in self.slides[slide].boxes]

    def to_bytes(self) -> bytes:
        """The .pptx file."""
        from pptx import Presentation

        presentation: Any = Presentation()
        if self.is_portrait:
            presentation.slide_width, presentation.slide_height = presentation.slide_height, presentation.slide_width
        for item in self.slides:
            has_title = any(box.is_title for box in item.boxes)
            slide = presentation.slides.add_slide(presentation.slide_layouts[_TITLE_ONLY if has_title else _BLANK])
            if item.background:
                slide.background.fill.solid()
                slide.background.fill.fore_color.rgb = _rgb(item.background)
            for box in item.boxes:
                _write(slide, box)
        buffer = io.BytesIO()
        presentation.save(buffer)
        return repack(buffer.getvalue())


def _rgb(color: str) -> Any:
    from pptx.dml.color import RGBColor

    return RGBColor.from_string(color)


def _write(slide: Any, box: Box) -> None:
    from pptx.enum.text import MSO_ANCHOR, MSO_AUTO_SIZE
    from pptx.util import Cm

    place = (Cm(box.left), Cm(box.top), Cm(box.width), Cm(box.height))
    if box.picture:
        slide.shapes.add_picture(io.BytesIO(box.picture), *place)
        return
    shape = slide.shapes.title if box.is_title else slide.shapes.add_textbox(*place)
    shape.left, shape.top, shape.width, shape.height = place
    frame = shape.text_frame
    frame.word_wrap, frame.auto_size, frame.vertical_anchor = True, MSO_AUTO_SIZE.NONE, MSO_ANCHOR.TOP
    if box.fill:
        shape.fill.solid()
        shape.fill.fore_color.rgb = _rgb(box.fill)
    for index, line in enumerate(box.lines):
        paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
        _write_line(paragraph, box, line, is_struck=index in box.struck)


def _write_line(paragraph: Any, box: Box, line: str, *, is_struck: bool) -> None:
    from pptx.enum.text import PP_ALIGN
    from pptx.util import Pt

    paragraph.alignment = {
        "left": PP_ALIGN.LEFT,
        "center": PP_ALIGN.CENTER,
        "right": PP_ALIGN.RIGHT,
        "justify": PP_ALIGN.JUSTIFY,
    }[box.align]
    run = paragraph.add_run()
    run.text = line
    font = run.font
    font.name, font.size, font.color.rgb = box.font, Pt(box.size), _rgb(box.color)
    font.bold, font.italic, font.underline = box.bold, box.italic, box.underline
    if is_struck:
        run._r.get_or_add_rPr().set("strike", "sngStrike")
