"""An application that is started when a task first needs it and closed, with all it remembered, at the next reset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..faults import Refused
from ..files.folder import AgentFolder, FileActionError, remove
from ..processes import Program
from ..web.site_copy import SiteCopy

_QUIT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings that each of these applications gets."""

    env: Mapping[str, str]
    log_folder: Path
    private: Path
    """One folder below it for each application's pipes and sockets, made at its start and removed at its end."""
    folder: AgentFolder
    wait: Callable[[Callable[[], bool], float, str], None]
    """See `guest.screen.windows.Windows.wait`."""
    titles: Callable[[str], list[str]]
    """``titles(name)``: of that application's windows without dialogs, topmost last."""
    press: Callable[[str, str], None]
    """``press(name, keys)`` brings that application to the front, presses keys there and waits until it has taken them."""
    screen_size: tuple[int, int]
    """Pixels."""
    copy: SiteCopy | None = None
    """The host's copy of web sites; None: there is no host to ask."""


class Tools:
    """The base of an application's API: where the agent's files are."""

    needs_no_start: ClassVar[frozenset[str]] = frozenset()
    """Methods that work while the application does not run."""

    def __init__(self, folder: AgentFolder) -> None:
        self.folder = folder

    def check(self, method: str, args: Mapping[str, Any]) -> None:
        """Raise what needs no application to be known: a start takes seconds. Raises `Refused`, `FileActionError`."""

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
    """Its program: a command, or a path."""
    window_kind = ""
    runs_programs: ClassVar[bool] = False
    """Can an agent start programs of its own with it?"""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.had_window = False
        """Has it been on screen since it was started?"""
        self.home = around.folder.root
        """Its settings lie here, where it keeps them everywhere, from its first start to the end of the task."""
        self.private = around.private / self.name
        self.first: Path | None = None
        """What is to be opened, while the application is started for it: its start may open it by itself."""
        self.num_starts_before = 0
        """Starts before this task."""
        self.program = Program(
            self.name,
            [self.program_file, *self.arguments()],
            env={**around.env, **self.environment()},
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
        """Its environment besides the session's."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """Files that it finds at its first start in a task: path in the home -> text."""
        return {}

    def is_installed(self) -> bool:
        """Does the image have it?"""
        return shutil.which(self.program_file, path=self.around.env.get("PATH")) is not None

    def start(self) -> None:
        """Start it; it can be used once `connect` returns and it has a window."""
        self.had_window = False
        self.close()
        self.private.mkdir(parents=True)
        for path, text in self.settings().items():
            if not (self.home / path).exists():
                self.around.folder.make_parents(path)
                self.around.folder.write(path, text)
        self.launch()

    def launch(self) -> None:
        """Start the process."""
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        """Wait until its interface answers. Raises one of `guest.screen.windows.APP_FAILURES`."""

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Open a file in the running application. Raises `Refused`."""
        raise Refused(f"{self.label} opens no files")

    def quit(self) -> None:
        """End it as a person would, so that what it knows is on disk."""
        self.program.end(wait_s=_QUIT_LIMIT_S)
        self.close()

    def close(self) -> None:
        """End it at once."""
        self.program.kill()
        remove(self.private)


def call(tools: Tools, method: str, args: Mapping[str, Any]) -> str:
    """One method of an API; the text that the agent sees."""
    return str(getattr(tools, method)(**args) or "")
