"""A fork server whose evaluators misbehave on purpose: the family's name is the way. Run by `test_judging`."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.config import TasksConfig
from common.errors import TaskFailed
from common.messages import Evaluation, TaskRef
from env_server import fork_server
from env_server.driver import Getter

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
