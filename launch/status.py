"""`computerrl status` and `computerrl phase sft`: looking at a run, and asking it for something, from outside."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

from common import requests
from common.errors import ResumeError
from common.run_folder import RunFolder
from launch.supervisor import ProcessView


def show_status(folder: Path, *, stay: bool) -> None:
    """Draw the display once, or until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from launch.display import render
    from launch.watch import STATUS_EVERY_S, RunWatch

    watch = RunWatch(RunFolder(folder))
    ended = threading.Event()

    def draw() -> object:
        state = watch.refresh()
        peers = state.status.peers if state.status is not None else ()
        views = [ProcessView(f"{peer.role}-{peer.index}", "running", peer.pid, 0) for peer in peers]
        notes = [] if views else ["its broker does not answer: the run is over, or on another machine"]
        return render(state, views, notes, name=folder.resolve().name, elapsed_s=-1, now=time.time())

    try:
        watch.wait_status(timeout_s=3.0)
        if not stay:
            Console().print(draw())
            return
        with Live(console=Console(), auto_refresh=False) as live:
            while not ended.wait(STATUS_EVERY_S):
                live.update(draw(), refresh=True)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        return
    finally:
        watch.close()


def request_sft(folder: Path) -> str:
    """Leave the request where the learner looks. Raises `ResumeError` when nobody runs the run."""
    if not is_running(folder):
        raise ResumeError(f"{folder} is not running\n    -> ask while `computerrl train` is at work on it")
    requests.ask(folder, "phase", "sft")
    return f"asked {folder.resolve().name} for an Entropulse round; it begins after the current update"


def is_running(folder: Path) -> bool:
    """A supervisor on this machine holds the run, or its job is running."""
    from launch.run_names import LOCK_FILE
    from launch.slurm_commands import job_state
    from launch.submit import job_of

    job = job_of(folder)
    if job is not None and shutil.which("scontrol") is not None:
        state = job_state(job.job_id)
        return state is not None and state.state == "RUNNING"
    try:
        os.kill(int((folder / LOCK_FILE).read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
