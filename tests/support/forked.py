"""Roles that tests start without a supervisor, forked from a server that has imported what they need: torch takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal

PRELOAD = [
    *(f"computerrl.{name}" for name in ("learner.process", "learner.model.policy", "learner.training.trainer", "broker.process")),
    "computerrl.learner.training.rank_processes",
    "transformers",
]
_forks = multiprocessing.get_context("forkserver")


def run_role(role: str, config_path: str) -> None:
    """The broker or the learner of a configuration, until a signal stops it or it has finished."""
    from computerrl.common.config import load_config
    from computerrl.common.lifecycle import StopToken, stop_on_signals

    stop = StopToken()
    stop_on_signals(stop)
    config = load_config(config_path)
    if role == "broker":
        from computerrl.broker.process import run_broker

        run_broker(config, stop=stop)
    else:
        from computerrl.learner.process import run_learner

        run_learner(config, index=0, stop=stop)
    os._exit(0)  # Taking torch down in order can take seconds on a busy machine; that is not what is tested.


class ForkedRole:
    """A process of a role, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, role: str, config_path: str) -> None:
        _forks.set_forkserver_preload(PRELOAD)
        self._process = _forks.Process(target=run_role, args=(role, config_path), name=role, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"{self._process.name} has not ended after {timeout} s"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send ``number`` unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
