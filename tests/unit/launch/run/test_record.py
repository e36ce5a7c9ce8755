"""`computerrl record`: successes of evaluations as recorded demonstrations, from made runs and from an agent to its clone."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from computerrl.actor.prompts.formats import make_format
from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.recordings import (
    RecordedFrom,
    RecordedTarget,
    Recording,
    read_recording,
    recording_path,
    recording_problems,
    write_recording,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.commands.main import cli
from computerrl.launch.run.evaluate import Wish, evaluate
from computerrl.launch.run.local import play
from computerrl.launch.run.record import REASONS, record, summary_of
from computerrl.launch.web.recording import recording_page
from tests.support.data.actor_data import make_observation

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
FAMILY, HELD_OUT = "web-click-button", 10_000_000
Line = dict[str, Any]


def make_step(text: str, *places: int, error: str = "", format_ok: bool = True) -> Line:
    return {"action_text": text, "action_error": error, "format_ok": format_ok, "screenshot": None, "places": list(places)}


def make_episode(seed: int, *steps: Line | str, success: bool = True, **fields: Any) -> Line:
    known = {
        "trajectory_id": f"eval-after-rl/{seed}/{len(steps)}",
        "kind": "evaluation",
        "family": FAMILY,
        "seed": seed,
        "instruction": f"Do it, {seed}.",
        "success": success,
        "end_reason": "done_action",
        "started_at": 1000.0 + seed,
        "steps": [make_step(step) if isinstance(step, str) else step for step in steps],
    }
    return known | fields


def make_run(folder: Path, episodes: Sequence[Line], *overrides: str, agent: str | None = "openai") -> Path:
    """A run folder with ``episodes``, of an agent's evaluation or of a policy's."""
    played = [
        "actor.engine=agent",
        f"actor.agent.kind={agent}",
        "actor.endpoint.url=http://127.0.0.1:8000/v1",
        "actor.endpoint.model=theirs",
    ]
    only_evaluates = ["learner.recipe.demos_per_family=0", "learner.recipe.max_updates=0"]
    of_agent = [] if agent is None else played
    config = load_config(CONFIG, overrides=[f"run_dir={folder}", "name=eval-theirs", *only_evaluates, *of_agent, *overrides])
    RunFolder(config.folder).create(config)
    RunFolder(config.folder).episodes_path.write_text("".join(json.dumps(line) + "\n" for line in episodes))
    return config.folder


def recorded(out: Path, seed: int) -> Recording:
    return read_recording(recording_path(out, family=FAMILY, seed=seed))


def texts_of(recording: Recording) -> list[str]:
    return [step.action_text for step in recording.steps]


def test_elements_are_recorded_by_text_or_by_place_and_pixels_as_they_were(tmp_path: Path) -> None:
    steps = [
        make_step("I see it.\nclick(7)", 40, 50),
        make_step('type("x", target=3)', 10, 20),
        make_step('click("Save as")', 60, 70),
        make_step('click("off the screen")'),
        make_step("click(300, 200)", 300, 200),
        make_step('drag(2, "Bin")', 1, 2, 3, 4),
        make_step('files.copy("a", "b")'),
        make_step("done()"),
    ]
    found = record(make_run(tmp_path, [make_episode(5, *steps)]), tmp_path / "out")
    assert [path.name for path in found.paths] == [f"{FAMILY}-5.json"] and not found.refused
    recording = recorded(tmp_path / "out", 5)
    assert texts_of(recording) == [
        "click(7)",
        'type("x", target=3)',
        'click("Save as")',
        'click("off the screen")',
        "click(300, 200)",
        'drag(2, "Bin")',
        'files.copy("a", "b")',
        "done()",
    ]
    assert [step.targets for step in recording.steps] == [
        {"target": RecordedTarget("", "", 40, 50)},
        {"target": RecordedTarget("", "", 10, 20)},
        {"target": RecordedTarget("", "Save as", 60, 70)},
        {},
        {},
        {"source": RecordedTarget("", "", 1, 2), "target": RecordedTarget("", "Bin", 3, 4)},
        {},
        {},
    ]
    assert [step.pointed for step in recording.steps][:2] == [(40, 50), (10, 20)]
    assert recording.source == RecordedFrom("openai", "theirs", "http://127.0.0.1:8000/v1", "eval-theirs", "eval-after-rl/5/8")
    assert (recording.recorded_at, recording.task.split, recording.desktop) == (1005.0, "demonstration", "scripted:core")
    assert found.num_screens_missing == len(steps) and "without picture: 8 steps" in "\n".join(summary_of(found, tmp_path))


def test_episodes_that_are_not_recorded_are_counted_by_reason(tmp_path: Path) -> None:
    out, other = tmp_path / "out", recorded_before(tmp_path)
    by_person, by_agent = recording_path(out, family=FAMILY, seed=40), recording_path(out, family=FAMILY, seed=41)
    write_recording(out, replace(other, task=replace(other.task, seed=40), source=None))
    write_recording(out, replace(other, task=replace(other.task, seed=41)))
    kept = by_person.read_bytes(), by_agent.read_bytes()
    episodes = [
        make_episode(1, "click(1, 2)", success=False),
        make_episode(HELD_OUT, "done()"),
        make_episode(3, "fail()", end_reason="fail_action"),
        make_episode(4, make_step("click(3)", error="there is no element 3"), make_step("hm", format_ok=False)),
        make_episode(5, "click(1, 2) and then some"),
        make_episode(6, make_step("click(9)")),
        make_episode(20, "wait()", "click(1, 2)", "done()"),
        make_episode(20, "click(1, 2)", "done()", trajectory_id="first"),
        make_episode(20, "click(1, 2)", "done()", trajectory_id="second"),
        make_episode(20, "click(5, 5)", "done()", trajectory_id="third"),
        make_episode(40, "done()"),
        make_episode(41, "done()"),
        make_episode(7, "done()", kind="training"),
        make_episode(8, make_step("click(3)", error="no"), make_step("click(1, 2)", 1, 2), end_reason="task_finished"),
    ]
    found = record(make_run(tmp_path, episodes), out)
    assert found.refused == {
        "failed": 1,
        "not_demonstration_seed": 1,
        "given_up": 1,
        "no_steps": 1,
        "unreadable_action": 1,
        "unknown_element": 1,
        "same_actions": 1,
        "not_shortest": 2,
        "already_recorded": 2,
    }
    assert found.refused.keys() == REASONS.keys(), "each reason is in this test"
    num_evaluated = sum(one["kind"] == "evaluation" for one in episodes)
    assert len(found.paths) + found.refused.total() == num_evaluated, "no episode is dropped without a word"
    assert {path.name for path in found.paths} == {f"{FAMILY}-20.json", f"{FAMILY}-8.json"}
    twenty = recorded(out, 20)
    assert texts_of(twenty) == ["click(1, 2)", "done()"] and twenty.source is not None
    assert twenty.source.trajectory_id == "first", "of equal ones the first"
    assert texts_of(recorded(out, 8)) == ["click(1, 2)"] and found.num_actions_left_out == 1
    assert (by_person.read_bytes(), by_agent.read_bytes()) == kept
    said = "\n".join(summary_of(found, out))
    assert "recorded 2 demonstrations of 1 family" in said and "eval_split=demonstration" in said and "tasks.recordings" in said


def recorded_before(tmp_path: Path) -> Recording:
    """A recording of one action, made of another run."""
    run = make_run(tmp_path / "before", [make_episode(2, "done()")])
    record(run, tmp_path / "before-out")
    return recorded(tmp_path / "before-out", 2)


def test_shorter_success_takes_the_place_of_an_agents_recording_and_not_of_a_persons(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert record(make_run(tmp_path / "a", [make_episode(2, "wait()", "done()")]), out).paths
    again = make_run(tmp_path / "b", [make_episode(2, "done()")])
    assert record(again, out).paths and texts_of(recorded(out, 2)) == ["done()"]
    assert record(again, out).refused == {"already_recorded": 1}
    by_person = replace(recorded(out, 2), source=None, steps=recorded(out, 2).steps * 3)
    write_recording(out, by_person)
    assert record(again, out).refused == {"already_recorded": 1} and recorded(out, 2) == by_person


@pytest.mark.parametrize("form", ["computerrl_text", "compact_vision"])
def test_answers_of_a_policy_are_read_in_the_prompt_format_of_its_run(form: str, tmp_path: Path) -> None:
    from tests.support.data.image_prompts import make_folder

    if form == "compact_vision":
        overrides = [
            f"actor.prompt={{format: {form}, max_prompt_tokens: 400}}",
            f"model.name={make_folder(tmp_path / 'model', 'qwen3_vl')}",
        ]
    else:
        overrides = [f"actor.prompt.format={form}", "actor.max_new_tokens=128"]
    config = load_config(CONFIG, overrides=overrides)
    screen = replace(make_observation(), screen_width=config.desktop.screen_width, screen_height=config.desktop.screen_height)
    answer = make_format(config.actor.prompt).render("click(640, 360)", screen)
    assert answer != "click(640, 360)"
    run = make_run(tmp_path, [make_episode(5, make_step(answer, 640, 360))], *overrides, agent=None)
    assert record(run, tmp_path / "out").paths
    (step,) = recorded(tmp_path / "out", 5).steps
    assert step.action_text.startswith("click(6") and step.pointed == (640, 360)
    source = recorded(tmp_path / "out", 5).source
    assert source is not None and (source.agent, source.endpoint, source.model) == ("", "", config.model.name)


@pytest.mark.parametrize(
    ("spoil", "field", "reason"),
    [
        (lambda run, out: out.write_text("x"), "OUT_FOLDER", "is a file"),
        (lambda run, out: RunFolder(run).episodes_path.unlink(), "RUN", "no evaluated episode"),
        (lambda run, out: RunFolder(run).episodes_path.write_text('{"seed": "one"}\n'), "RUN", "another version"),
        (
            lambda run, out: (out.mkdir(), recording_path(out, family=FAMILY, seed=2).write_text("{")),
            "OUT_FOLDER",
            "no recorded demonstration",
        ),
    ],
)
def test_what_cannot_be_recorded_is_named_with_the_next_step(spoil: Any, field: str, reason: str, tmp_path: Path) -> None:
    run, out = make_run(tmp_path, [make_episode(2, "done()")]), tmp_path / "out"
    spoil(run, out)
    with pytest.raises(ConfigError) as refused:
        record(run, out)
    (problem,) = refused.value.problems
    assert problem.field == field and reason in problem.reason and problem.next_step


def test_command_prints_the_counts_and_fails_where_nothing_was_fit(tmp_path: Path) -> None:
    run = make_run(tmp_path, [make_episode(HELD_OUT, "done()"), make_episode(HELD_OUT + 1, "done()", success=False)])
    done = CliRunner().invoke(cli, ["record", str(run), str(tmp_path / "out")])
    assert done.exit_code == 1 and not (tmp_path / "out").exists()
    assert "recorded 0 demonstrations" in done.output and "not recorded: 1 episode failed" in done.output
    assert "tasks.recordings" not in done.output
    done = CliRunner().invoke(cli, ["record", str(run), str(tmp_path / "out"), "--json"])
    tree = json.loads(done.stdout)
    assert done.exit_code == 1 and tree["paths"] == [] and tree["not_recorded"]["failed"] == 1


def test_demonstration_seeds_are_evaluated_only_in_a_run_that_trains_nothing() -> None:
    split = "learner.recipe.eval_split=demonstration"
    for trains in ([], ["learner.recipe.max_updates=0"], ["learner.recipe.demos_per_family=0"]):
        with pytest.raises(ConfigError, match=r"eval_split.*measured on tasks that it was shown"):
            load_config(CONFIG, overrides=[split, *trains])
    config = load_config(CONFIG, overrides=[split, "learner.recipe.max_updates=0", "learner.recipe.demos_per_family=0"])
    assert isinstance(config, RunConfig)


TEACHER = '''
class Teacher:
    """Errs once, then names elements by number, and a button by its text."""

    def __init__(self):
        self.number = 0

    def predict(self, instruction, observation):
        self.number += 1
        if self.number == 1:
            return "click(99)"
        names = {one["text"]: one["number"] for one in observation["elements"] if one["role"] != "static"}
        wanted = [name for name in names if name and (f'"{name}"' in instruction or f"Select {name} " in instruction)]
        return f"click({names[wanted[0]]})" if self.number == 2 else 'click("Submit")'
'''


def test_agent_is_evaluated_recorded_and_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_teacher.py").write_text(TEACHER)
    families = ("web-click-button", "web-click-option")
    overrides = ("tasks.max_steps=6", "learner.recipe.eval_split=demonstration")
    wish = Wish("teacher", agent="my_teacher:Teacher", config=CONFIG, families=families, episodes=2, overrides=overrides)
    assert evaluate(wish) == 0
    run, out = tmp_path / "runs" / "eval-teacher", tmp_path / "demonstrations"
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["all"]["pass@1"]["mean"] == 1.0 and figures["split"] == "demonstration"
    assert "these tasks are not held out" in (run / "evaluation.html").read_text()

    assert CliRunner().invoke(cli, ["record", str(run), str(out)]).exit_code == 0
    paths = sorted(out.glob("*.json"))
    assert [path.name for path in paths] == [f"{family}-{seed}.json" for family in families for seed in (0, 1)]
    recordings = [read_recording(path) for path in paths]
    assert [len(recording.steps) for recording in recordings] == [1, 1, 2, 2], "the error is left out"
    for recording in recordings:
        assert recording.steps[0].targets["target"].role == "" and len(recording.steps[0].pointed) == 2
        assert base64.b64decode(recording.steps[0].picture).startswith((b"RIFF", b"\x89PNG"))
        assert recording.source is not None and recording.source.agent == "my_teacher:Teacher"
    page = recording_page(paths[0])
    assert "recorded from eval-before/" in page and "data:image/" in page

    settings = [
        f"tasks.families={json.dumps(families)}",
        f"tasks.recordings={out}",
        "learner.recipe.demos_per_family=0",
        "learner.recipe.eval_before_episodes_per_family=0",
        "learner.recipe.eval_episodes_per_family=0",
        "learner.recipe.max_updates=0",
        "learner.num_threads=1",
    ]
    config = load_config(CONFIG, overrides=settings)
    assert recording_problems(config.tasks, families) == []
    assert play(config, resume=False)[0] == 0
    episodes = read_json_lines(tmp_path / "runs" / "serial" / "trajectories" / "episodes.jsonl")
    assert {(one["family"], one["seed"]) for one in episodes} == {(family, seed) for family in families for seed in (0, 1)}
    assert all(one["kind"] == "demonstration" and one["success"] for one in episodes)
    first = next(one for one in episodes if (one["family"], one["seed"]) == ("web-click-button", 0))
    assert [step["action_text"] for step in first["steps"]] == ['click("No")'], "the number became the element's name"
    metrics = read_json_lines(tmp_path / "runs" / "serial" / "metrics.jsonl")
    assert any(line["event"] == "sft" for line in metrics)
