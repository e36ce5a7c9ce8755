"""The process that judgements are forked from: it has imported every parser and does nothing else.

The argument holds the tasks' configuration, the limits and a folder. Standard input is the env_server's connection: a packet is
a task whose judgement will be asked for, or a descriptor, one end of a judgement's own connection, on which the child converses
with `env_server.judging.judge`. A connection that the env_server closes ends its child; the end of standard input ends
everything. Nothing that an agent made is read here, but in children. No thread runs here: a fork copies only one.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from computerrl.common.config import TasksConfig
from computerrl.common.errors import EnvError, TaskFailed
from computerrl.common.messages import Evaluation, TaskRef
from computerrl.env_server.driver import Getter
from computerrl.env_server.guest import confinement
from computerrl.env_server.guest.wire import Wire, WireClosed, WireTimeout
from computerrl.env_server.judging.judge import MAX_MESSAGE_BYTES, Limits, Report, env_error
from computerrl.env_server.tasks import families_of, task_instance

_PARSERS = (
    "openpyxl",
    "openpyxl.packaging.extended",
    "computerrl.env_server.tasks.reading.workbooks",
    "docx",
    "pptx",
    "lxml.etree",
    "PIL.Image",
    "encodings.cp437",
)
"""Modules that are imported only when a file is judged; the last one reads names in archives."""
_FACT_LIMIT_S = 3600.0
"""The desktop's answers have their own deadlines; the env_server closes the connection when it gives up."""
_MAX_TEXT_CHARS, _MAX_TRACE_CHARS = 300, 4000
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
"""How parsers in C end at a file that they cannot cope with, or without memory; PDFium's own checks end it with SIGTRAP."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Why files cannot be written on this host. No file of an agent's brings that about: a judgement writes a copy of each."""


Evaluator = Callable[[Getter], Evaluation]
_Evaluate = Callable[[TaskRef, Getter], Evaluation]
_MAX_PREPARED = 256
"""Evaluators that are kept; desktops of one host are fewer."""
_MAX_PACKET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    connection: socket.socket
    """This process' copy: it reports how the child ended, and shows when the env_server has closed its end."""
    ended: int
    """Reading end of a pipe whose other end only the child has open."""
    folder: Path


class ForkServer:
    """The children, and what is known of each. ``evaluator_of`` makes the evaluators that run in them."""

    def __init__(
        self, control: socket.socket, evaluator_of: Callable[[TaskRef], Evaluator], *, limits: Limits, folder: Path
    ) -> None:
        self._control = control
        self._evaluator_of = evaluator_of
        self._prepared: dict[TaskRef, Evaluator] = {}
        self._limits = limits
        self._folder = folder
        self._children: list[_Child] = []

    def run(self) -> None:
        """Fork and reap until the env_server closes the connection."""
        try:
            while self._turn():
                pass
        finally:
            for child in list(self._children):
                self._end(child)

    def _turn(self) -> bool:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        for child in self._children:
            poller.register(child.ended, 0)
            # What arrives is the child's to read: only the other side's end is of interest.
            poller.register(child.connection, select.POLLRDHUP)
        ready = {descriptor for descriptor, _ in poller.poll()}
        for child in list(self._children):
            if child.ended in ready:
                self._report(child)
            elif child.connection.fileno() in ready:
                self._end(child)
        return self._control.fileno() not in ready or self._take()

    def _take(self) -> bool:
        """Take a packet; False at the end."""
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_PACKET_BYTES, 1)
        for descriptor in descriptors:
            self._fork(socket.socket(fileno=descriptor))
        if packet and not descriptors:
            self._prepare(msgspec.json.decode(packet, type=TaskRef))
        return bool(packet)

    def _prepare(self, task: TaskRef) -> None:
        self._prepared.pop(task, None)
        while len(self._prepared) >= _MAX_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        # A task that cannot be made is refused again, and then named, in its judgement.
        with suppress(EnvError):
            self._prepared[task] = self._evaluator_of(task)

    def _fork(self, connection: socket.socket) -> None:
        with ExitStack() as undo:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)  # hosts clear old folders of temporary files away
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                undo.callback(shutil.rmtree, folder)
                ended, alive = os.pipe()
                undo.callback(os.close, ended)
                undo.callback(os.close, alive)
                pid = os.fork()
            except OSError as error:
                _tell(Wire(connection), Report(ended=f"it could not be started: {error}"))
                connection.close()
                return
            undo.pop_all()
        if pid == 0:
            _run_child(connection, self._evaluate, keep=alive, folder=folder, limits=self._limits)
        os.close(alive)
        self._children.append(_Child(pid, connection, ended, folder))

    def _evaluate(self, task: TaskRef, get: Getter) -> Evaluation:
        return (self._prepared.get(task) or self._evaluator_of(task))(get)

    def _end(self, child: _Child) -> None:
        """End a child that nobody waits for."""
        os.kill(child.pid, signal.SIGKILL)
        self._reap(child)
        child.connection.close()

    def _report(self, child: _Child) -> None:
        """Clear away a child that has ended, and say how it did unless it gave its outcome."""
        status = self._reap(child)
        number = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
        if number == signal.SIGXCPU:
            report = Report(passed=f"{self._limits.cpu_s} s of processor time")
        elif number in _CRASHES:
            report = Report(passed=f"what parsers can read: they ended with {number.name}")
        else:
            report = Report(ended=f"its process ended with status {status} and no verdict")
        if status:
            _tell(Wire(child.connection), report)
        child.connection.close()

    def _reap(self, child: _Child) -> int:
        self._children.remove(child)
        _, status = os.waitpid(child.pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it started, which would hold its connection open
        os.close(child.ended)
        shutil.rmtree(child.folder, ignore_errors=True)
        return status


def _tell(wire: Wire, report: Report) -> None:
    """Send ``report`` to an env_server that may be gone already."""
    try:
        wire.send(msgspec.to_builtins(report))
    except (WireClosed, WireTimeout) as error:
        print(f"the env_server takes no {report}: {error}", file=sys.stderr)


def _run_child(connection: socket.socket, evaluate: _Evaluate, *, keep: int, folder: Path, limits: Limits) -> NoReturn:
    """Judge in this process, a fresh child, and end it."""
    code = 1
    try:
        _confine(connection.fileno(), keep, folder, limits)
        wire = Wire(connection)
        _tell(wire, _judged(wire, evaluate, limits))
        code = 0
    except BaseException:  # noqa: BLE001
        # Process boundary: a child never returns into the fork server's loop.
        traceback.print_exc()
    finally:
        os._exit(code)


def _confine(connection: int, keep: int, folder: Path, limits: Limits) -> None:
    """Close all that belongs to others, and set the limits."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    # Standard error stays until everything is set.
    first = 3
    for kept in sorted((connection, keep)):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.setsid()
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # the kernel ends a judgement before a desktop or a learner
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    address_space = num_pages * resource.getpagesize() + (limits.memory_mb << 20)
    for which, soft, hard in (
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_AS, address_space, address_space),
        (resource.RLIMIT_FSIZE, limits.file_mb << 20, limits.file_mb << 20),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(which, (soft, hard))
    confinement.confine(also=confinement.PROGRAMS_AND_NETWORK)
    # Libraries warn on standard error without bound; what fails travels as a message.
    os.dup2(0, 2)


def _judged(wire: Wire, evaluate: _Evaluate, limits: Limits) -> Report:
    """The outcome of one judgement."""
    request = wire.receive(timeout_s=_FACT_LIMIT_S)
    _tell(wire, Report(begun=True))

    def get(kind: str, **args: Any) -> Any:
        wire.send(msgspec.to_builtins(Report(get=kind, args=args)))
        answer = wire.receive(timeout_s=_FACT_LIMIT_S, max_bytes=MAX_MESSAGE_BYTES)
        if "error" in answer:
            raise env_error(answer["error"], answer["text"])
        return answer["value"]

    try:
        return Report(verdict=evaluate(msgspec.convert(request["task"], TaskRef), get))
    except EnvError as error:
        return Report(error=error.code, text=str(error)[:_MAX_TRACE_CHARS])
    except MemoryError:
        return Report(passed=f"{limits.memory_mb} MiB of memory")
    except Exception as error:  # noqa: BLE001
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return Report(error=TaskFailed.code, text=f"it cannot be judged on this host: {error}")
        # Process boundary: an evaluator stumbled over what an agent left.
        # The error's text may be as long as an agent's file, the places are not.
        text, places = f"{type(error).__name__}: {error}", "".join(traceback.format_tb(error.__traceback__))
        return Report(stumbled=True, text=text[:_MAX_TEXT_CHARS], trace=places[-_MAX_TRACE_CHARS:])


def serve(evaluator_of: Callable[[TasksConfig], Callable[[TaskRef], Evaluator]]) -> None:
    """Be the fork server until standard input ends. ``evaluator_of`` imports what judgements need."""
    # Ctrl-C in a terminal is the env_server's to handle; whoever ends all processes of a run ends this one in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        makes = evaluator_of(TasksConfig.model_validate(settings["tasks"]))
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page
        with socket.socket(fileno=os.dup(0)) as control:
            ForkServer(control, makes, limits=Limits(**settings["limits"]), folder=folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _evaluators(tasks: TasksConfig) -> Callable[[TaskRef], Evaluator]:
    families_of(tasks)
    for name in _PARSERS:
        importlib.import_module(name)
    importlib.import_module("PIL.Image").init()  # its formats
    return lambda task: task_instance(task, tasks=tasks).evaluate


if __name__ == "__main__":
    serve(_evaluators)
