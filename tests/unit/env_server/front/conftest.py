"""Sessions on imitated desktops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from computerrl.common.config import DesktopConfig, RunConfig, TasksConfig
from computerrl.env_server.drivers.screenshots import RecentScreenshots
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.front.sessions import Sessions
from computerrl.env_server.judging.judge import JudgeInPlace
from computerrl.env_server.serving.fleet import ServiceTimes
from computerrl.env_server.serving.service import DesktopService
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def sessions(clock: ManualClock) -> Iterator[Sessions]:
    """On two desktops, of two families; tasks end after three actions, sessions after 60 s without a request."""
    desktop = DesktopConfig(
        driver="scripted", num_desktops=2, observation="both", screenshot_format="webp", lease_time_limit_s=3600
    )
    config = RunConfig(
        mode="serial", desktop=desktop, tasks=TasksConfig(families=("calc-set-cell", "web-click-button"), max_steps=3)
    )
    screenshots = RecentScreenshots(picture_format="webp", limit=16)
    service = DesktopService(
        desktop,
        tasks=config.tasks,
        make=lambda _: ScriptedDriver(desktop, screenshots=screenshots),
        times=ServiceTimes(lease_wait_s=0.2),
        judge=JudgeInPlace(),
    )
    assert service.wait_ready(2, timeout_s=30)
    yield Sessions(service, config, screenshots=screenshots, idle_limit_s=60.0, clock=clock)
    service.close()
