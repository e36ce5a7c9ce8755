"""Impress's API: pictures, audio and video into slides, and slides into other files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..media import start_with_slide
from ..pictures import MM100_PER_CM, fitted_size, length, load_picture, picture_size
from ..process import DocumentError
from ..uno_values import properties, struct, uno_class, url
from .base import ImpressBase

_FILTERS = {
    ".pptx": "Impress MS PowerPoint 2007 XML",
    ".odp": "impress8",
    ".ppt": "MS PowerPoint 97",
    ".pdf": "impress_pdf_Export",
}
_PICTURE_FILTERS = {"png": "PNG", "jpeg": "JPG", "gif": "GIF", "bmp": "BMP", "tiff": "TIF"}
_PICTURE_ENDINGS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".bmp": "bmp", ".tif": "tiff", ".tiff": "tiff"}
_PICTURE_PIXELS = 1280
"""Width of exported pictures."""
_MEDIA = {
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".avi": "video/x-msvideo", ".mov": "video/quicktime", ".mpg": "video/mpeg",
    ".mpeg": "video/mpeg", ".webm": "video/webm", ".mkv": "video/x-matroska", ".ogv": "video/ogg", ".wmv": "video/x-ms-wmv",
    ".mp3": "audio/mpeg", ".wav": "audio/x-wav", ".ogg": "audio/ogg", ".oga": "audio/ogg", ".m4a": "audio/mp4",
    ".aac": "audio/aac", ".flac": "audio/flac", ".wma": "audio/x-ms-wma",
}  # fmt: skip
_VIDEO_SIZE, _AUDIO_SIZE = (12_800, 7_200), (2_000, 2_000)
"""1/100 mm, when none is asked for."""


class ImpressFiles(ImpressBase):
    """Methods that read or write files."""

    def save_as(self, file_path: str, overwrite: bool) -> str:
        """Save under another name; the ending says the format. A PDF is written beside the presentation, which keeps its name."""
        place = self.resolve(file_path)
        ending = place.suffix.lower()
        if ending not in _FILTERS:
            raise DocumentError(f"{file_path!r} has no ending that Impress saves: use {', '.join(_FILTERS)}")
        self._check_free(place, file_path, overwrite=overwrite)
        store = self.document.storeToURL if ending == ".pdf" else self.document.storeAsURL
        store(url(place), properties(FilterName=_FILTERS[ending], Overwrite=True))
        return f"saved {self.shown_path(place)}"

    def export_to_image(self, file_path: str, format: str, slide_index: int | None) -> str:
        """Export one slide as a picture, or all: then ``name.png`` becomes ``name_1.png`` and so on."""
        place = self.resolve(file_path)
        found = _PICTURE_ENDINGS.get(place.suffix.lower())
        if found is None:
            place = place.with_name(f"{place.name}.{format}")
        elif found != format:
            raise DocumentError(f"{file_path!r} does not end as a {format} file does")
        slides = self.slides(slide_index)
        places = [place]
        if slide_index is None and len(slides) > 1:
            places = [place.with_name(f"{place.stem}_{number}{place.suffix}") for number, _ in slides]
        for target in places:
            # Resolved again: a numbered name may be a link that leads outside.
            self._check_free(self.resolve(str(target)), self.shown_path(target), overwrite=True)
        for target, (_, slide) in zip(places, slides, strict=True):
            self._export(slide, target, _PICTURE_FILTERS[format])
        shown = self.shown_path(places[0])
        return f"exported {shown}" if len(places) == 1 else f"exported {shown} to {self.shown_path(places[-1])}"

    def insert_image(self, slide_index: int, image_path: str, width: float | None, height: float | None, position: str) -> str:
        """Put a picture on a slide; without a size its own, at most as large as the slide."""
        slide = self.slide(slide_index)
        size = length(width, "width", MM100_PER_CM), length(height, "height", MM100_PER_CM)
        picture = load_picture(self.office, self.existing(image_path), image_path)
        box = self.document.createInstance("com.sun.star.drawing.GraphicObjectShape")
        slide.add(box)
        box.Graphic = picture
        return self._settle(box, fitted_size(picture_size(picture), *size, room=(slide.Width, slide.Height)), slide, position)

    def insert_file(
        self, file_path: str, slide_index: int | None, position: str, size: Sequence[float] | None, autoplay: bool
    ) -> str:
        """Put an audio or video file on a slide (the current one when none is said); it becomes part of the presentation."""
        slide = self.controller.CurrentPage if slide_index is None else self.slide(slide_index)
        place = self.existing(file_path)
        kind = _MEDIA.get(place.suffix.lower())
        if kind is None:
            raise DocumentError(f"{file_path!r} is no audio or video file: its name ends in none of {', '.join(_MEDIA)}")
        if size is not None and len(size) != 2:
            raise DocumentError("size is [width, height] in centimetres")
        wide, high = _VIDEO_SIZE if kind.startswith("video") else _AUDIO_SIZE
        if size is not None:
            wide, high = length(size[0], "width", MM100_PER_CM) or 1, length(size[1], "height", MM100_PER_CM) or 1
        box = self.document.createInstance("com.sun.star.presentation.MediaShape")
        slide.add(box)
        self._embed(box, place)
        box.MediaMimeType = kind
        said = self._settle(box, (wide, high), slide, position)
        if autoplay:
            start_with_slide(self.office, slide, box)
        return said + (", starts with the slide" if autoplay else "")

    def _embed(self, box: Any, place: Path) -> None:
        # A package address and the stream: so the file becomes part of the document. Its own address would only be a link to it.
        box.MediaURL = f"vnd.sun.star.Package:Media/{place.name}"
        stream = self.office.create("com.sun.star.ucb.SimpleFileAccess").openFileRead(url(place))
        try:
            box.setPropertyValue("PrivateStream", stream)
        except uno_class("lang.IllegalArgumentException"):
            # LibreOffice 7.4 takes the stream, and complains all the same.
            if box.PrivateStream is None:
                raise

    def _settle(self, box: Any, size: tuple[int, int], slide: Any, position: str) -> str:
        box.Size = struct("awt.Size", *size)
        self.place(box, slide, position)
        where = f"box {slide.Count - 1} of slide {slide.Number}"
        return f"inserted as {where}, {size[0] / MM100_PER_CM:.1f} x {size[1] / MM100_PER_CM:.1f} cm, {position}"

    def _export(self, slide: Any, place: Path, filter_name: str) -> None:
        import uno

        exporter = self.office.create("com.sun.star.drawing.GraphicExportFilter")
        exporter.setSourceDocument(slide)
        high = round(_PICTURE_PIXELS * slide.Height / slide.Width)
        data = uno.Any("[]com.sun.star.beans.PropertyValue", properties(Width=_PICTURE_PIXELS, Height=high))
        done = exporter.filter(properties(URL=url(place), FilterName=filter_name, FilterData=data))
        if not done or not place.is_file():
            raise DocumentError(f"the office could not write {self.shown_path(place)}")

    def _check_free(self, place: Path, shown: str, *, overwrite: bool) -> None:
        if place.is_dir():
            raise DocumentError(f"{shown} is a folder")
        if not place.parent.is_dir():
            raise DocumentError(f"there is no folder {self.shown_path(place.parent)}")
        if place.exists() and not overwrite:
            raise DocumentError(f"{shown} is there already: say overwrite=True to replace it")
