"""Runs of mouse and keyboard alone (`tasks.actions: gui`): calls are refused, demonstrations do without."""

from __future__ import annotations

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient, family_names
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.serving.calls import NO_CALLS
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import FAMILIES, is_shown_by_hand, task_instance
from tests.support.data.actor_data import make_observation

BY_HAND = TasksConfig(actions="gui")
CONFIG = DesktopConfig(driver="scripted", observation="tree", num_desktops=1)


def test_calls_are_refused_before_the_desktop_and_the_agent_is_told() -> None:
    task = TaskRef("calc-set-cell", 5, "demonstration")
    service = DesktopService(CONFIG, tasks=BY_HAND, make=lambda index: ScriptedDriver(CONFIG))
    client = DesktopClient(LocalChannel(service.handle), config=CONFIG)
    try:
        assert service.wait_ready(1, timeout_s=10)
        lease = client.lease("a", task)
        before = client.reset(lease, task).observation
        refused = client.step(lease, parse_action('calc.set_cell("A1", 5)'))
        assert (refused.action_error, refused.finished) == (NO_CALLS, False)
        assert refused.observation.elements == before.elements
        assert client.step(lease, parse_action("wait()")).action_error == ""
        assert client.demonstrate(lease).action_text.startswith('type("')  # after one action: the cell's address
    finally:
        service.close()


def test_families_are_shown_by_hand_where_there_is_a_way() -> None:
    shown = {
        name
        for name in ("calc-set-cell", "calc-type-cell", "files-move", "web-click-button", "forge-writer-align")
        if is_shown_by_hand(FAMILIES[name])
    }
    assert shown == {"calc-set-cell", "calc-type-cell", "web-click-button", "forge-writer-align"}
    instance = task_instance(TaskRef("files-move", 1, "demonstration"), tasks=BY_HAND)
    with pytest.raises(TaskFailed, match="files-move is not demonstrated with mouse and keyboard"):
        instance.demonstrate("", make_observation(), (), lambda kind: None)


def test_run_by_hand_with_demonstrations_of_calls_is_refused_before_it_starts() -> None:
    def config(families: list[str], demos: int) -> RunConfig:
        return RunConfig.model_validate(
            {"tasks": {"families": families, "actions": "gui"}, "learner": {"recipe": {"demos_per_family": demos}}}
        )

    with pytest.raises(ConfigError, match="'files-move' is demonstrated by calls"):
        family_names(config(["files-move", "calc-set-cell"], 2))
    assert family_names(config(["calc-set-cell"], 2)) == ("calc-set-cell",)
    assert family_names(config(["files-move"], 0)) == ("files-move",)
