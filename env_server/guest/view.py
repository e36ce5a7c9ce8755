"""The screen as the agent sees it: waiting until it is quiet, the tree of the application in front, the observation."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from .applications import OFFICE, Applications
from .apps import catalog
from .apps.browser import Browser
from .reading.reader import TreeReader
from .reading.tree_walk import Node, to_wire
from .screen.settle import Settled, Settler
from .screen.windows import APP_FAILURES, App, Windows, left

if TYPE_CHECKING:
    from .screen.display import Screen
    from .screen.window_list import Window
    from .web.page_reach import Page

_TAKE_LIMIT_S = 3.0
"""Time for an application to take the keys that were pressed before, when an evaluator requests its content."""
_OSWORLD_READ_LIMIT_S = 5.0
_CALM_AT_RESET = 2.0


class View:
    """The application in front, waited for and read."""

    def __init__(
        self, screen: Screen, apps: Applications, windows: Windows, settler: Settler, reader: TreeReader, *, settle_limit_s: float
    ) -> None:
        """``settle_limit_s``: how long an action's effects are waited for."""
        self._screen, self._apps, self._windows = screen, apps, windows
        self._settler, self._reader, self._settle_limit_s = settler, reader, settle_limit_s
        self.front = ""
        """Name of the application that was last seen in front; empty: none of the desktop's."""
        self.may_lag = False
        """The last action's waiting ended before the application had taken its keys, or the screen was quiet."""

    def settle(self) -> Settled:
        """Wait until the last action's effects are on screen."""
        settled = self._settler.settle(limit_s=self._settle_limit_s)
        self.may_lag = settled.by == "deadline"
        return settled

    def settle_for_judging(self, deadline: float) -> None:
        """Wait a little until the application in front has taken the last keys."""
        self._settler.settle(limit_s=min(left(deadline), _TAKE_LIMIT_S))
        self.may_lag = False

    def settle_at_reset(self, *, read_by: float | None = None) -> Settled:
        """Wait longer than after actions, since the same task must begin with the same picture.

        ``read_by``: deadline of a reading of the tree meanwhile. It is the one observed if nothing changes afterwards.
        """
        # The office paints its toolbars only once it has nothing else to do.
        return self._settler.settle(
            limit_s=self._settle_limit_s,
            calm=_CALM_AT_RESET,
            meanwhile=None if read_by is None else lambda: self._read_ahead(read_by),
        )

    def _read_ahead(self, deadline: float) -> None:
        window, app = self._windows.front()
        if window is not None:
            with contextlib.suppress(*APP_FAILURES):  # the reading that is observed raises it, if it fails as well
                self._read(window, app, deadline=deadline)

    def forget(self) -> None:
        """A new task: no tree read before counts."""
        self._reader.forget()

    def nodes(self) -> list[Node]:
        """The tree of the application in front, as set-up steps and judges of OSWorld read it."""
        window, app = self._windows.front()
        if window is None or app is None:
            return []
        return self._read(window, app, deadline=time.monotonic() + _OSWORLD_READ_LIMIT_S)

    def _read(self, window: Window, app: App | None, *, deadline: float) -> list[Node]:
        """Nodes of the application in front; see `TreeReader.read`."""
        chromium = self._apps.chromium
        page: Page | None = None
        if not window.is_dialog:  # while a page asks something in a dialog, it answers nothing
            page = chromium.page if app is chromium else app if isinstance(app, Browser) else None
        return self._reader.read(
            app.name if app else "",
            window.pid,
            deadline=deadline,
            is_warm=app is not None and app.name not in catalog.NAMES,
            frame_mark=chromium.page.frame_mark,
            is_mark_sure=chromium.page.is_miniwob,
            page=page,
        )

    def observe(self, settled: Settled, *, deadline: float, with_tree: bool, known_tree: int) -> dict[str, Any]:
        """The observation for the host; nodes are left out when they are those of ``known_tree``, which it has."""
        window, app = self._windows.front()
        nodes: list[Node] = []
        tree = 0
        if with_tree and window is not None:
            # One that is on its way to the bus, or just ending, has none: a warm one that stays away is noticed at its next use.
            nodes = self._read(window, app, deadline=deadline)
            tree = self._reader.serial
        self.front = app.name if app else ""
        self._screen.connection.pump()  # a drawing during the reading of the tree counts for the picture
        return {
            "app": self.front,
            "title": window.title if window else "",
            "tree": tree,
            "nodes": None if tree and tree == known_tree else to_wire(nodes),
            "picture": self._screen.connection.num_damages,
            "settled_by": settled.by,
            "settle_s": settled.duration_s,
        }

    def may_read_ahead(self, app: App) -> bool:
        """May the tree of this application be read while the screen comes to rest?"""
        # Not the others: a reading has the file manager announce names of buttons; the browser is still building its own tree.
        return app.name in OFFICE or app is self._apps.editor
