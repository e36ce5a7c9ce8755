"""The views of a host's desktops."""

from __future__ import annotations

import time

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken
from computerrl.common.messages import TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.serving.service import DesktopService

CONFIG = DesktopConfig(driver="scripted", observation="tree", num_desktops=2, lease_time_limit_s=30.0)
TASK = TaskRef("calc-set-cell", 5, "demonstration")


def make(index: int) -> DesktopDriver:
    if index == 1:
        raise DesktopBroken("no such image")
    return ScriptedDriver(CONFIG)


def test_views_follow_an_episode_and_change_nothing() -> None:
    service = DesktopService(CONFIG, tasks=TasksConfig(), make=make)
    client = DesktopClient(LocalChannel(service.handle, sender="actor-0:a"), config=CONFIG)
    try:
        assert service.wait_ready(1, timeout_s=10)
        (idle, broken), _ = looked = _parts(client)
        assert (idle.state, idle.holder, idle.task) == ("idle", "", None)
        assert (broken.state, "no such image" in broken.reason) in {("broken", True), ("quarantined", True), ("starting", True)}
        assert looked == _parts(client)

        lease = client.lease("a", TASK)
        started = client.reset(lease, TASK)
        (element, *_) = started.observation.elements
        client.step(lease, parse_action(f"click({element.number})"))
        (view, _), _ = _parts(client)
        assert view.places == (element.x, element.y)
        client.step(lease, parse_action("wait()"), completion="<think>I wait</think> wait()")
        client.evaluate(lease)
        (view, _), elements = _parts(client, elements_of=0)
        assert (view.state, view.holder, view.task) == ("leased", "actor-0:a", TASK)
        assert view.instruction == started.instruction
        assert (view.num_steps, view.action, view.completion) == (2, "wait()", "<think>I wait</think> wait()")
        assert view.places == ()
        assert view.reward == 0.0
        assert len(elements) == len(started.observation.elements) > 0

        client.release(lease)
        (view, _), elements = _parts(client)
        assert (view.state, view.holder, view.num_steps) == ("idle", "", 2)
        assert elements == ()
    finally:
        service.close()


def _parts(client: DesktopClient, elements_of: int = -1):  # type: ignore[no-untyped-def]
    time.sleep(0.05)
    found = client.look(elements_of=elements_of)
    return found.desktops, found.elements
