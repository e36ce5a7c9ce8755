"""A teacher: an agent with a model of its own plays the demonstrations, and the policy is cloned from its successes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from computerrl.actor.agents.base import Answer, Conversation, Sight
from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.engines.base import Sampler
from computerrl.actor.episode import play_episode
from computerrl.common.actions import ActionSyntaxError, parse_action
from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.common.messages import Assignment, Trajectory, Usage
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.preflight import check_teacher, inspect_machine
from computerrl.launch.run.serial import run_serial
from tests.support.data.actor_data import FakeDesktops, ScriptedEngine, make_assignment, make_prompt

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"


class Scripted:
    """A teacher that says ``said`` in turn; see `actor.agents.base.Agent`."""

    def __init__(self, *said: str) -> None:
        self._said, self.sights, self.is_over = list(said), list[Sight](), False

    def begin(self, instruction: str, *, assignment: Assignment, engine: Sampler | None) -> Conversation:
        assert instruction == "Click ok." and engine is None
        return self

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        assert not shown, "it is the teacher who shows"
        self.sights.append(sight)
        said = self._said.pop(0)
        if said == "hangs":
            return Answer("", None, failure="it hangs")
        try:
            return Answer(f"I say {said}", parse_action(said), usage=Usage(10, 2, num_requests=1))
        except ActionSyntaxError as error:
            return Answer(said, None, problem=str(error))

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.is_over = True


def play(teacher: Scripted, *, kind: str = "demonstration") -> tuple[Trajectory, FakeDesktops]:
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32, teacher=teacher, teacher_name="theirs")
    desktops = FakeDesktops()
    engine = ScriptedEngine("click(1)\n", "done()\n")
    return play_episode(make_assignment(kind=kind), desktops, engine, make_prompt(), setting=setting), desktops


def said_in(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.action_text, bytes(step.action_tokens.tolist()).decode()) for step in trajectory.steps]


def prompts_of(trajectory: Trajectory) -> list[str]:
    return [bytes(step.prompt_tokens.tolist()).decode() for step in trajectory.steps]


def test_what_a_teacher_does_is_said_in_the_words_of_the_policy() -> None:
    teacher = Scripted("click(1)", "done()")
    trajectory, desktops = play(teacher)
    assert said_in(trajectory) == [("click(1)", " click(1)\n"), ("done()", " done()\n")]
    assert trajectory.success and trajectory.end_reason == "done_action" and trajectory.kind == "demonstration"
    assert all(not len(step.behavior_logprobs) and step.min_policy_version == -1 for step in trajectory.steps)
    assert [step.usage for step in trajectory.steps] == [Usage(10, 2, num_requests=1)] * 2
    assert "demonstrate" not in desktops.calls and teacher.is_over
    assert trajectory.shown_by == "theirs"


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_a_teacher_plays_nothing_but_demonstrations(kind: str) -> None:
    teacher = Scripted()
    trajectory, _ = play(teacher, kind=kind)
    assert not teacher.sights and len(trajectory.steps[0].behavior_logprobs) and trajectory.success and not trajectory.shown_by


def test_an_element_that_a_teacher_points_at_is_named_as_the_policys_prompt_names_it() -> None:
    trajectory, desktops = play(Scripted("click(11, 9)", "click(300, 300)", "done()"))
    assert [text for text, _ in said_in(trajectory)] == ["click(1)", "click(300, 300)", "done()"], "nothing is at 300, 300"
    assert desktops.actions[0].args["target"] == 1


def test_detours_of_a_teacher_stand_in_no_prompt() -> None:
    teacher = Scripted("let me see", "click(99)", "click(1)", "done()")
    trajectory, _ = play(teacher)
    straight, _ = play(Scripted("click(1)", "done()"))
    assert [sight.error != "" for sight in teacher.sights] == [False, True, True, False], "it is told what went wrong"
    done = [step for step in trajectory.steps if step.format_ok and not step.action_error]
    kept = replace_fields(trajectory, steps=tuple(done))
    assert (said_in(kept), prompts_of(kept)) == (said_in(straight), prompts_of(straight)) and trajectory.success


@pytest.mark.parametrize(
    ("said", "end_reason"), [(["hangs"], "agent_failed"), (["hm", "well"], "invalid_limit"), (["fail()"], "fail_action")]
)
def test_a_demonstration_that_a_teacher_does_not_end_is_no_success(said: list[str], end_reason: str) -> None:
    trajectory, _ = play(Scripted(*said))
    assert trajectory.end_reason == end_reason
    assert not trajectory.success or end_reason == "invalid_limit", "the end state alone counts"


TEACHER = """
    import re

    class Knows:
        def predict(self, instruction, observation):
            cell, value = re.search(r"[A-F][1-9]", instruction)[0], None
            found = re.match(r"Set cell \\S+ to (.+)\\.$", instruction) or re.match(r"Put (.+) into cell \\S+\\.$", instruction)
            if observation["result"] or getattr(self, "is_set", False):
                return "done()"
            self.is_set = True
            return f'calc.set_cell("{cell}", "{found[1]}")'
"""


@pytest.fixture
def teacher_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "schooled.py").write_text(textwrap.dedent(TEACHER))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def config_of(folder: Path, *overrides: str) -> RunConfig:
    return load_config(CONFIG, overrides=["tasks.families=[calc-set-cell]", f"run_dir={folder / 'runs'}", *overrides])


def shown_in(config: RunConfig) -> Sequence[dict[str, object]]:
    RunFolder(config.folder).create(config)
    run_serial(config)
    return [one for one in read_json_lines(RunFolder(config.folder).episodes_path) if one["kind"] == "demonstration"]


TEACHES = "teacher: {agent: {kind: 'schooled:Knows'}}"
RECIPE = f"learner.recipe={{demos_per_family: 3, max_updates: 0, eval_episodes_per_family: 0, {TEACHES}}}"


def test_a_run_clones_what_its_teacher_shows(teacher_file: Path) -> None:
    config = config_of(teacher_file, RECIPE)
    assert not check_teacher(config, inspect_machine())
    shown = shown_in(config)
    assert len(shown) == 3 and all(one["success"] for one in shown), shown
    texts = [step["action_text"] for one in shown for step in one["steps"]]
    assert texts[1::2] == ["done()"] * 3 and all(text.startswith("calc.set_cell(") for text in texts[::2])


@pytest.mark.usefixtures("teacher_file")
@pytest.mark.parametrize(
    ("overrides", "field", "reason"),
    [
        (["learner.recipe.demos_per_family=0"], "learner.recipe.demos_per_family", "a teacher is to demonstrate"),
        (["tasks.recordings=there"], "tasks.recordings", "the teacher gives all"),
        (["actor.agent={kind: 'schooled:Knows', demonstrate: 'schooled:x'}"], "learner.recipe.teacher", "prompts of its own"),
        (["learner.recipe.teacher.agent.demonstrate=a:b"], "learner.recipe.teacher.agent.demonstrate", "is trained"),
        (["learner.recipe.teacher.agent.kind=openai"], "learner.recipe.teacher.endpoint", "goes with the agents"),
        (
            ["learner.recipe.teacher={agent: {kind: openai}, endpoint: {url: 'http://127.0.0.1:1/v1'}}"],
            "learner.recipe.teacher.endpoint.model",
            "names no model",
        ),
        (
            [
                "learner.recipe.teacher={agent: {kind: anthropic}, endpoint: {url: 'http://127.0.0.1:1/v1', model: m}}",
                "desktop.observation=tree",
            ],
            "desktop.observation",
            "acts on pictures",
        ),
    ],
)
def test_a_teacher_that_cannot_demonstrate_is_refused_by_the_field_that_is_wrong(
    tmp_path: Path, overrides: list[str], field: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(tmp_path, RECIPE, *overrides)
    assert [one.field for one in refused.value.problems] == [field]
    assert reason in refused.value.problems[0].reason


@pytest.mark.usefixtures("teacher_file")
@pytest.mark.parametrize(
    ("teacher", "field"),
    [
        ("{agent: {kind: 'schooled:Nobody'}}", "agent.kind"),
        ("{agent: {kind: openai}, endpoint: {url: 'http://127.0.0.1:1/v1', model: theirs}}", "endpoint.url"),
    ],
)
def test_a_teacher_that_is_not_there_is_found_before_the_run(tmp_path: Path, teacher: str, field: str) -> None:
    config = config_of(tmp_path, f"learner.recipe.teacher={teacher}")
    (found,) = check_teacher(config, inspect_machine())
    assert found.problem.field == f"learner.recipe.teacher.{field}" and "actor." not in str(found.problem)
