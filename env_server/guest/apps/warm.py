"""Warm applications from task to task: each goes on as long as no agent has changed it for good, else it is ended.

An application that was ended is started anew, with its first settings, when a task needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..files.folder import AgentFolder
from ..office.process import OfficeGone
from ..reading.dbus import DBusError
from ..screen.windows import Windows

if TYPE_CHECKING:
    from ..applications import Applications, WarmApp
    from ..session import Session

_CLOSE_LIMIT_S = 3.0
"""An office that has not closed its documents after this long is started anew."""
_MOST_NAMED = 3
"""Number of changes that the log names."""


class WarmApps:
    """The warm applications of one desktop, and how they were before the agent acted."""

    def __init__(self, session: Session, windows: Windows, apps: Applications, folder: AgentFolder) -> None:
        self._session, self._windows, self._apps, self._folder = session, windows, apps, folder
        self._num_starts: dict[str, int] = {}
        """Number of starts of each application before the agent acted."""
        self._remembering: set[str] = set()
        """Applications that may keep something of the task in their memory alone: a text that was copied, a step to be undone."""
        self._first_files: frozenset[tuple[str, int, int]] = frozenset()
        """`AgentFolder.marks` before the agent acted."""

    def note(self) -> None:
        """Take the applications that run as they are now: no agent has acted since the last reset."""
        self._remembering.clear()
        self._first_files = self._folder.marks()
        for app in self._apps.warm:
            self._num_starts[app.name] = app.program.num_starts
            if app.program.running:
                app.note()

    def note_input(self, front: str) -> None:
        """The agent is about to use mouse or keyboard in the application ``front``: the file manager can undo it later."""
        if front == self._apps.files.name:
            self._remembering.add(front)

    def note_copied(self, front: str) -> None:
        """The agent sees the application ``front``: when the editor owns the clipboard, it offers every text that was copied."""
        editor = self._apps.editor
        if front == editor.name and self._session.screen.connection.clipboard_owner() == editor.program.pid:
            self._remembering.add(editor.name)

    def forget(self, deadline: float, *, ran_programs: bool) -> None:
        """A new task: close all documents; nothing is open.

        An application that does not close them, that is no longer as it was at first, or that programs of the agent may have
        spoken to (``ran_programs``), is ended, with all its files.
        """
        chromium = self._apps.chromium
        if self._apps.open == [chromium.name]:
            chromium.note()
        self._apps.open.clear()
        chromium.page.leave()
        for app in self._apps.warm:
            why = "" if app.program.running else "it does not run"
            why = why or ("the agent ran programs" if ran_programs else self._change(app))
            if why:
                self._end(app, why, deadline)

    def profiles(self) -> list[Path]:
        """Files and folders of all these applications, whether they run or not."""
        return [path for app in self._apps.warm for path in app.profile()]

    def kept(self) -> list[Path]:
        """Files and folders of those that run."""
        return [path for app in self._apps.warm if app.program.running for path in app.kept()]

    def _change(self, app: WarmApp) -> str:
        """The changes that an agent has made to it for good; empty: none."""
        if app.program.num_starts != self._num_starts.get(app.name):
            return "it was started in the task"  # with all that the agent had written into the home: styles, for example
        if app.name in self._remembering and (app is not self._apps.files or self._folder.marks() != self._first_files):
            return "it remembers the task"
        documents = self._apps.documents
        try:
            if app is self._apps.calc and documents.has_any(timeout_s=_CLOSE_LIMIT_S):
                documents.close_all(timeout_s=_CLOSE_LIMIT_S)
            return ", ".join(app.changes(timeout_s=_CLOSE_LIMIT_S)[:_MOST_NAMED])
        except (OfficeGone, DBusError) as error:
            return str(error)

    def _end(self, app: WarmApp, why: str, deadline: float) -> None:
        if app.program.running:
            print(f"{app.name} is ended: {why}", flush=True)
        if app.program.pid:
            self._session.accessibility.forget(app.program.pid)
        app.end()
        self._windows.wait(lambda: not self._windows.of_process(app), deadline, f"{app.name} to be gone")
