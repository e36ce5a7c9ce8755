"""The little applications of the scripted desktop: a page, a sheet, an editor, a file list.

Honest imitations: actions change their state, elements show it, getters read it, and nothing else decides a reward. They have
no caret movement, no menus and no undo; real behaviour is what the contained desktops are for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.pages import Page


class ActionFailed(Exception):
    """The agent's action cannot be done here; the text is for the agent."""


@dataclass(frozen=True, slots=True)
class ScriptedRow:
    """One element to be; ``key`` tells the application what was clicked."""

    key: str
    role: str
    text: str
    states: tuple[str, ...] = ()
    line: int = 0
    column: int = 0


class ScriptedApp(Protocol):
    """What the desktop needs of an application."""

    name: str
    title: str

    def rows(self) -> list[ScriptedRow]:
        """What is on screen, in reading order."""

    def click(self, key: str) -> None:
        """A left click on the row with ``key``."""

    def type(self, text: str) -> None:
        """Typing; a newline is the Enter key."""

    def clear(self) -> None:
        """Empty the field that has the focus: what is typed next stands in place of it."""

    def key(self, keys: str) -> None:
        """One key chord."""


class FileTree:
    """Files and folders below the agent's folder; paths are relative, separated by `/`."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.folders: set[str] = set()

    def listing(self, folder: str = ".") -> list[str]:
        """Sorted paths of everything below ``folder``, relative to it; folders end with `/`."""
        prefix = "" if folder in (".", "") else self._folder(folder) + "/"
        entries = [*self.files, *(f"{name}/" for name in self.folders)]
        return sorted(entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix) and entry != prefix)

    def rename(self, path: str, new_name: str) -> None:
        """Give ``path`` another name in the same folder."""
        if "/" in new_name:
            raise ActionFailed(f"{new_name!r} is no file name")
        parent = path.rpartition("/")[0]
        self._relocate(path, f"{parent}/{new_name}" if parent else new_name)

    def move(self, path: str, folder: str) -> None:
        """Put ``path`` into ``folder``."""
        target = path.rpartition("/")[2]
        self._relocate(path, target if folder in (".", "") else f"{self._folder(folder)}/{target}")

    def copy(self, path: str, target: str) -> None:
        """A second file with the same text."""
        text = self.read(path)
        self.write(f"{target.rstrip('/')}/{path.rpartition('/')[2]}" if target.rstrip("/") in self.folders else target, text)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all in it."""
        path = path.rstrip("/")
        if path in self.folders:
            self.files = {name: text for name, text in self.files.items() if not name.startswith(f"{path}/")}
            self.folders = {name for name in self.folders if name != path and not name.startswith(f"{path}/")}
        elif self.files.pop(path, None) is None:
            raise ActionFailed(f"no file {path!r}")

    def make_folder(self, path: str) -> None:
        """An empty folder."""
        self.folders.add(path.rstrip("/"))

    def read(self, path: str) -> str:
        """The text of a file."""
        if path not in self.files:
            raise ActionFailed(f"no file {path!r}")
        return self.files[path]

    def write(self, path: str, text: str) -> None:
        """Make or replace a file."""
        parent = path.rpartition("/")[0]
        if parent:
            self._folder(parent)
        self.files[path] = text

    def _folder(self, path: str) -> str:
        path = path.rstrip("/")
        if path not in self.folders:
            raise ActionFailed(f"no folder {path!r}")
        return path

    def _relocate(self, path: str, target: str) -> None:
        if target in self.files or target in self.folders:
            raise ActionFailed(f"{target!r} is there already")
        self.files[target] = self.read(path)
        del self.files[path]


@dataclass(slots=True)
class PageApp:
    """A MiniWoB++ page as `env_server.tasks.pages` predicts it; scores when a button is clicked."""

    page_name: str
    page: Page
    name: str = "chromium"
    title: str = "Task"
    done: bool = False
    raw_reward: float = 0.0
    episode_id: int = 0
    values: dict[int, str] = field(default_factory=dict)
    """Texts of entries by widget index."""
    checked: set[int] = field(default_factory=set)
    focus: int | None = None

    def rows(self) -> list[ScriptedRow]:
        """The utterance is not among them: it is the instruction."""
        if self.done:
            return []
        rows, line, column = [], 0, 0
        for index, widget in enumerate(self.page.widgets):
            paired = self.page_name == "read-table" and widget.role == "static"
            text = self.values.get(index, "") if widget.role == "entry" else widget.text
            states = tuple(
                state
                for state, on in (
                    ("checked", index in self.checked),
                    ("focused", index == self.focus),
                    ("editable", widget.role == "entry"),
                )
                if on
            )
            rows.append(ScriptedRow(str(index), widget.role, text, states, line, column))
            column = 1 - column if paired else 0
            line += column == 0
        return rows

    def click(self, key: str) -> None:
        """Focus, check, select, or press."""
        index = int(key)
        role = self.page.widgets[index].role
        self.focus = index if role != "static" else self.focus
        if role == "check-box":
            self.checked ^= {index}
        elif role == "radio-button":
            self.checked = {index}
        elif role == "button":
            self._press(self.page.widgets[index].text)

    def type(self, text: str) -> None:
        """Into the focused entry."""
        if self.focus is not None and self.page.widgets[self.focus].role == "entry" and not self.done:
            self.values[self.focus] = self.values.get(self.focus, "") + text.replace("\n", "")

    def clear(self) -> None:
        """The focused entry."""
        if self.focus in self.values:
            del self.values[self.focus]

    def key(self, keys: str) -> None:
        """Only backspace does something."""
        if keys.lower() == "backspace" and self.focus is not None:
            self.values[self.focus] = self.values.get(self.focus, "")[:-1]

    def state(self) -> dict[str, Any]:
        """The `web_page` getter."""
        fields = {"utterance": self.page.utterance}
        return {"done": self.done, "raw_reward": self.raw_reward, "reason": "", "episode_id": self.episode_id, "fields": fields}

    def _press(self, text: str) -> None:
        solution = self.page.solution
        if self.page_name == "click-button":
            given: tuple[str, ...] = (text,)
        elif self.page_name in ("click-option", "click-checkboxes"):
            given = tuple(self.page.widgets[index].text for index in sorted(self.checked))
        else:
            given = (next(iter(self.values.values()), ""),)
        self.done, self.raw_reward, self.focus = True, 1.0 if given == solution else -1.0, None
        self.episode_id += 1


@dataclass(slots=True)
class CalcApp:
    """A sheet; typing goes into the active cell when Enter or a click ends it."""

    cells: dict[str, str]
    active: str
    name: str = "calc"
    title: str = "Untitled - Calc"
    draft: str | None = None

    def rows(self) -> list[ScriptedRow]:
        """Filled cells and the active one."""
        shown = sorted({cell for cell, text in self.cells.items() if text} | {self.active}, key=split_cell)
        return [
            ScriptedRow(cell, "table-cell", self._text(cell), ("selected",) if cell == self.active else (), *_place(cell))
            for cell in shown
        ]

    def click(self, key: str) -> None:
        """Make the cell active."""
        self._commit()
        self.active = key

    def type(self, text: str) -> None:
        """Into the active cell; Enter goes one down."""
        for index, part in enumerate(text.split("\n")):
            if index:
                self._commit()
                column, row = split_cell(self.active)
                self.active = f"{column}{row + 1}"
            if part:
                self.draft = (self.draft or "") + part

    def clear(self) -> None:
        """Typing replaces a cell's content anyway."""
        self.draft = None

    def key(self, keys: str) -> None:
        """Enter, Escape, Delete."""
        name = keys.lower()
        if name in ("enter", "return"):
            self.type("\n")
        elif name in ("escape", "esc"):
            self.draft = None
        elif name == "delete":
            self.set(self.active, "")

    def set(self, cell: str, value: object) -> None:
        """Put ``value`` in, as the API does."""
        column, row = split_cell(cell)
        text = format(value, "g") if isinstance(value, float) else str(value)
        self.cells[f"{column}{row}"] = text

    def read(self, cell_range: str) -> list[list[str]]:
        """The `calc_cells` getter."""
        (first_column, first_row), (last_column, last_row) = map(split_cell, cell_range.split(":"))
        columns = [chr(code) for code in range(ord(first_column), ord(last_column) + 1)]
        return [[self.cells.get(f"{c}{row}", "") for c in columns] for row in range(first_row, last_row + 1)]

    def _text(self, cell: str) -> str:
        return self.draft if cell == self.active and self.draft is not None else self.cells.get(cell, "")

    def _commit(self) -> None:
        if self.draft is not None:
            self.cells[self.active], self.draft = self.draft, None


@dataclass(slots=True)
class EditorApp:
    """One open file."""

    path: str
    text: str
    tree: FileTree
    name: str = "editor"
    title: str = "Editor"

    def rows(self) -> list[ScriptedRow]:
        """One text area."""
        return [ScriptedRow("text", "text", self.text, ("focused", "editable"))]

    def click(self, key: str) -> None:
        """The area has the focus anyway."""

    def type(self, text: str) -> None:
        """At the end."""
        self.text += text

    def clear(self) -> None:
        """The whole text."""
        self.text = ""

    def key(self, keys: str) -> None:
        """Save, Enter, backspace; select all and delete are one step here."""
        name = keys.lower()
        if name == "ctrl+s":
            self.save()
        elif name in ("enter", "return"):
            self.text += "\n"
        elif name == "backspace":
            self.text = self.text[:-1]
        elif name == "ctrl+a":
            self.text = ""

    def save(self) -> None:
        """Write the file."""
        self.tree.write(self.path, self.text)


@dataclass(slots=True)
class FilesApp:
    """A file manager's window on one folder; it shows, the API acts."""

    folder: str
    tree: FileTree
    name: str = "files"
    title: str = "Files"
    selected: str = ""

    def rows(self) -> list[ScriptedRow]:
        """Entries directly in the folder."""
        entries = [entry for entry in self.tree.listing(self.folder) if "/" not in entry.rstrip("/")]
        return [
            ScriptedRow(entry, "icon", entry.rstrip("/"), ("selected",) if entry == self.selected else (), line)
            for line, entry in enumerate(entries)
        ]

    def click(self, key: str) -> None:
        """Select."""
        self.selected = key

    def type(self, text: str) -> None:
        """Nothing here takes text."""

    def clear(self) -> None:
        """Nothing here is text."""

    def key(self, keys: str) -> None:
        """Delete removes the selected entry."""
        if keys.lower() == "delete" and self.selected:
            self.tree.delete(self.selected)
            self.selected = ""


def split_cell(cell: str) -> tuple[str, int]:
    """Column letter and row number of `B3`. The imitation knows columns A to Z."""
    cell = cell.strip().upper()
    if len(cell) < 2 or not ("A" <= cell[0] <= "Z") or not cell[1:].isdecimal() or int(cell[1:]) < 1:
        raise ActionFailed(f"{cell!r} is no cell")
    return cell[0], int(cell[1:])


def _place(cell: str) -> tuple[int, int]:
    column, row = split_cell(cell)
    return row, ord(column) - ord("A")


def require_app(apps: dict[str, Any], name: str) -> Any:
    """The open application ``name``. Raises `TaskFailed` when the task never opened it."""
    if name not in apps:
        raise TaskFailed(f"the task reads {name!r}, which it has not opened")
    return apps[name]
