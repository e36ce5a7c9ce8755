"""Whether the editor's settings are still those that it was started with, and when it may open a file beside the last task's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from computerrl.env_server.guest.apps.editor import Editor, EditorTabs, gets_new_tab
from computerrl.env_server.guest.reading.dbus import Bus

WRITTEN_BY_ITSELF = "\n[org/xfce/mousepad/state/window]\nmaximized=true\n"


class Idle(Editor):
    """Writes its settings as for a start, and starts nothing."""

    def __init__(self, home: Path) -> None:
        env = {"HOME": str(home), "PATH": ""}
        super().__init__(env=env, log_folder=home, bus=cast(Bus, None))
        self.program.start = lambda *_, **__: None  # type: ignore[method-assign]
        self.start()
        self.file = next(home.rglob("keyfile"))


def test_settings_as_started_with_are_the_first_ones(tmp_path: Path) -> None:
    editor = Idle(tmp_path)
    assert editor.changes(timeout_s=1.0) == []
    editor.file.write_text(editor.file.read_text() + WRITTEN_BY_ITSELF)
    assert editor.changes(timeout_s=1.0) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text(file.read_text().replace("word-wrap=true", "word-wrap=true\nshow-line-numbers=true")),
        lambda file: file.write_text(file.read_text().replace("word-wrap=true", "word-wrap=false")),
        lambda file: file.write_text("no settings"),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.unlink(),
        lambda file: file.write_text(file.read_text() + "\n[org/xfce/mousepad/state/search]\nsearch-history=['secret']\n"),
        lambda file: (file.unlink(), file.symlink_to("/etc/hostname")),
        lambda file: (file.unlink(), file.mkdir(), (file / "x").touch()),
    ],
    ids=["added", "changed", "garbage", "no text", "gone", "looked for", "link", "folder"],
)
def test_settings_that_a_task_changed_or_broke_are_not_and_the_next_start_writes_them_anew(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    editor = Idle(tmp_path)
    change(editor.file)
    assert editor.changes(timeout_s=1.0)
    editor.start()
    assert editor.changes(timeout_s=1.0) == []


@pytest.mark.parametrize(
    ("name", "title", "expected"),
    [
        ("b.txt", "a.txt - Mousepad", True),
        ("b.txt", "*a.txt - Mousepad", True),
        ("a.txt", "a.txt - Mousepad", False),
        ("a.txt", "*a.txt - Mousepad", False),
        ("a.txt", "Untitled 1 - Mousepad", False),
        ("a.txt", "*Untitled 1 - Mousepad", False),
        ("a.txt", "data.txt - Mousepad", False),  # needlessly careful
    ],
)
def test_file_gets_a_tab_of_its_own_unless_its_name_or_none_is_shown(name: str, title: str, expected: bool) -> None:
    assert gets_new_tab(name, title) is expected


class Tabs:
    """The editor with its window and its accessible objects, as `EditorTabs` uses all three."""

    def __init__(self, *titles: str) -> None:
        self.titles = list(titles)
        self.program = SimpleNamespace(pid=1)
        self.num_restarts = 0

    def ready_to_read(self, app: object, deadline: float) -> None:
        """It runs."""

    def restart(self, app: object, deadline: float) -> None:
        self.num_restarts += 1

    def of(self, app: object) -> list[Any]:
        return [SimpleNamespace(title=f"{self.titles[-1]} - Mousepad")]

    def wait(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        assert condition(), what

    def nodes_of(self, pid: int) -> list[Any]:
        return [SimpleNamespace(role="page-tab-list", path="tabs")]

    def num_children(self, pid: int, path: str) -> int:
        return len(self.titles)

    def discard_changes(self, app: object) -> None:
        """Nothing asks."""

    def activate(self, action: str) -> None:
        if action == "file.new":
            self.titles.append("Untitled 1")
        elif action == "document.previous-tab":
            self.titles.insert(0, self.titles.pop())
        else:
            self.titles.pop()

    def open(self, place: Path, *, timeout_s: float) -> None:
        if self.titles[-1].startswith("Untitled"):
            self.titles.pop()
        self.titles.append(place.name)


@pytest.mark.parametrize("before", [["Untitled"], ["a.txt"], ["b.txt"], ["a.txt", "b.txt", "Untitled"]])
@pytest.mark.parametrize("place", [Path("/home/user/b.txt"), None])
def test_only_the_file_of_the_task_is_shown_whatever_was_open(before: list[str], place: Path | None) -> None:
    tabs: Any = Tabs(*before)
    EditorTabs(tabs, tabs, tabs).show(place, 60.0)
    assert tabs.titles == [place.name if place else "Untitled 1"] and not tabs.num_restarts
