"""The windows of Writer and Impress, each opened as the first one was: the office remembers which bars and marks the View menu
and its keys left on or off, and would show the next task's document with them."""

from __future__ import annotations

import functools
import time
from typing import Any

from .calc.sheet_window import STATUS_BAR
from .process import Office
from .registry import set_option
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
    "ShowRulers": True,
    "ShowHoriRuler": True,
    "ShowVertRuler": False,
    "ShowHoriScrollBar": True,
    "ShowVertScrollBar": True,
    "ShowNonprintingCharacters": False,
    "ShowTextBoundaries": True,
    "ShowTableBoundaries": True,
    "ShowGraphics": True,
    "HideWhitespace": False,
    "ShowAnnotations": True,
    "ShowTextFieldBackground": True,
    "ShowFieldCommands": False,
    "ShowHiddenParagraphs": False,
    "IsRasterVisible": False,
}
_IMPRESS_VIEW = {"RulerIsVisible": "ShowRuler", "GridIsVisible": "GridVisible"}
"""What a view says of itself, and the command that turns it off or on."""
_ON_THE_RULER = ".uno:LeftRightMargin"
"""One of the last states that a new window asks for."""
_BARS_LIMIT_S = 4.0
_LAST_ROUNDS_S = 0.2
"""Seven rounds of states, at 20 ms each, and painting."""
_LOOK_EVERY_S = 0.01


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

    def wait_for_bars(self, document: Any) -> None:
        """Until ruler, status bar and tool bars show the document's state, and are painted.

        A new window asks for that 300 ms after its last change, a few states at a time, each time 20 ms after the last: until
        then its ruler has no margins and fields of its status bar are empty, which no sign on the screen tells.
        """
        import uno

        frame = document.CurrentController.Frame
        toolkit = self._office.create("com.sun.star.awt.Toolkit")
        address = uno.createUnoStruct("com.sun.star.util.URL", Complete=_ON_THE_RULER)
        _, address = self._office.create("com.sun.star.util.URLTransformer").parseStrict(address)
        state = frame.queryDispatch(address, "", 0)
        if state is not None:  # previews have none
            listener = _listener_class()()
            state.addStatusListener(listener, address)  # which tells it the state as it is
            frame.contextChanged()
            num_before, limit = listener.num_told, time.monotonic() + _BARS_LIMIT_S
            while listener.num_told == num_before and time.monotonic() < limit:
                toolkit.processEventsToIdle()
                time.sleep(_LOOK_EVERY_S)
            state.removeStatusListener(listener, address)
            # The states that the ruler draws come in several rounds; nothing tells which one is the last.
            limit = time.monotonic() + _LAST_ROUNDS_S
            while time.monotonic() < limit:
                toolkit.processEventsToIdle()
                time.sleep(_LOOK_EVERY_S)
        toolkit.processEventsToIdle()


@functools.cache
def _listener_class() -> Any:
    # Made once, as the classes of `main_thread` are.
    import uno
    import unohelper

    class Listener(unohelper.Base, uno.getClass("com.sun.star.frame.XStatusListener")):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_told = 0

        def statusChanged(self, _: Any) -> None:
            self.num_told += 1

        def disposing(self, _: Any) -> None:
            pass

    return Listener
