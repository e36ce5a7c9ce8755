"""Warm applications at the beginning of a task: which go on as they are, and which are ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from computerrl.env_server.guest.applications import Applications
from computerrl.env_server.guest.apps.warm import WarmApps
from computerrl.env_server.guest.files.folder import AgentFolder


class App:
    """A warm application that runs. The test says which of its settings have changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.program = SimpleNamespace(running=True, pid=1, num_starts=1)
        self.page = SimpleNamespace(leave=lambda: None)
        self.changed: list[str] = []

    def note(self) -> None:
        """Nothing to note."""

    def changes(self, *, timeout_s: float) -> list[str]:
        return self.changed

    def kept(self) -> list[Path]:
        return [Path(self.name)]

    def end(self) -> None:
        self.program.running = False


NAMES = ("chromium", "calc", "editor", "files")


@pytest.fixture
def apps() -> Applications:
    documents: Any = SimpleNamespace(has_any=lambda *, timeout_s: False)
    parts: dict[str, Any] = {name: App(name) for name in NAMES}
    none: Any = None
    return Applications(documents=documents, writer=none, impress=none, on_demand={}, **parts)


@pytest.fixture
def warm(apps: Applications, tmp_path: Path) -> WarmApps:
    clipboard = SimpleNamespace(clipboard_owner=lambda: 1)
    session = SimpleNamespace(
        accessibility=SimpleNamespace(forget=lambda _pid: None), screen=SimpleNamespace(connection=clipboard)
    )
    windows = SimpleNamespace(wait=lambda condition, _deadline, _what: None, of_process=lambda _app: [])
    made = WarmApps(cast(Any, session), cast(Any, windows), apps, AgentFolder(tmp_path))
    made.note()
    return made


def kept(warm: WarmApps, *, ran_programs: bool = False) -> set[str]:
    warm.forget(60.0, ran_programs=ran_programs)
    return {str(path) for path in warm.kept()}


def test_applications_that_nobody_changed_go_on(warm: WarmApps, apps: Applications) -> None:
    apps.note_open("calc")
    assert kept(warm) == set(NAMES) and apps.open == []


def test_application_whose_settings_changed_is_ended(warm: WarmApps, apps: Applications) -> None:
    cast(Any, apps.editor).changed = ["word wrap"]
    assert kept(warm) == set(NAMES) - {"editor"}


def test_application_that_was_started_in_the_task_is_ended(warm: WarmApps, apps: Applications) -> None:
    apps.files.program.num_starts += 1
    assert kept(warm) == set(NAMES) - {"files"}


def test_programs_of_the_agent_end_them_all(warm: WarmApps) -> None:
    assert kept(warm, ran_programs=True) == set()


def test_editor_that_offers_a_copied_text_is_ended(warm: WarmApps) -> None:
    warm.note_copied("calc")
    assert kept(warm) == set(NAMES)
    warm.note_copied("editor")
    assert kept(warm) == set(NAMES) - {"editor"}


def test_file_manager_is_ended_where_mouse_and_keyboard_changed_a_file(warm: WarmApps, tmp_path: Path) -> None:
    warm.note_input("files")
    assert kept(warm) == set(NAMES)
    (tmp_path / "new.txt").touch()
    assert kept(warm) == set(NAMES) - {"files"}
    warm.note()


def test_files_that_change_in_another_way_leave_the_file_manager_as_it_is(warm: WarmApps, tmp_path: Path) -> None:
    warm.note_input("editor")
    (tmp_path / "new.txt").touch()
    assert kept(warm) == set(NAMES)
