"""Desktops that the host's memory does not hold are put off: nobody's failure, and started once there is room."""

from __future__ import annotations

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import NoDesktop
from computerrl.env_server.drivers.memory import num_fitting
from computerrl.env_server.serving.pool import NO_ROOM_PAUSE_S, DesktopPool, PoolLimits

LIMITS = PoolLimits(lease_time_limit_s=60.0)


def test_desktops_beyond_the_memory_are_asked_for_again_after_a_pause_without_end_and_without_blame() -> None:
    pool = DesktopPool(2, limits=LIMITS)
    now = 0.0
    assert pool.starts.due(now, num_fitting=1) == [0]
    pool.started(0, now=now)
    pool.lease("a", app="", now=now)
    for _ in range(10):
        now += NO_ROOM_PAUSE_S
        assert pool.next_deadline() == now and pool.starts.has_due(now)
        assert pool.starts.due(now, num_fitting=0) == [] and not pool.starts.has_due(now)
        with pytest.raises(NoDesktop, match="memory holds no more"):
            pool.lease("b", app="", now=now)
    assert pool.starts.host_reason == "" and pool.num_quarantined == 0 and pool.starts.num_restarts == 0
    assert pool.starts.due(now + NO_ROOM_PAUSE_S, num_fitting=1) == [1]
    with pytest.raises(NoDesktop) as refusal:
        pool.lease("b", app="", now=now)
    assert "memory" not in str(refusal.value)


def test_room_counts_desktops_that_are_just_starting() -> None:
    pool = DesktopPool(4, limits=LIMITS)
    assert pool.starts.due(0.0, num_fitting=2) == [0, 1]
    assert pool.starts.due(NO_ROOM_PAUSE_S, num_fitting=3) == [2]


@pytest.mark.parametrize(("driver", "available_mb", "number"), [("local", 2099, 2), ("apptainer", 300, 0), ("scripted", 0, None)])
def test_number_that_fits(driver: str, available_mb: int, number: int | None) -> None:
    config = DesktopConfig(driver=driver, memory_per_desktop_mb=700)  # type: ignore[arg-type]
    assert num_fitting(config, available_mb=lambda: available_mb) == number
