"""Traces that a task leaves in files and in the session's services, and their removal at the next reset.

The applications remove their own (`apps.warm`, `apps.launcher`), and `screen.x_state` those in the X server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import processes
from .faults import DesktopError
from .files import fingerprint, home
from .files.folder import AgentFolder
from .files.leftovers import WritableFolders
from .session import FRAME_NAME, Places, Session

if TYPE_CHECKING:
    from .apps.warm import WarmApps

_MOST_NAMED = 3
"""Number of changes that an error names."""


class Traces:
    """Everything of one desktop that outlives a task and belongs to no application."""

    def __init__(self, session: Session, places: Places, folder: AgentFolder, warm: WarmApps, *, browser_folder: Path) -> None:
        """``browser_folder``: profile of the browser of web tasks, which changes all the time."""
        self._session, self._places, self._folder, self._warm = session, places, folder, warm
        self._browser_folder = browser_folder
        self._writable = WritableFolders()

    def begin(self) -> None:
        """Make the home as it is when a task begins, before any application runs."""
        home.renew(self._folder)

    def open_up(self) -> None:
        """Give folders the permissions back without which nothing in them can be removed."""
        self._writable.open_up([*self._warm.profiles(), *processes.log_files()], home=self._folder.root)

    def put_back_session(self) -> None:
        """Undo all that programs of an agent's can do, which is more than mouse and keyboard can. Raises `DesktopError`."""
        if changes := processes.changed_services():
            raise DesktopError(f"a service of the session: {', '.join(changes[:_MOST_NAMED])}")
        self._session.put_back()

    def remove_files(self) -> None:
        """Remove all files but those of applications that run, and make the home as it is when a task begins."""
        kept = self._warm.kept()
        home.renew(self._folder, keep=kept)
        self._writable.wipe(folders=[*kept, self._folder.root], files=[*kept, *self._own_files()])

    def fingerprint(self) -> dict[str, dict[str, str]]:
        """All that could carry something to the next task, see `files.fingerprint`."""
        own = [*self._warm.kept(), *self._own_files(), self._browser_folder]
        return fingerprint.take(session=self._session, home=self._folder.root, own=own)

    def _own_files(self) -> list[Path]:
        return [*processes.log_files(), self._places.frame / FRAME_NAME]
