"""Starts the processes of a run, repairs what dies, and leaves nothing behind.

Each role runs in a session of its own, so that a Ctrl-C on the terminal reaches the supervisor alone, which then stops all of
them in order: SIGTERM, `stop_s` to end by themselves, SIGKILL, and a sweep of everything they started
(`launch.supervision.process_tree`).

It decides nothing about training: the restart rule is `launch.supervision.restarts`, what a person sees is
`launch.watch.display`.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from computerrl.common.config import SupervisorConfig
from computerrl.common.errors import RestartLimitReached
from computerrl.common.lifecycle import SUPERVISOR_VARIABLE, set_session_nice
from computerrl.common.lifecycle import stop_signals as usual_stop_signals
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.process_tree import Household
from computerrl.launch.supervision.processes import PROCESS_VARIABLE, RUN_VARIABLE
from computerrl.launch.supervision.restarts import EndRun, Restart, RestartHistory, describe_exit
from computerrl.launch.supervision.role_errors import ERROR_FILE_VARIABLE, last_words, left_exit_code

DRAIN_SIGNAL = signal.SIGUSR1
"""A scheduler sends it some minutes before it takes the nodes away."""
STOP_ORDER = ((("learner", "actor", "engine"), 0.6), (("env_server", "broker"), 1.0))
"""Roles, and the share of `stop_s` after which the next are asked too: those who ask go first, so that they can still hand in
trajectories and give desktops back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    kind: Literal["finished", "stopped", "failed"]
    reason: str
    exit_code: int
    message: str = ""
    """For people: what went wrong, where to read more."""
    last_exit_code: int = 0
    """Of the process whose end ended the run; negative: killed by that signal."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process, for displays."""

    name: str
    state: Literal["running", "restarting", "ended"]
    pid: int | None
    num_restarts: int
    """Since the run began."""


class _Process:
    """One role's present incarnation and its past."""

    def __init__(self, spec: ProcessSpec, config: SupervisorConfig) -> None:
        self.spec = spec
        self.history = RestartHistory(config)
        self.popen: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.token = ""
        self.started_at = 0.0
        self.restart_at: float | None = None
        self.gave_way = False

    def view(self) -> ProcessView:
        state: Literal["running", "restarting", "ended"] = "ended"
        if self.popen is not None:
            state = "running"
        elif self.restart_at is not None:
            state = "restarting"
        pid = self.popen.pid if self.popen is not None else None
        return ProcessView(self.spec.name, state, pid, self.history.num_restarts_total)


class Supervisor:
    """Runs ``specs`` until one that ends the run has finished, a stop is asked for, or repair is given up."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        config: SupervisorConfig,
        log_folder: Path | None,
        notify: Callable[[str], None],
        is_finished: Callable[[], bool] = lambda: True,
        ask_to_drain: Callable[[], None] | None = None,
        gives_way: Callable[[], bool] = lambda: True,
        stop_signals: Sequence[signal.Signals] | None = None,
    ) -> None:
        """``log_folder``: None: processes write where this one does. ``is_finished``: whether exit code 0 of a process that ends
        the run is believed; a learner stopped by another process ends with 0 too and is started again. ``ask_to_drain`` asks
        the process that ends the run to save what it has and to end; None: it is stopped like the others. ``gives_way``: whether
        processes take on the niceness of their `ProcessSpec` yet; while the run starts, everything waits for them.
        ``stop_signals``: None: those of `common.lifecycle.stop_signals`."""
        self._config = config
        self._log_folder = log_folder
        self._notify = notify
        self._is_finished = is_finished
        self._ask_to_drain = ask_to_drain
        self._gives_way = gives_way
        self._stop_signals = usual_stop_signals() if stop_signals is None else tuple(stop_signals)
        self._drain_signalled = False
        self._drain_reason = ""
        self._drain_until = math.inf
        self._processes = [_Process(spec, config) for spec in specs]
        self._household = Household(self._role_pids, notify=notify)
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._signals: list[int] = []
        self._outcome: Outcome | None = None

    def views(self) -> list[ProcessView]:
        """All processes, in starting order."""
        return [process.view() for process in self._processes]

    def run(self, *, tick: Callable[[], Outcome | None], tick_s: float) -> Outcome:
        """Start everything and stay until the end; ``tick`` is called every ``tick_s`` (displays) and may give an outcome to end
        with. Main thread only.

        ``stop_signals`` stop the run; a second one kills at once. SIGUSR1 drains it.
        """
        self._household.begin()
        before = {number: signal.signal(number, self._on_signal) for number in (*self._stop_signals, DRAIN_SIGNAL)}
        before_fd = signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        try:
            for process in self._processes:
                self._start(process)
            next_tick = time.monotonic()
            while self._outcome is None:
                now = time.monotonic()
                if now >= next_tick:
                    self._outcome = tick()
                    self._household.look(now)
                    for process in self._processes:
                        self._give_way(process)
                    next_tick = now + tick_s
                self._restart_due(now)
                self._wait(next_tick)
            tick()
            return self._outcome
        finally:
            try:
                self._stop_all()
            finally:
                self._household.end()
                signal.set_wakeup_fd(before_fd)
                for number, handler in before.items():
                    signal.signal(number, handler)
                self._close()

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == DRAIN_SIGNAL:
            self._drain_signalled = True
        else:
            self._signals.append(number)

    def _wait(self, next_tick: float) -> None:
        """Until a process ends, a signal comes, or something is due."""
        due = [process.restart_at for process in self._processes if process.restart_at is not None]
        timeout_s = max(0.0, min([next_tick, self._drain_until, *due]) - time.monotonic())
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakeups()
            else:
                self._ended(key.data)
        if self._drain_signalled:
            self.drain(DRAIN_SIGNAL.name)
        if self._outcome is not None:
            return
        if self._signals:
            number = self._signals[0]
            name = signal.Signals(number).name
            self._outcome = Outcome("stopped", f"stopped by {name}", exit_code=128 + number)
        elif time.monotonic() >= self._drain_until:
            self._notify(f"nothing was saved within {self._config.drain_s:g} s; the last checkpoint counts")
            self._outcome = self._drained()

    def drain(self, reason: str) -> None:
        """Have the run save what it has and end, in `supervisor.drain_s` at most; everything else goes on meanwhile."""
        if self._drain_reason:
            return
        self._drain_reason = reason
        self._drain_until = time.monotonic()
        if self._ask_to_drain is not None:
            self._ask_to_drain()
            self._drain_until += self._config.drain_s
            self._notify(f"{reason}: the learner writes a checkpoint, then everything stops")

    def _drained(self) -> Outcome:
        return Outcome("stopped", f"stopped by {self._drain_reason}", exit_code=128 + DRAIN_SIGNAL)

    def _drain_wakeups(self) -> None:
        try:
            self._wake_receiver.recv(4096)
        except BlockingIOError:
            return

    def _ended(self, process: _Process) -> None:
        exit_code, lived_s = self._reap(process)
        if exit_code > 0:
            exit_code = left_exit_code(self._error_path(process)) or exit_code
        if process.spec.ends_run and self._drain_reason and not (exit_code == 0 and self._is_finished()):
            self._outcome = self._outcome or self._drained()
            return
        finished = process.spec.ends_run and exit_code == 0 and self._is_finished()
        verdict = process.history.ended(exit_code, lived_s=lived_s, finished=finished)
        name = process.spec.name
        if isinstance(verdict, Restart):
            self._household.sweep_after(process.token)
            process.restart_at = time.monotonic() + verdict.delay_s
            self._notify(
                f"{name} ended ({describe_exit(exit_code)}) after {lived_s:.1f} s; starts again in {verdict.delay_s:g} s "
                f"({verdict.num_restarts} of {self._config.max_restarts}), log: {self._log_path(process)}"
            )
            return
        if self._outcome is None:
            self._outcome = self._outcome_of(process, verdict, exit_code)

    def _outcome_of(self, process: _Process, verdict: EndRun, exit_code: int) -> Outcome:
        if verdict.finished:
            return Outcome("finished", "finished", exit_code=0)
        if verdict.reason != RestartLimitReached.code:
            return Outcome("failed", verdict.reason, exit_code, self._message_of(process, exit_code), exit_code)
        message = (
            f"{process.spec.name} ended {self._config.max_restarts + 1} times in a row, the last time with "
            f"{describe_exit(exit_code)}; supervisor.max_restarts is {self._config.max_restarts}\n"
            f"{self._message_of(process, exit_code)}"
        )
        return Outcome("failed", verdict.reason, RestartLimitReached.exit_code, message, exit_code)

    def _message_of(self, process: _Process, exit_code: int) -> str:
        paths = {"error_path": self._error_path(process), "log_path": self._log_path(process)}
        return last_words(process.spec.name, exit_code=exit_code, **paths)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _log_path(self, process: _Process) -> Path:
        return (self._log_folder or Path()) / f"{process.spec.name}.log"

    def _error_path(self, process: _Process) -> Path:
        """Path of the error file of ``process``; without a log folder, that of this process's environment."""
        if self._log_folder is None:
            return Path(os.environ.get(ERROR_FILE_VARIABLE, os.devnull))
        return self._log_folder / f"{process.spec.name}.error.json"

    def _start(self, process: _Process) -> None:
        spec = process.spec
        process.restart_at = None
        process.token = f"{self._household.token}:{spec.name}:{process.history.num_restarts_total}"
        if self._log_folder is not None:
            self._error_path(process).unlink(missing_ok=True)
        env = {
            **os.environ,
            **spec.env,
            RUN_VARIABLE: self._household.token,
            PROCESS_VARIABLE: process.token,
            SUPERVISOR_VARIABLE: str(os.getpid()),
            ERROR_FILE_VARIABLE: str(self._error_path(process)),
        }
        with contextlib.ExitStack() as stack:
            log = None if self._log_folder is None else stack.enter_context(self._log_path(process).open("ab"))
            # The role itself asks to die with its parent: preexec_fn is unsafe in a process with threads.
            process.popen = subprocess.Popen(
                spec.argv,
                env=env,
                stdin=subprocess.DEVNULL if spec.stop_signal else subprocess.PIPE,
                stdout=log,
                stderr=log and subprocess.STDOUT,
                start_new_session=True,
            )
        process.started_at = time.monotonic()
        process.gave_way = False
        self._give_way(process)
        process.pidfd = os.pidfd_open(process.popen.pid)
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)

    def _give_way(self, process: _Process) -> None:
        """Make ``process`` as nice as its `ProcessSpec` says, once that is wanted: all its threads and child processes, which are
        in one process group and one session."""
        if process.gave_way or process.popen is None or not process.spec.nice or not self._gives_way():
            return
        os.setpriority(os.PRIO_PGRP, process.popen.pid, os.getpriority(os.PRIO_PROCESS, 0) + process.spec.nice)
        set_session_nice(process.popen.pid, process.spec.nice)
        process.gave_way = True

    def _restart_due(self, now: float) -> None:
        for process in self._processes:
            if process.restart_at is not None and process.restart_at <= now:
                self._start(process)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _role_pids(self) -> set[int]:
        return {process.popen.pid for process in self._processes if process.popen is not None}

    def _reap(self, process: _Process) -> tuple[int, float]:
        assert process.popen is not None
        exit_code = process.popen.wait()
        if process.popen.stdin is not None:
            process.popen.stdin.close()
        self._household.ended(process.popen.pid)
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        process.popen, process.pidfd = None, -1
        return exit_code, time.monotonic() - process.started_at

    def _stop_all(self) -> None:
        """SIGTERM to every role, wait, SIGKILL the rest, sweep."""
        for process in self._processes:
            process.restart_at = None
        self._household.note_shared_memory()
        num_signals = len(self._signals)
        began = time.monotonic()
        for roles, share in STOP_ORDER:
            asked = [process for process in self._processes if process.spec.role in roles and process.popen is not None]
            for process in asked:
                assert process.popen is not None
                if process.spec.stop_signal is None:
                    assert process.popen.stdin is not None
                    process.popen.stdin.close()
                else:
                    process.popen.send_signal(process.spec.stop_signal)
            self._wait_for_ends(asked, until=began + share * self._config.stop_s, num_signals=num_signals)
        self._wait_for_ends(self._processes, until=began + self._config.stop_s, num_signals=num_signals)
        for process in self._processes:
            if process.popen is not None:
                self._notify(f"{process.spec.name} did not end within {self._config.stop_s:g} s: killed")
                os.killpg(process.popen.pid, signal.SIGKILL)
                self._reap(process)
        self._household.sweep_everything()

    def _wait_for_ends(self, asked: Sequence[_Process], *, until: float, num_signals: int) -> None:
        """Until all of ``asked`` have ended, the time is over, or the person asks once more."""
        while any(process.popen is not None for process in asked) and len(self._signals) == num_signals:
            timeout_s = until - time.monotonic()
            if timeout_s <= 0:
                return
            for key, _ in self._selector.select(timeout_s):
                if key.data is None:
                    self._drain_wakeups()
                else:
                    self._reap(key.data)

    def _close(self) -> None:
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()
