"""Writer's API: formulas, pictures, page breaks, page numbers, PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..pictures import MM100_PER_PIXEL, fitted_size, length, load_picture, picture_size
from ..process import DocumentError
from ..report import counted
from ..uno_values import properties, url
from . import text_values
from .base import WriterBase
from .paragraphs import elements

_MATH = "078B7ABA-54FC-457F-8551-6147E776A997"
"""Class id of LibreOffice Math's documents."""
_RUNNING = 1
"""com.sun.star.embed.EmbedStates.RUNNING: only then there is a document inside."""
_NUMBERING = {"arabic": 4, "roman": 3, "ROMAN": 2, "alphabetic": 1, "ALPHABETIC": 0}
"""com.sun.star.style.NumberingType."""
_MAX_PAGE = 9999


class WriterInsert(WriterBase):
    """Methods that add something to the document, or make another file of it."""

    def insert_formula_at_cursor(self, formula: str) -> str:
        """Insert a formula written in Math's language, such as ``{a} over {b}``."""
        if not formula.strip():
            raise DocumentError("the formula is empty")
        item = self.document.createInstance("com.sun.star.text.TextEmbeddedObject")
        item.CLSID = _MATH
        item.AnchorType = _as_character()
        self._insert(item)
        embedded = item.EmbeddedObject
        if embedded is None:
            raise DocumentError("this office has no formula editor")
        embedded.changeState(_RUNNING)
        embedded.Component.Formula = text_values.plain(formula)
        return "inserted the formula"

    def insert_image_at_cursor(self, image_path: str, width: int | None, height: int | None) -> str:
        """Insert a picture; without a size its own, at most as large as the page's text area."""
        size = length(width, "width", MM100_PER_PIXEL), length(height, "height", MM100_PER_PIXEL)
        picture = load_picture(self.office, self.existing(image_path), image_path)
        wide, high = fitted_size(picture_size(picture), *size, room=self._room())
        item = self.document.createInstance("com.sun.star.text.TextGraphicObject")
        item.Graphic = picture
        item.AnchorType = _as_character()
        item.Width, item.Height = wide, high
        self._insert(item)
        return f"inserted {image_path}, {round(wide / MM100_PER_PIXEL)} x {round(high / MM100_PER_PIXEL)} pixels"

    def insert_page_break(self, position: str) -> str:
        """Start a new page at the cursor or at the end; the cursor is then on it."""
        text = self.document.Text
        if position == "end_of_document":
            last = list(elements(text))[-1]
            if not last.supportsService("com.sun.star.text.Paragraph"):
                # Behind a table at the end there is no place for a break.
                text.insertTextContentAfter(self.document.createInstance("com.sun.star.text.Paragraph"), last)
            cursor = text.createTextCursor()
            cursor.gotoEnd(False)
        else:
            if not self.in_body(self.view):
                raise DocumentError("no page break is possible at the cursor: it is in a table, a frame, a header or a note")
            cursor = self.take_cursor()
        text.insertControlCharacter(cursor, 0, False)  # PARAGRAPH_BREAK
        import uno

        cursor.BreakType = uno.Enum("com.sun.star.style.BreakType", "PAGE_BEFORE")
        self.view.gotoRange(cursor.Start, False)
        return "inserted a page break; the cursor is behind it"

    def add_page_numbers(self, position: str, start_number: int, format: str) -> str:
        """Page numbers in the header (top) or footer (bottom) of all pages."""
        if not 0 <= start_number <= _MAX_PAGE:
            raise DocumentError(f"start_number is between 0 and {_MAX_PAGE}, not {start_number}")
        place, side = position.split("_")
        kind = "Footer" if place == "bottom" else "Header"
        for style in self.page_styles():
            style.setPropertyValue(f"{kind}IsOn", True)
            for text in self.side_texts(style, kind):
                self._add_number(text, text_values.alignment(side), _NUMBERING[format])
        self._start_at(start_number)
        return f"page numbers in the {kind.lower()}, {side}, from {start_number}"

    def export_to_pdf(self, output_path: str | None, output_filename: str | None, include_comments: bool, quality: int) -> str:
        """Write a PDF beside the document or where told; ``quality`` is that of pictures, up to 100."""
        if not 1 <= quality <= 100:
            raise DocumentError(f"quality is between 1 and 100, not {quality}")
        place = self._pdf_place(output_path, output_filename)
        import uno

        options = properties(Quality=quality, ExportNotes=include_comments, UseLosslessCompression=False)
        data = uno.Any("[]com.sun.star.beans.PropertyValue", options)
        self.document.storeToURL(url(place), properties(FilterName="writer_pdf_Export", Overwrite=True, FilterData=data))
        return f"exported {self.shown_path(place)}, {counted(place.stat().st_size, 'byte')}"

    def _insert(self, content: Any) -> None:
        cursor = self.take_cursor()
        text = cursor.Text
        text.insertTextContent(cursor, content, False)
        behind = text.createTextCursorByRange(content.Anchor.Start)
        behind.goRight(1, False)
        self.view.gotoRange(behind, False)

    def _room(self) -> tuple[int, int]:
        """Width and height of the page's text area."""
        style = self.document.StyleFamilies.getByName("PageStyles").getByName(self.view.PageStyleName)
        return (
            max(1, style.Width - style.LeftMargin - style.RightMargin),
            max(1, style.Height - style.TopMargin - style.BottomMargin),
        )

    def _add_number(self, text: Any, alignment: Any, numbering: int) -> None:
        import uno

        for paragraph in elements(text):
            for portion in elements(paragraph):
                if portion.TextPortionType == "TextField" and portion.TextField.supportsService(
                    "com.sun.star.text.TextField.PageNumber"
                ):
                    paragraph.ParaAdjust = alignment
                    portion.TextField.NumberingType = numbering
                    return
        cursor = text.createTextCursorByRange(text.End)
        if text.String:
            text.insertControlCharacter(cursor, 0, False)  # PARAGRAPH_BREAK
        field = self.document.createInstance("com.sun.star.text.TextField.PageNumber")
        field.NumberingType = numbering
        field.SubType = uno.Enum("com.sun.star.text.PageNumberType", "CURRENT")
        text.insertTextContent(cursor, field, False)
        cursor.ParaAdjust = alignment

    def _start_at(self, number: int) -> None:
        first = self.first_element()
        if number == 1 and first.PageNumberOffset in (None, 1):
            return
        # The offset belongs to a page style's beginning, which the first paragraph need not name.
        first.PageDescName = first.PageDescName or self._first_page_style()
        first.PageNumberOffset = number

    def _first_page_style(self) -> str:
        text = self.document.Text
        return str(text.createTextCursorByRange(text.Start).PageStyleName)

    def _pdf_place(self, path: str | None, name: str | None) -> Path:
        if path is not None and path.lower().endswith(".pdf") and name is None:
            place = self.resolve(path)
        else:
            file_name = name if name is not None else f"{self.path.stem}.pdf"
            if not file_name.strip() or "/" in file_name:
                raise DocumentError(f"{file_name!r} is no file name")
            if not file_name.lower().endswith(".pdf"):
                file_name += ".pdf"
            folder = self.path.parent if path is None else self.resolve(path)
            # Resolved again: the name itself may be a link that leads outside.
            place = self.resolve(str(folder / file_name))
        if not place.parent.is_dir():
            raise DocumentError(f"there is no folder {self.shown_path(place.parent)}")
        if place.is_dir():
            raise DocumentError(f"{self.shown_path(place)} is a folder")
        return place


def _as_character() -> Any:
    import uno

    return uno.Enum("com.sun.star.text.TextContentAnchorType", "AS_CHARACTER")
