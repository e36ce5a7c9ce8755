"""LibreOffice Calc: one document kept open, emptied and refilled for every task; spoken to by UNO over a pipe.

All UNO calls run in one worker thread, so that a blocked office (a modal dialog, an endless formula) costs a deadline and not
the guest. Cells are read by UNO in one call; where they are on screen comes from the accessibility table's row and column
edges, read once per layout.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .processes import Program

T = TypeVar("T")

FILE_NAME = "sheet.ods"
"""What the document is saved as, in the agent's folder."""
_PIPE = "computerrl"
_SHEET = "Sheet1"
_COLUMN_WIDTH = 2258
"""LibreOffice's default, 1/100 mm."""
_EVERYTHING = 1023
"""com.sun.star.sheet.CellFlags: contents, styles, formats, notes, objects."""
_MAX_CELLS = 400
_RESOLVE_LIMIT_S = 5.0
_PROGRAM = Path("/usr/lib/libreoffice/program")
_CELL = re.compile(r"^\$?([A-Za-z]{1,3})\$?([1-9][0-9]{0,6})$")

_SETTINGS = (
    ("Office.Common/Misc", "FirstRun", "false"),
    ("Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("Office.Common/Misc", "CrashReport", "false"),
    ("Office.Common/Misc", "UseLocking", "false"),
    ("Office.Common/Misc", "UseDocumentOOoLockFile", "false"),
    ("Office.Common/Misc", "UseDocumentSystemFileLocking", "false"),
    ("Setup/Product", "ooSetupLastVersion", "99.0"),
    ("Setup/Product", "WhatsNew", "false"),
    ("Setup/Office", "ooSetupInstCompleted", "true"),
    ("Setup/Office", "OfficeRestartInProgress", "false"),
    ("Office.Calc/Input", "AutoInput", "false"),
    ("Office.Recovery/AutoSave", "Enabled", "false"),
    ("Office.Recovery/RecoveryInfo", "Enabled", "false"),
    ("Office.Common/AutoCorrect", "TwoCapitalsAtStart", "false"),
    ("Office.Common/AutoCorrect", "CapitalAtStartSentence", "false"),
    ("Office.Common/AutoCorrect", "UseReplacementTable", "false"),
    ("Office.Common/AutoCorrect", "ReplaceDoubleQuote", "false"),
    ("Office.Common/AutoCorrect", "ReplaceSingleQuote", "false"),
    ("Office.Common/AutoCorrect", "ChangeDash", "false"),
    ("Office.Common/AutoCorrect", "SetInetAttribute", "false"),
    ("Office.Common/AutoCorrect", "CorrectAccidentalCapsLock", "false"),
    ("Office.Common/Security/Scripting", "DisableMacrosExecution", "true"),
)


class CalcGone(RuntimeError):
    """The office does not answer or is dead."""


class CellError(ValueError):
    """No such cell or range; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class SheetView:
    """What the active sheet shows."""

    cells: list[tuple[int, int, str]]
    """(row, column, text) of filled visible cells, 0-based."""
    active: tuple[int, int]
    visible: tuple[int, int, int, int]
    """First row, last row, first column, last column."""
    layout: tuple[Any, ...]
    """Changes whenever rows or columns move or change size."""


def column_name(index: int) -> str:
    """0 -> A, 25 -> Z, 26 -> AA."""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def cell_index(cell: str) -> tuple[int, int]:
    """Row 2, column 1 for "B3". Raises `CellError`."""
    match = _CELL.match(cell.strip())
    if not match:
        raise CellError(f"{cell!r} is no cell")
    column = 0
    for letter in match[1].upper():
        column = column * 26 + ord(letter) - ord("A") + 1
    row = int(match[2])
    if column > 1024 or row > 1048576:
        raise CellError(f"{cell!r} lies outside the sheet")
    return row - 1, column - 1


def cell_text(value: object) -> str:
    """A cell's value as text: numbers without trailing zeros."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"
    return "" if value is None else str(value)


def settings_file() -> str:
    """registrymodifications.xcu of a fresh profile: no dialogs, no blinking, typed text stays as typed."""
    items = "".join(
        f'<item oor:path="/org.openoffice.{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>\n'
        for path, name, value in _SETTINGS
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<oor:items xmlns:oor="http://openoffice.org/2001/registry" '
        'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">\n'
        f"{items}</oor:items>\n"
    )


def _mark_extensions_current(user: Path) -> None:
    """Spare a fresh profile the restart that the office makes after looking through its (no) extensions."""
    match = re.search(r"^buildid=(.+)$", (_PROGRAM / "versionrc").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if match:
        (user / "extensions").mkdir(exist_ok=True)
        (user / "extensions" / "buildid").write_text(match[1], encoding="utf-8")


class _Worker:
    """One thread that makes all UNO calls of one office process."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[tuple[bool, Any]]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="uno", daemon=True).start()

    def call(self, work: Callable[[], T], *, timeout_s: float) -> T:
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._calls.put((work, answer))
        try:
            done, value = answer.get(timeout=timeout_s)
        except queue.Empty:
            raise CalcGone("the office did not answer in time") from None
        if not done:
            raise value
        return value

    def _run(self) -> None:
        while True:
            work, answer = self._calls.get()
            try:
                answer.put((True, work()))
            except Exception as error:  # noqa: BLE001  (handed to the caller's thread: this is the boundary between the two)
                answer.put((False, error))


class Calc:
    """The office and its one document."""

    name = "calc"

    def __init__(self, *, env: Mapping[str, str], log_folder: Path, folder: Path) -> None:
        self._folder = folder
        self._profile = Path(env["HOME"]) / "libreoffice"
        self.program = Program(
            self.name,
            [str(_PROGRAM / "soffice.bin"), "--norestore", "--nologo", "--nofirststartwizard",
             "--nolockcheck", f"-env:UserInstallation=file://{self._profile}", f"--accept=pipe,name={_PIPE};urp;", "--calc"],
            env=env,
            log_folder=log_folder,
        )  # fmt: skip
        self._worker = _Worker()
        self._document: Any = None
        self._context: Any = None

    def start(self) -> None:
        """Start the office; the document is there once `connect` returns."""
        self.program.kill()
        self._document = self._context = None
        self._worker = _Worker()
        user = self._profile / "user"
        user.mkdir(parents=True, exist_ok=True)
        settings = user / "registrymodifications.xcu"
        if not settings.exists():
            settings.write_text(settings_file(), encoding="utf-8")
            _mark_extensions_current(user)
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait for the office and its document. Raises `CalcGone`, also when the document was closed or does not answer."""
        if self._document is not None:
            self._call(lambda: self._document.CurrentController.Frame, min(timeout_s, _RESOLVE_LIMIT_S))
            return
        deadline = time.monotonic() + timeout_s
        while self._context is None:
            if not self.program.running:
                self.program.start()
            try:
                self._worker.call(self._resolve, timeout_s=_RESOLVE_LIMIT_S)
            except CalcGone:
                # A connection taken by an office that is just ending never answers; that thread is lost.
                self._worker = _Worker()
            except Exception as error:  # pyuno raises classes made at run time; not listening yet is the common one
                if time.monotonic() > deadline:
                    raise CalcGone(f"the office did not start: {error!r} {self.program.log_tail()}") from error
                time.sleep(0.03)
            if time.monotonic() > deadline:
                raise CalcGone(f"the office did not start: {self.program.log_tail()}")
        while self._document is None:
            self._worker.call(self._find_document, timeout_s=max(1.0, deadline - time.monotonic()))
            if self._document is None:
                if time.monotonic() > deadline or not self.program.running:
                    raise CalcGone(f"the office opened no document: {self.program.log_tail()}")
                time.sleep(0.03)

    def open(self, cells: Mapping[str, str], active_cell: str, *, timeout_s: float) -> None:
        """A sheet with exactly these cells, nothing else left of the last one."""
        cell_index(active_cell)
        places = {cell_index(cell): str(text) for cell, text in cells.items()}
        self._call(lambda: self._refill(places, active_cell), timeout_s)

    def view(self, *, timeout_s: float) -> SheetView:
        """Filled and visible cells."""
        return self._call(self._view, timeout_s)

    def set_cell(self, cell: str, value: str | int | float, *, timeout_s: float) -> None:
        """Set a value or formula as if it was typed."""
        row, column = cell_index(cell)

        def work() -> None:
            target = self._sheet().getCellByPosition(column, row)
            if isinstance(value, str):
                target.setFormula(value)
            else:
                target.setValue(float(value))

        self._call(work, timeout_s)

    def read(self, cells: str, *, timeout_s: float) -> list[list[str]]:
        """Cell texts of a range such as ``A1:C9``, row by row."""
        first, _, last = cells.partition(":")
        top, left = cell_index(first)
        bottom, right = cell_index(last or first)
        top, bottom, left, right = min(top, bottom), max(top, bottom), min(left, right), max(left, right)
        if (bottom - top + 1) * (right - left + 1) > 100_000:
            raise CellError(f"{cells} has too many cells")
        rows = self._call(lambda: self._sheet().getCellRangeByPosition(left, top, right, bottom).getDataArray(), timeout_s)
        return [[cell_text(value) for value in row] for row in rows]

    def save(self, *, timeout_s: float) -> str:
        """Save the document into the agent's folder; gives the file's name."""
        self._call(self._store, timeout_s)
        return FILE_NAME

    # --- in the worker's thread ---

    def _call(self, work: Callable[[], T], timeout_s: float) -> T:
        if self._document is None:
            raise CalcGone("no document is open")
        try:
            return self._worker.call(work, timeout_s=timeout_s)
        except (CellError, CalcGone):
            raise
        except Exception as error:  # pyuno raises classes made at run time: the bridge broke, or the document is gone
            raise CalcGone(f"{type(error).__name__}: {error}") from error

    def _resolve(self) -> None:
        import uno

        local = uno.getComponentContext()
        resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
        self._context = resolver.resolve(f"uno:pipe,name={_PIPE};urp;StarOffice.ComponentContext")

    def _store(self) -> None:
        self._document.store()

    def _find_document(self) -> None:
        # The office opens its document by itself. Loaded from here, another thread than its main one would run the GTK loop,
        # and the two lock each other out, about one time in four.
        from com.sun.star.beans import PropertyValue

        create = self._context.ServiceManager.createInstanceWithContext
        desktop = create("com.sun.star.frame.Desktop", self._context)
        open_components = desktop.Components.createEnumeration()
        if not open_components.hasMoreElements():
            return
        document = open_components.nextElement()
        if document.CurrentController is None:
            return
        document.storeAsURL(f"file://{self._folder}/{FILE_NAME}", ())
        off = PropertyValue()
        off.Name, off.Value = "Sidebar", False
        self._dispatcher = create("com.sun.star.frame.DispatchHelper", self._context)
        self._dispatcher.executeDispatch(document.CurrentController.Frame, ".uno:Sidebar", "", 0, (off,))
        self._document = document

    def _sheet(self) -> Any:
        return self._document.CurrentController.ActiveSheet

    def _refill(self, places: Mapping[tuple[int, int], str], active_cell: str) -> None:
        document, controller = self._document, self._document.CurrentController
        sheets = document.Sheets
        sheet = sheets.getByIndex(0)
        undo = document.UndoManager
        undo.clear()
        undo.lock()
        document.addActionLock()
        try:
            for name in sheets.ElementNames[1:]:
                sheets.removeByName(name)
            if sheet.Name != _SHEET:
                sheet.Name = _SHEET
            # Ends a half-typed cell now: ended by a later selection, its text would land in the new sheet.
            controller.setActiveSheet(sheet)
            controller.select(sheet.getCellByPosition(0, 0))
            cursor = sheet.createCursor()
            cursor.gotoEndOfUsedArea(False)
            end = cursor.RangeAddress
            used = sheet.getCellRangeByPosition(0, 0, end.EndColumn, end.EndRow)
            used.merge(False)
            used.clearContents(_EVERYTHING)
            columns, rows = sheet.Columns, sheet.Rows
            columns.IsVisible, rows.IsVisible = True, True
            columns.Width = _COLUMN_WIDTH
            rows.OptimalHeight = True
            if places:
                bottom, right = max(row for row, _ in places), max(column for _, column in places)
                block = tuple(tuple(places.get((row, column), "") for column in range(right + 1)) for row in range(bottom + 1))
                sheet.getCellRangeByPosition(0, 0, right, bottom).setFormulaArray(block)
        finally:
            document.removeActionLock()
            undo.unlock()
        if controller.hasFrozenPanes() or controller.getIsWindowSplit():
            controller.splitAtPosition(0, 0)  # which is how a split is taken away
        if controller.ZoomValue != 100:
            controller.ZoomValue = 100
        controller.setActiveSheet(sheet)
        self._go_to(active_cell)
        controller.setFirstVisibleRow(0)
        controller.setFirstVisibleColumn(0)
        document.setModified(False)
        controller.Frame.contextChanged()  # the toolbar's buttons follow at once instead of when the office has time

    def _go_to(self, cell: str) -> None:
        """Put the cell cursor there without selecting: in a selection, Enter would not move on."""
        from com.sun.star.beans import PropertyValue

        place = PropertyValue()
        place.Name, place.Value = "ToPoint", cell
        self._dispatcher.executeDispatch(self._document.CurrentController.Frame, ".uno:GoToCell", "", 0, (place,))

    def _view(self) -> SheetView:
        controller = self._document.CurrentController
        sheet = controller.ActiveSheet
        seen = controller.VisibleRange
        cursor = sheet.createCursor()
        cursor.gotoEndOfUsedArea(False)
        used = cursor.RangeAddress
        cells: list[tuple[int, int, str]] = []
        bottom, right = min(seen.EndRow, used.EndRow), min(seen.EndColumn, used.EndColumn)
        if bottom >= seen.StartRow and right >= seen.StartColumn:
            rows = sheet.getCellRangeByPosition(seen.StartColumn, seen.StartRow, right, bottom).getDataArray()
            cells = [
                (seen.StartRow + r, seen.StartColumn + c, cell_text(value))
                for r, row in enumerate(rows)
                for c, value in enumerate(row)
                if value != ""
            ][:_MAX_CELLS]
        selection = self._document.CurrentSelection
        address = selection.RangeAddress if hasattr(selection, "RangeAddress") else None
        corner = sheet.getCellByPosition(seen.EndColumn, seen.EndRow).Position
        visible = (seen.StartRow, seen.EndRow, seen.StartColumn, seen.EndColumn)
        return SheetView(
            cells=cells,
            active=(address.StartRow, address.StartColumn) if address is not None else (0, 0),
            visible=visible,
            layout=(*visible, corner.X, corner.Y, controller.ZoomValue, sheet.Name),
        )
