"""Facts of a workbook's sheets that openpyxl does not keep, read from the parts of the file."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Container, Iterable
from typing import Any

from env_server.tasks.osworld.metrics.files import BrokenFile, load, xml_of

_RELATIONSHIP = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def _sheet_xml(path: str, title: str) -> Any:
    """The sheet's XML. Its part is found by the workbook's relationships: the number in a part's name means nothing."""

    def parse(place: Any) -> Any:
        with zipfile.ZipFile(place) as archive:
            book = _main_part(archive)
            ids = {node.get("name"): _id(node) for node in xml_of(archive.read(book)).iter("{*}sheet")}
            return xml_of(archive.read(_targets(archive, book)[ids[title]]))

    return load(path, parse)


def _main_part(archive: zipfile.ZipFile) -> str:
    root = xml_of(archive.read("_rels/.rels"))
    return next(node.get("Target").lstrip("/") for node in root if node.get("Type", "").endswith("/officeDocument"))


def _id(node: Any) -> str | None:
    # Strict files have another namespace for the same attribute.
    return node.get(_RELATIONSHIP) or next((value for key, value in node.attrib.items() if key.endswith("}id")), None)


def _targets(archive: zipfile.ZipFile, part: str) -> dict[str | None, str]:
    folder, name = posixpath.split(part)
    root = xml_of(archive.read(posixpath.join(folder, "_rels", f"{name}.rels")))
    return {node.get("Id"): posixpath.normpath(posixpath.join("/", folder, node.get("Target", ""))).lstrip("/") for node in root}


def sparklines(sheet: Any) -> dict[str, str]:
    """Cell -> the range that its small chart shows."""
    found = {}
    for node in _sheet_xml(sheet.parent.source_path, sheet.title).iter("{*}sparkline"):
        texts = {child.tag.rpartition("}")[2]: (child.text or "") for child in node}
        found[texts.get("sqref", "")] = texts.get("f", "").rpartition("!")[2]
    return found


def require_values(sheet: Any, places: Container[str] | None = None) -> None:
    """Raise `BrokenFile` if a formula of an expected sheet (or of its cells ``places``) has no stored value.

    Libraries write formulas without values, and only a spreadsheet application computes them. Such a cell reads as empty, so an
    empty answer would agree with it.
    """
    path = sheet.parent.source_path
    missing = [place for place in _formulas_without_values(path, sheet.title) if places is None or place in places]
    if missing:
        raise BrokenFile(
            path,
            f"cell {sheet.title}!{missing[0]} has a formula but no stored value; open the file in a spreadsheet application and "
            "save it again",
        )


def _formulas_without_values(path: str, title: str) -> Iterable[str]:
    for cell in _sheet_xml(path, title).iter("{*}c"):
        # A formula whose value is the empty text is stored as empty text, which has a type of its own.
        if cell.find("{*}f") is not None and not cell.findtext("{*}v") and cell.get("t") != "str":
            yield str(cell.get("r", ""))
