"""A film of episodes: which are shown, what stands beside each screen, and the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from computerrl.common.errors import ConfigError
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.commands.main import cli
from computerrl.launch.web import film
from computerrl.launch.web.episodes import Episodes
from tests.support.data.synthetic_run import write_run


def row(name: str, family: str, *, kind: str = "evaluation", success: bool = True) -> dict[str, Any]:
    return {"trajectory_id": name, "family": family, "kind": kind, "success": success}


def test_whole_run_shows_the_newest_success_of_each_family_in_evaluations() -> None:
    rows = [
        row("a", "calc"),
        row("b", "web"),
        row("c", "calc"),
        row("d", "calc", success=False),
        row("e", "web", kind="training"),
    ]
    assert film.choose(rows) == ["c", "b"]
    assert film.choose([rows[4]]) == ["e"], "no evaluation has succeeded"
    with pytest.raises(ConfigError, match="no episode has succeeded"):
        film.choose([rows[3]])


def step(text: str, **fields: Any) -> dict[str, Any]:
    ref = {"content_hash": text, "segment": "s.bin", "offset": 0, "num_bytes": 1, "width": 8, "height": 6}
    return {"action_text": text, "action_error": "", "screenshot": ref, "places": [3, 2], **fields}


def test_panel_has_task_answers_complaints_and_verdict() -> None:
    steps = [step('click("A")'), step("click(9)", action_error="there is no element 9"), step("done()", screenshot=None)]
    episode = {
        "family": "calc",
        "instruction": "Do it.",
        "success": False,
        "max_policy_version": 7,
        "kind": "training",
        "steps": steps,
    }
    scenes = list(film.scenes(episode))
    assert [scene.screen.content_hash for scene in scenes] == ['click("A")'] * 2 + ["click(9)"] * 2, "no screen, no scene"
    assert scenes[0].places == () and scenes[1].places == (3, 2)
    shown = [[line.text for line in (*scene.head, *scene.lines)] for scene in scenes]
    assert shown[0][:2] == ["calc  (training, policy version 7)", "Do it."] and 'click("A")' not in shown[0]
    assert 'click("A")' in shown[1] and "there is no element 9" in shown[3]
    last = list(film.scenes({**episode, "final_screenshot": steps[0]["screenshot"]}))[-1]
    assert last.lines[-1].text == "not solved" and "done()" in [line.text for line in last.lines]


def test_demonstration_is_named_as_one() -> None:
    (first, *_) = film.scenes({"family": "calc", "max_policy_version": -1, "steps": [step("done()")]})
    assert first.head[0].text == "calc  (demonstration)"


def test_command_writes_a_film_that_a_browser_plays(tmp_path: Path) -> None:
    folder, out = write_run(tmp_path / "run"), tmp_path / "film.webp"
    episodes = Episodes(RunFolder(folder), model="tiny-random")
    episodes.refresh()
    name = next(iter(episodes.rows))
    done = CliRunner().invoke(cli, ["replay", str(folder), name, "--film", str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and name in done.output
    with Image.open(out) as picture:
        assert picture.format == "WEBP" and picture.is_animated
        assert picture.size == (film.SCREEN[0] + film.PANEL_WIDTH, film.SCREEN[1])


def test_screen_that_cannot_be_read_is_left_out_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    episode = {"trajectory_id": "a", "family": "calc", "steps": [step("done()")]}
    with pytest.raises(ConfigError, match="no screen to show"):
        film.make_film(RunFolder(tmp_path), [episode])
