"""Parts of the battery `gpu` that measure nothing: they pass, fail, die or hang. Without torch, which each of their processes
would import."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

from computerrl.benchmarks.gpu._rows import Row, checked, confirmed
from computerrl.benchmarks.gpu._sizes import Sizes


def passing(sizes: Sizes) -> Iterator[Row]:
    yield checked("first", 1.0, limit=2.0)
    yield confirmed("second")


def raising(sizes: Sizes) -> Iterator[Row]:
    yield checked("before", 3.0, limit=2.0)
    raise ValueError("of no use\nhere")


def dying(sizes: Sizes) -> Iterator[Row]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield confirmed("never")


def hanging(sizes: Sizes) -> Iterator[Row]:
    child = subprocess.Popen(["sleep", "1000"])
    yield confirmed("child", float(child.pid))
    time.sleep(1000)
