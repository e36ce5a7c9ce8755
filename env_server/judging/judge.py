"""Judgements of finished episodes, each in a process of its own with limits on time, memory, files and system calls.

    worker thread ──socket pair──► judgement (child of the fork server): builds the instance, runs its evaluator
        ▲   └── facts of the desktop, one request at a time

An evaluator reads files that an agent made, with parsers of foreign formats. A judgement that passes a limit is ended whole and
scores 0 with the limit's name: neither the desktop nor the other judgements notice. The fork server
(`env_server.judging.fork_server`) has imported all parsers, so a judgement costs a fork.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from computerrl import SOURCE_ROOT
from computerrl.common import log
from computerrl.common.config import TasksConfig
from computerrl.common.errors import DesktopBroken, EnvError, HostBroken, TaskFailed, error_classes
from computerrl.common.messages import Evaluation, FinalAction, TaskRef
from computerrl.env_server.driver import Getter, GetterKind, TaskInstance
from computerrl.env_server.guest.wire import MAX_FRAME_BYTES, Wire, WireClosed, WireTimeout

MAX_MESSAGE_BYTES = 2 * MAX_FRAME_BYTES
"""A fact of the desktop fills at most a frame of the guest's, and is wrapped once more here."""
START_LIMIT_S = 120.0
"""Time until a judgement begins in seconds. One that follows the end of a fork server waits for the imports of the next: some
seconds of a processor, and many times that on a host whose desktops keep all processors busy."""
WALL_LIMIT_S = 60.0
"""The judgement's own time in seconds. Six times its processor time: on a busy host an honest one waits for its turn."""
_NUM_TRIES = 3
"""A judgement that something outside this system ended is begun once more, and again where the fork server was just ending."""
_ENDING_S = 1.0
"""Time that a fork server which was killed gets to end, in seconds."""
LONGEST_S = START_LIMIT_S + WALL_LIMIT_S + _NUM_TRIES * _ENDING_S
"""A judgement with all of its tries takes at most this long in seconds, without the desktop's answers."""


def evaluator_getter(get: Getter, instance: TaskInstance, *, final_action: FinalAction) -> Getter:
    """``get``, a driver's getter, which also tells evaluators the instance's outputs and the episode's final action."""
    of_the_episode = {"final_action": final_action, "outputs": instance.outputs}

    def read(kind: GetterKind, **args: Any) -> Any:
        if kind == "pause":
            return time.sleep(args["seconds"])
        return of_the_episode[kind] if kind in of_the_episode else get(kind, **args)

    return read


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one judgement; honest ones take milliseconds and a few MiB."""

    wall_s: float = WALL_LIMIT_S
    """The judgement's own time in seconds, `WALL_LIMIT_S`; the desktop's answers have deadlines of their own."""
    cpu_s: int = 10
    """Processor time in seconds."""
    memory_mb: int = 512
    """Address space in MiB above that of the fork server."""
    file_mb: int = 256
    """Size in MiB of each file written."""
    open_files: int = 128


_MAX_DETAIL_CHARS = 400


class Report(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a judgement's process: a request, or the outcome, after which nothing follows."""

    begun: bool = False
    """True in the first message."""
    get: str = ""
    """Kind of the fact of the desktop that is requested, see `env_server.driver.Getter`; ``args`` are its arguments."""
    args: dict[str, Any] = {}
    verdict: Evaluation | None = None
    passed: str = ""
    """Limit that the judgement passed."""
    error: str = ""
    """Code of an `EnvError`; ``text`` is its text."""
    stumbled: bool = False
    """True when the evaluator raised something else: ``text`` names it, ``trace`` shows where."""
    text: str = ""
    trace: str = ""
    ended: str = ""
    """How the process ended, or why it was not started, of the fork server, when no outcome came before."""


_REPORT_DECODER = msgspec.json.Decoder(Report)


class Judge(Protocol):
    """Runs evaluators."""

    def start(self) -> None:
        """Start what judgements need, without waiting: desktops leave it little of the processors later. Raises `EnvError`."""

    def prepare(self, task: TaskRef) -> None:
        """Make ready for a judgement of ``task``, without waiting; judging what was not prepared takes longer."""

    def judge(self, task: TaskRef, instance: TaskInstance, get: Getter) -> Evaluation:
        """The verdict of ``instance``'s evaluator; ``task`` names the instance. Raises `EnvError`."""

    def close(self) -> None:
        """End all judgements; may be called twice."""


def make_judge(driver: str, tasks: TasksConfig) -> Judge:
    """The judge for desktops of this kind: a scripted desktop holds plain values only, and no file of a foreign format."""
    return JudgeInPlace() if driver == "scripted" else ForkedJudge(tasks)


class JudgeInPlace:
    """Runs evaluators in the calling thread; see `Judge`."""

    def start(self) -> None:
        """See `Judge`."""

    def prepare(self, task: TaskRef) -> None:
        """See `Judge`."""

    def judge(self, task: TaskRef, instance: TaskInstance, get: Getter) -> Evaluation:
        """See `Judge`."""
        return instance.evaluate(get)

    def close(self) -> None:
        """See `Judge`."""


_FOLDER_PREFIX = "computerrl-judgements-"
_LEFT_AFTER_S = 60.0
FORK_SERVER = (sys.executable, "-m", "computerrl.env_server.judging.fork_server")
"""Command of the fork server, without its argument."""


class ForkedJudge:
    """Runs each evaluator in a child of one fork server; see `Judge`. From any number of threads at once."""

    def __init__(self, tasks: TasksConfig, *, limits: Limits | None = None, command: Sequence[str] = FORK_SERVER) -> None:
        self._limits = limits or Limits()
        self._settings = {"tasks": tasks.model_dump(mode="json"), "limits": asdict(self._limits)}
        self._command = command
        self._folder = Path()
        """Where judgements keep files. The fork server removes it at its end, this side if that was killed, and the next judge
        of this user if both were."""
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def start(self) -> None:
        """See `Judge`."""
        with self._lock:
            self._living_control()

    def prepare(self, task: TaskRef) -> None:
        """See `Judge`."""
        with self._lock, suppress(ConnectionError):
            control = self._living_control()
            poller = select.poll()
            poller.register(control, select.POLLOUT)
            # A fork server that is not up to date makes the instance when it is needed.
            if poller.poll(0):
                control.send(msgspec.json.encode(task))

    def judge(self, task: TaskRef, instance: TaskInstance, get: Getter) -> Evaluation:
        """See `Judge`."""
        starting, judging = _TimeLeft(START_LIMIT_S), _TimeLeft(self._limits.wall_s)
        reason = ""
        for _ in range(_NUM_TRIES):
            judgement = self._begin()
            try:
                judgement.send({"task": msgspec.to_builtins(task)})
                _await_begin(judgement, task, starting)
                return _converse(judgement, task, get, judging, limit_s=self._limits.wall_s)
            except (_Ended, WireClosed) as error:
                reason = str(error)
                log.get_logger().warning("judgement.ended", task=task.task_id, reason=reason)
                if isinstance(error, WireClosed):
                    self._await_end_of_server()
            finally:
                # The fork server ends the child when this end is closed.
                judgement.close()
        raise TaskFailed(f"{task.task_id} cannot be judged: its judgement was ended from outside, {_NUM_TRIES} times: {reason}")

    def close(self) -> None:
        """See `Judge`."""
        with self._lock:
            self._closed = True
            self._drop()

    def _await_end_of_server(self) -> None:
        """On a busy host a fork server that was killed lives on until its turn, and takes judgements that it never begins."""
        server = self._server
        if server is not None:
            with suppress(subprocess.TimeoutExpired):
                server.wait(timeout=_ENDING_S)

    def _begin(self) -> Wire:
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            for again in (True, False):
                control = self._living_control()
                try:
                    socket.send_fds(control, [b"F"], [theirs.fileno()])
                    return Wire(ours)
                except OSError as error:
                    self._drop()
                    if not again:
                        ours.close()
                        raise HostBroken(f"judgements cannot be started on this host: {error}") from error
        raise AssertionError("unreachable")

    def _living_control(self) -> socket.socket:
        """The connection to a fork server that lives, started when there is none."""
        if self._closed:
            raise DesktopBroken("the env_server is stopping")
        if self._control is not None and self._server is not None and self._server.poll() is None:
            return self._control
        self._drop()
        try:
            self._folder, lock = _new_folder()
        except OSError as error:
            raise HostBroken(f"judgements have no place for files on this host: {error}") from error
        command = [*self._command, json.dumps({**self._settings, "folder": str(self._folder)})]
        # Each packet arrives whole: a task to prepare, or a descriptor.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                with _held(signal.SIGTERM):
                    self._server = subprocess.Popen(
                        command,
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,
                        env=_environment(),
                        pass_fds=[lock],  # the folder is locked as long as either lives
                    )
            except OSError as error:
                ours.close()
                self._folder.rmdir()
                raise HostBroken(f"cannot start {self._command[0]!r}: {error}") from error
            finally:
                os.close(lock)
        ours.settimeout(START_LIMIT_S)
        self._control = ours
        return ours

    def _drop(self) -> None:
        """Close the connection, at which the fork server ends its children and itself."""
        control, self._control = self._control, None
        server, self._server = self._server, None
        if control is not None:
            control.close()
        if server is not None:
            try:
                server.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


def _new_folder() -> tuple[Path, int]:
    """A folder and the descriptor that keeps it locked, once those that nobody locks any more are removed."""
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks: what is left on it stays
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Ages by the file system's own clock: this machine's may be set, or differ from a file server's.
    made_before = os.fstat(lock).st_mtime - _LEFT_AFTER_S
    for left in folder.parent.glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # in use, gone, or another user's
            _remove_left(left, made_before)
    return folder, lock


def _remove_left(folder: Path, made_before: float) -> None:
    """Remove this user's ``folder`` whose fork server and env_server were killed: it may hold an agent's files. Raises `OSError`
    where another process has it locked, or locks are not known."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        # A judge that starts now has made its folder, and not locked it yet.
        if found.st_uid == os.geteuid() and found.st_mtime < made_before:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


@contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    """A process that is started within begins with this signal held back, and takes it once it can clear its folder away."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """The fork server finds this very code; numeric libraries start no threads, which a fork would not copy."""
    # The current folder, since it may have families that the configuration names as `module:NAME`.
    path = os.pathsep.join(part for part in (str(SOURCE_ROOT), os.environ.get("PYTHONPATH", ""), os.getcwd()) if part)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Ended(Exception):
    """A judgement's process ended without a verdict, and not by a limit."""


class _TimeLeft:
    """Receives a judgement's messages within a span of time, in which the desktop's answers do not count."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s

    def receive(self, judgement: Wire) -> Report:
        began = time.monotonic()
        frame = judgement.receive_frame(timeout_s=self._left_s)
        self._left_s -= time.monotonic() - began
        return _REPORT_DECODER.decode(frame)


def _await_begin(judgement: Wire, task: TaskRef, left: _TimeLeft) -> None:
    try:
        report = left.receive(judgement)
    except WireTimeout as error:
        raise TaskFailed(f"{task.task_id} cannot be judged: no judgement began within {START_LIMIT_S:g} s") from error
    if report.ended:
        raise _Ended(report.ended)


def _converse(judgement: Wire, task: TaskRef, get: Getter, left: _TimeLeft, *, limit_s: float) -> Evaluation:
    """Answer the judgement's requests until its outcome."""
    try:
        while True:
            report = left.receive(judgement)
            if not report.get:
                return _outcome(report, task)
            try:
                answer = {"value": get(report.get, **report.args)}
            except EnvError as error:
                answer = {"error": error.code, "text": str(error)}
            judgement.send(answer)
    except WireTimeout:
        return _passed(task, f"{limit_s:g} s")
    except msgspec.MsgspecError as error:
        return _passed(task, f"what a judgement may answer: {error}")


def _outcome(report: Report, task: TaskRef) -> Evaluation:
    if report.verdict is not None:
        return report.verdict
    if report.passed:
        return _passed(task, report.passed)
    if report.ended:
        raise _Ended(report.ended)
    if report.error:
        raise env_error(report.error, report.text)
    log.get_logger().error("judgement.stumbled", task=task.task_id, trace=report.trace)
    return _nothing(f"what the episode left cannot be judged: {report.text}")


def env_error(code: str, text: str) -> EnvError:
    """The error of this code, as it was raised on the other side."""
    kind = error_classes()[code]
    assert issubclass(kind, EnvError)
    return kind(text)


def _passed(task: TaskRef, limit: str) -> Evaluation:
    log.get_logger().warning("judgement.passed_limit", task=task.task_id, limit=limit)
    return _nothing(f"judging what the episode left passes the limit of {limit}")


def _nothing(reason: str) -> Evaluation:
    return Evaluation(reward=0.0, success=False, detail=reason[:_MAX_DETAIL_CHARS])
