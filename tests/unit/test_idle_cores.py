"""Threads for idle cores: read from the counters of /proc/stat."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import host_compute
from common.host_compute import IdleCores

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
    stat = tmp_path / "stat"

    def write(seconds: float) -> None:
        busy, given_way = others * seconds * HZ, nice * seconds * HZ
        idle = num_cores * seconds * HZ - busy - given_way
        line = f"cpu {round(busy)} {round(given_way)} 0 {round(idle)} 0 0 0 0 0 0\n"
        stat.write_text(line + "".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n" for core in range(num_cores)))

    monkeypatch.setattr(host_compute.os, "times", lambda: host_compute.os.times_result((0.0, 0.0, 0.0, 0.0, 0.0)))
    write(10.0)
    cores = IdleCores(num_cores=num_cores, stat=stat)
    assert cores.num_threads(at_most=at_most) == 1, "nothing has passed"
    write(20.0)
    assert cores.num_threads(at_most=at_most) == expected
