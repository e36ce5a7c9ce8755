"""The warm sheet's window: what the last agent changed in it (the View menu has keys for most of that) is undone for the next."""

from __future__ import annotations

from typing import Any

from ..process import Office
from ..uno_values import dispatch, set_where_other, values

_NUM_LAYOUTS = 2
"""After a start: on a busy machine the first came out otherwise in 1 of 66 starts; the second mends that."""
_TOOLBAR = "private:resource/toolbar/"
_TOOLBARS = (f"{_TOOLBAR}standardbar", f"{_TOOLBAR}formatobjectbar")
STATUS_BAR = "private:resource/statusbar/statusbar"
_OPTIONS = {"ShowGrid": True, "ShowPageBreaks": False, "ShowFormulas": False, "IsValueHighlightingEnabled": False}
"""Page breaks would show from the first print preview on."""
_FRAME_COMMANDS = {"Sidebar": False, "InputLineVisible": True, "FullScreen": False}
_FRAME_OPTIONS = {"HasColumnRowHeaders": True, "HasSheetTabs": True, "HasVerticalScrollBar": True, "HasHorizontalScrollBar": True}


class SheetWindow:
    """The window of ``document``; all of it only inside the office's calls."""

    def __init__(self, office: Office, document: Any) -> None:
        self._office, self._document = office, document
        self._toolkit = office.create("com.sun.star.awt.Toolkit")
        self._num_layouts = 0
        self._area: tuple[int, ...] = ()
        """Where the cells were on screen when everything around them had just been put right."""

    def restore(self) -> None:
        """Make it look as it did when it was new, its document without changes."""
        controller = self._document.CurrentController
        layout = controller.Frame.LayoutManager
        self._dispatch("StatusSelectionMode", 0)  # a selection that no key extends
        set_where_other(controller, _OPTIONS)
        self._document.setViewData(None)  # else the office gives what it found the last time
        view = values(self._document.ViewData.getByIndex(0))
        if view["ShowPageBreakPreview"]:
            self._dispatch("NormalViewMode", True)
        if not values(view["Tables"].getByName(view["ActiveTable"]))["ShowGrid"]:
            self._dispatch("ToggleSheetGrid", True)
        if area_on_screen(controller) != self._area:
            self._restore_frame(controller, layout)
        if self._num_layouts < _NUM_LAYOUTS:
            self._lay_out(layout)
        # Before the status bar, which shows it: told afterwards, a new one sometimes shows what was before and sometimes not.
        self._document.setModified(False)
        # A field that once showed a longer text, such as the sum of a number, stays wider; hidden and shown too.
        layout.destroyElement(STATUS_BAR)
        layout.createElement(STATUS_BAR)
        controller.Frame.contextChanged()  # the toolbar's buttons follow at once instead of when the office has time

    def _restore_frame(self, controller: Any, layout: Any) -> None:
        for command, value in _FRAME_COMMANDS.items():
            self._dispatch(command, value)
        set_where_other(controller, _FRAME_OPTIONS)
        for element in layout.Elements:
            if element.ResourceURL.startswith(_TOOLBAR) and element.ResourceURL not in _TOOLBARS:
                layout.hideElement(element.ResourceURL)
        for element in (*_TOOLBARS, STATUS_BAR):
            layout.showElement(element)
        self._toolkit.processEventsToIdle()
        self._area = area_on_screen(controller)

    def _lay_out(self, layout: Any) -> None:
        """Lay out the toolbars once more when the office has nothing left to do: while it starts, its buttons come and go, and on
        a busy machine that ends one way or another, with a line after the last button that fits, or without."""
        self._toolkit.processEventsToIdle()
        for toolbar in _TOOLBARS:
            layout.hideElement(toolbar)
            layout.showElement(toolbar)
        self._num_layouts += 1

    def _dispatch(self, command: str, value: bool | int) -> None:
        dispatch(self._office, self._document, f".uno:{command}", **{command: value})


def area_on_screen(controller: Any) -> tuple[int, int, int, int]:
    """Left, top, width, height of where the cells are, in pixels: what comes and goes around them changes it."""
    area = controller.VisibleAreaOnScreen
    return area.X, area.Y, area.Width, area.Height
