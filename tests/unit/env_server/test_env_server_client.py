"""What others import of the environment side."""

from __future__ import annotations

import pytest

from computerrl.common.config import DesktopConfig, RunConfig
from computerrl.common.errors import ConfigError, ProtocolError
from computerrl.common.messages import Ack, Lease, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient, family_names, memory_problem, needed_desktop
from computerrl.env_server.tasks import FAMILIES


def test_family_names_none_configured_gives_all_of_the_driver() -> None:
    assert family_names(RunConfig()) == tuple(name for name, family in FAMILIES.items() if family.is_default)


def test_family_names_unknown_is_config_error_with_choices() -> None:
    config = RunConfig.model_validate({"tasks": {"families": ["files-move", "files-mvoe"]}})
    with pytest.raises(ConfigError, match=r"files-mvoe.*files-rename"):
        family_names(config)


def test_family_names_demonstrations_of_families_that_are_not_played_need_only_exist() -> None:
    demos = {"files-move": 4, "calc-set-cell": 2}
    tree = {"tasks": {"families": ["files-move"]}, "learner": {"recipe": {"demos_of_family": demos}}}
    assert family_names(RunConfig.model_validate(tree)) == ("files-move",)
    demos["calc-set-cel"] = 1
    with pytest.raises(ConfigError, match=r"demos_of_family\.calc-set-cel.*calc-set-cell"):
        family_names(RunConfig.model_validate(tree))


@pytest.mark.parametrize(
    ("families", "apps", "expected"),
    [
        ([], None, ("calc", "chromium", "files", "editor")),
        (["web-click-button", "web-enter-text"], None, ("chromium",)),
        (["files-move", "calc-set-cell"], None, ("calc", "files")),
        (["files-move", "calc-set-cell"], ["files", "editor"], ("files",)),
        (["forge-writer-append-line"], None, ("calc",)),
    ],
)
def test_needed_desktop_keeps_the_warm_applications_of_the_families(
    families: list[str], apps: list[str] | None, expected: tuple[str, ...]
) -> None:
    desktop = {} if apps is None else {"apps": apps}
    config = RunConfig.model_validate({"tasks": {"families": families}, "desktop": desktop})
    assert needed_desktop(config).apps == expected


def test_memory_problem_too_little_names_both_sides_and_what_fits() -> None:
    config = DesktopConfig(num_desktops=8, memory_per_desktop_mb=700)
    problem = memory_problem(config, available_mb=2900)
    assert problem is not None and problem.field == "desktop.num_desktops"
    assert "8 desktops x 700 MB" in problem.reason and "5600 MB" in problem.reason and "2900 MB" in problem.reason
    assert "at most 4" in problem.next_step
    assert memory_problem(config, available_mb=5600) is None


def test_memory_problem_scripted_needs_none() -> None:
    assert memory_problem(DesktopConfig(driver="scripted", num_desktops=512), available_mb=1) is None


def test_desktop_client_wrong_answer_is_protocol_error() -> None:
    client = DesktopClient(LocalChannel(lambda message, sender: Ack()))
    with pytest.raises(ProtocolError, match="TaskReset"):
        client.reset(Lease(0, 1), TaskRef("files-move", 1, "training"))
    client.release(Lease(0, 1))
