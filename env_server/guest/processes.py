"""Child processes of the guest: start, watch, end. No process outlives the guest: the kernel kills them with it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_STARTED: set[int] = set()
"""Process ids of all programs that were started and not ended by us."""


def _die_with_guest() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """From now on, what is left behind by programs that end becomes a child of this process."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_running() -> None:
    """What runs now belongs to the desktop: services that some program has left to us included."""
    _STARTED.update(_children(os.getpid()))


def end_strays() -> None:
    """End all processes that nobody started on purpose: what a terminal's shell or an application left behind.

    All are stopped before the first is ended, and while they stand still they count for the desktop's limit of processes: also
    those that make children without end are caught up with.
    """
    stopped: set[int] = set()
    while running := _strays() - stopped:
        # What has ended by itself is left out: its number may already be another's.
        stopped |= {pid for pid in running if _signal(pid, signal.SIGSTOP)}
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    while ended := _children(os.getpid()) - _STARTED:
        for pid in ended:
            os.waitpid(pid, 0)


def _strays() -> set[int]:
    found: set[int] = set()
    pending = _children(os.getpid()) - _STARTED
    while pending:
        found |= pending
        pending = {child for pid in pending for child in _children(pid)} - found
    return found


def _signal(pid: int, number: int) -> bool:
    """Was there still somebody to signal?"""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found |= {int(child) for child in (thread / "children").read_text().split()}
        except OSError:  # it ended meanwhile
            continue
    return found


class Program:
    """One program that may be started again after it died."""

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log_folder: Path, folder: Path | None = None
    ) -> None:
        self.name = name
        self.num_starts = 0
        self._argv = list(argv)
        self._env = dict(env)
        self._folder = folder
        self._log = log_folder / f"{name}.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id, 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Started and not dead (reaps it when it is)."""
        return self._process is not None and self._process.poll() is None

    def start(self, arguments: Sequence[str] = (), *, pass_fds: Sequence[int] = (), stdout: int | None = None) -> None:
        """Start it in a process group of its own, so that its children can be ended with it; ``arguments`` come after its own.

        All of a desktop stays in one session: to the kernel's scheduler it is one of those that share the machine, not eight."""
        self.num_starts += 1
        _STARTED.discard(self.pid)
        with open(self._log, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*self._argv, *arguments],
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                process_group=0,
                pass_fds=pass_fds,
                # One system call through a library that is loaded already: it takes no lock another thread may hold.
                preexec_fn=_die_with_guest,  # noqa: PLW1509
            )
        _STARTED.add(self._process.pid)

    def end(self, *, wait_s: float) -> None:
        """Ask it to end, as `pkill` does, and give it so long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its process group at once."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        _STARTED.discard(self._process.pid)

    def how_it_ended(self, *, wait_s: float) -> str:
        """For error messages: its signal or exit status and the end of what it said; empty when it is still running then."""
        if self._process is None:
            return ""
        try:
            status = self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return ""
        how = f"killed by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"exit status {status}"
        return f"; {self.name} ended, {how}: {self.log_tail()}"

    def log_tail(self, num_chars: int = 400) -> str:
        """The end of what it said since it was last started, for error messages."""
        try:
            return self._log.read_bytes()[self._log_start :].decode(errors="replace")[-num_chars:].strip()
        except OSError:
            return ""
