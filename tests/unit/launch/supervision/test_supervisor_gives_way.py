"""Niceness of supervised processes: taken on when the run says so, by every thread and child, and by their session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from computerrl.common.config import SupervisorConfig
from computerrl.common.lifecycle import set_session_nice
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.supervisor import Outcome, Supervisor

PROGRAM = """
import subprocess, sys, threading, time
threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(300)
"""
LIMIT_S = 120.0
HIGHEST_NICE = 19


def session_nice(pid: int) -> int | None:
    """Niceness among sessions; None where the kernel does not group processes by session, and for its own first session."""
    group = Path(f"/proc/{pid}/autogroup")
    found = group.read_text() if group.exists() else ""
    return int(found.rpartition(" ")[2]) if found else None


def priorities(pid: int) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{pid}/task")}


def test_niceness_is_taken_on_by_all_threads_and_children_when_the_run_says_so(tmp_path: Path) -> None:
    ready, ours = tmp_path / "child", os.getpriority(os.PRIO_PROCESS, 0)
    later = min(ours + 3, HIGHEST_NICE)
    spec = ProcessSpec(
        "learner", 0, (sys.executable, "-c", PROGRAM, str(ready)), nice=3, ends_run=True, stop_signal=signal.SIGTERM
    )
    is_at_work = False
    seen: list[tuple[set[int], int | None]] = []
    deadline = time.monotonic() + LIMIT_S

    def tick() -> Outcome | None:
        nonlocal is_at_work
        (view,) = supervisor.views()
        assert time.monotonic() < deadline, (view, ready.exists(), seen, ours)
        if view.pid is None or not ready.exists() or not ready.read_text():
            return None
        found = priorities(view.pid) | priorities(int(ready.read_text())), session_nice(view.pid)
        is_at_work = True
        if found not in seen:
            seen.append(found)
        return Outcome("stopped", "seen", 0) if found[0] == {later} and found[1] in (3, None) else None

    supervisor = Supervisor([spec], config=SupervisorConfig(), log_folder=tmp_path, notify=print, gives_way=lambda: is_at_work)
    supervisor.run(tick=tick, tick_s=0.05)
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        has_sessions = session_nice(process.pid) is not None
        process.kill()
    expected = [({ours}, 0), ({later}, 3)] if has_sessions else [({ours}, None), ({later}, None)]
    assert seen == [one for place, one in enumerate(expected) if one not in expected[:place]]


def test_niceness_of_a_session_can_be_taken_back_and_one_that_ended_is_passed_over() -> None:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        for nice in (7, 0):
            set_session_nice(process.pid, nice)
            assert session_nice(process.pid) in (nice, None)
        process.kill()
    set_session_nice(process.pid, 5)
