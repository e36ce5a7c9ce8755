"""The beginning of a task: its set-up steps in order, then the window that was opened last in front, with its first picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .applications import OFFICE, Applications
from .faults import Refused, TaskError
from .files.folder import AgentFolder, FileActionError
from .office.process import DocumentError
from .screen.settle import Settled
from .screen.windows import Windows, left
from .web.task_page import PageError

if TYPE_CHECKING:
    from .apps.file_manager import FileWindow
    from .openers import Openers
    from .screen.display import Screen
    from .view import View


class TaskStart:
    """Carries out set-up steps and shows their result."""

    def __init__(
        self,
        screen: Screen,
        apps: Applications,
        windows: Windows,
        openers: Openers,
        view: View,
        *,
        file_window: FileWindow,
        folder: AgentFolder,
    ) -> None:
        self._screen, self._apps, self._windows, self._openers, self._view = screen, apps, windows, openers, view
        self._file_window, self._folder = file_window, folder

    def set_up(self, steps: Sequence[Mapping[str, Any]], deadline: float) -> None:
        """Carry out the steps in order. Raises `TaskError`."""
        for step in steps:
            kind, args = str(step["kind"]), dict(step["args"])
            try:
                self._carry_out(kind, args, deadline)
            except (FileActionError, PageError, DocumentError, Refused, KeyError) as error:
                raise TaskError(f"{kind}: {error}") from error

    def _carry_out(self, kind: str, args: dict[str, Any], deadline: float) -> None:
        if kind == "write_file":
            self._folder.make_parents(args["path"])
            self._folder.write(args["path"], args["text"])
        elif kind == "put_file":
            self._folder.make_parents(args["path"])
            self._folder.put(args["path"], args["data"])
        elif kind == "make_folder":
            self._folder.make_folder(args["path"])
        elif kind == "web_sites":
            self._apps.sites.show(of_copy=args["of_copy"])
        elif self._openers.knows(kind):
            self._openers.step(kind, args, deadline)
        else:
            raise TaskError(f"unknown set-up step {kind!r}")

    def show(self, deadline: float, *, with_tree: bool, patience_s: float = math.inf) -> Settled:
        """Bring the application opened last to the front. Raises `NotInFront` when it does not come, or goes again.

        ``patience_s``: see `Windows.bring_to_front`; ``with_tree``: its tree will be observed.
        """
        if not self._apps.open:
            return self._view.settle_at_reset()
        app = self._apps.by_name[self._apps.open[-1]]
        self._windows.bring_to_front(app, deadline, patience_s=patience_s)
        if app.name in OFFICE:
            self._apps.documents.focus(app.name, timeout_s=left(deadline))
        # Started anew, it lists what there is, and what it leaves out then has a name that it cannot show.
        if app is self._apps.files and not self._file_window.select_first_file(deadline) and patience_s < math.inf:
            raise self._windows.not_in_front("the files of the task are not all listed")
        settled = self._view.settle_at_reset(read_by=deadline if with_tree and self._view.may_read_ahead(app) else None)
        window, front_app = self._windows.front()
        if front_app is not app:
            raise self._windows.not_in_front(f"{app.name} did not stay in front")
        if window is not None and not window.is_dialog and not self._screen.windows.fills_screen(window.xid):
            raise self._windows.not_in_front(f"{app.name} did not fill the screen")
        if self._apps.is_office_open():
            # The office claims the selection for the first document of its life, and for later ones only at times.
            self._screen.state.release_primary(self._apps.calc.program.pid)
        return settled
