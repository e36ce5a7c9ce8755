"""`computerrl logs`: the end of a log, and what is added to it. Reads files only."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from common.errors import ConfigError, Problem
from launch.cluster_plan import LAUNCH_FOLDER

LOOK_S = 0.5
"""Files on a shared file system announce nothing."""


def show_logs(run: Path, *, process: str | None, follow: bool, num_lines: int) -> None:
    """Print to standard output. Raises `ConfigError` naming the logs there are."""
    path = find_log(run, process)
    with path.open(errors="replace") as file:
        sys.stdout.writelines(deque(file, maxlen=num_lines))
        sys.stdout.flush()
        try:
            while follow:
                added = file.read()
                if added:
                    sys.stdout.write(added)
                    sys.stdout.flush()
                else:
                    time.sleep(LOOK_S)
        except KeyboardInterrupt:
            return


def find_log(run: Path, process: str | None) -> Path:
    """The job's log, or a process's in the latest attempt."""
    attempt = run / "logs" / "latest"
    if process is not None:
        path = attempt / f"{process}.log"
        if path.is_file():
            return path
    else:
        jobs = sorted((run / LAUNCH_FOLDER).glob("job-*.log"), key=lambda found: found.stat().st_mtime)
        if jobs:
            return jobs[-1]
    there = sorted(found.stem for found in attempt.glob("*.log"))
    if not there:
        raise ConfigError([Problem("RUN", f"{run} has no logs yet", "wait until it has started: computerrl status")])
    what = f"there is no log of {process!r}" if process is not None else f"{run} is no job with a log of its own"
    raise ConfigError([Problem("PROCESS", what, f"choose from {', '.join(there)}")])
