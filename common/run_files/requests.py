"""What people ask of a run that is under way: one small file for each kind in the run folder, read where it is honoured.

    pause        broker: nothing new is started, what is under way goes on        until withdrawn
    phase        learner, at its next update: `sft` (an Entropulse round), `finish` (end RL)
    checkpoint   learner, between two updates: write one now
    end          supervisor: `drain` (checkpoint first), `stop` (at once); the run is not queued again
    save         learner: write a checkpoint and end; the supervisor asks it, when it drains

A file needs neither an address nor a key, outlives every process, and works wherever the run folder is seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from computerrl.common.run_files.run_folder import write_atomically

Kind = Literal["pause", "phase", "checkpoint", "end", "save"]

ENDS_WITH_ATTEMPT: tuple[Kind, ...] = ("checkpoint", "end", "save")
"""A run that is started again does not look at those of before."""


def ask(folder: Path, kind: Kind, what: str = "") -> None:
    """Leave the request; a newer one of its kind takes its place. Raises `OSError`."""
    write_atomically(_path(folder, kind), f"{what}\n".encode())


def asked(folder: Path, kind: Kind) -> str | None:
    """What was asked for; None: nothing of this kind."""
    try:
        return _path(folder, kind).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def withdraw(folder: Path, kind: Kind) -> None:
    """It was honoured, refused, or is not wanted any more."""
    _path(folder, kind).unlink(missing_ok=True)


def _path(folder: Path, kind: Kind) -> Path:
    return folder / f"{kind}.request"
