"""The windows of Writer and Impress, each opened as the first one was: the office remembers which bars and marks the View menu
and its keys left on or off, and would show the next task's document with them."""

from __future__ import annotations

from typing import Any

from .process import Office
from .registry import set_option
from .sheet_window import STATUS_BAR
from .uno_values import dispatch, properties, set_where_other, values

SERVICES = {
    "calc": "com.sun.star.sheet.SpreadsheetDocument",
    "writer": "com.sun.star.text.TextDocument",
    "impress": "com.sun.star.presentation.PresentationDocument",
}
"""What documents of each application are to UNO, and its windows to the office's memory of them."""
_RESTORED = ("writer", "impress")
_STATE = "[]com.sun.star.beans.PropertyValue"
_SLIDE_PANE = "/org.openoffice.Office.Impress/MultiPaneGUI/SlideSorterBar/Visible", "ImpressView"
_WRITER_VIEW = {
    "ShowRulers": True, "ShowHoriRuler": True, "ShowVertRuler": False, "ShowHoriScrollBar": True, "ShowVertScrollBar": True,
    "ShowNonprintingCharacters": False, "ShowTextBoundaries": True, "ShowTableBoundaries": True, "ShowGraphics": True,
    "HideWhitespace": False, "ShowAnnotations": True, "ShowTextFieldBackground": True, "ShowFieldCommands": False,
    "ShowHiddenParagraphs": False, "IsRasterVisible": False,
}  # fmt: skip
_IMPRESS_VIEW = {"RulerIsVisible": "ShowRuler", "GridIsVisible": "GridVisible"}
"""What a view says of itself, and the command that turns it off or on."""


class DocumentWindows:
    """Knows how the first window of each application was; all of it only inside the office's calls."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._first: dict[str, dict[str, bool]] = {}
        """Of each application: which toolbars were to be seen before anybody had used it."""

    def prepare(self, app: str) -> None:
        """Before a document of ``app`` opens."""
        import uno

        if app not in _RESTORED:
            return
        if app == "impress":
            set_option(self._office, *_SLIDE_PANE, True)
        states = self._office.create("com.sun.star.ui.WindowStateConfiguration").getByName(SERVICES[app])
        found = {url: values(states.getByName(url)) for url in states.ElementNames}
        first = self._first.setdefault(app, {url: bool(state.get("Visible")) for url, state in found.items()})
        for url, state in found.items():
            # One that comes by itself, as a table's does while the cursor is in a table, counts as visible and goes by itself.
            wanted = first.get(url, bool(state.get("ContextSensitive")))
            if bool(state.get("Visible")) != wanted:
                uno.invoke(states, "replaceByName", (url, uno.Any(_STATE, properties(Visible=wanted))))

    def restore(self, app: str, document: Any) -> None:
        """Once it is open."""
        dispatch(self._office, document, ".uno:Sidebar", Sidebar=False)
        if app not in _RESTORED:
            return
        controller = document.CurrentController
        layout = controller.Frame.LayoutManager
        layout.createElement(STATUS_BAR)  # without one, showing it does nothing
        layout.showElement(STATUS_BAR)
        if app == "writer":
            set_where_other(controller.ViewSettings, _WRITER_VIEW)
            return
        document.setViewData(None)  # else the office gives what it found the last time
        views = document.ViewData
        now = values(views.getByIndex(0)) if views.getCount() else {}
        for name, command in _IMPRESS_VIEW.items():
            if now.get(name):
                dispatch(self._office, document, f".uno:{command}")
