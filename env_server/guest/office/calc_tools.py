"""The agent's API of Calc; see `common.action_tables.calc`."""

from __future__ import annotations

from .sheet import cell_index, cell_text
from .tools import OfficeTools


class CalcTools(OfficeTools):
    """One method per action."""

    def set_cell(self, cell: str, value: str | int | float) -> str:
        """Set a value or formula as if it was typed."""
        row, column = cell_index(cell)
        target = self.controller.ActiveSheet.getCellByPosition(column, row)
        if isinstance(value, str):
            target.setFormula(value)
        else:
            target.setValue(float(value))
        return ""

    def get_cell(self, cell: str) -> str:
        """What the cell holds; a formula's value."""
        row, column = cell_index(cell)
        return cell_text(self.controller.ActiveSheet.getCellRangeByPosition(column, row, column, row).getDataArray()[0][0])
