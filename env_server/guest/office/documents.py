"""Files opened in the office for a task or by the agent, and which tools act on which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.folder import AgentFolder
from ..processes import Program
from .calc.sheet import Calc
from .calc.tools import CalcTools
from .document_windows import SERVICES, DocumentWindows
from .impress.tools import ImpressTools
from .process import DocumentError, Office
from .registry import flush_options, restore_options
from .tools import OfficeTools
from .uno_values import properties, refusing, url
from .writer.tools import WriterTools

_TEXT_TABLE = "Text - txt - csv (StarCalc)"
_OPTIONS = {
    ".csv": {"FilterName": _TEXT_TABLE, "FilterOptions": "44,34,76,1"},
    ".tsv": {"FilterName": _TEXT_TABLE, "FilterOptions": "9,34,76,1"},
}
"""Separator, quotes, UTF-8, first line: without them the office asks in a dialog."""
_EDITED_BY = {"calc": "ActiveSheet", "writer": "ViewCursor"}
"""What views have in which a document can be edited, and previews lack."""
_NUM_HOPS = 4
"""A key's command is put at the end of the office's queue of events, and there it puts its work at the end again."""
_FACTORIES = {"writer": "swriter", "impress": "simpress"}
_TOOLS: Mapping[str, type[OfficeTools]] = {"calc": CalcTools, "writer": WriterTools, "impress": ImpressTools}
_ENDINGS = {
    "calc": (".xlsx", ".xls", ".ods", ".csv", ".tsv"),
    "writer": (".docx", ".doc", ".odt", ".rtf"),
    "impress": (".pptx", ".ppt", ".odp"),
}


def app_for(path: str) -> str | None:
    """The application that opens a file of this name, None when the office has none."""
    ending = Path(path).suffix.lower()
    return next((app for app, endings in _ENDINGS.items() if ending in endings), None)


class OfficeApp:
    """Writer or Impress: windows of the office's process, there only while a document is open."""

    def __init__(self, name: str, office: Office) -> None:
        self.name = name
        self.window_kind = f"libreoffice-{name}"
        self._office = office

    @property
    def program(self) -> Program:
        """The office's process."""
        return self._office.program

    def start(self) -> None:
        """Start the office."""
        self._office.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait for the office."""
        self._office.connect(timeout_s=timeout_s)


class Documents:
    """All documents but the warm sheet."""

    def __init__(self, office: Office, calc: Calc, *, folder: AgentFolder) -> None:
        self._office, self._calc, self._folder = office, calc, folder
        self._windows = DocumentWindows(office)

    def open(self, path: str, *, timeout_s: float) -> str:
        """Open a file of the agent's folder in a window of its own; gives the application's name."""
        place = self._folder.resolve(path)
        app = app_for(path)
        if app is None:
            raise DocumentError(f"the office opens no {Path(path).suffix or 'file without ending'}")
        if not place.is_file():
            raise DocumentError(f"there is no file {path}")

        def work() -> None:
            desktop = self._office.create("com.sun.star.frame.Desktop")
            self._windows.prepare(app)
            with refusing():
                options = _OPTIONS.get(place.suffix.lower(), {})
                document = desktop.loadComponentFromURL(url(place), "_blank", 0, properties(MacroExecutionMode=0, **options))
            if document is None or not document.supportsService(SERVICES[app]):
                raise DocumentError(f"{path} is no document that {app} can read")
            self._windows.restore(app, document)

        self._office.on_main(work, timeout_s=timeout_s)
        return app

    def new(self, app: str, *, timeout_s: float) -> None:
        """Open an empty document in a window of its own."""

        def work() -> None:
            desktop = self._office.create("com.sun.star.frame.Desktop")
            self._windows.prepare(app)
            document = desktop.loadComponentFromURL(f"private:factory/{_FACTORIES[app]}", "_blank", 0, ())
            self._windows.restore(app, document)

        self._office.on_main(work, timeout_s=timeout_s)

    def close_all(self, *, timeout_s: float) -> None:
        """Close everything but the warm sheet, unsaved changes thrown away; put back options that tools changed."""

        def work() -> None:
            restore_options(self._office)
            for document in self._components():
                if hasattr(document, "close") and not self._calc.is_warm(document):
                    document.setModified(False)
                    document.close(True)

        self._office.on_main(work, timeout_s=timeout_s)

    def has_any(self, *, timeout_s: float) -> bool:
        """Is a document open that `close_all` would close, or another thing left that it would undo?"""
        return bool(self._office.options_before) or self._office.call(
            lambda: any(not self._calc.is_warm(document) for document in self._components()), timeout_s=timeout_s
        )

    def focus(self, app: str, *, timeout_s: float) -> None:
        """Give the keyboard to the application's document. The window in front is not enough: an office that started on a busy
        machine may have noted no part of it that keys go to, and drops all of them until somebody clicks."""

        def work() -> None:
            document = self._document_in_front(app)
            if document is None:
                return
            document.CurrentController.Frame.ComponentWindow.setFocus()
            if app != "calc":
                self._windows.wait_for_bars(document)

        self._office.on_main(work, timeout_s=timeout_s)

    def finish(self, *, timeout_s: float) -> None:
        """Wait until the office has done what it was told: it saves some time after it has taken the keys for it."""
        for _ in range(_NUM_HOPS):
            self._office.on_main(lambda: None, timeout_s=timeout_s)

    def flush(self, *, timeout_s: float) -> None:
        """Have options that were changed written to the office's files."""
        self._office.on_main(lambda: flush_options(self._office), timeout_s=timeout_s)

    def use_tool(self, app: str, method: str, args: Mapping[str, Any], *, timeout_s: float) -> str:
        """Carry out one API method of the agent on the application's document; gives its result text."""
        _check_text(list(args.values()))

        def work() -> str:
            tools = _TOOLS[app](self._office, self._document_of(app), self._folder)
            with refusing():
                return str(getattr(tools, method)(**args) or "")

        return self._office.on_main(work, timeout_s=timeout_s)

    # --- in the office's calls ---

    def _components(self) -> list[Any]:
        enumeration = self._office.create("com.sun.star.frame.Desktop").Components.createEnumeration()
        found = []
        while enumeration.hasMoreElements():
            found.append(enumeration.nextElement())
        return found

    def _document_of(self, app: str) -> Any:
        document = self._document_in_front(app)
        if document is None:
            raise DocumentError(f"no document is open in {app}")
        if app in _EDITED_BY and not hasattr(document.CurrentController, _EDITED_BY[app]):
            raise DocumentError(f"{app} shows a print preview: close that first")
        return document

    def _document_in_front(self, app: str) -> Any:
        return self._calc.active() if app == "calc" else self._found(SERVICES[app])

    def _found(self, service: str) -> Any:
        current = self._office.create("com.sun.star.frame.Desktop").CurrentComponent
        documents = (current, *self._components())
        return next((document for document in documents if document is not None and document.supportsService(service)), None)


def _check_text(values: Sequence[Any]) -> None:
    """Raise `DocumentError` for half characters: UNO breaks at them."""
    for value in values:
        if isinstance(value, list):
            _check_text(value)
        elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise DocumentError(f"{value!r} is no text: it has half a character")
