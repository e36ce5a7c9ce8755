"""Task files as families of a run: names, refusals, what is played by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.env_server.client import family_names
from computerrl.env_server.tasks import families_of, task_instance
from computerrl.env_server.tasks.osworld.families import READERS


def write(folder: Path, name: str, **changes: Any) -> None:
    rule = {"type": "rule", "rules": {"expected": "x"}}
    result = {"type": "vm_command_line", "command": "cat /home/user/a.txt"}
    evaluator = {"func": "exact_match", "result": result, "expected": rule}
    apps = ["libreoffice_writer"]
    task = {"id": name, "instruction": f"Do {name}.", "related_apps": apps, "config": [], "evaluator": evaluator, **changes}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(task))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "tasks"
    write(place, "one")
    write(place, "two", related_apps=["libreoffice_calc"])
    write(place, "three", proxy=True)
    return place


def run_config(folder: Path, *families: str, driver: str = "apptainer", demos: int = 0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "tasks": {"osworld": str(folder), "families": families},
            "desktop": {"driver": driver},
            "learner": {"recipe": {"demos_per_family": demos}},
        }
    )


def test_runnable_files_are_played_when_no_family_is_named(folder: Path) -> None:
    assert family_names(run_config(folder)) == ("osworld-one", "osworld-two")


def test_named_families_may_mix_files_and_ours(folder: Path) -> None:
    names = ("calc-set-cell", "osworld-two")
    assert family_names(run_config(folder, *names)) == names


def test_every_seed_is_the_file_s_task(folder: Path) -> None:
    tasks = run_config(folder).tasks
    for split in ("training", "evaluation"):
        first, _ = tasks.seeds_of(split)  # type: ignore[arg-type]
        instance = task_instance(TaskRef("osworld-one", first, split), tasks=tasks)  # type: ignore[arg-type]
        assert instance.instruction == "Do one." and instance.judges_giving_up
    assert families_of(tasks)["osworld-two"].app == "calc"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("osworld-three", "network: proxy"), ("osworld-four", "no task file with this id")],
)
def test_file_that_cannot_be_run_is_refused_by_name_with_the_reason(folder: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        family_names(run_config(folder, name))
    with pytest.raises(TaskFailed, match=reason):
        task_instance(TaskRef(name, 100_000, "training"), tasks=run_config(folder).tasks)


def test_task_files_need_a_contained_desktop_and_have_no_demonstrator(folder: Path) -> None:
    for families in ((), ("osworld-one",)):
        with pytest.raises(ConfigError, match="driver 'local'"):
            family_names(run_config(folder, *families, driver="local"))
    with pytest.raises(ConfigError, match="no demonstrator"):
        family_names(run_config(folder, demos=2))


def test_folder_without_a_runnable_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tasks", "three", proxy=True)
    with pytest.raises(ConfigError, match="none of the 1 task files"):
        family_names(run_config(tmp_path / "tasks"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ConfigError, match=r"tasks\.osworld: .*holds no task files"):
        family_names(run_config(tmp_path / "nothing"))


def test_same_id_twice_is_refused(folder: Path) -> None:
    (folder / "again.json").write_text((folder / "one.json").read_text())
    with pytest.raises(ConfigError, match="the id one of another file"):
        family_names(run_config(folder))


def test_name_of_a_task_file_without_a_folder_says_so() -> None:
    with pytest.raises(TaskFailed, match=r"tasks\.osworld names no folder"):
        task_instance(TaskRef("osworld-one", 5, "demonstration"), tasks=TasksConfig())


@pytest.mark.parametrize(("image", "is_refused"), [("core", True), ("full", False)])
def test_family_whose_application_the_image_lacks_is_refused(folder: Path, image: str, is_refused: bool) -> None:
    write(folder, "film", related_apps=["libreoffice_calc", "VLC"])
    config = run_config(folder, "osworld-film")
    config = config.model_copy(update={"desktop": config.desktop.model_copy(update={"image": image})})
    if is_refused:
        with pytest.raises(ConfigError, match="played in vlc, which image core lacks"):
            family_names(config)
    else:
        assert family_names(config) == ("osworld-film",)


@pytest.mark.parametrize(("image", "is_refused"), [("core", True), ("full", True), ("osworld", False), ("my.sif", False)])
def test_family_that_needs_programs_of_another_image_is_refused(folder: Path, image: str, is_refused: bool) -> None:
    unzip = {"type": "execute", "parameters": {"command": ["unzip", "a.zip"]}}
    write(folder, "zip", config=[unzip])
    config = run_config(folder, "osworld-zip")
    config = config.model_copy(update={"desktop": config.desktop.model_copy(update={"image": image})})
    if is_refused:
        named = rf"desktop\.image: 'osworld-zip' needs programs that image {image} lacks(.|\n)*make setup IMAGE=osworld"
        with pytest.raises(ConfigError, match=named):
            family_names(config)
    else:
        assert family_names(config) == ("osworld-zip",)


def test_judges_packages_that_are_not_installed_are_named_with_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "av", "no_such_module_here")
    with pytest.raises(ConfigError, match=r"not installed here: av\n(.|\n)*make setup WITH=osworld"):
        family_names(run_config(folder))
