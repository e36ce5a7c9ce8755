"""The agent's API of Impress; see `common.actions.tables.impress`. Here: reading, writing, slides; more in its bases."""

from __future__ import annotations

from typing import Any

from ..process import DocumentError
from ..report import MAX_RESULT_CHARS, counted, fitted
from ..uno_values import dispatch
from ..writer import text_values
from ..writer.paragraphs import move
from .base import kind_of, texts
from .boxes import ImpressBoxes
from .files import ImpressFiles
from .pages import ImpressPages


class ImpressTools(ImpressBoxes, ImpressPages, ImpressFiles):
    """One method per action."""

    def env_info(self) -> str:
        """Every slide's boxes with their kinds and texts, and the current slide."""
        slides = self.slides(None)
        head = f"{self.file_name}: {counted(len(slides), 'slide')}, current: {self._current()}"
        lines: list[tuple[str, str]] = []
        for number, slide in slides:
            lines.append((f"Slide {number}:", "" if slide.Count else " no boxes"))
            for index in range(slide.Count):
                box = slide.getByIndex(index)
                lines.append((f"  Box {index} ({kind_of(box)}): ", _shown_text(box)))
        return f"{head}\n{fitted(lines, 'lines', limit=MAX_RESULT_CHARS - len(head))}"

    def go_to_slide(self, slide_index: int) -> str:
        """Show this slide."""
        self.controller.setCurrentPage(self.slide(slide_index))
        return f"slide {slide_index} of {self.document.DrawPages.Count}"

    def get_slide_count(self) -> str:
        """How many slides there are."""
        return str(self.document.DrawPages.Count)

    def duplicate_slide(self, slide_index: int) -> str:
        """Put a copy of this slide behind the last one."""
        slide, slides, current = self.slide(slide_index), self.document.DrawPages, self.controller.CurrentPage
        # The command moves what the side pane has selected. That follows the current slide, but only when its number changes.
        self.controller.setCurrentPage(slide)
        copy = self.document.duplicate(slide)
        self.controller.setCurrentPage(copy)
        dispatch(self.office, self.document, ".uno:MovePageLast")
        self.controller.setCurrentPage(current)
        if slides.getByIndex(slides.Count - 1) != copy:
            slides.remove(copy)
            raise DocumentError("the office did not move the copy to the end: it has been removed again")
        return f"slide {slides.Count} is a copy of slide {slide_index}"

    def write_text(
        self, content: str, page_index: int, box_index: int, bold: bool, italic: bool, size: float | None, append: bool
    ) -> str:
        """Write into a box in place of its text, or behind it; a line end starts a new paragraph."""
        if size is not None:
            size = text_values.font_size(size)
        box = self.box(page_index, box_index)
        if list(texts(box)) != [box]:
            raise DocumentError(f"box {box_index} of slide {page_index} is a {kind_of(box)}: no text can be written into it")
        content = text_values.plain(content)
        if not append or _is_empty(box):
            box.String = ""
        _say_filled(box)
        if content:
            box.insertString(box.End, content, False)
            written = box.createTextCursor()
            written.gotoEnd(False)
            move(written, -len(content.encode("utf-16-le")) // 2, select=True)  # the drawing's texts count UTF-16 units
            _style(written, bold=bold, italic=italic, size=size)
        return f"box {box_index} of slide {page_index} holds {counted(len(box.String), 'character')}"

    def _current(self) -> str:
        page = getattr(self.controller, "CurrentPage", None)
        return "none" if page is None else str(page.Number)


def _style(written: Any, *, bold: bool, italic: bool, size: float | None) -> None:
    # Only where it differs: text that says what its placeholder says anyway would no longer follow that.
    if (written.CharWeight >= text_values.BOLD) != bold:
        text_values.set_bold(written, bold)
    if (written.CharPosture.value != "NONE") != italic:
        text_values.set_italic(written, italic)
    if size is not None:
        text_values.set_size(written, size)


def _is_empty(box: Any) -> bool:
    """Does it hold no text of its own (an empty placeholder shows an invitation)?"""
    return bool(getattr(box, "IsEmptyPresentationObject", False)) or not box.String


def _say_filled(box: Any) -> None:
    if getattr(box, "IsEmptyPresentationObject", False):
        box.IsEmptyPresentationObject = False


def _shown_text(box: Any) -> str:
    if getattr(box, "IsEmptyPresentationObject", False):
        return "(empty)"
    return " | ".join(str(text.String) for text in texts(box))
