"""What the parts of Writer's API share: the cursor that the agent sees, page styles, headers and footers."""

from __future__ import annotations

from typing import Any

from ..tools import OfficeTools
from .paragraphs import elements, move


class WriterBase(OfficeTools):
    """The cursor and the pages."""

    @property
    def view(self) -> Any:
        """The cursor on the screen."""
        return self.controller.ViewCursor

    def in_body(self, place: Any) -> bool:
        """Does it lie in the body's text, outside tables, frames, headers and notes?"""
        return bool(place.Text == self.document.Text)

    def take_cursor(self) -> Any:
        """A text cursor where the one on the screen is; what was selected is deleted, as typing would."""
        view = self.view
        if not view.isCollapsed():
            view.String = ""
            view.collapseToStart()
        return view.Text.createTextCursorByRange(view.Start)

    def insert_paragraphs(self, cursor: Any, text: str) -> Any:
        """Write at ``cursor``, new paragraphs at line ends; gives a cursor over what was written."""
        container = cursor.Text
        for index, line in enumerate(text.split("\n")):
            if index:
                container.insertControlCharacter(cursor, 0, False)  # PARAGRAPH_BREAK
            if line:
                container.insertString(cursor, line, False)
        written = container.createTextCursorByRange(cursor.End)
        move(written, -len(text), select=True)
        return written

    def page_styles(self) -> list[Any]:
        """Those that the document uses."""
        styles = self.document.StyleFamilies.getByName("PageStyles")
        return [style for style in (styles.getByIndex(index) for index in range(styles.Count)) if style.isInUse()]

    def side_texts(self, style: Any, side: str) -> list[Any]:
        """The texts of a page style's ``Header`` or ``Footer``: the first page and left pages may have their own."""
        found = [style.getPropertyValue(f"{side}Text")]
        if not style.getPropertyValue(f"{side}IsShared"):
            found = [style.getPropertyValue(f"{side}TextLeft"), style.getPropertyValue(f"{side}TextRight")]
        if not style.FirstIsShared:
            found.append(style.getPropertyValue(f"{side}TextFirst"))
        return found

    def first_element(self) -> Any:
        """The body's first paragraph or table."""
        return next(elements(self.document.Text))
