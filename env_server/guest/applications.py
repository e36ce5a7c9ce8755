"""The applications of one desktop, by name, and which of them have something open.

Warm applications run all the time and are only given something to show; the others are started on demand (`apps.launcher`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .apps import catalog
from .apps.browser import Browser
from .apps.editor import Editor
from .apps.file_manager import Files
from .apps.on_demand import OnDemandApp
from .faults import Refused
from .files.folder import AgentFolder
from .office.calc.sheet import Calc
from .office.documents import Documents, OfficeApp
from .office.process import Office
from .web.chromium import Chromium
from .web.sites import Sites

if TYPE_CHECKING:
    from .screen.windows import App
    from .session import Places, Session

OFFICE = frozenset({"calc", "writer", "impress"})
"""Names of the office's applications."""
WarmApp = Chromium | Calc | Editor | Files


@dataclass(slots=True)
class Applications:
    """All applications of one desktop."""

    chromium: Chromium
    """The browser of web tasks."""
    calc: Calc
    writer: OfficeApp
    impress: OfficeApp
    documents: Documents
    """Files opened in the three office applications."""
    editor: Editor
    files: Files
    on_demand: Mapping[str, OnDemandApp]
    open: list[str] = field(default_factory=list)
    """Names of the applications with something open, the one opened last at the end."""

    @classmethod
    def make(
        cls,
        session: Session,
        places: Places,
        folder: AgentFolder,
        *,
        on_demand: Sequence[OnDemandApp],
        screen_size: tuple[int, int],
        pages: Path,
    ) -> Applications:
        """Make them all; none is started. ``pages``: folder of the MiniWoB++ pages; ``screen_size``: pixels."""
        width, height = screen_size
        own_env = {**session.env, "HOME": str(places.home)}  # the browser of web tasks shares nothing with the user's
        office = Office(env=session.env, log_folder=places.logs)
        calc = Calc(office, folder=places.agent)
        return cls(
            chromium=Chromium(env=own_env, log_folder=places.logs, width=width, height=height, pages=pages),
            calc=calc,
            writer=OfficeApp("writer", office),
            impress=OfficeApp("impress", office),
            documents=Documents(office, calc, folder=folder),
            editor=Editor(env=session.env, log_folder=places.logs, bus=session.bus),
            files=Files(env=session.env, log_folder=places.logs, folder=places.agent, bus=session.bus),
            on_demand={app.name: app for app in on_demand},
        )

    @property
    def office(self) -> Mapping[str, Calc | OfficeApp]:
        """The office's applications, by name."""
        return {"calc": self.calc, "writer": self.writer, "impress": self.impress}

    @property
    def sites(self) -> Sites:
        """Web sites in the free browser."""
        browser = self.on_demand["browser"]
        assert isinstance(browser, Browser)
        return browser.sites

    @property
    def warm(self) -> tuple[WarmApp, ...]:
        """Those that run all the time; Calc stands for the office."""
        return (self.chromium, self.calc, self.editor, self.files)

    @property
    def by_name(self) -> Mapping[str, App]:
        """All, by name."""
        return {"chromium": self.chromium, **self.office, "editor": self.editor, "files": self.files, **self.on_demand}

    def name_of(self, text: str) -> str:
        """Name of the application that an agent calls ``text``. Raises `Refused`."""
        name = " ".join(str(text).lower().split())
        name = catalog.OTHER_NAMES.get(name, name)
        if name not in self.by_name:
            known = sorted(self.by_name.keys() - {"chromium"})
            raise Refused(f"there is no application {text!r}; there are: {', '.join(known)}")
        return name

    def note_open(self, name: str) -> None:
        """The application has something open, opened last."""
        self.note_closed(name)
        self.open.append(name)

    def note_closed(self, name: str) -> None:
        """The application has nothing open."""
        if name in self.open:
            self.open.remove(name)

    def require_open(self, name: str) -> None:
        """Raise `Refused` when the application has nothing open."""
        if name not in self.open:
            raise Refused(f"{name} is not open")

    def is_office_open(self) -> bool:
        """Has one of the office's applications something open?"""
        return not OFFICE.isdisjoint(self.open)
