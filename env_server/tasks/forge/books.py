"""Workbooks that the families make: openpyxl with a few words of ours. Facts of saved ones are in `book_facts`."""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Sequence
from typing import Any

from computerrl.env_server.tasks.forge.content import Table
from computerrl.env_server.tasks.forge.packing import repack

Value = str | int | float | datetime.date
_WIDTH = 15
"""Characters: wide enough for every value, so that nothing shows as ###."""
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


class Book:
    """A workbook in the making."""

    def __init__(self, *tables: Table) -> None:
        from openpyxl import Workbook

        self.raw: Any = Workbook()
        self.raw.remove(self.raw.active)
        self._results: dict[tuple[str, str], Value] = {}
        for table in tables:
            self.add(table)

    def add(self, table: Table) -> None:
        """A sheet with the table from A1 on."""
        sheet = self.raw.create_sheet(table.title)
        for row, values in enumerate((table.headings, *table.rows), start=1):
            for column, value in enumerate(values, start=1):
                cell = sheet.cell(row, column, value)
                if isinstance(value, datetime.date):
                    cell.number_format = "yyyy-mm-dd"
        for index in range(len(table.headings)):
            sheet.column_dimensions[chr(ord("A") + index)].width = _WIDTH

    def put(self, cell: str, value: Value, *, result: Value | None = None, sheet: str | None = None) -> None:
        """Fill a cell of the first or the named sheet; ``result`` is what a formula comes to."""
        worksheet = self.sheet(sheet)
        worksheet[cell] = value
        if result is not None:
            self._results[worksheet.title, cell] = result

    def paint(
        self,
        cells: str,
        *,
        bold: bool | None = None,
        color: str | None = None,
        fill: str | None = None,
        align: str | None = None,
        number: str | None = None,
        sheet: str | None = None,
    ) -> None:
        """Looks of a range; colours as `RRGGBB`, ``number`` as a format code."""
        from openpyxl.styles import Alignment, Font, PatternFill

        for row in _rows(self.sheet(sheet)[cells]):
            for cell in row:
                if bold is not None or color is not None:
                    old = cell.font
                    cell.font = Font(
                        name=old.name,
                        size=old.size,
                        bold=old.b if bold is None else bold,
                        color=color or old.color,
                    )
                if fill is not None:
                    cell.fill = PatternFill("solid", fgColor=fill)
                if align is not None:
                    cell.alignment = Alignment(horizontal=align)
                if number is not None:
                    cell.number_format = number

    def sheet(self, name: str | None = None) -> Any:
        """The first or the named sheet, as openpyxl has it."""
        return self.raw[name] if name else self.raw.worksheets[0]

    def to_bytes(self) -> bytes:
        """The .xlsx file; formulas with their results, as an office would save them."""
        buffer = io.BytesIO()
        self.raw.save(buffer)
        return repack(buffer.getvalue(), replaced=self._with_results(buffer.getvalue()))

    def _with_results(self, package: bytes) -> dict[str, bytes]:
        if not self._results:
            return {}
        from lxml import etree

        replaced = {}
        with zipfile.ZipFile(io.BytesIO(package)) as parts:
            for index, sheet in enumerate(self.raw.worksheets, start=1):
                results = {cell: value for (title, cell), value in self._results.items() if title == sheet.title}
                if not results:
                    continue
                name = f"xl/worksheets/sheet{index}.xml"
                root = etree.fromstring(parts.read(name))
                for cell in root.iter(f"{{{_MAIN}}}c"):
                    if cell.get("r") in results:
                        value = results[cell.get("r")]
                        if isinstance(value, str):
                            cell.set("t", "str")
                        found = cell.find(f"{{{_MAIN}}}v")
                        (etree.SubElement(cell, f"{{{_MAIN}}}v") if found is None else found).text = str(value)
                replaced[name] = etree.tostring(root, xml_declaration=True, encoding="UTF-8", standalone=True)
        return replaced


def _rows(cells: Any) -> Sequence[Sequence[Any]]:
    if isinstance(cells, tuple):
        return [row if isinstance(row, tuple) else (row,) for row in cells]
    return [(cells,)]
