"""One desktop and one person: the task on screen, the actions performed, the score. No sockets.

    page's command ──► LiveSession ──► LeasedDesktop ──► DesktopService ──► driver
                                        (the requests an actor makes: lease, reset, step, evaluate)

Calls block and come one at a time, from one thread; `frame`, `state` and `close` from any. When the desktop breaks, the session
reports it and waits for `restart`: nothing is repaired without the person.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import to_builtins

from computerrl.common import log
from computerrl.common.actions import ACTIONS, FINAL_ACTIONS, ActionSyntaxError, parse_action, render_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, EnvError, NoDesktop, PeerTimeout, TaskFailed
from computerrl.common.messages import Action, Element, Evaluation, Observation, TaskRef
from computerrl.common.run_files.recordings import write_recording
from computerrl.env_server.live.desktop import LeasedDesktop
from computerrl.env_server.live.picture import encode
from computerrl.env_server.live.pointing import NothingThere
from computerrl.env_server.live.recorder import PerformedAction, to_recording

Phase = Literal["starting", "ready", "broken", "closed"]

_NO_TIME_LIMIT_S = 1e7
"""Time limit of the lease: a person may think for as long as they like."""


def _suggestion(text: str) -> str:
    """`; did you mean click?` for a ``text`` whose name is nearly an action's. Agents get the bare error, as in training."""
    name = text.partition("(")[0].strip()
    near = [] if name in ACTIONS else difflib.get_close_matches(name, ACTIONS, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the action log."""

    text: str
    error: str
    result: str
    duration_ms: int


@dataclass(slots=True)
class LiveEpisode:
    """One task instance as a person plays it."""

    task: TaskRef | None = None
    instruction: str = ""
    observation: Observation | None = None
    finished: bool = False
    finished_itself: bool = False
    """Whether the task ended without a final action."""
    verdict: Evaluation | None = None
    saved: str = ""
    """Place of the saved demonstration; empty when it was not saved."""
    performed: list[PerformedAction] = field(default_factory=list)
    """Actions that were carried out without an error."""
    entries: list[Entry] = field(default_factory=list)
    """Log of all actions; another list means another log."""

    @property
    def elements(self) -> tuple[Element, ...]:
        """Elements of the latest observation, to which targets refer."""
        return self.observation.elements if self.observation else ()

    def add_entry(self, text: str, error: str, result: str = "", duration_s: float = 0.0) -> None:
        """Add a line to the log."""
        self.entries.append(Entry(text, error, result, round(1000 * duration_s)))

    def screen(self) -> dict[str, Any]:
        """The accessibility tree, JSON-ready."""
        seen = self.observation
        if seen is None:
            return {"app": "", "title": "", "elements": []}
        return {"app": seen.app, "title": seen.window_title, "elements": to_builtins(seen.elements)}

    def state(self) -> dict[str, Any]:
        """Everything but screenshot, elements and log, JSON-ready."""
        return {
            "task": to_builtins(self.task) if self.task else None,
            "instruction": self.instruction,
            "finished": self.finished,
            "verdict": to_builtins(self.verdict) if self.verdict else None,
            "saved": self.saved,
            "num_actions": len(self.performed),
        }


class LiveSession:
    """See the module's docstring. ``recordings``: folder that `save` writes to."""

    def __init__(self, config: DesktopConfig, *, recordings: Path, tasks: TasksConfig | None = None) -> None:
        self.config = config.model_copy(
            # No screenshot store: the picture comes straight from the screen.
            update={"num_desktops": 1, "observation": "tree", "lease_time_limit_s": _NO_TIME_LIMIT_S}
        )
        self.tasks = tasks or TasksConfig()
        self.episode = LiveEpisode()
        self.reason = ""
        """Reason why the desktop is broken, or why the task could not be set up or saved."""
        self._recordings = recordings
        self._desktop: LeasedDesktop | None = None
        self._closed = threading.Event()
        self._phase: Phase = "starting"

    # --- life

    @property
    def phase(self) -> Phase:
        """Present phase. It is `closed` for good, even while another thread is starting the desktop."""
        return "closed" if self._closed.is_set() else self._phase

    def start(self, family: str, seed: int) -> None:
        """Start the desktop with that task on screen. Errors become the phase `broken`."""
        self._phase, self.reason = "starting", ""
        self.episode.task = None
        try:
            self._start_desktop()
        except ComputerRLError as error:
            self._break(error)
            return
        self._phase = "ready"
        self.choose(family, seed)

    def restart(self, family: str, seed: int) -> None:
        """Replace the desktop by another one."""
        self._phase, self.reason = "starting", ""
        self._end_desktop()
        if not self._closed.is_set():
            self.start(family, seed)

    def close(self) -> None:
        """End the desktop, from any thread and at any time; may be called twice."""
        self._closed.set()
        self._end_desktop()

    def check(self) -> None:
        """Notice a desktop that died while it was not used."""
        desktop = self._desktop
        if self.phase == "ready" and desktop is not None and not desktop.healthy():
            self._break(DesktopBroken("the desktop has ended or does not answer"))

    def _start_desktop(self) -> None:
        if self._closed.is_set():
            raise NoDesktop("the session has been closed")
        desktop = self._desktop = LeasedDesktop(self.config, self.tasks)
        if self._closed.is_set():
            self._end_desktop()
        desktop.await_start()

    def _end_desktop(self) -> None:
        desktop, self._desktop = self._desktop, None
        if desktop is not None:
            desktop.close()

    def _break(self, error: ComputerRLError) -> None:
        if self._closed.is_set():
            return
        log.get_logger().warning("desktop.broke", error=error.code, reason=str(error))
        self._phase, self.reason = "broken", str(error)
        self._end_desktop()

    # --- tasks

    def choose(self, family: str, seed: int) -> None:
        """Put that task on screen and begin a new episode."""
        desktop = self._desktop
        if self.phase != "ready" or desktop is None:
            return
        task = TaskRef(family, seed, self.tasks.split_of(seed) or "demonstration")
        episode = self.episode = LiveEpisode(task)
        self.reason = ""
        try:
            started = desktop.reset(task)
        except TaskFailed as error:
            self.reason = str(error)
        except (EnvError, PeerTimeout) as error:
            self._break(error)
        else:
            episode.instruction, episode.observation = started.instruction, started.observation

    def score(self) -> None:
        """Run the evaluator; the episode's ``verdict`` holds the result."""
        desktop = self._desktop
        if self.episode.observation is None or desktop is None or self.phase != "ready":
            return
        try:
            self.episode.verdict = desktop.evaluate()
        except TaskFailed as error:
            self.reason = str(error)
        except (EnvError, PeerTimeout) as error:
            self._break(error)

    def save(self) -> None:
        """Save the episode as a demonstration. Its ``saved`` holds the place, or ``reason`` why it was not saved."""
        episode = self.episode
        episode.saved, self.reason = "", self._why_not_saved()
        if self.reason or episode.task is None or episode.observation is None:
            return
        try:
            recording = to_recording(
                episode.task,
                episode.instruction,
                episode.performed,
                last=episode.observation,
                finished_itself=episode.finished_itself,
                desktop=f"{self.config.driver}:{self.config.image}",
            )
            path = write_recording(self._recordings, recording)
        except (ValueError, OSError) as error:
            self.reason = f"not saved: {error}"
            return
        num_actions = len(recording.steps)
        episode.saved = f"{path} ({num_actions} actions: replayed where tasks.max_steps is at least {num_actions})"

    def _why_not_saved(self) -> str:
        task = self.episode.task
        if self.phase != "ready" or task is None or not self.episode.performed:
            return "not saved: nothing was done yet"
        if task.split != "demonstration":
            first, past_last = self.tasks.demonstration_seeds
            return (
                f"not saved: seed {task.seed} is kept for {task.split}; "
                f"demonstrations are for the seeds {first} to {past_last - 1}"
            )
        self.score()
        verdict = self.episode.verdict
        if verdict is None or not verdict.success:
            return f"not saved: the task is not solved ({verdict.detail if verdict else self.reason})"
        return ""

    # --- actions

    def act(self, action: Action | str | Callable[[], Action], *, pointed: tuple[int, ...] = ()) -> None:
        """Carry out an action: a parsed one, a text, or one made from the episode's elements when its turn has come. ``pointed``:
        pixels at which the person pointed, as in `RecordedStep`."""
        episode, desktop = self.episode, self._desktop
        if self.phase != "ready" or episode.observation is None or desktop is None:
            return
        try:
            parsed = parse_action(action) if isinstance(action, str) else action if isinstance(action, Action) else action()
            text = render_action(parsed)
        except (ActionSyntaxError, NothingThere) as error:
            written = action if isinstance(action, str) else ""
            episode.add_entry(written, f"{error}{_suggestion(written)}")
            return
        if episode.finished:
            episode.add_entry(text, "the task has ended: start it again, or choose another")
        elif parsed.name in FINAL_ACTIONS:
            episode.performed.append(self._performed(parsed, episode.observation, ()))
            episode.add_entry(text, "")
            self._finish()
        else:
            self._step(desktop, self._performed(parsed, episode.observation, pointed), text)

    def observe(self) -> None:
        """Observe the screen again, because it changed by itself."""
        desktop = self._desktop
        if self.phase != "ready" or self.episode.observation is None or desktop is None:
            return
        try:
            self.episode.observation = desktop.observe()
        except TaskFailed:
            return
        except EnvError as error:
            self._break(error)

    def _step(self, desktop: LeasedDesktop, performed: PerformedAction, text: str) -> None:
        episode, began = self.episode, time.monotonic()
        try:
            result = desktop.step(performed.action)
        except (EnvError, PeerTimeout) as error:
            episode.add_entry(text, str(error))
            if not isinstance(error, TaskFailed):
                self._break(error)
            return
        episode.observation = result.observation
        episode.verdict, self.reason, episode.saved = None, "", ""
        episode.add_entry(text, result.action_error, result.observation.result, time.monotonic() - began)
        if not result.action_error:
            episode.performed.append(performed)
        if result.finished:
            episode.finished_itself = True
            self._finish()

    def _finish(self) -> None:
        self.episode.finished = True
        self.score()

    def _performed(self, action: Action, observation: Observation, pointed: tuple[int, ...]) -> PerformedAction:
        frame = self.frame()
        return PerformedAction(action, observation, b"" if frame is None else encode(frame), pointed)

    # --- for the page

    def frame(self) -> np.ndarray | None:
        """The present screen, None while there is none."""
        desktop = self._desktop
        return None if desktop is None else desktop.frame()

    def state(self) -> dict[str, Any]:
        """Phase and episode without screenshot, elements and log, JSON-ready."""
        return {"phase": self.phase, "reason": self.reason, **self.episode.state()}
