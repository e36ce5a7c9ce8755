"""Carrying out set-up and post-configuration steps on a desktop."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.abilities import is_ignored
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.commands import carry_out, converted_files, fill_placeholders, input_script, normalise
from computerrl.env_server.tasks.osworld.desktop import BACKGROUND, OsworldDesktop, RunResult, bring
from computerrl.env_server.tasks.osworld.format import (
    CloseTabsStep,
    DownloadStep,
    ExecuteStep,
    HistoryStep,
    LaunchStep,
    OpenStep,
    OpenTabsStep,
    SetupStep,
    SleepStep,
    Until,
    UploadStep,
    VerifiedStep,
    WallpaperStep,
    WindowStep,
)

COMMAND_LIMIT_S = 120.0
_NOT_FOUND = 127
"""How a shell says that a program is not there."""
_WINDOW_LIMIT_S = 20.0
"""How long a step waits for a window that is still to come."""
_TITLE_LIMIT_S = 5.0
"""How long it waits for the very title. Then a part will do: other viewers and players call their windows otherwise."""
_TITLE_PARTS = re.compile(r" [-\u2013\u2014] ")
_STAND_INS = {"Google Chrome": "Chromium", "gedit": "Mousepad"}
"""Programs whose names task files have in windows' titles -> the desktop's."""
_UNTIL_LIMIT_S = 60.0
_POLL_S = 0.5
_CHROME_EPOCH_S = 11_644_473_600
"""The browser counts microseconds from 1601."""


@dataclass(slots=True)
class Carrier:
    """Carries out the steps of one task on one desktop."""

    desktop: OsworldDesktop
    assets: Assets
    strict: bool = True
    """A step that cannot be carried out fails the task. Not so after the episode: the agent's work may be why, and what was saved
    counts."""
    outputs: dict[str, str] = field(default_factory=dict)
    """What commands printed, by the name under which the task keeps it."""
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    def carry_out(self, step: SetupStep) -> None:
        """Do one step. Raises `TaskFailed`, `Obstructed`, and what the desktop raises."""
        parameters = step.parameters
        action = Carrier._close if step.type == "close_window" else _ACTIONS.get(type(parameters))
        if action is None:
            raise TaskFailed(f"step {step.type} cannot be carried out")
        try:
            action(self, parameters)
        except TaskFailed as error:
            if self.strict:
                raise TaskFailed(f"step {step.type}: {error}") from error

    # --- files ---

    def _download(self, step: DownloadStep) -> None:
        for file in step.files:
            self._put(file.url, file.path)

    def _upload(self, step: UploadStep) -> None:
        for file in step.files:
            self._put(file.local_path, file.path)

    def _put(self, url: str, path: str) -> None:
        place = self.assets.find(url)
        reason = self.assets.missing(url)
        if reason or place is None:
            raise TaskFailed(reason)
        if self.strict:
            self.desktop.put_file(path, place.read_bytes())
        else:
            bring(self.desktop, path, place.read_bytes())

    # --- programs ---

    def _launch(self, step: LaunchStep) -> None:
        if is_ignored(step.command):
            return
        command = normalise(step.command, shell=step.shell)
        if not self._as_input(command):
            self.desktop.launch(fill_placeholders(command, self.desktop.screen_size()))

    def _execute(self, step: ExecuteStep) -> None:
        command = normalise(step.command, shell=step.shell)
        if self._as_input(command):
            return
        filled = fill_placeholders(command, self.desktop.screen_size())
        if not self.strict:
            for path in converted_files(filled):
                bring(self.desktop, path, b"")  # where the conversion fails, none that the agent has made is judged
        answer = self.desktop.run(filled, timeout_s=COMMAND_LIMIT_S)
        deadline = self.now() + _UNTIL_LIMIT_S
        while step.until is not None and not _is_met(step.until, answer) and self.now() < deadline:
            self.sleep(_POLL_S)
            answer = self.desktop.run(filled, timeout_s=COMMAND_LIMIT_S)
        if self.strict and answer.returncode == _NOT_FOUND:
            # The task would not begin as it is meant to. Other codes say too little: `mkdir` of a folder that is there has one.
            raise TaskFailed(f"a program is not there: {answer.stderr.strip()[-200:] or filled}")
        for name, text in ((step.stdout, answer.stdout), (step.stderr, answer.stderr)):
            if name:
                self.outputs[name] = text

    def _execute_verified(self, step: VerifiedStep) -> None:
        self._execute(ExecuteStep(command=step.command, shell=step.shell))
        wanted = step.verification
        deadline = self.now() + step.max_wait_time
        while True:
            titles = [window.title for window in self.desktop.windows()]
            seen = wanted.window_exists is None or any(wanted.window_exists in title for title in titles)
            if seen and (wanted.command_success is None or self.desktop.run(wanted.command_success).returncode == 0):
                return
            if self.now() >= deadline:
                raise TaskFailed("what the command should bring about did not come")
            self.sleep(step.check_interval)

    def _as_input(self, command: Any) -> bool:
        """Do it as mouse and keyboard events where it is automation; False: it is an ordinary command."""
        script = input_script(command, self.desktop.screen_size())
        if script is None:
            return False
        carry_out(script, self.desktop, sleep=self.sleep)
        return True

    def _sleep(self, step: SleepStep) -> None:
        self.sleep(step.seconds)

    def _set_wallpaper(self, step: WallpaperStep) -> None:
        """Nothing shows it: the task is about the setting."""
        answer = self.desktop.run(["gsettings", "set", *BACKGROUND, f"file://{quote(step.path)}"])
        if answer.returncode != 0:
            raise TaskFailed(f"the wallpaper cannot be set: {answer.stderr.strip()[-200:]}")

    # --- windows and pages ---

    def _open(self, step: OpenStep) -> None:
        if not self.desktop.open(step.path) and self.strict:
            raise TaskFailed(f"{step.path} did not open a window")

    def _activate(self, step: WindowStep) -> None:
        title = _our_title(step)

        def bring() -> bool:
            if self.desktop.activate_window(title, strict=step.strict, by_class=step.by_class):
                return True
            parts = [] if step.by_class or self.now() < others else _TITLE_PARTS.split(title)[1:]
            return any(self.desktop.activate_window(part, strict=False, by_class=False) for part in parts)

        began = self.now()
        others, deadline = began + _TITLE_LIMIT_S, began + (_WINDOW_LIMIT_S if self.strict else 0.0)
        while not bring():
            if self.now() >= deadline:
                if self.strict:
                    raise TaskFailed(f"there is no window {step.window_name!r}")
                return
            self.sleep(_POLL_S)

    def _close(self, step: WindowStep) -> None:
        self.desktop.close_window(_our_title(step), strict=step.strict, by_class=step.by_class)

    def _open_tabs(self, step: OpenTabsStep) -> None:
        self.desktop.open_tabs(step.urls_to_open)

    def _close_tabs(self, step: CloseTabsStep) -> None:
        self.desktop.close_tabs(step.urls_to_close)

    def _write_history(self, step: HistoryStep) -> None:
        """Into the profile's history; the browser must not run, or it keeps its own. It has run before on the machines that task
        files are made for: where there is no history yet, it runs once here."""
        from computerrl.env_server.tasks.osworld.getters.browser import PROFILE

        path = f"{PROFILE}/Default/History"
        if self.desktop.read_file(path) is None:
            self.desktop.open_tabs(["about:blank"])
            self.desktop.launch(["pkill", "chrome"])
        before = self.desktop.read_file(path)
        if before is None:
            raise TaskFailed("the browser has written no history file")
        with tempfile.TemporaryDirectory(prefix="osworld-") as folder:
            place = Path(folder, "History")
            place.write_bytes(before)
            try:
                _add_visits(place, step)
            except sqlite3.DatabaseError as error:
                raise TaskFailed(f"the browser's history cannot be written: {error}") from error
            self.desktop.put_file(path, place.read_bytes())


def _our_title(step: WindowStep) -> str:
    """The title as the desktop's own programs show it: their names stand at the end."""
    for theirs, ours in _STAND_INS.items():
        if not step.by_class and step.window_name.endswith(theirs):
            return step.window_name.removesuffix(theirs) + ours
    return step.window_name


def _is_met(until: Until, answer: RunResult) -> bool:
    return (
        (until.returncode is None or answer.returncode == until.returncode)
        and (until.stdout is None or until.stdout in answer.stdout)
        and (until.stderr is None or until.stderr in answer.stderr)
    )


def _add_visits(place: Path, step: HistoryStep) -> None:
    connection = sqlite3.connect(place)
    try:
        with connection:
            for visit in step.history:
                moment = int((time.time() - visit.visit_time_from_now_in_seconds + _CHROME_EPOCH_S) * 1_000_000)
                cursor = connection.execute(
                    "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                    (visit.url, visit.title, moment),
                )
                connection.execute(
                    "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                    "VALUES (?, ?, 0, 805306368, 0, 0)",
                    (cursor.lastrowid, moment),
                )
    finally:
        connection.close()


_ACTIONS: Mapping[type[Any], Callable[[Carrier, Any], None]] = {
    DownloadStep: Carrier._download,
    UploadStep: Carrier._upload,
    LaunchStep: Carrier._launch,
    ExecuteStep: Carrier._execute,
    VerifiedStep: Carrier._execute_verified,
    SleepStep: Carrier._sleep,
    OpenStep: Carrier._open,
    WindowStep: Carrier._activate,
    OpenTabsStep: Carrier._open_tabs,
    CloseTabsStep: Carrier._close_tabs,
    HistoryStep: Carrier._write_history,
    WallpaperStep: Carrier._set_wallpaper,
}
