"""The supervisor of a run: it starts the processes, restarts those that die, and leaves none behind.

Each role runs in a session of its own, so that a Ctrl-C on the terminal reaches the supervisor alone. The supervisor then stops
the roles in order: SIGTERM, `stop_s` to end by themselves, SIGKILL, and a sweep of everything they started
(`launch.supervision.process_tree`).

It decides nothing about training. The restart rule is `launch.supervision.restarts`, the display `launch.watch.display`.
"""

from __future__ import annotations

import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from computerrl.common.config import SupervisorConfig
from computerrl.common.descriptor_store import DescriptorKeeper
from computerrl.common.errors import RestartLimitReached
from computerrl.common.lifecycle import stop_signals as usual_stop_signals
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.process_tree import ProcessTree
from computerrl.launch.supervision.restarts import EndRun, ScheduledRestart, describe_exit
from computerrl.launch.supervision.role_process import ProcessView, RoleProcess

DRAIN_SIGNAL = signal.SIGUSR1
"""Signal that a scheduler sends some minutes before it takes the nodes away."""
STOP_ORDER = ((("learner", "actor", "engine"), 0.6), (("env_server", "broker"), 1.0))
"""Roles in the order in which they are stopped, each with the share of `stop_s` after which the next follow. Clients come first,
so that they can still submit trajectories and release desktops."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    kind: Literal["finished", "stopped", "failed"]
    reason: str
    exit_code: int
    message: str = ""
    """Reason and place of more details, for people."""
    last_exit_code: int = 0
    """Exit code of the process whose end ended the run; negative: killed by that signal."""


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
        """
        ``log_folder``: folder of the processes' logs; None: processes write to the supervisor's own outputs.
        ``is_finished``: whether exit code 0 of a process that ends the run means that all work is done; a learner stopped from
        outside ends with 0 as well, and is started again.
        ``ask_to_drain``: asks the process that ends the run to save its state and end; None: it is stopped like the others.
        ``gives_way``: whether processes take on the niceness of their `ProcessSpec` yet; while the run starts, everything waits
        for them.
        ``stop_signals``: None: those of `common.lifecycle.stop_signals`.
        """
        self._config = config
        self._notify = notify
        self._is_finished = is_finished
        self._ask_to_drain = ask_to_drain
        self._gives_way = gives_way
        self._stop_signals = usual_stop_signals() if stop_signals is None else tuple(stop_signals)
        self._drain_signalled = False
        self._drain_reason = ""
        self._drain_until = math.inf
        self._processes = [RoleProcess(spec, config, log_folder=log_folder) for spec in specs]
        self._tree = ProcessTree(self._role_pids, notify=notify)
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        for process in self._processes:
            if process.keeper is not None:
                self._selector.register(process.keeper, selectors.EVENT_READ, process.keeper)
        self._signals: list[int] = []
        self._outcome: Outcome | None = None

    def views(self) -> list[ProcessView]:
        """All processes, in starting order."""
        return [process.view() for process in self._processes]

    def run(self, *, tick: Callable[[], Outcome | None], tick_s: float) -> Outcome:
        """Start everything and stay until the end. Main thread only.

        ``tick`` is called every ``tick_s`` for displays, and may return an outcome, which ends the run.

        ``stop_signals`` stop the run; a second one kills at once. SIGUSR1 drains it.
        """
        self._tree.begin()
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
                    self._tree.look(now)
                    self._give_way()
                    next_tick = now + tick_s
                self._restart_due(now)
                self._wait(next_tick)
            tick()
            return self._outcome
        finally:
            try:
                self._stop_all()
            finally:
                self._tree.end()
                signal.set_wakeup_fd(before_fd)
                for number, handler in before.items():
                    signal.signal(number, handler)
                self._close()

    # --- events

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == DRAIN_SIGNAL:
            self._drain_signalled = True
        else:
            self._signals.append(number)

    def _wait(self, next_tick: float) -> None:
        """Wait until a process ends, a signal arrives, or something is due, and handle it."""
        due = [process.restart_at for process in self._processes if process.restart_at is not None]
        timeout_s = max(0.0, min([next_tick, self._drain_until, *due]) - time.monotonic())
        self._handle_events(timeout_s, ended=self._ended)
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

    def _handle_events(self, timeout_s: float, *, ended: Callable[[RoleProcess], object]) -> None:
        """Wait for something to happen, at most ``timeout_s``, and handle it; ``ended`` handles the end of a process."""
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, RoleProcess):
                ended(key.data)
            elif isinstance(key.data, DescriptorKeeper):
                key.data.receive()
            else:
                self._drain_wakeups()

    def drain(self, reason: str) -> None:
        """Have the run save its state and end within `supervisor.drain_s`; everything else goes on meanwhile."""
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

    def _ended(self, process: RoleProcess) -> None:
        exit_code, lived_s = self._reap(process)
        exit_code = process.typed_exit_code(exit_code)
        if process.spec.ends_run and self._drain_reason and not (exit_code == 0 and self._is_finished()):
            self._outcome = self._outcome or self._drained()
            return
        finished = process.spec.ends_run and exit_code == 0 and self._is_finished()
        verdict = process.history.ended(exit_code, lived_s=lived_s, finished=finished)
        name = process.spec.name
        if isinstance(verdict, ScheduledRestart):
            self._tree.sweep_after(process.token, kept=self._kept_pids)
            process.restart_at = time.monotonic() + verdict.delay_s
            when = f"in {verdict.delay_s:g} s" if verdict.delay_s else "at once"
            self._notify(
                f"{name} ended ({describe_exit(exit_code)}) after {lived_s:.1f} s; starts again {when} "
                f"({verdict.num_restarts} of {self._config.max_restarts}), log: {process.log_path}"
            )
            return
        if self._outcome is None:
            self._outcome = self._outcome_of(process, verdict, exit_code)

    def _outcome_of(self, process: RoleProcess, verdict: EndRun, exit_code: int) -> Outcome:
        if verdict.finished:
            return Outcome("finished", "finished", exit_code=0)
        if verdict.reason != RestartLimitReached.code:
            return Outcome("failed", verdict.reason, exit_code, process.last_words(exit_code), exit_code)
        message = (
            f"{process.spec.name} ended {self._config.max_restarts + 1} times in a row, the last time with "
            f"{describe_exit(exit_code)}; supervisor.max_restarts is {self._config.max_restarts}\n"
            f"{process.last_words(exit_code)}"
        )
        return Outcome("failed", verdict.reason, RestartLimitReached.exit_code, message, exit_code)

    # --- starting

    def _start(self, process: RoleProcess) -> None:
        process.start(run_token=self._tree.token)
        self._give_way()
        self._selector.register(process.pidfd, selectors.EVENT_READ, process)

    def _give_way(self) -> None:
        """Make the processes as nice as their `ProcessSpec` states, once that is wanted."""
        if self._gives_way():
            for process in self._processes:
                process.give_way()

    def _restart_due(self, now: float) -> None:
        for process in self._processes:
            if process.restart_at is not None and process.restart_at <= now:
                self._start(process)

    # --- ending

    def _role_pids(self) -> set[int]:
        return {process.pid for process in self._processes if process.pid is not None}

    def _kept_pids(self) -> set[int]:
        return {pid for process in self._processes if process.keeper is not None for pid in process.keeper.pids()}

    def _reap(self, process: RoleProcess) -> tuple[int, float]:
        pid = process.pid
        assert pid is not None
        self._selector.unregister(process.pidfd)
        exit_code, lived_s = process.reap()
        self._tree.ended(pid)
        return exit_code, lived_s

    def _stop_all(self) -> None:
        """SIGTERM to every role, wait, SIGKILL the rest, sweep."""
        for process in self._processes:
            process.restart_at = None
        self._tree.note_shared_memory()
        num_signals = len(self._signals)
        began = time.monotonic()
        for roles, share in STOP_ORDER:
            asked = [process for process in self._processes if process.spec.role in roles and process.pid is not None]
            for process in asked:
                process.request_stop()
            self._wait_for_ends(asked, until=began + share * self._config.stop_s, num_signals=num_signals)
        self._wait_for_ends(self._processes, until=began + self._config.stop_s, num_signals=num_signals)
        for process in self._processes:
            if process.pid is not None:
                self._notify(f"{process.spec.name} did not end within {self._config.stop_s:g} s: killed")
                process.kill()
                self._reap(process)
        for process in self._processes:
            if process.keeper is not None:
                process.keeper.forget_all()
        self._tree.sweep_everything()

    def _wait_for_ends(self, asked: Sequence[RoleProcess], *, until: float, num_signals: int) -> None:
        """Wait until all of ``asked`` have ended, the time is over, or another stop signal arrives."""
        while any(process.pid is not None for process in asked) and len(self._signals) == num_signals:
            timeout_s = until - time.monotonic()
            if timeout_s <= 0:
                return
            self._handle_events(timeout_s, ended=self._reap)

    def _close(self) -> None:
        for process in self._processes:
            if process.keeper is not None:
                process.keeper.close()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()
