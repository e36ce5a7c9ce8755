"""One desktop and one person: what is on screen, what was done, how it scored. No sockets.

    page's command ──► LiveSession ──► DesktopClient ──► DesktopService ──► driver
                                        (the requests an actor makes: lease, reset, step, evaluate)

Calls block and come one at a time, from one thread; `frame`, `state` and `close` from any. When the desktop breaks the session
says so and waits for `restart`: nothing is repaired behind a person's back.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import to_builtins

from computerrl.common import log
from computerrl.common.actions import FINAL_ACTIONS, ActionSyntaxError, parse_action, render_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, EnvError, HostBroken, NoDesktop, PeerTimeout, TaskFailed
from computerrl.common.messages import Action, Element, Evaluation, Lease, Observation, TaskRef
from computerrl.common.run_files.recordings import write_recording
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver, LiveDesktop
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.live.picture import encode
from computerrl.env_server.live.pointing import NothingThere
from computerrl.env_server.live.recorder import Deed, to_recording
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService

Phase = Literal["starting", "ready", "broken", "closed"]

_NO_TIME_LIMIT_S = 1e7
"""Of the lease: a person may think for as long as they like."""
_LEASE_WAIT_S = 0.5
"""How soon it is noticed that the desktop does not start."""
_CLOSE_LIMIT_S = 1.5
_HOLDER = "page"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the action log."""

    text: str
    error: str
    result: str
    duration_ms: int


class LiveSession:
    """See the module's docstring. ``recordings``: the folder that `save` writes to."""

    def __init__(self, config: DesktopConfig, *, recordings: Path, tasks: TasksConfig | None = None) -> None:
        self.config = config.model_copy(
            # No store: the picture comes straight from the screen.
            update={"num_desktops": 1, "observation": "tree", "lease_time_limit_s": _NO_TIME_LIMIT_S}
        )
        self.tasks = tasks or TasksConfig()
        self._recordings = recordings
        self._folder = Path()
        """For logs, removed at the end."""
        self._remove_folder: Callable[[], object] | None = None
        self._service: DesktopService | None = None
        self._client: DesktopClient | None = None
        self._lease: Lease | None = None
        self._driver: LiveDesktop | None = None
        self._make_error: ComputerRLError | None = None
        """Why it did not start."""
        self._closed = threading.Event()
        self._phase: Phase = "starting"
        self.reason = ""
        """Why it is broken, or why the task could not be set up."""
        self.task: TaskRef | None = None
        self.entries: list[Entry] = []
        self._forget()

    def _forget(self) -> None:
        self.instruction = ""
        self.observation: Observation | None = None
        self.finished = False
        self.finished_itself = False
        self.verdict: Evaluation | None = None
        self.saved = ""
        self.deeds: list[Deed] = []

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where its life stands; closed for good, whatever a start in another thread is just doing."""
        return "closed" if self._closed.is_set() else self._phase

    def start(self, family: str, seed: int) -> None:
        """Start the desktop with that task on screen. Errors become the phase `broken`."""
        self._phase, self.reason = "starting", ""
        self.task = None
        try:
            self._lease_desktop()
        except ComputerRLError as error:
            self._broke(error)
            return
        self._phase = "ready"
        self.choose(family, seed)

    def restart(self, family: str, seed: int) -> None:
        """Another desktop in place of this one."""
        self._phase, self.reason = "starting", ""
        self._end()
        if not self._closed.is_set():
            self.start(family, seed)

    def close(self) -> None:
        """End the desktop, from any thread and at any time; may be called twice."""
        self._closed.set()
        self._end()

    def check(self) -> None:
        """Notice a desktop that died while nobody used it."""
        if self.phase == "ready" and self._driver is not None and not self._driver.healthy():
            self._broke(DesktopBroken("the desktop has ended or does not answer"))

    def _lease_desktop(self) -> None:
        if self._closed.is_set():
            raise NoDesktop("the session has been closed")
        self._folder = Path(tempfile.mkdtemp(prefix="computerrl-desktop-"))
        # Also when the process ends in the middle of a start.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._make_error = None
        service = self._service = DesktopService(
            self.config, tasks=self.tasks, make=self._make_once(), times=ServiceTimes(lease_wait_s=_LEASE_WAIT_S)
        )
        client = self._client = DesktopClient(LocalChannel(service.handle), config=self.config)
        if self._closed.is_set():
            self._end()
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._lease = client.lease(_HOLDER)
                return
            except (NoDesktop, HostBroken) as error:
                if self._make_error is not None:
                    raise self._make_error from error
                if self._closed.is_set() or time.monotonic() >= deadline:
                    raise DesktopBroken(f"did not start: {error}") from error

    def _make_once(self) -> Callable[[int], DesktopDriver]:
        """What makes the desktop. The service would replace a broken one by itself; here a person is asked first."""
        asked = threading.Event()

        def make(index: int) -> DesktopDriver:
            if asked.is_set():
                raise DesktopBroken("another desktop is started only when asked for")
            asked.set()
            try:
                self._driver = make_driver(self.config, index=index, folder=self._folder, screenshots=None)
            except ComputerRLError as error:
                self._make_error = error
                raise
            return self._driver

        return make

    def _end(self) -> None:
        service, self._service = self._service, None
        remove_folder, self._remove_folder = self._remove_folder, None
        self._driver = self._lease = self._client = None
        if service is not None:
            service.close(limit_s=_CLOSE_LIMIT_S)
        if remove_folder is not None:
            remove_folder()

    def _broke(self, error: ComputerRLError) -> None:
        if self._closed.is_set():
            return
        log.get_logger().warning("desktop.broke", error=error.code, reason=str(error))
        self._phase, self.reason = "broken", str(error)
        self._end()

    # --- tasks -------------------------------------------------------------------------------------------------------

    def choose(self, family: str, seed: int) -> None:
        """Put that task on screen; what was done before is forgotten."""
        if self.phase != "ready" or self._client is None or self._lease is None:
            return
        self._forget()
        self.entries = []
        self.reason = ""
        self.task = TaskRef(family, seed, self.tasks.split_of(seed) or "demonstration")
        try:
            started = self._client.reset(self._lease, self.task)
        except TaskFailed as error:
            self.reason = str(error)
        except (EnvError, PeerTimeout) as error:
            self._broke(error)
        else:
            self.instruction, self.observation = started.instruction, started.observation

    def score(self) -> None:
        """Ask the evaluator; ``verdict`` holds what it says."""
        if self.observation is None or self._client is None or self._lease is None or self.phase != "ready":
            return
        try:
            self.verdict = self._client.evaluate(self._lease)
        except TaskFailed as error:
            self.reason = str(error)
        except (EnvError, PeerTimeout) as error:
            self._broke(error)

    def save(self) -> None:
        """Keep what was done as a demonstration; ``saved`` says where, or ``reason`` why not."""
        self.saved, self.reason = "", self._why_not_saved()
        if self.reason or self.task is None or self.observation is None:
            return
        desktop = f"{self.config.driver}:{self.config.image}"
        try:
            recording = to_recording(
                self.task,
                self.instruction,
                self.deeds,
                last=self.observation,
                finished_itself=self.finished_itself,
                desktop=desktop,
            )
            path = write_recording(self._recordings, recording)
        except (ValueError, OSError) as error:
            self.reason = f"not saved: {error}"
            return
        num_actions = len(recording.steps)
        self.saved = f"{path} ({num_actions} actions: replayed where tasks.max_steps is at least {num_actions})"

    def _why_not_saved(self) -> str:
        if self.phase != "ready" or self.task is None or not self.deeds:
            return "not saved: nothing was done yet"
        if self.task.split != "demonstration":
            first, past_last = self.tasks.demonstration_seeds
            return (
                f"not saved: seed {self.task.seed} is kept for {self.task.split}; "
                f"demonstrations are for the seeds {first} to {past_last - 1}"
            )
        self.score()
        if self.verdict is None or not self.verdict.success:
            return f"not saved: the task is not solved ({self.verdict.detail if self.verdict else self.reason})"
        return ""

    # --- actions -----------------------------------------------------------------------------------------------------

    @property
    def elements(self) -> tuple[Element, ...]:
        """What targets refer to."""
        return self.observation.elements if self.observation else ()

    def act(self, action: Action | str | Callable[[], Action]) -> None:
        """Do an action: parsed, as text, or made when its turn has come (from ``elements`` of that moment)."""
        if self.phase != "ready" or self.observation is None:
            return
        try:
            parsed = parse_action(action) if isinstance(action, str) else action if isinstance(action, Action) else action()
            text = render_action(parsed)
        except (ActionSyntaxError, NothingThere) as error:
            self._note(action if isinstance(action, str) else "", str(error))
            return
        if self.finished:
            self._note(text, "the task has ended: start it again, or choose another")
        elif parsed.name in FINAL_ACTIONS:
            self._keep(parsed)
            self._note(text, "")
            self._finish()
        else:
            self._step(parsed, text)

    def look(self) -> None:
        """Read the screen again: it changed by itself."""
        if self.phase != "ready" or self.observation is None or self._driver is None:
            return
        try:
            self.observation = self._driver.observe()
        except TaskFailed:
            return
        except EnvError as error:
            self._broke(error)

    def _step(self, action: Action, text: str) -> None:
        assert self._client is not None and self._lease is not None
        deed = self._deed(action)
        began = time.monotonic()
        try:
            result = self._client.step(self._lease, action)
        except TaskFailed as error:
            self._note(text, str(error))
            return
        except (EnvError, PeerTimeout) as error:
            self._note(text, str(error))
            self._broke(error)
            return
        self.observation = result.observation
        self.verdict, self.reason, self.saved = None, "", ""
        self._note(text, result.action_error, result.observation.result, time.monotonic() - began)
        if not result.action_error:
            self.deeds.append(deed)
        if result.finished:
            self.finished_itself = True
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self.score()

    def _keep(self, action: Action) -> None:
        self.deeds.append(self._deed(action))

    def _deed(self, action: Action) -> Deed:
        assert self.observation is not None
        frame = self.frame()
        return Deed(action, self.observation, b"" if frame is None else encode(frame))

    def _note(self, text: str, error: str, result: str = "", duration_s: float = 0.0) -> None:
        self.entries.append(Entry(text, error, result, round(1000 * duration_s)))

    # --- for the page ------------------------------------------------------------------------------------------------

    def frame(self) -> np.ndarray | None:
        """The screen now, None while there is none."""
        driver = self._driver
        return None if driver is None else driver.frame()

    def state(self) -> dict[str, Any]:
        """All but picture, elements and log, JSON-ready."""
        return {
            "phase": self.phase,
            "reason": self.reason,
            "task": to_builtins(self.task) if self.task else None,
            "instruction": self.instruction,
            "finished": self.finished,
            "verdict": to_builtins(self.verdict) if self.verdict else None,
            "saved": self.saved,
            "num_actions": len(self.deeds),
        }

    def screen(self) -> dict[str, Any]:
        """What the accessibility tree says, JSON-ready."""
        seen = self.observation
        if seen is None:
            return {"app": "", "title": "", "elements": []}
        return {"app": seen.app, "title": seen.window_title, "elements": to_builtins(seen.elements)}
