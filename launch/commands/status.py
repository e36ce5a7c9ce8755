"""`computerrl status`, `runs` and `phase sft`: the state of one run or of all, and a request to one, from another process."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computerrl.common.errors import ResumeError
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files import requests
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.report.report_data import ActiveTime, percent, success_of
from computerrl.launch.report.write import last_moment, now_of, read_attempts
from computerrl.launch.supervision.role_process import ProcessView

if TYPE_CHECKING:
    from computerrl.launch.watch.display_frame import View
    from computerrl.launch.watch.run_state import RunState

ANSWER_LIMIT_S = 3.0
"""Seconds that the command waits for the broker's first reply."""


def show_status(folder: Path, *, stay: bool) -> None:
    """Draw the display once, or until Ctrl-C or the end of the run."""
    from rich.console import Console
    from rich.live import Live

    from computerrl.launch.watch.display_frame import render
    from computerrl.launch.watch.follow import STATUS_EVERY_S, RunWatch

    console = Console()
    pause = threading.Event()
    watch = RunWatch(RunFolder(folder))
    try:
        if attempt_ended(folder) is None:
            watch.wait_status(timeout_s=ANSWER_LIMIT_S)
        if not stay:
            console.print(render(view_of(folder, watch.refresh()), width=console.width))
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                view = view_of(folder, watch.refresh())
                live.update(render(view, width=console.width), refresh=True)
                if view.ending is not None:
                    return
                pause.wait(STATUS_EVERY_S)
    except KeyboardInterrupt:
        return
    finally:
        watch.close()


def print_status(folder: Path, *, job: str) -> None:
    """Print the state of the run as JSON. ``job``: its Slurm job in words; empty without one."""
    import json

    from computerrl.common.metrics import json_ready
    from computerrl.launch.watch.follow import RunWatch

    watch = RunWatch(RunFolder(folder))
    try:
        if attempt_ended(folder) is None:
            watch.wait_status(timeout_s=ANSWER_LIMIT_S)
        tree = status_tree(view_of(folder, watch.refresh()))
        print(json.dumps(json_ready({**tree, "job": job or None}), indent=2))
    finally:
        watch.close()


def status_tree(view: View) -> dict[str, Any]:
    """What the display shows, as JSON has it; None for what is not known yet. Records are those of docs/reference/metrics.md."""
    state = view.state
    return {
        "run": view.name,
        "ended": None if view.ending is None else view.ending.text,
        "elapsed_s": view.elapsed_s,
        "phase": state.phase or None,
        "policy_version": state.policy_version,
        "update": state.last_update or None,
        "evaluation": state.evaluations[-1] if state.evaluations else None,
        "processes": [{"name": one.name, "state": one.state, "pid": one.pid} for one in view.processes],
        "broker": None if state.status is None else {**state.status.counters, **state.status.gauges},
        "notes": list(view.notes),
    }


def view_of(folder: Path, state: RunState, *, now: float | None = None) -> View:
    """The display's view of the run in ``folder`` at Unix time ``now``; None: the present."""
    from computerrl.launch.watch.display_frame import View, ending_of

    attempts = read_attempts(RunFolder(folder).logs)
    now = now_of(attempts) if now is None else now
    active = ActiveTime(attempts, last_record=now)
    name = folder.resolve().name
    last = attempts[-1] if attempts else None
    if last is not None and last.ended is not None:
        ending = ending_of(last.outcome, ended=last.ended, took_s=active.total_s)
        notes = [] if ending.is_good else [f"{last.reason}; the same `computerrl train` with --resume continues the run"]
        return View(name, state, (), now, active.total_s, notes, ending=ending)
    peers = state.status.peers if state.status is not None else ()
    processes = [ProcessView(f"{peer.role}-{peer.index}", "running", peer.pid, 0) for peer in peers]
    notes = [] if processes else ["the broker does not answer: the run was killed, is starting, or is on another machine"]
    return View(name, state, processes, now, active.total_s, notes)


def attempt_ended(folder: Path) -> float | None:
    """Unix seconds of the end of the newest attempt; None while it is under way."""
    attempts = read_attempts(RunFolder(folder).logs)
    return attempts[-1].ended if attempts else None


_RUNS_ROW = "{run:{width}} {began:11} {state:9} {took:>8} {updates:>7}  {success}"
_RUN_WIDTH = 24
"""Minimum width of the names. The longest one widens them, since other commands take whole names."""


def print_runs(folders: Sequence[Path], *, as_json: bool) -> None:
    """Print a row for each of the runs ``folders``, newest first, as a table or as JSON."""
    import json

    from computerrl.launch.watch.display_frame import duration

    rows = sorted(map(run_row, folders), key=lambda row: row["began"] or 0.0, reverse=True)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    heads = {name: name for name in ("run", "began", "state", "took", "updates", "success")}
    width = max([_RUN_WIDTH, *(len(row["run"]) for row in rows)])
    print(_RUNS_ROW.format(width=width, **heads))
    for row in rows:
        began = "–" if row["began"] is None else time.strftime("%m-%d %H:%M", time.localtime(row["began"]))
        means = " ".join(percent(one["success"]) for one in row["evaluations"])
        figures = {"took": duration(row["took_s"]), "updates": row["num_updates"], "success": means or "–"}
        print(_RUNS_ROW.format(width=width, run=row["run"], state=row["state"], began=began, **figures))
    print("success: mean over families of each evaluation, in order", file=sys.stderr)


def run_row(folder: Path) -> dict[str, Any]:
    """What a list of runs says of the one in ``folder``.

    ``began`` is in Unix seconds. ``state``: `running`, how its last attempt ended, or `killed` where that did not say.
    Evaluations are those of the policy with its own images.
    """
    from computerrl.launch.watch.run_state import RunState

    attempts = read_attempts(RunFolder(folder).logs)
    state = RunState().take_all(read_json_lines(RunFolder(folder).metrics_path))
    ended = bool(attempts) and attempts[-1].ended is not None
    running = not ended and is_running(folder)
    active = ActiveTime(attempts, last_record=now_of(attempts) if running else last_moment(state))
    return {
        "run": folder.name,
        "folder": str(folder),
        "began": attempts[0].started if attempts else None,
        "state": "running" if running else attempts[-1].outcome if ended else "killed",
        "took_s": round(active.total_s, 1),
        "num_updates": len({record.get("update") for record in state.updates}),
        "evaluations": [{"phase": one.get("phase"), "success": success_of(one)["mean"]} for one in state.evaluations],
    }


def request_sft(folder: Path) -> str:
    """Write the request into the run folder, where the learner reads it. Raises `ResumeError` when the run is not at work."""
    if not is_running(folder):
        raise ResumeError(f"{folder} is not running\n    -> use this command while the run is at work")
    requests.ask(folder, "phase", "sft")
    return f"requested an Entropulse round of {folder.resolve().name}; it begins after the current update"


def is_running(folder: Path) -> bool:
    """A supervisor on this machine holds the run, or its job is running."""
    from computerrl.launch.cluster.slurm_commands import job_state
    from computerrl.launch.cluster.submit import job_of
    from computerrl.launch.plan.run_names import LOCK_FILE

    job = job_of(folder)
    if job is not None and shutil.which("scontrol") is not None:
        state = job_state(job.job_id)
        return state is not None and state.state == "RUNNING"
    try:
        os.kill(int((folder / LOCK_FILE).read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
