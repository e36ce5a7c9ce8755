"""A guest and the connection to it: started through a launcher, asked one request at a time, ended with its desktop.

The launcher contains the guest (`env_server.drivers.apptainer`, `env_server.drivers.local`). Requests travel over an anonymous
socket pair.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from computerrl.common import lifecycle
from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.common.errors import DesktopBroken, HostBroken, TaskFailed
from computerrl.common.log import on_one_line
from computerrl.env_server.driver import SitePage
from computerrl.env_server.drivers import guest_answers
from computerrl.env_server.drivers.containment import Findings
from computerrl.env_server.drivers.guest_answers import GuestAnswer
from computerrl.env_server.drivers.guest_log import GuestLog
from computerrl.env_server.guest.wire import MAX_FRAME_BYTES, MAX_OBSERVATION_BYTES, Wire, WireClosed, WireTimeout
from computerrl.env_server.image.apptainer_install import clean_environment

START_LIMIT_S = 120.0
"""Time limit until all applications of a desktop can be used; many desktops may start at once on few cores."""
STARTING_NICE = 2
"""Niceness of a desktop until it is ready: desktops in use, generation and training go first."""
_HEALTH_LIMIT_S = 0.9
_GRACE_S = 1.0
"""Time between the guest's own deadline and the host's."""
_TAKE_OVER_LIMIT_S = 10.0
"""Time limit of a guest that is taken over for the request that it was left with: longer than most take, shorter than a start."""
_END_LIMIT_S = 2.0
"""Time limit of an orderly end."""
_LOG_LIMIT_S = 0.5
"""Time limit for the last output of a start that failed."""


class GuestLauncher(Protocol):
    """Starts a guest process."""

    def command(self, settings: dict[str, Any]) -> Sequence[str]:
        """The command line. Its standard input is the life line (ends when the host does), its output the guest's connection."""

    def explain(self, log: str) -> str:
        """Meaning of a failed start's output, with the next step; empty when unknown."""

    def differences(self, found: Findings) -> Sequence[str]:
        """Things that a guest found around itself and that should not be there."""


class GuestProcess:
    """The guest of desktop ``index``. One `ask` at a time; `healthy` and `close` from any thread."""

    def __init__(
        self, launcher: GuestLauncher, config: DesktopConfig, *, index: int, folder: Path, kept: Kept | None = None
    ) -> None:
        """Starts the guest and waits until it is ready, or takes over the one that ``kept`` belongs to; its log goes to
        ``folder``. Raises `DesktopBroken`, `HostBroken`."""
        self._index = index
        self.sites: Callable[[str], SitePage | None] | None = None
        """Copy of web sites of the task (`TaskInstance.sites`)."""
        self._lock = threading.Lock()
        self._closed = False
        self._life_line: int | None = None
        self._wire: Wire | None = None
        self._process: subprocess.Popen[bytes] | _ProcessOfAnother | None = None
        self._pidfd: int | None = None
        try:
            if kept is None:
                self._start(launcher, config, folder)
                self._await_ready(launcher)
            else:
                self._take_over(kept, folder)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Outermost process of the desktop; all others are below it."""
        return self._process.pid if self._process else None

    def handles(self) -> Kept:
        """What keeps the guest alive and reaches it, for another process to take it over when this one is dead."""
        assert self._process is not None and self._wire is not None
        assert self._pidfd is not None and self._life_line is not None
        return Kept(self._process.pid, (self._pidfd, self._life_line, self._wire.fileno(), self._log.reader))

    def ask(self, request: dict[str, Any], limit_s: float) -> GuestAnswer:
        """The guest's answer to ``request`` within ``limit_s``. Raises `TaskFailed`, `DesktopBroken`."""
        with self._lock:
            answer = self._exchange(request, limit_s)
        if answer.error == "task":
            raise TaskFailed(answer.message)
        if answer.error:
            raise DesktopBroken(f"desktop {self._index}: {answer.message}")
        return answer

    def receive_screen(self, limit_s: float) -> int:
        """Descriptor of the screen's frame buffer, which the caller owns. Raises `DesktopBroken`."""
        assert self._wire is not None
        try:
            self._wire.send({"request": "screen"})
            return self._wire.receive_descriptor(timeout_s=limit_s)
        except (WireClosed, WireTimeout) as error:
            raise DesktopBroken(f"desktop {self._index} did not hand over its screen: {error}") from error

    def healthy(self) -> bool:
        """Whether the guest answers. A guest busy with a request within its deadline counts as healthy."""
        if self._closed or self._process is None or self._process.poll() is not None:
            return False
        if not self._lock.acquire(timeout=_HEALTH_LIMIT_S / 3):
            return True
        try:
            return not self._exchange({"request": "ping"}, _HEALTH_LIMIT_S / 2).error
        except DesktopBroken:
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the guest and everything below it; may be called twice."""
        self._closed = True
        if self._life_line is not None:
            # A line, since a supervisor that keeps a copy keeps the life line from ending. It breaks where the guest has ended.
            with suppress(BrokenPipeError):
                os.write(self._life_line, b"\n")
            os.close(self._life_line)
            self._life_line = None
        process = self._process
        if process is not None:
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._wire is not None:
            self._wire.close()

    # --- start

    def _start(self, launcher: GuestLauncher, config: DesktopConfig, folder: Path) -> None:
        settings = {
            "width": config.screen_width,
            "height": config.screen_height,
            "apps": list(config.apps),
            "max_processes": config.max_processes,
            "settle_quiet_s": config.settle_quiet_s,
            "settle_deadline_s": config.settle_deadline_s,
            "start_deadline_s": START_LIMIT_S - _GRACE_S,
        }
        ours, theirs = socket.socketpair()
        life_line, self._life_line = os.pipe()
        command = launcher.command(settings)
        self._log = GuestLog(folder, self._index)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=life_line,
                stdout=theirs.fileno(),
                stderr=self._log.writer,
                start_new_session=True,
                cwd="/",
                env=clean_environment(),
            )
        except OSError as error:
            raise HostBroken(f"cannot start {command[0]!r}: {error}") from error
        finally:
            theirs.close()
            os.close(life_line)
            self._log.begin()
        self._pidfd = os.pidfd_open(self._process.pid)
        lifecycle.set_session_nice(self._process.pid, STARTING_NICE)
        self._wire = Wire(ours)

    def _await_ready(self, launcher: GuestLauncher) -> None:
        assert self._process is not None
        try:
            answer = guest_answers.decode(self._receive(START_LIMIT_S, MAX_OBSERVATION_BYTES), index=self._index)
        except (WireClosed, WireTimeout) as error:
            raise self._start_failure(launcher, str(error)) from error
        if not answer.ready:
            raise self._start_failure(launcher, answer.message)
        wrong = launcher.differences(guest_answers.findings_of(answer.found, index=self._index))
        if wrong:
            raise HostBroken(f"the desktop is not cut off from this host as it should be: {'; '.join(wrong)}")
        lifecycle.set_session_nice(self._process.pid, 0)

    def _take_over(self, kept: Kept, folder: Path) -> None:
        self._pidfd, self._life_line, wire, reader = kept.descriptors
        self._process = _ProcessOfAnother(kept)
        self._wire = Wire(socket.socket(fileno=wire))
        self._log = GuestLog(folder, self._index, reader=reader)
        self._log.begin()
        # The guest may still be busy with a request of the dead, whose answer nobody wants.
        number = secrets.randbelow(2**62) + 1
        with self._lock:
            answer = self._exchange({"request": "ping", "echo": number}, _TAKE_OVER_LIMIT_S, echo=number)
        if answer.error:
            raise DesktopBroken(f"desktop {self._index}: {answer.message}")

    def _start_failure(self, launcher: GuestLauncher, reason: str) -> DesktopBroken | HostBroken:
        tail = self._log.tail(wait_s=_LOG_LIMIT_S)[-3000:]
        explained = launcher.explain(tail)
        if explained:
            return HostBroken(explained)
        last = on_one_line(" | ".join(tail.strip().splitlines()[-4:]))
        return DesktopBroken(f"desktop {self._index} did not start: {reason}; {last} (log: {self._log.path})")

    # --- requests

    def _exchange(self, request: dict[str, Any], limit_s: float, *, echo: int = 0) -> GuestAnswer:
        """The next answer that has ``echo``."""
        if self._closed or self._wire is None:
            raise DesktopBroken(f"desktop {self._index} is closed")
        max_bytes = MAX_FRAME_BYTES if request["request"] == "get" else MAX_OBSERVATION_BYTES
        try:
            deadline = time.monotonic() + limit_s
            self._wire.send({**request, "limit_s": max(0.1, limit_s - _GRACE_S)}, timeout_s=limit_s)
            while True:
                answer = guest_answers.decode(self._receive(deadline - time.monotonic(), max_bytes), index=self._index)
                if answer.echo == echo and not answer.site:
                    return answer
                if time.monotonic() > deadline:
                    raise WireTimeout("it sent everything else")
                if answer.site:
                    found = None if self.sites is None else self.sites(answer.site)
                    self._wire.send({"found": None if found is None else asdict(found)}, timeout_s=limit_s)
        except (WireClosed, WireTimeout) as error:
            # After a time-out the late answer would be taken for the next request's, so the connection is useless.
            self._wire.close()
            raise DesktopBroken(f"desktop {self._index} did not answer {request['request']}: {error}") from error

    def _receive(self, limit_s: float, max_bytes: int) -> bytes:
        assert self._wire is not None
        return self._wire.receive_frame(timeout_s=limit_s, max_bytes=max_bytes)


class _ProcessOfAnother:
    """A process that is no child of this one, with the part of `subprocess.Popen` that is used here."""

    def __init__(self, kept: Kept) -> None:
        self.pid = kept.pid
        self._kept = kept

    def poll(self) -> int | None:
        """None while it runs; nobody but its parent learns its exit code."""
        return None if self._kept.is_alive else 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        if not self._kept.ends_within(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return 0

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._kept.descriptors[0], signal.SIGKILL)
