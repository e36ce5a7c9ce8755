"""Impress's API: backgrounds, orientation, slide numbers, and the office's options for presentations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..pictures import load_picture
from ..process import DocumentError
from ..registry import write_options
from ..report import counted
from ..uno_values import colour, struct
from ..writer.paragraphs import elements
from .base import ImpressBase, kind_of, texts, whole

_AUTO_SAVE = "/org.openoffice.Office.Recovery/AutoSave"
_SAVE_OPTIONS = "/org.openoffice.Office.Common/Save/Document"
_START = "/org.openoffice.Office.Impress/Misc/Start"
_MAX_MINUTES = 60
"""What the office's own dialog allows."""
_MAX_MONITORS = 16


class ImpressPages(ImpressBase):
    """Methods on whole slides and on the office."""

    def set_slide_background(self, slide_index: int | None, color: str | None, image_path: str | None) -> str:
        """Background of one slide or of all: a colour or a picture."""
        if (color is None) == (image_path is None):
            raise DocumentError("say either color or image_path")
        slides = self.slides(slide_index)
        value = None if color is None else colour(color)
        picture = None if image_path is None else load_picture(self.office, self.existing(image_path), image_path)
        for _, slide in slides:
            background = self.document.createInstance("com.sun.star.drawing.Background")
            if picture is None:
                background.FillStyle = _enum("FillStyle", "SOLID")
                background.FillColor = value
            else:
                background.FillStyle = _enum("FillStyle", "BITMAP")
                background.FillBitmap = picture
                background.FillBitmapMode = _enum("BitmapMode", "STRETCH")
            slide.Background = background
        where = f"slide {slide_index}" if slide_index is not None else f"all {counted(len(slides), 'slide')}"
        return f"background of {where} is {color or image_path}"

    def set_slide_orientation(self, orientation: str) -> str:
        """Make all slides portrait or landscape; boxes are scaled to the new size, as the office's own dialog does."""
        page = self.slide(1)
        wide, high = page.Width, page.Height
        if (wide < high) == (orientation == "portrait") and wide != high:
            return f"slides are {orientation} already"
        pages = [pages.getByIndex(index) for pages in self._all_pages() for index in range(pages.Count)]
        for page in pages:
            page.Width, page.Height = high, wide
            page.Orientation = _paper(orientation)
        for page in pages:
            for index in range(page.Count):
                _scale(page.getByIndex(index), high / wide, wide / high)
        return f"slides are {orientation}, {high / 1000:.1f} x {wide / 1000:.1f} cm"

    def set_slide_number_color(self, color: str) -> str:
        """Colour of the slide numbers, on the slides and in their masters."""
        value, num = colour(color), 0
        for pages in self._all_pages():
            for index in range(pages.Count):
                for text in _numbers(pages.getByIndex(index)):
                    whole(text).setPropertyValue("CharColor", value)
                    num += 1
        if not num:
            raise DocumentError("no slide and no master of this presentation has a slide number")
        return f"set on {counted(num, 'slide number')}"

    def configure_auto_save(self, enabled: bool, interval_minutes: int) -> str:
        """Let the office save recovery copies by itself."""
        if not 1 <= interval_minutes <= _MAX_MINUTES:
            raise DocumentError(f"interval_minutes is between 1 and {_MAX_MINUTES}, not {interval_minutes}")
        # The office's own dialog writes here, and evaluators look there; what saves listens to the other.
        write_options(self.office, _SAVE_OPTIONS, AutoSave=enabled, AutoSaveTimeIntervall=interval_minutes)
        now = write_options(self.office, _AUTO_SAVE, Enabled=enabled, TimeIntervall=interval_minutes)
        return f"saves by itself every {counted(now['TimeIntervall'], 'minute')}" if now["Enabled"] else "does not save by itself"

    def configure_display_settings(
        self, use_presenter_view: bool | None, primary_monitor_only: bool | None, monitor_for_presentation: int | None
    ) -> str:
        """How presentations are shown: presenter view, and the monitor (1 is the primary one)."""
        if use_presenter_view is None and primary_monitor_only is None and monitor_for_presentation is None:
            raise DocumentError("say at least one of use_presenter_view, primary_monitor_only, monitor_for_presentation")
        if monitor_for_presentation is not None and not 1 <= monitor_for_presentation <= _MAX_MONITORS:
            raise DocumentError(f"monitor_for_presentation is between 1 and {_MAX_MONITORS}, not {monitor_for_presentation}")
        if primary_monitor_only and monitor_for_presentation not in (None, 1):
            raise DocumentError("monitor_for_presentation must be 1 when only the primary monitor is used")
        said = []
        if use_presenter_view is not None:
            now = write_options(self.office, _START, EnablePresenterScreen=use_presenter_view)
            said.append(f"presenter view {'on' if now['EnablePresenterScreen'] else 'off'}")
        if primary_monitor_only is not None or monitor_for_presentation is not None:
            # 0 leaves the choice to the office, which takes an external monitor where there is one.
            monitor = monitor_for_presentation or (1 if primary_monitor_only else 0)
            now = write_options(self.office, "/org.openoffice.Office.Impress/Misc", Display=monitor)
            self.document.Presentation.Display = monitor
            said.append(f"monitor {now['Display'] or 'chosen by the office'}")
        return ", ".join(said)

    def _all_pages(self) -> tuple[Any, Any]:
        return self.document.DrawPages, self.document.MasterPages


def _numbers(page: Any) -> Iterator[Any]:
    """The texts of a page that show its number."""
    for index in range(page.Count):
        box = page.getByIndex(index)
        if kind_of(box) == "slide number":
            yield box
            continue
        for text in texts(box):
            if any(
                portion.TextPortionType == "TextField" and "PageNumber" in "".join(portion.TextField.SupportedServiceNames)
                for paragraph in elements(text)
                for portion in elements(paragraph)
            ):
                yield text


def _scale(box: Any, across: float, down: float) -> None:
    at, size = box.Position, box.Size
    box.Size = struct("awt.Size", max(1, round(size.Width * across)), max(1, round(size.Height * down)))
    box.Position = struct("awt.Point", round(at.X * across), round(at.Y * down))


def _enum(kind: str, name: str) -> Any:
    import uno

    return uno.Enum(f"com.sun.star.drawing.{kind}", name)


def _paper(orientation: str) -> Any:
    import uno

    return uno.Enum("com.sun.star.view.PaperOrientation", orientation.upper())
