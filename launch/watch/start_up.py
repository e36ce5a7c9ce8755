"""The start of a run as lines for a person: each part when it is up, and what is waited for meanwhile. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from computerrl.launch.supervision.role_process import ProcessView
from computerrl.launch.watch.run_state import RunState

WAITING_S = 5.0
"""Time without a line after which one names the parts that are not up yet."""
_IS_STARTING = re.compile("start|load")
"""Notes of an actor, an engine or the learner that is not at work yet: `starting transformers`, `loading the model`."""


class StartUp:
    """Follows one start of a run. Call `look` about once a second."""

    def __init__(self) -> None:
        self._is_over = False
        self._up: dict[str, str] = {}
        self._said_at = 0.0
        self._patience_s = WAITING_S

    def look(self, state: RunState, views: Sequence[ProcessView], *, elapsed_s: float) -> list[str]:
        """What has come up since the last look, in words; ``elapsed_s`` is the time since the start of the run."""
        if self._is_over:
            return []
        lines = []
        for part, progress in parts_up(state, views).items():
            if self._up.get(part) != progress:
                self._up[part] = progress
                lines.append(f"{progress or part} up after {elapsed_s:.1f} s")
        self._is_over = bool(views) and all(is_up(view.name, state) for view in views) and _num_missing(state) == 0
        if lines:
            self._said_at, self._patience_s = elapsed_s, WAITING_S
        return lines

    def overdue(self, state: RunState, views: Sequence[ProcessView], *, elapsed_s: float) -> str:
        """What is waited for, when nothing has come up for `WAITING_S`; else empty. Once the first phase has begun, each pause is
        twice as long as the one before: a desktop that does not start must not fill the log."""
        if self._is_over or elapsed_s - self._said_at < self._patience_s:
            return ""
        self._said_at = elapsed_s
        self._patience_s *= 2 if state.phase else 1
        return f"waiting for {waiting_for(state, views)}"


def parts_up(state: RunState, views: Sequence[ProcessView]) -> dict[str, str]:
    """Part -> its progress in words, empty for a part that is simply up. Parts that are not up are left out."""
    found = {view.name: "" for view in views if not view.name.startswith("env_server") and is_up(view.name, state)}
    num_ready = int(state.metric("env_server/desktops_ready") or 0)
    if num_ready:
        found["desktops"] = f"{num_ready} of {num_ready + _num_missing(state)} desktops"
    return found


def is_up(name: str, state: RunState) -> bool:
    """Whether the process ``name`` is at work."""
    if state.status is None:
        return False
    if name.startswith("broker"):
        return True
    note = state.status.notes.get(name, "")
    if name.startswith("env_server"):
        return bool(note)
    return bool(note) and not _IS_STARTING.match(note)


def waiting_for(state: RunState, views: Sequence[ProcessView]) -> str:
    """The parts that are not up, with what each is doing: `desktops (2 of 4 up), learner-0 (loading the model)`."""
    notes = state.status.notes if state.status is not None else {}
    missing = []
    for view in views:
        if not is_up(view.name, state):
            note = notes.get(view.name) or ("importing libraries" if view.state == "running" else view.state)
            missing.append(f"{view.name} ({note})")
    num_missing = _num_missing(state)
    if num_missing:
        missing.append(f"{num_missing} desktop{'s' if num_missing > 1 else ''}")
    return ", ".join(missing) or "the first episode"


def _num_missing(state: RunState) -> int:
    """Desktops that are being started, by the notes of the env_servers: `desktops: 2 idle, 2 starting`."""
    notes = state.status.notes if state.status is not None else {}
    counts = (re.findall(r"(\d+) (?:new|starting)", note) for name, note in notes.items() if name.startswith("env_server"))
    return sum(int(count) for found in counts for count in found)
