"""The restart rule: the decision after the end of a process, as a pure function of its past.

It knows neither processes nor clocks: `launch.supervision.supervisor` reports every end and carries out the decision.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from computerrl.common.config import SupervisorConfig
from computerrl.common.errors import ConfigError, DiskFull, EngineMismatch, ResumeError, SetupError

HOPELESS = {cls.exit_code: cls.code for cls in (ConfigError, SetupError, ResumeError, DiskFull, EngineMismatch)}
"""Exit codes that a restart cannot mend: only the person can."""


@dataclass(frozen=True, slots=True)
class ScheduledRestart:
    """Start the process again after ``delay_s``, for the ``num_restarts``-th time in a row."""

    delay_s: float
    num_restarts: int


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over; finished or failed."""

    finished: bool
    reason: str


class RestartHistory:
    """Deaths of one process in a row."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self.num_restarts = 0
        """In a row; back to 0 after a life of `stable_s`."""
        self.num_restarts_total = 0

    def ended(self, exit_code: int, *, lived_s: float, finished: bool = False) -> ScheduledRestart | EndRun:
        """The process ended with ``exit_code`` (negative: killed by that signal) after living ``lived_s``.

        ``finished``: it ended because all work is done; otherwise every end is a death, exit code 0 included.
        """
        if finished:
            return EndRun(finished=True, reason="finished")
        if exit_code in HOPELESS:
            return EndRun(finished=False, reason=HOPELESS[exit_code])
        if lived_s >= self._config.stable_s:
            self.num_restarts = 0
        if self.num_restarts >= self._config.max_restarts:
            return EndRun(finished=False, reason="restart_limit")
        backoff_s = self._config.backoff_s * 2 ** (self.num_restarts - 1) if self.num_restarts else 0.0
        # What lived that long has waited already: only a process that dies at once is held back.
        delay_s = max(0.0, backoff_s - lived_s)
        self.num_restarts += 1
        self.num_restarts_total += 1
        return ScheduledRestart(delay_s=delay_s, num_restarts=self.num_restarts)


def describe_exit(exit_code: int) -> str:
    """`exit code 3`, `SIGKILL`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
