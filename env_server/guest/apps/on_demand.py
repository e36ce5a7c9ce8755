"""An application that is started when a task first needs it and closed, with all it remembered, at the next reset."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .. import gtk_apps
from ..faults import Refused
from ..folder import AgentFolder, FileActionError, remove_tree
from ..processes import Program


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What each of these applications is given."""

    env: Mapping[str, str]
    log_folder: Path
    profiles: Path
    """One folder below it for each application's settings, made at its start and removed at its end."""
    folder: AgentFolder
    wait: Callable[[Callable[[], bool], float, str], None]
    """See `guest.windows.Windows.wait`."""
    titles: Callable[[str], list[str]]
    """``titles(name)``: of that application's windows without dialogs, topmost last."""
    press: Callable[[str, str], None]
    """``press(name, keys)`` brings that application to the front, presses keys there and waits until it has taken them."""


class Tools:
    """The base of an application's API: where the agent's files are."""

    needs_no_start: ClassVar[frozenset[str]] = frozenset()
    """Methods that work while the application does not run."""

    def __init__(self, folder: AgentFolder) -> None:
        self.folder = folder

    def existing_file(self, path: str) -> Path:
        """A file of the agent's folder, given as path or file: address. Raises `FileActionError`."""
        root = f"file://{self.folder.root}/"
        place = self.folder.existing(path.removeprefix(root))
        if not place.is_file():
            raise FileActionError(f"{path} is not a file")
        return place

    def shown(self, place: Path) -> str:
        """A place as the agent writes it."""
        root = self.folder.root
        return str(place.relative_to(root)) if root in place.parents else str(place)


class OnDemandApp:
    """One such application; subclasses say how it is started and what its interface is."""

    name: ClassVar[str]
    label: ClassVar[str]
    """Its name for people."""
    program_file: ClassVar[str]
    """What must be there for it to run: a command, or a path."""
    window_kind = ""
    keeps_settings: ClassVar[bool] = False
    """Started a second time within a task, does it know what it knew? A reset always makes it forget."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.had_window = False
        """Has it been on screen since it was started?"""
        self.profile = around.profiles / self.name
        self.program = Program(
            self.name,
            [self.program_file, *self.arguments()],
            env={
                **around.env,
                "HOME": str(self.profile),
                "XDG_CONFIG_HOME": str(self.profile / ".config"),
                "XDG_CACHE_HOME": str(self.profile / ".cache"),
                "XDG_DATA_HOME": str(self.profile / ".local/share"),
                **self.environment(),
            },
            log_folder=around.log_folder,
            folder=around.folder.root,
        )

    @property
    def tools(self) -> Tools | None:
        """The agent's API, None where it has none."""
        return None

    def arguments(self) -> Sequence[str]:
        """Its command line without the program."""
        return ()

    def environment(self) -> Mapping[str, str]:
        """What it needs besides the session's environment."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """Files of its profile: path -> text."""
        return {}

    def is_installed(self) -> bool:
        """Does the image have it?"""
        return shutil.which(self.program_file, path=self.around.env.get("PATH")) is not None

    def start(self) -> None:
        """Start it; it can be used once `connect` returns and it has a window."""
        self.had_window = False
        if self.keeps_settings:
            self.program.kill()
        else:
            self.close()
        for path, text in {
            ".config/gtk-3.0/settings.ini": gtk_apps.GTK_SETTINGS,
            ".config/gtk-3.0/gtk.css": gtk_apps.GTK_STYLE,
            **self.settings(),
        }.items():
            file = self.profile / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                file.write_text(text, encoding="utf-8")
        self.launch()

    def launch(self) -> None:
        """Start the process."""
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait until its interface answers. Raises one of `guest.windows.APP_FAILURES`."""

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Open a file in the running application. Raises `Refused`."""
        raise Refused(f"{self.label} opens no files")

    def forget(self) -> None:
        """A new task: what the agent set while it did not run does not count any more."""

    def close(self) -> None:
        """End it and forget its settings."""
        self.program.kill()
        if self.profile.is_symlink():
            self.profile.unlink()
        elif self.profile.is_dir():
            with contextlib.suppress(OSError):  # what has just been ended may still be writing
                remove_tree(self.profile)


def call(tools: Tools, method: str, args: Mapping[str, Any]) -> str:
    """One method of an API; the text that the agent sees."""
    return str(getattr(tools, method)(**args) or "")
