"""Several commands that live and die together: a learner's parts on hosts that only ssh connects (srun does this by itself).

    python -m computerrl.launch.cluster.together 3 ssh a X 3 ssh b X        each command after its number of words

Each gets a pipe for its standard input, which closes when this one's does. When one ends, so do the others; the exit code is that
of the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

LOOK_S = 0.2
END_S = 10.0
"""The others get this long, then they are killed."""


def split(words: Sequence[str]) -> Iterator[list[str]]:
    """The commands in ``words``."""
    rest = list(words)
    while rest:
        count = int(rest.pop(0))
        yield rest[:count]
        rest = rest[count:]


def run(commands: Sequence[Sequence[str]]) -> int:
    """Until one of them ends; the first exit code."""
    running = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    threading.Thread(target=_forward_eof, args=(running,), name="eof", daemon=True).start()
    try:
        while all(process.poll() is None for process in running):
            time.sleep(LOOK_S)
        code = next(process.returncode for process in running if process.poll() is not None)
    finally:
        _end(running)
    return code if code >= 0 else 128 - code


def _forward_eof(running: Sequence[subprocess.Popen[bytes]]) -> None:
    # Not through a buffer, whose lock the interpreter could not take at its end.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _close_inputs(running)


def _close_inputs(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.stdin is not None:
            process.stdin.close()


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    _close_inputs(running)
    deadline = time.monotonic() + END_S
    for process in running:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(run(list(split(sys.argv[1:]))))
