"""Closing pages, with answers as Chromium gives them. (The pipe itself needs descriptors 3 and 4, which are pytest's own.)"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from computerrl.env_server.guest.processes import Program
from computerrl.env_server.guest.web.devtools import CommandRefused, DevTools


class Answered(DevTools):
    """A browser with two pages, one of which it cannot find when it is to be closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Program("browser", ["browser"], env={}, log_folder=folder))
        self.listed = ["page", "stuck"]

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline: float, session: str | None = None
    ) -> dict[str, Any]:
        """As `DevTools.call`."""
        if method == "Target.getTargets":
            return {"targetInfos": [{"type": "page", "targetId": page} for page in self.listed]}
        target = dict(params or {})["targetId"]
        if target == "stuck" or target not in self.listed:
            raise CommandRefused(f"{method}: No target with given id found")
        self.listed.remove(target)
        return {}


def test_page_that_is_gone_already_is_closed(tmp_path: Path) -> None:
    devtools = Answered(tmp_path)
    devtools.close_page("page", deadline=time.monotonic() + 1)
    devtools.close_page("page", deadline=time.monotonic() + 1)
    assert devtools.listed == ["stuck"]


def test_page_that_stays_open_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="No target with given id"):
        Answered(tmp_path).close_page("stuck", deadline=time.monotonic() + 1)
