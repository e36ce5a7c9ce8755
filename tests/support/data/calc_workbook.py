"""The workbook that tests of Calc's API act on, and how they act and look at what is left."""

from __future__ import annotations

import datetime
import io
from dataclasses import dataclass

import openpyxl
from openpyxl.workbook import Workbook

from computerrl.common.actions import parse_action
from computerrl.common.messages import Action, Evaluation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver

HEADER = ["Name", "Qty", "Price", "Day", "Kind"]
ROWS = [
    ["pear", 3, 2.5, datetime.date(2024, 1, 5), "fruit"],
    ["leek", 10, 0.75, datetime.date(2024, 2, 6), "N/A"],
    ["apple", 2, 1.25, datetime.date(2023, 3, 7), "fruit"],
    ["kale", 7, 3.0, datetime.date(2024, 4, 8), "leaf"],
]


def book() -> bytes:
    workbook = Workbook()
    sheet = workbook.active
    sheet.title = "Data"
    for row in [HEADER, *ROWS]:
        sheet.append(row)
    workbook.create_sheet("Notes")["B2"] = "x"
    closed = workbook.create_sheet("Closed")
    closed["A1"] = 1
    closed.protection.enable()
    return content(workbook)


def content(workbook: Workbook) -> bytes:
    stream = io.BytesIO()
    workbook.save(stream)
    return stream.getvalue()


@dataclass
class Calc:
    """Actions and what they left."""

    desktop: GuestDriver
    purpose: str = ""

    def open_for(self, purpose: str) -> None:
        """The workbook as it was at first, unless it was last opened for the same purpose."""
        if self.purpose == purpose:
            return
        self.purpose = purpose
        steps = (SetupStep("put_file", {"path": "in/data.xlsx", "data": book()}), SetupStep("open", {"path": "in/data.xlsx"}))
        self.desktop.reset(TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {})))

    def do(self, text: str) -> str:
        """A call that must work; gives its result text."""
        result = self.desktop.step(parse_action(f"calc.{text}"))
        assert result.action_error == "", (text, result.action_error)
        assert len(result.observation.result) <= 1700
        return result.observation.result

    def refusal(self, text: str) -> str:
        """The error text of a call."""
        return self.desktop.step(parse_action(f"calc.{text}")).action_error

    def saved(self, *, values: bool = False) -> Workbook:
        """The workbook after saving; formulas or their values."""
        self.do("save()")
        return self.loaded(values=values)

    def loaded(self, *, values: bool = False) -> Workbook:
        """The workbook as it was last saved."""
        return openpyxl.load_workbook(io.BytesIO(self.file("in/data.xlsx")), data_only=values)

    def file(self, path: str) -> bytes:
        data = self.desktop.get("file_bytes", path=path)
        assert data is not None, path
        return bytes(data)

    def column(self, letter: str) -> list[object]:
        """A saved column of the first sheet."""
        return [cell.value for cell in self.saved(values=True)["Data"][letter]]
