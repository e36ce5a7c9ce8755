"""Everything that a supervisor's processes started. Orphans are adopted, and nothing is left at the end.

The supervisor is a subreaper (orphaned grandchildren become its children) and marks processes by an environment variable, so that
a sweep finds processes that left their group. A `launch.supervision.guardian` does the same when the supervisor itself is killed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from computerrl import SOURCE_ROOT
from computerrl.launch.supervision import processes
from computerrl.launch.supervision.processes import PROCESS_VARIABLE, RUN_VARIABLE

SWEEP_S = 1.0
"""Time limit of the final sweep."""
SWEEP_PASS_S = 0.01
"""Time between two looks of the sweep: adopted grandchildren have no pidfd that could be waited for."""
SHARED_MEMORY_EVERY_S = 10.0
"""How often the shared memory of the living is written down, to be removed when they die badly."""


class ProcessTree:
    """Processes below one supervisor, from `begin` to `end`."""

    def __init__(self, role_pids: Callable[[], set[int]], *, notify: Callable[[str], None]) -> None:
        """``role_pids``: the processes that the supervisor itself started and that live."""
        self.token = secrets.token_hex(8)
        """In the environment of everything that is started, under `RUN_VARIABLE`."""
        self._role_pids = role_pids
        self._notify = notify
        self._strangers: set[int] = set()
        self._guardian: subprocess.Popen[bytes]
        self._told_guardian: set[int] = set()
        self._shared_memory: set[Path] = set()
        self._next_shared_memory = 0.0

    def begin(self) -> None:
        """Before the first process is started."""
        processes.become_subreaper()
        self._strangers = processes.descendants([os.getpid()])
        self._guardian = self._start_guardian()

    def end(self) -> None:
        """After the last sweep."""
        self._guardian.kill()
        self._guardian.wait()

    def ended(self, pid: int) -> None:
        """The role of this pid has just been reaped."""
        self._shared_memory |= processes.named_after([pid])

    def sweep_after(self, process_token: str, *, kept: Callable[[], set[int]]) -> None:
        """End the processes that a dead role left: those with its mark, and adopted ones without any mark (containers). ``kept``:
        processes that are spared, with all below them."""

        def left() -> set[int]:
            found = processes.marked(PROCESS_VARIABLE, process_token)
            adopted = self._adopted()
            unmarked = adopted - processes.marks(adopted, PROCESS_VARIABLE).keys()
            spared = kept()
            return (found | unmarked | processes.descendants(unmarked)) - spared - processes.descendants(spared)

        self._sweep(left)

    def sweep_everything(self) -> None:
        """All that is left of the run."""
        self._sweep(self._everything_of_the_run)

    def _everything_of_the_run(self) -> set[int]:
        adopted = self._adopted()
        return processes.marked(RUN_VARIABLE, self.token) | adopted | processes.descendants(adopted)

    def _sweep(self, left: Callable[[], set[int]]) -> None:
        """Kill what ``left()`` names until it names nothing."""
        deadline = time.monotonic() + SWEEP_S
        ended: set[int] = set()
        while pids := left():
            ended |= pids
            self._shared_memory |= processes.shared_memory_of(pids)
            processes.kill_all(pids)
            self._reap_adopted()
            if time.monotonic() > deadline:
                self._notify(f"could not end: {sorted(pids)}")
                break
            time.sleep(SWEEP_PASS_S)
        self._reap_adopted()
        if not self._role_pids():
            processes.remove_shared_memory(self._shared_memory)

    def _own_pids(self) -> set[int]:
        """Children that are no orphans: the roles, the guardian, and what was there before the run."""
        return self._role_pids() | {self._guardian.pid} | self._strangers

    def _adopted(self) -> set[int]:
        """Orphaned grandchildren that became our children."""
        return (processes.children_of(os.getpid()) & processes.parents().keys()) - self._own_pids()

    def _reap_adopted(self) -> None:
        for pid in processes.children_of(os.getpid()) - self._own_pids():
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # waited for by its owner meanwhile

    def look(self, now: float) -> None:
        """Once a second: reap, adopt, tell the guardian."""
        self._reap_adopted()
        self._tell_guardian()
        if now >= self._next_shared_memory:
            self._next_shared_memory = now + SHARED_MEMORY_EVERY_S
            self.note_shared_memory()

    def _tell_guardian(self) -> None:
        """Send the guardian newly adopted orphans; a guardian that was killed is replaced."""
        adopted = processes.children_of(os.getpid()) - self._own_pids()
        new = {pid: processes.start_time(pid) for pid in adopted - self._told_guardian}
        self._told_guardian = adopted
        if self._guardian.poll() is not None:
            self._guardian = self._start_guardian()
            self._told_guardian = set()
            return
        assert self._guardian.stdin is not None
        try:
            self._guardian.stdin.write("".join(f"{pid} {start}\n" for pid, start in new.items() if start).encode())
        except BrokenPipeError:
            self._told_guardian = set()  # it has just been killed: the next look replaces it

    def note_shared_memory(self) -> None:
        """What the living have mapped, to be removed should they leave it."""
        roles = self._role_pids()
        self._shared_memory |= processes.shared_memory_of(roles | processes.descendants(roles))

    def _start_guardian(self) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, PROCESS_VARIABLE)}
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "computerrl.launch.supervision.guardian", self.token],
            env={**env, "PYTHONPATH": str(SOURCE_ROOT)},
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
