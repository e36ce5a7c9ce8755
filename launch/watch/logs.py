"""`computerrl logs`: the logs of all processes of a run as one, in the order of time. Reads files only.

logs/latest/learner-0.log   JSON lines, and whatever libraries print ──┐
logs/latest/joined-*/*.log                                             ├─► Line ─► filter ─► merge ─► text
launch/job-7.log            text of the supervisor ────────────────────┘
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.log import LEVELS, Line, parse_line
from computerrl.common.run_files.run_folder import LAUNCH_FOLDER

LOOK_S = 0.5
"""Files on a shared file system announce nothing."""
MAX_TAIL_BYTES = 4 << 20
"""So much of each file's end is looked at for its last lines."""
_COLOURS = {"debug": "bright_black", "info": None, "warning": "yellow", "error": "red", "critical": "red"}
_PROCESS_COLOURS = {
    "broker": "magenta",
    "learner": "blue",
    "actor": "green",
    "engine": "cyan",
    "env_server": "bright_cyan",
    "job": "bright_white",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines to show."""

    processes: tuple[str, ...] = ()
    """Names (`actor-3`) or roles (`actor`); empty: all."""
    level: str = "debug"
    """This one and worse."""

    def takes(self, line: Line) -> bool:
        return LEVELS.index(self.level) <= LEVELS.index(line.level if line.level in LEVELS else "error")

    def opens(self, process: str) -> bool:
        return not self.processes or process in self.processes or process.rpartition("-")[0] in self.processes


class LogTail:
    """What was added to one file since the last look."""

    def __init__(self, path: Path, *, process: str) -> None:
        self.process = process
        self._path = path
        self._offset = max(0, path.stat().st_size - MAX_TAIL_BYTES)
        self._skips_first = self._offset > 0
        self._rest = b""
        self._at = 0.0

    def read(self) -> list[Line]:
        """Whole new lines."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *raw, self._rest = data.split(b"\n")
        if self._skips_first and raw:
            raw, self._skips_first = raw[1:], False
        lines = []
        for part in raw:
            line = parse_line(part.decode(errors="replace"), process=self.process, before=self._at)
            self._at = line.at
            lines.append(line)
        return lines


class RunLogs:
    """The logs of a run's latest attempt; finds those of processes that come later."""

    def __init__(self, run: Path, choice: Choice) -> None:
        self._run = run
        self._choice = choice
        self._tails: dict[Path, LogTail] = {}

    def files(self) -> dict[Path, str]:
        """Each log with its process's name."""
        attempt = self._run / "logs" / "latest"
        found = {path: path.stem for path in sorted(attempt.glob("*.log"))}
        found |= {path: path.stem for path in sorted((self._run / "logs").glob("joined-*/*.log"))}
        jobs = sorted((self._run / LAUNCH_FOLDER).glob("job-*.log"), key=lambda path: path.stat().st_mtime)[-1:]
        return found | dict.fromkeys(jobs, "job")

    def read(self) -> list[Line]:
        """New lines of all, in the order of time."""
        for path, process in self.files().items():
            # A new attempt has the same names in another folder.
            place = path.resolve()
            if place not in self._tails and self._choice.opens(process):
                self._tails[place] = LogTail(place, process=process)
        lines = [line for tail in self._tails.values() for line in tail.read()]
        return sorted((line for line in lines if self._choice.takes(line)), key=lambda line: line.at)


def show_logs(
    run: Path, *, processes: Sequence[str], level: str, follow: bool, num_lines: int, write: Callable[[str], None] | None = None
) -> None:
    """Print to standard output, in colours where that is a terminal. Raises `ConfigError` naming the logs there are."""
    logs = RunLogs(run, Choice(tuple(processes), level))
    _require_some(run, logs, processes)
    write = write or _print
    _say_all(logs.read()[-num_lines:] if num_lines else logs.read()[:0], write)
    try:
        while follow:
            time.sleep(LOOK_S)
            _say_all(logs.read(), write)
    except KeyboardInterrupt:
        return


def _require_some(run: Path, logs: RunLogs, processes: Sequence[str]) -> None:
    there = sorted(set(logs.files().values()))
    if not there:
        raise ConfigError([Problem("RUN", f"{run} has no logs yet", "wait until the run has started (computerrl status)")])
    unknown = [name for name in processes if not any(Choice((name,)).opens(process) for process in there)]
    if unknown:
        what = f"there is no log of {', '.join(unknown)}"
        raise ConfigError([Problem("PROCESS", what, f"choose from {', '.join(there)}, or a role such as actor")])


def _say_all(lines: Iterable[Line], write: Callable[[str], None]) -> None:
    for line in lines:
        write(render(line))


def render(line: Line) -> str:
    """``line`` as it is printed."""
    when = datetime.fromtimestamp(line.at, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3] if line.at else " " * 12
    colour = _PROCESS_COLOURS.get(line.process.partition("-")[0])
    name = click.style(f"{line.process:14}", fg=colour)
    level = click.style(f"{line.level:7}", fg=_COLOURS.get(line.level))
    return f"{click.style(when, dim=True)} {name} {level} {line.text}"


def _print(text: str) -> None:
    # Colours are for terminals only.
    click.echo(text, color=None if sys.stdout.isatty() else False)
