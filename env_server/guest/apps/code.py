"""Visual Studio Code, driven by its own command ``code``.

In the image `osworld` the command is a program of ours (`osworld.def`): code-server runs the editor, and Chromium shows it. Both
are programs of the desktop here, so that a judge who ends an agent's programs leaves them alone.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ..faults import DesktopError, Refused
from ..processes import Program
from ..web import chromium
from .on_demand import OnDemandApp, Surroundings, Tools

_COMMAND = "code"
_CALL_LIMIT_S = 8.0
_SHOW_LIMIT_S = 10.0
"""Time for a file or a folder to be named in the window's title."""
_POLL_S = 0.05
_WORKSPACE = ".code-workspace"
_UNLOADED = "127.0.0.1"
"""Beginning of the title of a window that shows no editor yet."""
_EXISTING = frozenset({"path", "file1", "file2", "folder", "file_path", "path1", "path2", "base"})
"""Parameters that name what has to be there."""


class Code(OnDemandApp):
    """The code editor."""

    name = "code"
    label = "Visual Studio Code (the command `code`)"
    program_file = _COMMAND
    runs_programs = True

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._shown: Path | None = None
        """Folder or workspace with which it was started, until it is asked to open that."""
        self._server = Program(
            "code-server",
            [_COMMAND, "serve-web"],
            env=around.env,
            log_folder=around.log_folder,
            folder=around.folder.root,
        )

    @cached_property
    def tools(self) -> CodeTools:
        """See `CodeTools`."""
        return CodeTools(self)

    def arguments(self) -> Sequence[str]:
        """One window, in the foreground."""
        return ["--wait", "--new-window", *(flag for flag in chromium.FLAGS if flag != chromium.PIPE)]

    def environment(self) -> Mapping[str, str]:
        """The command has no server to start."""
        return {"CODE_SERVER": "own"}

    def launch(self) -> None:
        """Start the server and the window, which waits for it. A folder is opened at once: later, all would be loaded again."""
        self._server.start()
        self._shown = self.first if self.first and (self.first.is_dir() or self.first.suffix == _WORKSPACE) else None
        self.program.start([str(self._shown)] if self._shown else [])

    def connect(self, *, timeout_s: float) -> None:
        """Wait until its first window shows the editor and takes commands."""
        deadline = time.monotonic() + timeout_s

        def is_loaded() -> bool:
            return not self.program.running or self._is_named("")

        self.around.wait(is_loaded, deadline, "the editor")
        if not self.program.running:
            return
        try:
            self.run(["--status"], limit_s=max(_POLL_S, deadline - time.monotonic()))
        except Refused as error:
            raise DesktopError(str(error)) from error

    def close(self) -> None:
        """See `OnDemandApp`."""
        self._server.kill()
        super().close()

    def open(self, place: Path, *, timeout_s: float) -> None:
        """Open a file or folder, and wait until the window names it."""
        deadline = time.monotonic() + timeout_s
        shown, self._shown = self._shown, None
        if place != shown:
            self.run(["--reuse-window", str(place)], limit_s=timeout_s)
        name = place.stem if place.suffix == _WORKSPACE else place.name
        with suppress(DesktopError):  # a title may be set otherwise
            deadline = min(deadline, time.monotonic() + _SHOW_LIMIT_S)
            self.around.wait(lambda: self._is_named(name), deadline, "its title")

    def _is_named(self, text: str) -> bool:
        return any(text in title and not title.startswith(_UNLOADED) for title in self.around.titles(self.name))

    def run(self, arguments: Sequence[str], *, limit_s: float = _CALL_LIMIT_S) -> str:
        """One call of the command beside the running window; what it says. Raises `Refused`."""
        try:
            answer = subprocess.run(
                [_COMMAND, *arguments],
                env=self.around.env,
                cwd=self.around.folder.root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Refused("Visual Studio Code did not answer in time") from error
        if answer.returncode != 0:
            raise Refused(f"Visual Studio Code refused: {(answer.stderr or answer.stdout).strip()[:200]}")
        return answer.stdout.strip()


class CodeTools(Tools):
    """One method per action."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.around.folder)
        self._code = code

    def check(self, method: str, args: Mapping[str, Any]) -> None:
        """Files and folders that have to be there."""
        for name in _EXISTING & args.keys():
            self._existing(args[name])

    def launch_vscode(self, path: str) -> str:
        """Open a file or folder."""
        return self._code.run(["--reuse-window", self._existing(path)])

    def compare_files(self, file1: str, file2: str) -> str:
        """Two files side by side."""
        return self._code.run(["--diff", self._existing(file1), self._existing(file2)])

    def add_folder(self, folder: str) -> str:
        """To the workspace in front."""
        return self._code.run(["--add", self._existing(folder)])

    def remove_folder(self, folder: str) -> str:
        """From the workspace in front."""
        return self._code.run(["--remove", self._existing(folder)])

    def goto_file(self, file_path: str, line: int, character: int) -> str:
        """Open a file at a place."""
        if line < 1 or character < 1:
            raise Refused("lines and characters count from 1")
        return self._code.run(["--goto", f"{self._existing(file_path)}:{line}:{character}"])

    def perform_merge(self, path1: str, path2: str, base: str, result: str) -> str:
        """The merge editor."""
        places = [self._existing(path) for path in (path1, path2, base)]
        return self._code.run(["--merge", *places, str(self.folder.resolve(result))])

    def install_extension(self, extension_id: str, pre_release: bool) -> str:
        """By its id, or a .vsix file of the agent's folder."""
        known = self._existing(extension_id) if extension_id.endswith(".vsix") else _extension(extension_id)
        return self._code.run(["--install-extension", known, *(["--pre-release"] if pre_release else [])])

    def uninstall_extension(self, extension_id: str) -> str:
        """By its id."""
        return self._code.run(["--uninstall-extension", _extension(extension_id)])

    def list_extensions(self, show_versions: bool, category: str | None) -> str:
        """One a line."""
        versions = ["--show-versions"] if show_versions else []
        return self._code.run(["--list-extensions", *versions, *(["--category", category] if category else [])])

    def update_extensions(self) -> str:
        """All of them."""
        return self._code.run(["--update-extensions"])

    def disable_extension(self, extension_id: str) -> str:
        """In the window opened next."""
        return self._code.run(["--new-window", "--disable-extension", _extension(extension_id)])

    def toggle_sync(self, state: str) -> str:
        """Settings sync of the window opened next."""
        return self._code.run(["--new-window", "--sync", state])

    def _existing(self, path: str) -> str:
        return str(self.folder.existing(path))


def _extension(extension_id: str) -> str:
    """Checked, since it becomes an argument: an id is publisher.name. Raises `Refused`."""
    publisher, dot, name = extension_id.partition(".")
    if not dot or not all(part.replace("-", "").replace("_", "").isalnum() for part in (publisher, name)):
        raise Refused(f"{extension_id!r} is no extension's id: it looks like publisher.name")
    return extension_id
