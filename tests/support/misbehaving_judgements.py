"""A fork server whose evaluators misbehave on purpose: the family's name is the way. Run by `test_judging`."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from computerrl.common.config import TasksConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Evaluation, TaskRef
from computerrl.env_server.driver import Getter
from computerrl.env_server.judging import fork_server

GOOD = Evaluation(reward=1.0, success=True, detail="fine")


def _honest(get: Getter) -> Evaluation:
    found = get("file_text", path="a.txt")
    return Evaluation(reward=float(found == "right"), success=found == "right", detail=f"found {found!r}")


def _loop(get: Getter) -> Evaluation:
    while True:
        pass


def _sleep(get: Getter) -> Evaluation:
    time.sleep(3600)
    return GOOD


def _fill_memory(get: Getter) -> Evaluation:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def _fill_memory_at_once(get: Getter) -> Evaluation:
    return Evaluation(reward=1.0, success=True, detail=str(len(b"x" * (1 << 40))))


def _recurse(get: Getter) -> Evaluation:
    return _recurse(get)


def _write_much(get: Getter) -> Evaluation:
    with open(Path(tempfile.gettempdir()) / "big", "wb") as file:
        file.writelines(bytes(1 << 20) for _ in range(1 << 20))
    return GOOD


def _open_many(get: Getter) -> Evaluation:
    files = [open(os.devnull, "rb") for _ in range(10_000)]  # noqa: SIM115
    return Evaluation(reward=1.0, success=True, detail=str(len(files)))


def _crash(get: Getter) -> Evaluation:
    ctypes.string_at(0)
    return GOOD


def _abort(get: Getter) -> Evaluation:
    os.abort()


def _trap(get: Getter) -> Evaluation:
    signal.raise_signal(signal.SIGTRAP)
    return GOOD


def _no_room(get: Getter) -> Evaluation:
    raise OSError(errno.ENOSPC, "No space left on device")


def _leave_child(get: Getter) -> Evaluation:
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
        os._exit(0)
    return Evaluation(reward=1.0, success=True, detail=str(pid))


def _leave_child_and_exit(get: Getter) -> Evaluation:
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(3)


def _talk_much(get: Getter) -> Evaluation:
    raise ValueError("x" * 10_000_000)


def _fail_with_much(get: Getter) -> Evaluation:
    raise TaskFailed("x" * 1_000_000)


def _close_all(get: Getter) -> Evaluation:
    os.closerange(0, 100)
    return GOOD


def _half_an_answer(get: Getter) -> Evaluation:
    _connection().sendall(b"\0\0\1\0{")
    os._exit(0)


def _two_answers(get: Getter) -> Evaluation:
    for reward in (b"0.0", b"1.0"):
        body = b'{"verdict":{"reward":' + reward + b',"success":false,"detail":"first"}}'
        _connection().sendall(len(body).to_bytes(4, "big") + body)
    return GOOD


def _connection() -> socket.socket:
    """The judgement's own connection: the one socket among its descriptors."""
    number = next(number for number in map(int, os.listdir("/proc/self/fd")) if _is_socket(number))
    connection = socket.socket(fileno=os.dup(number))
    connection.setblocking(True)
    return connection


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False  # the descriptor that listed them


def _exit(get: Getter) -> Evaluation:
    os._exit(3)


def _stumble(get: Getter) -> Evaluation:
    raise KeyError("no such part")


def _fail(get: Getter) -> Evaluation:
    raise TaskFailed("the task's own file is broken")


def _lie(get: Getter) -> Evaluation:
    wrong: Any = "a reward"
    return wrong


def _not_a_number(get: Getter) -> Evaluation:
    return Evaluation(reward=float("nan"), success=True, detail="")


def _chatter(get: Getter) -> Evaluation:
    for _ in range(100):
        os.write(1, b"x" * (1 << 20))
        os.write(2, b"x" * (1 << 20))
    return GOOD


def _leave_files(get: Getter) -> Evaluation:
    Path("left").mkdir()
    (Path("left") / "file").write_text("x")
    return Evaluation(reward=1.0, success=True, detail=os.getcwd())


def _run_program(get: Getter) -> Evaluation:
    subprocess.run(["/bin/true"], check=True)
    return GOOD


def _connect(get: Getter) -> Evaluation:
    with socket.socket():
        return GOOD


def _kill(get: Getter) -> Evaluation:
    os.kill(os.getppid(), 9)
    return GOOD


def _look_around(get: Getter) -> Evaluation:
    found = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    return Evaluation(reward=1.0, success=True, detail=f"{len(found)} descriptors")


WAYS: dict[str, Callable[[Getter], Evaluation]] = {
    name.removeprefix("_").replace("_", "-"): way
    for name, way in list(globals().items())
    if name.startswith("_") and callable(way) and getattr(way, "__module__", "") == __name__
}


def evaluators(tasks: TasksConfig) -> Callable[[TaskRef], Callable[[Getter], Evaluation]]:
    """A fork server's evaluators, by the name of the way."""
    return lambda task: WAYS[task.family]


if __name__ == "__main__":
    fork_server.serve(evaluators)
