"""One side of `learner` in a process of its own, so that its memory is its own; commands come through a pipe.

Memory is the peak of the resident set during a step (VmHWM, reset before) less what was resident once the model was loaded, on a
GPU the same of what torch has allocated there. Parameters that a side keeps beside the model's own (our float32 masters) count
as memory of the step, since they are what that way of training costs.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from computerrl.common.lifecycle import die_with_parent
from computerrl.common.messages import TrajectoryGroup

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Measured:
    """A step."""

    times: Any
    """`benchmarks.learner._sides.StepTimes`."""
    peak_bytes: int
    """More than once the model was loaded."""
    total_bytes: int
    """The same peak with the model; on a CPU with the whole process."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Sizes of a side."""

    num_parameters: int
    planned_bytes: int | None
    """Of a step, estimated beforehand (`common.memory_plan`); None: not a side of ours."""


def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``call`` in a process of its own, whose memory goes with it. Raises its error, and `BrokenProcessPool` when
    the process dies."""
    with ProcessPoolExecutor(1, mp_context=_SPAWN, initializer=die_with_parent) as pool:
        return pool.submit(call, *arguments).result()


class SideProcess:
    """A side behind a pipe; a context manager."""

    def __init__(self, name: str, setting: Any, *, options: dict[str, Any] | None = None) -> None:
        """``setting``: a `benchmarks.learner._sides.Setting`."""
        self.name = name
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, name, setting, options))

    def __enter__(self) -> SideProcess:
        self._process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._pipe.send(None)
        else:
            self._process.terminate()
        self._process.join()

    def step(self, groups: Sequence[TrajectoryGroup]) -> Measured:
        """One optimizer step."""
        return self._ask("step", groups)

    def logprobs(self, groups: Sequence[TrajectoryGroup]) -> list[np.ndarray]:
        """[A] for every step in order: the policy's log-probs of its action. Only ours answers this."""
        return self._ask("logprobs", groups)

    def facts(self) -> Facts:
        """Sizes of the side."""
        return self._ask("facts", ())

    def _ask(self, what: str, groups: Sequence[TrajectoryGroup]) -> Any:
        try:
            self._pipe.send((what, groups))
            answer = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            raise RuntimeError(f"the process of {self.name!r} has died; its output is above") from None
        if isinstance(answer, _Broken):
            raise RuntimeError(f"{self.name}: {answer.reason}")
        return answer


@dataclass(frozen=True, slots=True)
class _Broken:
    """In place of an answer: the side has failed."""

    reason: str


def _serve(pipe: Connection, name: str, setting: Any, options: dict[str, Any] | None) -> None:
    die_with_parent()
    try:
        _answer(pipe, name, setting, options)
    except Exception as error:  # the end of a process, whose parent gets the reason
        pipe.send(_Broken(f"{type(error).__name__}: {error}"))
        raise


def _answer(pipe: Connection, name: str, setting: Any, options: dict[str, Any] | None) -> None:
    # TRL talks about versions of software that no part of this uses.
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from computerrl.benchmarks.learner._sides import make_side

    side = make_side(name, setting, options=options)
    memory = _DeviceMemory() if setting.device == "cuda" else _HostMemory()
    loaded_bytes = memory.used() - side.own_bytes
    while (order := pipe.recv()) is not None:
        what, groups = order
        if what == "logprobs":
            pipe.send(side.logprobs(groups))  # type: ignore[attr-defined]
            continue
        if what == "facts":
            num_parameters = sum(one.numel() for one in side.parameters().values())
            pipe.send(Facts(num_parameters, getattr(side, "planned_bytes", None)))
            continue
        memory.forget_peak()
        times = side.step(groups)
        pipe.send(Measured(times, memory.peak() - loaded_bytes, memory.peak()))


class _HostMemory:
    """Resident set, in bytes."""

    def used(self) -> int:
        return self._read("VmRSS")

    def peak(self) -> int:
        return self._read("VmHWM")

    def forget_peak(self) -> None:
        # 5: the peak starts again from the memory that is resident now.
        Path("/proc/self/clear_refs").write_text("5")

    def _read(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class _DeviceMemory:
    """Memory that torch has allocated on the GPU, in bytes."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda

    def used(self) -> int:
        return int(self._cuda.memory_allocated())

    def peak(self) -> int:
        return int(self._cuda.max_memory_allocated())

    def forget_peak(self) -> None:
        self._cuda.reset_peak_memory_stats()
