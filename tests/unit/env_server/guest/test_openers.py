"""Applications that start slowly, do not obey, or quit and are opened again: who is waited for and who is started anew."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from computerrl.env_server.guest.applications import Applications
from computerrl.env_server.guest.apps.launcher import Launcher
from computerrl.env_server.guest.apps.on_demand import OnDemandApp, Surroundings
from computerrl.env_server.guest.faults import DesktopError, Refused
from computerrl.env_server.guest.files.folder import AgentFolder
from computerrl.env_server.guest.openers import Openers


class App(OnDemandApp):
    """A process that stays; the test says when it has a window."""

    name, label, program_file = "slow", "Slow", "slow-program"


class Windows:
    """The windows of that one application."""

    def __init__(self) -> None:
        self.shown = False

    def of(self, app: OnDemandApp) -> list[str]:
        return self.of_process(app)

    def of_process(self, app: OnDemandApp) -> list[str]:
        return [app.name] if self.shown else []

    def wait_for_window(self, app: OnDemandApp, deadline: float) -> None:
        if not self.shown:
            raise DesktopError(f"a window of {app.name} did not come in time")


def test_slow_application_is_waited_for_and_one_that_quits_is_started_anew(tmp_path: Path) -> None:
    program = tmp_path / "bin" / App.program_file
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def nothing(*_: object) -> Any:
        raise AssertionError("not in this test")

    (tmp_path / "work").mkdir()
    env = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    around = Surroundings(
        env,
        tmp_path,
        tmp_path / "apps",
        AgentFolder(tmp_path / "work"),
        wait=nothing,
        titles=nothing,
        press=nothing,
        screen_size=(800, 600),
    )
    app, windows = App(around), Windows()
    parts: dict[str, Any] = dict.fromkeys(("chromium", "calc", "writer", "impress", "documents", "editor", "files"))
    apps = Applications(on_demand={"slow": app}, **parts)
    launcher = Launcher(cast(Any, None), cast(Any, windows), apps)
    nobody: Any = None
    openers = Openers(apps, launcher, cast(Any, windows), around.folder, editor_tabs=nobody, file_window=nobody)

    def open_app() -> int:
        openers.open_app("slow", time.monotonic() + 60)
        return app.program.pid

    def open_while_it_starts() -> int:
        with pytest.raises(Refused, match="still starting: wait and try again"):
            open_app()
        return app.program.pid

    try:
        first = open_while_it_starts()
        assert open_while_it_starts() == first
        windows.shown = True
        assert open_app() == first and apps.open == ["slow"]
        windows.shown = False  # it was quit, and its process is not gone yet
        second = open_while_it_starts()
        assert second != first
        assert open_while_it_starts() == second
        windows.shown = True
        assert open_app() == second and apps.open == ["slow"]
    finally:
        app.close()


@pytest.mark.parametrize(
    ("runs", "obeys_after", "told"),
    [
        pytest.param(False, 0, ["start within 100 s", "show within 4 s"], id="ended by the last reset"),
        pytest.param(True, 0, ["show within 4 s"], id="running"),
        pytest.param(True, 1, ["show within 4 s", "restart within 100 s", "show within 100 s"], id="hanging"),
        pytest.param(
            False,
            1,
            ["start within 100 s", "show within 4 s", "restart within 100 s", "show within 100 s"],
            id="ended, and hanging once it runs",
        ),
    ],
)
def test_warm_application_has_all_the_time_to_start_and_little_to_obey(
    tmp_path: Path, runs: bool, obeys_after: int, told: list[str]
) -> None:
    did: list[str] = []
    editor = SimpleNamespace(name="editor", program=SimpleNamespace(running=runs))

    def note(what: str, deadline: float) -> None:
        did.append(f"{what} within {round(deadline - time.monotonic()):.0f} s")

    def show(_place: object, deadline: float) -> None:
        note("show", deadline)
        if sum(step.startswith("show") for step in did) <= obeys_after:
            raise DesktopError("it does not obey")

    windows = SimpleNamespace(
        ready_though_it_dies=lambda _app, deadline: note("start", deadline),
        restart=lambda _app, deadline: note("restart", deadline),
    )
    parts: dict[str, Any] = dict.fromkeys(("chromium", "calc", "writer", "impress", "documents", "files"))
    apps = Applications(on_demand={}, editor=cast(Any, editor), **parts)
    nobody: Any = None
    tabs: Any = SimpleNamespace(show=show)
    openers = Openers(apps, nobody, cast(Any, windows), AgentFolder(tmp_path), editor_tabs=tabs, file_window=nobody)
    openers.step("editor_open", {}, time.monotonic() + 100)
    assert did == told and apps.open == ["editor"]
