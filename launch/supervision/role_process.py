"""One role of a run as a process: started, asked to end, reaped, started again.

The supervisor decides when; this file knows how.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from computerrl.common.config import SupervisorConfig
from computerrl.common.descriptor_store import DescriptorKeeper
from computerrl.common.lifecycle import SUPERVISOR_VARIABLE, set_session_nice
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.processes import PROCESS_VARIABLE, RUN_VARIABLE
from computerrl.launch.supervision.restarts import RestartHistory
from computerrl.launch.supervision.role_errors import ERROR_FILE_VARIABLE, last_words, left_exit_code

ProcessState = Literal["running", "restarting", "ended"]


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process, for displays."""

    name: str
    state: ProcessState
    pid: int | None
    num_restarts: int
    """Number of restarts since the run began."""


class RoleProcess:
    """Present incarnation of one role, and the history of those before."""

    def __init__(self, spec: ProcessSpec, config: SupervisorConfig, *, log_folder: Path | None) -> None:
        """``log_folder``: None: the process writes to the supervisor's own outputs."""
        self.spec = spec
        self.history = RestartHistory(config)
        self.restart_at: float | None = None
        """Time of the next start; None when none is due."""
        self.token = ""
        """Mark of the present incarnation, in the environment of everything that it starts."""
        self.pidfd = -1
        self.keeper = DescriptorKeeper() if spec.keeps_descriptors else None
        self._log_folder = log_folder
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._gave_way = False

    @property
    def pid(self) -> int | None:
        """Process id, None while no process is running."""
        return self._popen.pid if self._popen is not None else None

    @property
    def log_path(self) -> Path:
        """File of the process's output."""
        return (self._log_folder or Path()) / f"{self.spec.name}.log"

    @property
    def error_path(self) -> Path:
        """File for the typed error of its end. Without a log folder it is the one that the supervisor itself was given."""
        if self._log_folder is None:
            return Path(os.environ.get(ERROR_FILE_VARIABLE, os.devnull))
        return self._log_folder / f"{self.spec.name}.error.json"

    def view(self) -> ProcessView:
        """Present state, for displays."""
        waiting: ProcessState = "ended" if self.restart_at is None else "restarting"
        state = waiting if self._popen is None else "running"
        return ProcessView(self.spec.name, state, self.pid, self.history.num_restarts_total)

    def start(self, *, run_token: str) -> None:
        """Start an incarnation; ``run_token`` marks everything of the run."""
        self.restart_at = None
        self.token = f"{run_token}:{self.spec.name}:{self.history.num_restarts_total}"
        if self._log_folder is not None:
            self.error_path.unlink(missing_ok=True)
        env = {
            **os.environ,
            **self.spec.env,
            **_search_path(self.spec.env),
            RUN_VARIABLE: run_token,
            PROCESS_VARIABLE: self.token,
            SUPERVISOR_VARIABLE: str(os.getpid()),
            ERROR_FILE_VARIABLE: str(self.error_path),
            **(self.keeper.environment() if self.keeper else {}),
        }
        with contextlib.ExitStack() as stack:
            log = None if self._log_folder is None else stack.enter_context(self.log_path.open("ab"))
            # The role itself asks to die with its parent: preexec_fn is unsafe in a process with threads.
            self._popen = subprocess.Popen(
                self.spec.argv,
                env=env,
                stdin=subprocess.DEVNULL if self.spec.stop_signal else subprocess.PIPE,
                stdout=log,
                stderr=log and subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self.keeper.descriptors() if self.keeper else (),
            )
        self._started_at = time.monotonic()
        self._gave_way = False
        self.pidfd = os.pidfd_open(self._popen.pid)

    def give_way(self) -> None:
        """Take on the niceness of the `ProcessSpec`, with all threads and child processes: they share a group and a session."""
        if self._gave_way or self._popen is None or not self.spec.nice:
            return
        os.setpriority(os.PRIO_PGRP, self._popen.pid, os.getpriority(os.PRIO_PROCESS, 0) + self.spec.nice)
        set_session_nice(self._popen.pid, self.spec.nice)
        self._gave_way = True

    def request_stop(self) -> None:
        """Ask the process to end: by its signal, or by the end of its standard input."""
        assert self._popen is not None
        if self.spec.stop_signal is None:
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        else:
            self._popen.send_signal(self.spec.stop_signal)

    def kill(self) -> None:
        """Kill the process and its group."""
        assert self._popen is not None
        os.killpg(self._popen.pid, signal.SIGKILL)

    def reap(self) -> tuple[int, float]:
        """Wait for the end of the process; returns its exit code and how many seconds it lived."""
        assert self._popen is not None
        exit_code = self._popen.wait()
        if self.keeper is not None:
            self.keeper.receive()
            # What it failed by, or ended in order, is not for the next incarnation.
            if exit_code != -signal.SIGKILL:
                self.keeper.forget_all()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        os.close(self.pidfd)
        self._popen, self.pidfd = None, -1
        return exit_code, time.monotonic() - self._started_at

    def typed_exit_code(self, exit_code: int) -> int:
        """Exit code of the typed error that the role left, else ``exit_code``."""
        return (left_exit_code(self.error_path) if exit_code > 0 else None) or exit_code

    def last_words(self, exit_code: int) -> str:
        """The typed error that the role left, else the end of its log."""
        return last_words(self.spec.name, exit_code=exit_code, error_path=self.error_path, log_path=self.log_path)


def _search_path(env: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with the user's own folders behind ours, where every process looks for agents and algorithms of theirs."""
    parts = [*env.get("PYTHONPATH", "").split(os.pathsep), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = os.pathsep.join(dict.fromkeys(filter(None, parts)))
    return {"PYTHONPATH": found} if found else {}
