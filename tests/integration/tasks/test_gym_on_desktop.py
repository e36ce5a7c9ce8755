"""The Gymnasium interface on a real contained desktop, by gymnasium's own check and by solving a task through it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from computerrl.env_server.gym import ENV_ID, DesktopEnv


@pytest.mark.release
def test_gymnasium_s_own_check_passes_on_a_real_desktop() -> None:
    env = gymnasium.make(ENV_ID, task="web-click-option", driver="apptainer")
    check_env(env.unwrapped)
    env.close()


def test_task_solved_through_the_interface_and_nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = gymnasium.make(ENV_ID, task="web-click-button", render_mode="rgb_array")
    observation, info = env.reset(seed=3)
    desktop = env.unwrapped
    assert isinstance(desktop, DesktopEnv)
    pid = desktop._driver.pid  # type: ignore[union-attr]
    assert (env.render() == observation["screenshot"]).all() and info["app"] == "chromium"
    wanted = observation["instruction"].split('"')[1]
    _, reward, terminated, truncated, info = env.step(f'click("{wanted}")')
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True), info
    env.close()
    assert not Path(f"/proc/{pid}").exists() and list(tmp_path.iterdir()) == []


def test_example_of_the_desktop_tutorial_earns_the_reward(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tutorials" / "desktop.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "gymnasium" in text]
    names: dict[str, object] = {}
    exec(compile(block, "desktop.md", "exec"), names)
    assert names["reward"] == 1.0 and names["terminated"] is True, names["info"]
    said = capsys.readouterr().out
    assert "desktop.starting" in said and "desktop.started" in said, "the first reset takes long and says so"
