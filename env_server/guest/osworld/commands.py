"""Commands that OSWorld's set-up steps and judges run inside the container, as the agent's user.

`programs` knows which commands are for an application of the desktop; those are not run here.
"""

from __future__ import annotations

import errno
import os
import re
import selectors
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import processes
from ..faults import TaskError
from ..files.folder import make_way, read_regular, remove

_MAX_OUTPUT = 1_000_000
"""Bytes kept of a command's output; a file that an agent has made may be without end."""
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM})
"""Errors of a command that could be run and cannot be started now."""
_OWN_FILES_ENV = {"PYTHONSAFEPATH": "1", "GIT_CONFIG_GLOBAL": os.devnull}
"""Beside a program of the judge's in the home lie the agent's files, which must not be taken for its modules; git starts programs
that its settings name."""
_POLL_S = 0.05
_CONNECT_LIMIT_S = 1.0
_PYTHON = re.compile(r"(?:/usr/bin/)?python3(?:\.\d+)?")
_PYTHON_TEXT = re.compile(r"\b(python3(?:\.\d+)?) +-c\b")


class Commands:
    """The commands of one desktop."""

    def __init__(self, *, env: Mapping[str, str], folder: Path, log: Path, close_apps: Callable[[float], bool]) -> None:
        """``folder``: where commands run; ``log``: output of launched ones. ``close_apps(deadline)`` closes all applications on
        demand and all that they started, and returns True when programs of the agent's own were among it."""
        # Modules that an agent has put among its own are no part of a judge's Python.
        self._env = {**env, "PYTHONNOUSERSITE": "1"}
        self._folder, self._log, self._close_apps = folder, log, close_apps
        self._launched: list[subprocess.Popen[bytes]] = []
        self._servers: dict[int, processes.Program] = {}
        """Servers of the task, by port. They count as programs of the desktop: no judgement ends them."""
        self._has_run = False
        """Has any command been run since the last reset?"""
        self._has_ended_programs = False
        """Have programs of the agent's been ended for a judge, so that the next reset does not find them any more?"""
        self.brings_own_files = False
        """Has the judge files of its own to bring and to run?"""
        self._own_files: dict[Path, tuple[bytes, int]] = {}
        """Files that the judge has brought, with their contents and modes after its last command that named any of them."""

    def end(self) -> tuple[bool, bool]:
        """End the programs that `launch` started, with all their children. Returns whether any command was run since the last
        time, and whether programs of the agent's were ended for a judge."""
        self._end_launched()
        for server in self._servers.values():
            server.kill()
        self._servers.clear()
        found = self._has_run, self._has_ended_programs
        self._has_run = self._has_ended_programs = self.brings_own_files = False
        self._own_files.clear()
        return found

    def end_programs(self, deadline: float) -> None:
        """End all that a task or its agent has started."""
        self._end_launched()
        self._has_ended_programs |= self._close_apps(deadline)

    def bring_own_files(self) -> None:
        """The judge is about to bring files and to run them: end the agent's programs; commands take nothing from its home."""
        self.brings_own_files = True
        self._end_strays()

    def note_own_file(self, place: Path, data: bytes) -> None:
        """The judge has brought this file. An empty one only makes room for what an application of the desktop will write."""
        if data:
            self._own_files[place] = data, stat.S_IMODE(place.stat().st_mode)

    def run(self, command: str | Sequence[str], timeout_s: float, files: Mapping[Path, bytes] | None = None) -> dict[str, Any]:
        """Run to the end, at most ``timeout_s``. Returns ``returncode`` (127: cannot be started), ``stdout`` and ``stderr``.

        ``files`` are the judge's and exist only while the command runs, and all applications stand still with it.

        An application of the desktop may run what an agent has written, such as extensions, and could change a file of the
        judge's just before it is used. So applications stand still meanwhile, and the file is what it was.
        """
        argv = _argv_of(command)
        self._has_run = True
        servers = [server.pid for server in self._servers.values() if server.running]
        if files:
            return self._run_with_files(argv, timeout_s, files, servers)
        if not any(place.name in word for place in self._own_files for word in argv) or _needs_the_office(argv):
            return self._run(argv, timeout_s)
        with processes.held_still(awake=servers):
            for place, (data, mode) in self._own_files.items():
                make_way(place, root=self._folder)
                place.write_bytes(data)
                place.chmod(mode)
            answer = self._run(argv, timeout_s)
            for place in list(self._own_files):
                data_now = read_regular(place)
                if data_now is None:  # the judge's command has taken it away
                    del self._own_files[place]
                else:
                    self._own_files[place] = data_now, stat.S_IMODE(place.stat().st_mode)
        return answer

    def _run_with_files(
        self, argv: list[str], timeout_s: float, files: Mapping[Path, bytes], servers: Sequence[int]
    ) -> dict[str, Any]:
        with processes.held_still(awake=servers):
            try:
                for place, data in files.items():
                    make_way(place, root=self._folder)
                    place.write_bytes(data)
                return self._run(argv, timeout_s)
            finally:
                for place in files:
                    remove(place)

    def _run(self, argv: list[str], timeout_s: float) -> dict[str, Any]:
        if processes.are_used_up():
            self._end_strays()
        env = {**self._env, **_OWN_FILES_ENV} if self.brings_own_files else self._env
        try:
            process = subprocess.Popen(
                _without_modules_of_the_home(argv),
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=processes.begin_command,  # noqa: PLW1509  (as in `processes.Program`)
            )
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            return {"returncode": 127, "stdout": "", "stderr": f"{argv[0]}: {error.strerror}"}
        (out, err), code = _outcome(process, timeout_s)
        return {"returncode": code, "stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}

    def launch(self, command: str | Sequence[str]) -> None:
        """Start it and do not wait; `end` ends it."""
        argv = _argv_of(command)
        self._has_run = True
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.begin_command,  # noqa: PLW1509  (as in `processes.Program`)
            )
        self._launched.append(process)

    def serve(self, command: str | Sequence[str], port: int, deadline: float) -> bool:
        """Start a server of the task on ``port`` of 127.0.0.1 and wait until it accepts connections; `end` ends it.

        Returns whether the server runs. One that was started for ``port`` since the last reset is not started again: False
        means that it has ended since, and that another program may answer there. Raises `TaskError`.
        """
        if port in self._servers:
            return self._servers[port].running
        argv = _argv_of(command)
        self._has_run = True
        if _accepts(port):
            raise TaskError(f"port {port} is in use")
        server = processes.Program(f"server-{port}", argv, env=self._env, log_folder=self._log.parent, folder=self._folder)
        server.start()
        self._servers[port] = server
        while not _accepts(port):
            if not server.running:
                raise TaskError(f"the server on port {port} has ended{server.how_it_ended(wait_s=0.0)}")
            if time.monotonic() > deadline:
                raise TaskError(f"the server does not listen on port {port} of 127.0.0.1")
            time.sleep(_POLL_S)
        return True

    def _end_strays(self) -> None:
        self._has_ended_programs |= processes.end_strays()

    def _end_launched(self) -> None:
        for process in self._launched:
            _end(process)
        self._launched.clear()


def _argv_of(command: str | Sequence[str]) -> list[str]:
    """Raises `TaskError` for a command without a word."""
    argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise TaskError("an empty command")
    return argv


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


def _needs_the_office(argv: Sequence[str]) -> bool:
    """Does the command have the office that runs convert a file?"""
    return any("--convert-to" in word for word in argv)


def _without_modules_of_the_home(argv: Sequence[str]) -> list[str]:
    """A text for Python would take modules from the current folder, which is the home."""
    program, *rest = argv
    if rest[:1] == ["-c"] and _PYTHON.fullmatch(program):
        return [program, "-P", *rest]
    return [program, *(_PYTHON_TEXT.sub(r"\1 -P -c", word) for word in rest)]


def _outcome(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[list[bytes], int]:
    """Its output and its errors, as far as they are kept, and its exit code; 124 where it does not end in time, or its children
    do not."""
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + timeout_s
    kept = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector, process.stdout as out, process.stderr as err:
        for number, stream in enumerate((out, err)):
            selector.register(stream, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(key.fd, 1 << 16)
                kept[key.data] += chunk[: _MAX_OUTPUT - len(kept[key.data])]
                if not chunk:
                    selector.unregister(key.fileobj)
            if time.monotonic() > deadline:
                break
        has_ended = not selector.get_map()
    if has_ended:
        with suppress(subprocess.TimeoutExpired):
            return [bytes(text) for text in kept], process.wait(timeout=max(0.0, deadline - time.monotonic()))
    _end(process)
    return [bytes(text) for text in kept], 124


def _end(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
