"""Small meters (quantiles, rates) and the JSON-lines file they end up in. Thread-safe. Sends nothing anywhere."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from computerrl.common.clock import Clock


class Timings:
    """Durations of one kind of thing: mean and quantiles over the latest ``size`` values.

    >>> timings = Timings()
    >>> with timings.measure(): ...
    """

    def __init__(self, size: int = 512) -> None:
        self._recent: deque[float] = deque(maxlen=size)
        self._lock = threading.Lock()
        self._count = 0
        self._total_s = 0.0

    def add(self, duration_s: float) -> None:
        """Take one duration in."""
        with self._lock:
            self._recent.append(duration_s)
            self._count += 1
            self._total_s += duration_s

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Take in how long the block took."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - started)

    @property
    def count(self) -> int:
        """Durations ever taken in."""
        return self._count

    @property
    def total_s(self) -> float:
        """Sum of all durations ever taken in."""
        return self._total_s

    @property
    def mean(self) -> float:
        """Over the recent ones; 0 when there is none."""
        with self._lock:
            return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def quantile(self, fraction: float) -> float:
        """Nearest-rank quantile of the recent ones; 0 when there is none."""
        with self._lock:
            values = sorted(self._recent)
        if not values:
            return 0.0
        return values[min(len(values) - 1, int(fraction * len(values)))]

    @property
    def p50(self) -> float:
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        return self.quantile(0.9)


class Rate:
    """Events per second over a sliding window."""

    def __init__(self, window_s: float = 30.0, *, clock: Clock = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._started = clock()
        self._events: deque[tuple[float, float]] = deque()
        self._total = 0.0
        self._in_window = 0.0
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0) -> None:
        """``amount`` events happened now."""
        with self._lock:
            self._events.append((self._clock(), amount))
            self._total += amount
            self._in_window += amount

    @property
    def total(self) -> float:
        """Events ever."""
        return self._total

    @property
    def per_s(self) -> float:
        """Over the window, or since the start while that is shorter."""
        with self._lock:
            now = self._clock()
            while self._events and self._events[0][0] < now - self._window_s:
                self._in_window -= self._events.popleft()[1]
            elapsed = min(self._window_s, now - self._started)
            return self._in_window / elapsed if elapsed > 0 else 0.0


class JsonLines:
    """Appends one JSON object a line; each line reaches the file whole, by one write, or is torn only by a crash."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        # After a crash the last line may be torn: end it, so that the next one starts on its own.
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. Not synced to disk. Numbers that JSON has no word for (nan, inf) become null."""
        data = (json.dumps(json_ready(record), separators=(",", ":"), allow_nan=False) + "\n").encode()
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of ``path``; torn ones are left out. Empty when there is no file."""
    records = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def json_ready(value: Any) -> Any:
    """``value`` as JSON has it: numpy's numbers as plain ones, those that JSON has no word for (nan, inf) as null."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return json_ready(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
