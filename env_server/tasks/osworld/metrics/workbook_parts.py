"""Facts of a workbook's sheets that openpyxl does not keep, read from the parts of the file."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
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
    formulas = {str(cell.get("r", "")): cell for cell in _sheet_xml(sheet).iter("{*}c") if cell.find("{*}f") is not None}
    missing = [place for place in _without_values(sheet, formulas) if places is None or place in places]
    if missing:
        raise BrokenFile(
            sheet.parent.source_path,
            f"cell {sheet.title}!{missing[0]} has a formula but no stored value; open the file in a spreadsheet application and "
            "save it again",
        )


def _without_values(sheet: Any, formulas: Mapping[str, Any]) -> Iterable[str]:
    stored = [cell.findtext("{*}v") if cell.get("t") != "str" else "text" for cell in formulas.values()]
    if _is_computed_later(sheet) and all(value in ("0", "", None) for value in stored):
        return formulas
    # A formula whose value is the empty text is stored as empty text, which has a type of its own.
    return [place for place, cell in formulas.items() if not cell.findtext("{*}v") and cell.get("t") != "str"]


def _is_computed_later(sheet: Any) -> bool:
    """Is an application to compute all formulas when it opens the workbook? Libraries ask for it that compute nothing, and some
    of them store 0 for each formula."""
    package = sheet.parent.package
    asked = [package.xml(name).find("{*}calcPr") for name in package.parts if name.endswith("workbook.xml")]
    return any(node is not None and node.get("fullCalcOnLoad") in ("1", "true") for node in asked)
