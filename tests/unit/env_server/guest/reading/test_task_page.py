"""Opening a page: its instance starts before its first frame, and no later page may start it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from computerrl.env_server.guest.web.task_page import PageError, TaskPage

ADD, REMOVE = "Page.addScriptToEvaluateOnNewDocument", "Page.removeScriptToEvaluateOnNewDocument"


class Recorded(TaskPage):
    """Answers as the browser would and keeps what runs in new documents."""

    def __init__(self, folder: Path, *, answer: Mapping[str, Any]) -> None:
        (folder / "miniwob").mkdir()
        (folder / "miniwob/click-button.html").touch()
        super().__init__(cast("Any", None), folder)
        self.answer = answer
        self.scripts: dict[str, str] = {}
        self.seen_by_page: list[str] = []

    def _close_others(self, deadline: float) -> None:
        pass

    def _call(self, method: str, params: Mapping[str, Any] | None = None, *, deadline: float) -> dict[str, Any]:
        params = params or {}
        if method == ADD:
            self.scripts[str(len(self.scripts))] = params["source"]
            return {"identifier": str(len(self.scripts) - 1)}
        if method == REMOVE:
            del self.scripts[params["identifier"]]
        if method == "Page.navigate":
            self.seen_by_page = list(self.scripts.values())
        return dict(self.answer) if method == "Runtime.evaluate" else {}


def open_page(page: TaskPage) -> None:
    page.open("click-button", 7, timeout_s=60.0)


def test_page_starts_its_seed_by_itself_and_the_next_page_does_not(tmp_path: Path) -> None:
    page = Recorded(tmp_path, answer={"result": {"value": True}})
    open_page(page)
    assert len(page.seen_by_page) == 1 and "Math.seedrandom(7)" in page.seen_by_page[0]
    assert not page.scripts


def test_page_whose_start_fails_leaves_no_script_for_the_next(tmp_path: Path) -> None:
    page = Recorded(tmp_path, answer={"exceptionDetails": {"exception": {"description": "core is not defined"}}})
    with pytest.raises(PageError, match="core is not defined"):
        open_page(page)
    assert not page.scripts
