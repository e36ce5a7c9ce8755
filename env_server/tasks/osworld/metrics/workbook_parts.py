"""Facts of a workbook's sheets that openpyxl does not keep, read from the parts of the file."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile, opening


def _sheet_xml(sheet: Any) -> Any:
    """The sheet's XML. The reader found its part by the workbook's relationships."""
    with opening(sheet.parent.source_path):
        return sheet.parent.package.xml(sheet.part_name)


def sparklines(sheet: Any) -> dict[str, str]:
    """Cell -> the range that its small chart shows."""
    found = {}
    for node in _sheet_xml(sheet).iter("{*}sparkline"):
        texts = {child.tag.rpartition("}")[2]: (child.text or "") for child in node}
        found[texts.get("sqref", "")] = texts.get("f", "").rpartition("!")[2]
    return found


def require_values(sheet: Any, places: Container[str] | None = None) -> None:
    """Raise `BrokenFile` if a formula of an expected sheet (or of its cells ``places``) has no stored value.

    Libraries write formulas without values, and only a spreadsheet application computes them. Such a cell reads as empty, so an
    empty answer would agree with it.
    """
    missing = [place for place in _formulas_without_values(sheet) if places is None or place in places]
    if missing:
        raise BrokenFile(
            sheet.parent.source_path,
            f"cell {sheet.title}!{missing[0]} has a formula but no stored value; open the file in a spreadsheet application and "
            "save it again",
        )


def _formulas_without_values(sheet: Any) -> Iterable[str]:
    for cell in _sheet_xml(sheet).iter("{*}c"):
        # A formula whose value is the empty text is stored as empty text, which has a type of its own.
        if cell.find("{*}f") is not None and not cell.findtext("{*}v") and cell.get("t") != "str":
            yield str(cell.get("r", ""))
