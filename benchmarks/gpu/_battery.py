"""Runs the parts of the battery `gpu`: each in a process of its own, whose rows come through a pipe as they are made.

    stage 1   models │ attention │ gradient │ ranks │ loop     at the same time: nothing in them is timed
    stage 2   learner                                          one part at a time from here on
    ...

A part that fails, hangs or dies leaves a failed row, and one that lacks a package or a GPU a row that says so; the others go on.
The whole ends at its time limit: what has not begun by then is not run, and neither is the part that is under way.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from computerrl.benchmarks.gpu._rows import Row, told, unmeasured
from computerrl.benchmarks.gpu._sizes import Sizes
from computerrl.common import log
from computerrl.common.lifecycle import die_with_parent

_SPAWN = multiprocessing.get_context("spawn")
_END_TIMEOUT_S = 2.0
"""Time that the process of a part has to end after its last row; then it is killed. Some of vLLM's take long over it."""

Rows = Callable[[Sizes], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its name on the command line, and the generator that makes its rows."""

    name: str
    rows: Rows
    needs: tuple[str, ...] = ()
    """Packages that it imports and that an installation may lack."""
    num_gpus: int = 1


Stage = tuple[Part, ...]
"""Parts that run at the same time."""


def run_stages(stages: Sequence[Stage], sizes: Sizes, *, limit_s: float, num_gpus: int) -> Iterator[Row]:
    """Rows of all parts as they come. ``num_gpus``: GPUs that there are."""
    deadline = time.monotonic() + limit_s
    for stage in stages:
        able: list[Part] = []
        for part in stage:
            reason = _hindrance(part, num_gpus=num_gpus, is_late=time.monotonic() >= deadline)
            if reason is None:
                able.append(part)
            else:
                yield unmeasured(part.name, "not run", reason)
        yield from _run_stage(able, sizes, deadline=deadline)


def _hindrance(part: Part, *, num_gpus: int, is_late: bool) -> str | None:
    """Why ``part`` cannot run here and now; None: it can."""
    if part.num_gpus > num_gpus:
        return f"it needs {part.num_gpus} GPUs, there {'is' if num_gpus == 1 else 'are'} {num_gpus}"
    missing = [package for package in part.needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return f"the time limit is over; --part {part.name} runs it alone" if is_late else None


@dataclass(frozen=True, slots=True)
class _End:
    """The last message of a part's process."""

    error: str | None


@dataclass(slots=True)
class _Running:
    part: Part
    process: Any
    pipe: Connection
    deadline: float

    def kill(self) -> None:
        """End its process and those that this one has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()  # It had no group of its own yet, or is gone.
        self.process.join()


def _run_stage(parts: Sequence[Part], sizes: Sizes, *, deadline: float) -> Iterator[Row]:
    running: list[_Running] = []
    try:
        running += [_start(part, sizes) for part in parts]
        while running:
            next_s = min(deadline, *(one.deadline for one in running)) - time.monotonic()
            ready = wait([one.pipe for one in running], timeout=max(0.0, next_s))
            for one in list(running):
                if one.pipe in ready:
                    row, has_ended = _take(one)
                else:
                    row, has_ended = _overdue(one, deadline=deadline)
                if row is not None:
                    yield row
                if has_ended:
                    running.remove(one)
    finally:
        for one in running:
            one.kill()


def _start(part: Part, sizes: Sizes) -> _Running:
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_work, args=(theirs, part.rows, replace(sizes, num_gpus=part.num_gpus)))
    process.start()
    theirs.close()
    return _Running(part, process, ours, time.monotonic() + sizes.part_limit_s)


def _take(one: _Running) -> tuple[Row | None, bool]:
    """(the next row of a part, whether that was all)."""
    try:
        message = one.pipe.recv()
    except EOFError:
        one.process.join()
        reason = f"its process ended with code {one.process.exitcode}; its output is above"
        one.kill()
        return unmeasured(one.part.name, "failed", reason), True
    if not isinstance(message, _End):
        return message, False
    one.process.join(_END_TIMEOUT_S)
    # Whatever it has started and not ended would hold the GPU.
    one.kill()
    return (None if message.error is None else unmeasured(one.part.name, "failed", message.error)), True


def _overdue(one: _Running, *, deadline: float) -> tuple[Row | None, bool]:
    now = time.monotonic()
    if now >= one.deadline:
        one.kill()
        return unmeasured(one.part.name, "failed", "it hangs: it was not done within its own time limit"), True
    if now >= deadline:
        one.kill()
        reason = f"the time limit came before its end; --part {one.part.name} runs it alone"
        return unmeasured(one.part.name, "not run", reason), True
    return None, False


def _work(pipe: Connection, rows: Rows, sizes: Sizes) -> None:
    """The process of a part."""
    os.setpgrp()
    # With the battery end the processes that this one has started, too: not all of them look after that themselves.
    signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(0, signal.SIGKILL))
    die_with_parent(signal.SIGTERM)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    log.configure(level="error")
    try:
        for row in rows(sizes):
            pipe.send(row)
        pipe.send(_End(None))
    except Exception as error:  # noqa: BLE001 - the end of a process, whose parent gets the reason
        traceback.print_exc()
        pipe.send(_End(told(error)))
