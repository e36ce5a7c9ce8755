"""Threads for idle cores: read from the counters of /proc/stat."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.common import host
from computerrl.common.host import IdleCores

HZ = 100


@pytest.mark.parametrize(
    ("others", "nice", "num_cores", "at_most", "expected"),
    [
        (0.0, 0.0, 2, 8, 2),
        (0.2, 0.0, 2, 8, 2),
        (0.5, 0.0, 2, 8, 1),
        (0.9, 0.0, 2, 8, 1),
        (0.0, 2.0, 2, 8, 2),
        (3.0, 0.0, 8, 8, 5),
        (3.0, 0.0, 8, 4, 4),
        (0.0, 0.0, 8, 3, 3),
        (2.0, 0.0, 2, 2, 1),
    ],
)
def test_threads_are_those_of_cores_that_others_left_idle(
    others: float, nice: float, num_cores: int, at_most: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "stat", num_cores=num_cores, monkeypatch=monkeypatch)
    cores = IdleCores(num_cores=num_cores, stat=machine.stat)
    machine.load(others, nice)
    assert cores.num_threads(at_most=at_most) == expected


@pytest.mark.parametrize(("before", "now", "expected"), [(2.0, 0.0, 2), (0.0, 2.0, 2), (2.0, 2.0, 1), (0.9, 0.1, 2)])
def test_load_that_has_ended_does_not_count(
    before: float, now: float, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path / "stat", num_cores=2, monkeypatch=monkeypatch)
    cores = IdleCores(num_cores=2, stat=machine.stat)
    machine.load(before, then=now)
    assert cores.num_threads(at_most=8) == expected


class Machine:
    """Counters of a machine with some load in the ten seconds before the question, and another while it is asked."""

    def __init__(self, stat: Path, *, num_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stat, self._num_cores = stat, num_cores
        self._ticks = [0.0, 0.0, 0.0]
        self._then = (0.0, 0.0)
        monkeypatch.setattr(host.os, "times", lambda: host.os.times_result((0.0, 0.0, 0.0, 0.0, 0.0)))
        monkeypatch.setattr(host.time, "sleep", lambda seconds: self._pass(seconds, *self._then))
        self._write()

    def load(self, others: float, nice: float = 0.0, *, then: float | None = None) -> None:
        """Cores that others use, and of these, besides, those that give way."""
        self._pass(10.0, others, nice)
        self._then = (others if then is None else then, nice)

    def _pass(self, seconds: float, others: float, nice: float) -> None:
        idle = self._num_cores - others - nice
        for place, cores in enumerate((others, nice, idle)):
            self._ticks[place] += cores * seconds * HZ
        self._write()

    def _write(self) -> None:
        busy, given_way, idle = (round(ticks) for ticks in self._ticks)
        cpus = "".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n" for core in range(self._num_cores))
        self.stat.write_text(f"cpu {busy} {given_way} 0 {idle} 0 0 0 0 0 0\n{cpus}")
