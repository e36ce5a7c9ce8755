"""Getters that take something out of a document on the desktop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.getters.context import Context, GetterSpec
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile


def _content_from_vm_file(context: Context, args: Mapping[str, Any]) -> Any:
    """The ``last_row`` of the first sheet of an xlsx file, as a list of texts; empty cells are left out."""
    if args["file_type"] != "xlsx" or args["file_content"] != "last_row":
        raise TaskFailed(f"content_from_vm_file: {args['file_content']!r} of {args['file_type']!r}")
    from computerrl.env_server.tasks.osworld.metrics.sheets import open_workbook
    from computerrl.env_server.tasks.reading.workbooks import used_cells

    path = context.fetch(str(args["path"]), PurePosixPath(str(args["path"])).name)
    if path is None:
        return None
    try:
        cells = used_cells(open_workbook(path).worksheets[0])
    except BrokenFile:
        return None
    return [str(cell.value) for cell in cells if cell.row == cells[-1].row and cell.value is not None]


def _slide_part(context: Context, args: Mapping[str, Any], *, audio: bool) -> str | None:
    """The sound of a slide, or the picture behind it; a slide's number begins at 0."""
    from computerrl.env_server.tasks.osworld.metrics.slides import open_presentation

    path = context.fetch(str(args["ppt_file_path"]), PurePosixPath(str(args["ppt_file_path"])).name)
    if path is None:
        return None
    try:
        slides = open_presentation(path).slides
    except BrokenFile:
        return None
    index = int(args["slide_index"])
    if index >= len(slides):
        return None
    data = next(_media(slides[index]) if audio else _backgrounds(slides[index]), None)
    return None if data is None else context.keep(str(args.get("dest") or "slide-part"), data)


def _media(slide: Any) -> Iterator[bytes]:
    for relation in slide.part.rels.values():
        if relation.reltype.endswith(("/audio", "/media")) and not relation.is_external:
            yield relation.target_part.blob


def _backgrounds(slide: Any) -> Iterator[bytes]:
    from computerrl.env_server.tasks.osworld.metrics.slides import A, P

    embed = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"
    node = slide._element.find(f"{P}cSld/{P}bg")
    for picture in node.iter(f"{A}blip") if node is not None else ():
        part = slide.part.rels.get(picture.get(embed))
        if part is not None and not part.is_external:
            yield part.target_part.blob


def _audio_in_slide(context: Context, args: Mapping[str, Any]) -> str | None:
    """The sound of a slide."""
    return _slide_part(context, args, audio=True)


def _background_image_in_slide(context: Context, args: Mapping[str, Any]) -> str | None:
    """The picture behind a slide."""
    return _slide_part(context, args, audio=False)


GETTERS = (
    GetterSpec("content_from_vm_file", _content_from_vm_file, ("path", "file_type", "file_content")),
    GetterSpec("audio_in_slide", _audio_in_slide, ("ppt_file_path", "slide_index")),
    GetterSpec("background_image_in_slide", _background_image_in_slide, ("ppt_file_path", "slide_index")),
)
