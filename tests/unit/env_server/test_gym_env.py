"""The Gymnasium interface on imitated desktops; on a real one: tests/integration/tasks/test_gym_on_desktop.py."""

from __future__ import annotations

import configparser
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import structlog
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from computerrl.common.actions import parse_action
from computerrl.common.config import TasksConfig
from computerrl.common.messages import TaskRef
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.gym import ENV_ID, MAX_INSTRUCTION_CHARS, ActionText, DesktopEnv, ScreenText
from computerrl.env_server.tasks import FAMILIES, task_instance

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def env() -> Iterator[DesktopEnv]:
    made = DesktopEnv("calc-set-cell", driver="scripted", max_steps=3)
    yield made
    made.close()


@pytest.mark.parametrize("family", ["calc-set-cell", "web-click-button", "editor-type-save", "files-move"])
def test_gymnasium_s_own_check_passes_without_a_warning(family: str) -> None:
    # Not by pytest's mark: that also fails for what is collected here of other tests of the process.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ENV_ID, task=family, driver="scripted", render_mode="rgb_array")
        check_env(env.unwrapped)
        env.close()


def test_episode_played_to_the_end_gives_the_evaluator_s_reward_once(env: DesktopEnv) -> None:
    observation, info = env.reset(options={"seed": 5})
    assert info["task_seed"] == 5 and observation["instruction"] == FAMILIES["calc-set-cell"].make(5).instruction
    assert observation["elements"].startswith("App: calc") and "\ncell " in observation["elements"]
    assert observation["screenshot"].shape == (600, 800, 3)
    named = [one for one in info["elements"] if one["role"] != "cell" and one["text"]]
    assert named and all(one["text"] in observation["elements"] and one["width"] > 0 < one["height"] for one in named[:5])
    action = FAMILIES["calc-set-cell"].make(5).demonstrate("", None, (), lambda kind: None)  # type: ignore[arg-type]
    text = f'calc.set_cell("{action.args["cell"]}", "{action.args["value"]}")'
    _, reward, terminated, truncated, info = env.step(text)
    assert (reward, terminated, truncated, info["success"], info["action_error"]) == (0.0, False, False, False, "")
    _, reward, terminated, truncated, info = env.step("done()")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    with pytest.raises(ResetNeeded):
        env.step("done()")


@pytest.mark.parametrize("length", [2276, MAX_INSTRUCTION_CHARS, MAX_INSTRUCTION_CHARS + 1])
def test_instruction_is_shown_whole_or_with_a_mark(env: DesktopEnv, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    def lengthened(task: TaskRef, *, tasks: TasksConfig) -> TaskInstance:
        return replace(task_instance(task, tasks=tasks), instruction=("word " * length)[:length])

    monkeypatch.setattr("computerrl.env_server.gym.task_instance", lengthened)
    with structlog.testing.capture_logs() as logs:
        observation, _ = env.reset(seed=1)
    shown = observation["instruction"]
    assert observation in env.observation_space
    assert shown.endswith("…") == (length > MAX_INSTRUCTION_CHARS) == any(one["event"] == "instruction.cut" for one in logs)
    assert len(shown) >= min(length, MAX_INSTRUCTION_CHARS) - 1


def test_page_that_scores_at_once_ends_the_episode() -> None:
    env = DesktopEnv("web-click-button", driver="scripted")
    observation, _ = env.reset(seed=1)
    wanted = observation["instruction"].split('"')[1]
    _, reward, terminated, _, info = env.step(f'click("{wanted}")')
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_saying_that_it_cannot_be_done_is_never_rewarded(env: DesktopEnv) -> None:
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("fail()")
    assert (reward, terminated, info["success"], info["detail"]) == (0.0, True, False, "given up")


def test_result_is_the_last_action_s_own(env: DesktopEnv) -> None:
    env.reset(options={"task": "files-rename"})
    assert env.step("files.list()")[-1]["result"]
    assert [env.step(action)[-1]["result"] for action in ("garbage(", "done()")] == ["", ""]


@pytest.mark.parametrize("action", ["nonsense", "", "click(999)", "__import__('os')", None, b"click(1)", 5, ["click(1)"]])
def test_action_that_cannot_be_done_is_explained_and_counts(env: DesktopEnv, action: Any) -> None:
    first, _ = env.reset(seed=1)
    for number in (1, 2, 3):
        observation, reward, terminated, truncated, info = env.step(action)
        assert info["action_error"] and not terminated and reward == 0.0
        assert truncated == (number == 3)
        assert np.array_equal(observation["screenshot"], first["screenshot"])


def test_reset_seed_decides_instance_and_all_that_follow(env: DesktopEnv) -> None:
    def seeds() -> list[int]:
        return [env.reset(seed=9)[1]["task_seed"], env.reset()[1]["task_seed"], env.reset()[1]["task_seed"]]

    first = seeds()
    assert first == seeds() and len(set(first)) == 3
    assert all(100_000 <= seed < 10_000_000 for seed in first), "drawn from the training seeds"
    assert env.reset(seed=10)[1]["task_seed"] != first[0]


def test_reset_options_name_family_and_instance(env: DesktopEnv) -> None:
    _, info = env.reset(options={"task": "files-move", "seed": 10_000_001})
    assert (info["task"], info["task_seed"], info["app"]) == ("files-move", 10_000_001, "files")
    assert env.reset()[1]["task"] == "calc-set-cell", "for one episode only"


@pytest.mark.parametrize(
    ("options", "named"), [({"task": "nothing"}, "web-click-button"), ({"sed": 1}, "sed"), ({"seed": 10**9}, "10099999")]
)
def test_reset_wrong_options_say_what_there_is(env: DesktopEnv, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        env.reset(options=options)


@pytest.mark.parametrize("values", [{"task": "nothing"}, {"max_steps": 0}, {"prompt": {"max_row": 3}}, {"driver": "docker"}])
def test_make_wrong_arguments_are_refused_before_anything_starts(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DesktopEnv(**{"driver": "scripted", **values})


def test_family_whose_application_the_image_lacks_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="played in impress, which image core lacks"):
        DesktopEnv("forge-impress-type-title")


def test_samples_are_actions_and_follow_the_seed() -> None:
    space = ActionText(width=800, height=600)
    space.seed(4)
    drawn = [space.sample() for _ in range(300)]
    assert len({parse_action(text).name for text in drawn}) > 15
    assert all(space.contains(text) for text in drawn)
    space.seed(4)
    assert drawn == [space.sample() for _ in range(300)]


def test_screen_text_shows_any_script_and_replaces_the_rest() -> None:
    space = ScreenText(40)
    text = "naïve Größe 東京 Привет\n1"
    assert space.fit(text) == text and space.contains(text) and space.contains("")
    assert space.fit("a\N{GRINNING FACE}b") == "a\ufffdb" and space.contains(space.fit("\x00" * 50))


def test_vector_of_desktops_steps_together() -> None:
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, task="files-rename", driver="scripted", max_steps=2)
    observation, _ = envs.reset(seed=1)
    assert observation["screenshot"].shape == (2, 600, 800, 3)
    assert len(set(observation["instruction"])) == 2
    _, rewards, *_ = envs.step(["wait()", "wait()"])
    assert rewards.tolist() == [0.0, 0.0]
    envs.close()


def test_close_removes_the_folder_and_may_be_called_twice(
    env: DesktopEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env.reset(seed=1)
    assert len(list(tmp_path.iterdir())) == 1
    env.close()
    env.close()
    assert list(tmp_path.iterdir()) == []
    assert env.reset(seed=1)[1]["app"] == "calc", "a closed environment may be begun anew"


def test_broken_desktop_is_replaced_by_the_next_reset(env: DesktopEnv) -> None:
    env.reset(seed=1)
    assert env._driver is not None
    broken = env._driver
    broken.close()
    env.reset(seed=1)
    assert env._driver is not broken


def test_entry_point_of_the_distribution_registers_the_environment() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, value = (part.strip() for part in setup["options.entry_points"]["gymnasium.envs"].strip().split("="))
    EntryPoint(name, value, "gymnasium.envs").load()()
    assert ENV_ID in gymnasium.registry


def test_task_seeds_belong_to_one_split(env: DesktopEnv) -> None:
    assert env._named("files-move", 3) == TaskRef("files-move", 3, "demonstration")
    assert env._named("files-move", 123_456) == TaskRef("files-move", 123_456, "training")
