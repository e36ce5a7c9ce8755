"""What people may ask of a run from the page, and the log of what they asked. The one part of the pages that writes.

Each control is a request file (`common.run_files.requests`), so that it works wherever the run folder is seen and outlives a
restart.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

from computerrl.common.errors import Problem, SetupError
from computerrl.common.metrics import JsonLines, read_json_lines
from computerrl.common.run_files import requests

CONTROLS_FILE = "controls.jsonl"
"""Below the run folder: time, control, who."""


@dataclass(frozen=True, slots=True)
class Control:
    """One button."""

    name: str
    title: str
    consequence: str
    """What the person confirms."""
    kind: requests.Kind
    what: str = ""
    is_grave: bool = False


CONTROLS = (
    Control("pause", "Pause", "No new episode starts; those under way end and are trained. Nothing is lost.", "pause"),
    Control("resume", "Go on", "New episodes start again.", "pause"),
    Control("checkpoint", "Checkpoint now", "The learner writes a checkpoint before its next update.", "checkpoint"),
    Control(
        "sft", "Entropulse now", "After this update the run trains on its own successes, then goes on with RL.", "phase", "sft"
    ),
    Control(
        "finish", "End RL", "RL ends after this update; the last evaluation follows, and the run is finished.", "phase", "finish"
    ),
    Control(
        "drain",
        "Drain",
        "A checkpoint is written, then everything stops. --resume goes on without a loss.",
        "end",
        "drain",
        is_grave=True,
    ),
    Control("stop", "Stop", "Everything stops at once. --resume goes on from the last checkpoint.", "end", "stop", is_grave=True),
)


def available(folder: Path, *, is_live: bool, phase: str) -> list[dict[str, Any]]:
    """All controls for the page, those that make no sense now with the reason."""
    is_paused = requests.asked(folder, "pause") is not None
    rows = []
    for control in CONTROLS:
        refusal = "" if is_live else "the run is not under way"
        if not refusal:
            refusal = _refusal(control, is_paused=is_paused, phase=phase)
        waiting = control.kind != "pause" and requests.asked(folder, control.kind) == control.what
        rows.append(
            {
                "name": control.name,
                "title": control.title,
                "consequence": control.consequence,
                "is_grave": control.is_grave,
                "refusal": "asked for; it happens soon" if waiting and not refusal else refusal,
            }
        )
    return rows


def _refusal(control: Control, *, is_paused: bool, phase: str) -> str:
    if control.name == "pause" and is_paused:
        return "paused already"
    if control.name == "resume" and not is_paused:
        return "not paused"
    if control.kind == "phase" and not phase.startswith("rl"):
        return f"only during RL, and this is {phase or 'the start'}"
    return ""


def press(folder: Path, name: str, *, is_live: bool, phase: str) -> str:
    """Ask the run for it and write that down. Raises `SetupError` when it makes no sense now."""
    rows = {row["name"]: row for row in available(folder, is_live=is_live, phase=phase)}
    if name not in rows:
        raise SetupError(Problem("control", f"there is no {name!r}", f"use one of {', '.join(rows)}"))
    if rows[name]["refusal"]:
        raise SetupError(Problem(rows[name]["title"], rows[name]["refusal"], "reload the page"))
    control = next(control for control in CONTROLS if control.name == name)
    log = JsonLines(folder / CONTROLS_FILE)
    try:
        log.append({"time": time.time(), "control": name, "by": f"{getpass.getuser()}@{gethostname()}", "phase": phase})
    finally:
        log.close()
    if name == "resume":
        requests.withdraw(folder, "pause")
    else:
        requests.ask(folder, control.kind, control.what)
    return control.consequence


def pressed(folder: Path) -> list[dict[str, Any]]:
    """What was asked for so far, the newest first."""
    return read_json_lines(folder / CONTROLS_FILE)[::-1][:20]
