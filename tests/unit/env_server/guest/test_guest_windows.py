"""An application that ends while it is waited for: noticed at once, and at the start of the desktop started once more."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from computerrl.env_server.guest.faults import DesktopError
from computerrl.env_server.guest.processes import Program
from computerrl.env_server.guest.screen.windows import Windows

if TYPE_CHECKING:
    from computerrl.env_server.guest.screen.window_list import Window


class FakeApp:
    """A shell script instead of an application; "show" in what it is told to do stands for its window."""

    name, window_kind = "calc", ""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self._folder, self._scripts = folder, list(scripts)
        self.start()

    def start(self) -> None:
        self.script = self._scripts.pop(0)
        self.program = Program("calc", ["sh", "-c", self.script], env={"PATH": "/usr/bin:/bin"}, log_folder=self._folder)
        self.program.start()

    def connect(self, *, timeout_s: float) -> None:
        if "refuse" in self.script:
            raise DesktopError("no connection")


class FakeScreen:
    app: FakeApp

    @property
    def windows(self) -> FakeScreen:
        return self

    @property
    def connection(self) -> FakeScreen:
        return self

    def managed(self) -> list[Window]:
        return [cast("Window", SimpleNamespace(pid=self.app.program.pid, kind="", is_dialog=False))] * ("show" in self.app.script)

    def wait_for_event(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


def ready(app: FakeApp, *, within_s: float = 600.0) -> None:
    screen = FakeScreen()
    screen.app = app
    session: Any = SimpleNamespace(screen=screen, accessibility=SimpleNamespace(forget=lambda _pid: None))
    windows = Windows(session, [app], cast("Any", None))
    try:
        windows.ready_though_it_dies(app, time.monotonic() + within_s)
    finally:
        app.program.kill()


@pytest.mark.parametrize("first", ["sleep 0.2; kill -ABRT $$", ": refuse; sleep 0.2; exit 3"])
def test_one_that_dies_is_started_once_more(tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = FakeApp(tmp_path, first, ": show; sleep 60")
    ready(app)
    assert "show" in app.script
    how = "killed by signal 6" if "ABRT" in first else "exit status 3"
    assert f"calc died while it started and is started again; calc ended, {how}" in capsys.readouterr().out


def test_one_that_dies_again_is_an_error_that_says_how(tmp_path: Path) -> None:
    with pytest.raises(DesktopError, match="calc has no window; calc ended, exit status 4: no profile"):
        ready(FakeApp(tmp_path, "sleep 0.2; exit 3", "sleep 0.2; echo no profile; exit 4"))


@pytest.mark.parametrize(("script", "message"), [("sleep 60", "in vain for a window"), (": refuse; sleep 60", "no connection")])
def test_one_that_hangs_is_not_started_again(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(DesktopError, match=message):
        ready(FakeApp(tmp_path, script), within_s=0.5)
