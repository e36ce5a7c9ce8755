"""Recorded demonstrations: files, the orders they lead to, and their replay, up to what a policy is trained on."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import RunConfig, TasksConfig
from computerrl.common.messages import Element, TaskRef
from computerrl.common.run_files.recordings import (
    FORMAT_VERSION,
    RecordedFrom,
    RecordedStep,
    RecordedTarget,
    Recording,
    read_recording,
    recorded_seeds,
    recording_path,
    recording_problems,
    write_recording,
)
from computerrl.env_server.serving.replay import next_action, with_recording
from computerrl.env_server.tasks import FAMILIES, task_instance
from computerrl.learner.recipe import recipe
from tests.support.data.actor_data import make_element, make_observation

FAMILY = "web-click-option"


def make_step(text: str, **targets: RecordedTarget) -> RecordedStep:
    return RecordedStep(action_text=text, targets=targets, observation=make_observation(), picture="")


def at(x: int, element: Element) -> Element:
    return replace(element, x=x)


def make_recording(*steps: RecordedStep, seed: int = 3, family: str = FAMILY, instruction: str = "do it") -> Recording:
    task = TaskRef(family, seed, "demonstration")
    return Recording(FORMAT_VERSION, task, instruction, steps, recorded_at=1.0, desktop="scripted")


ANA = RecordedTarget("radio", "Ana", 40, 50)
TWO_STEPS = make_recording(make_step('click("Ana")', target=ANA), make_step("click(300, 200)"))


def test_file_read_back_is_the_recording(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "new", TWO_STEPS)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path.parent, path)] == [0o700, 0o600]
    assert path == recording_path(tmp_path / "new", family=FAMILY, seed=3)
    assert read_recording(path) == TWO_STEPS
    newer = make_recording(make_step("done()"))
    assert write_recording(tmp_path / "new", newer) == path and read_recording(path) == newer


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "no recorded demonstration"), ("{}", "version"), ('{"version": 9}', "no recorded demonstration")]
)
def test_file_that_is_none_says_so(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / f"{FAMILY}-1.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_recording(path)


def test_file_with_another_name_or_another_language_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path, TWO_STEPS)
    other = path.rename(tmp_path / f"{FAMILY}-4.json")
    with pytest.raises(ValueError, match="does not fit its name"):
        read_recording(other)
    with pytest.raises(ValueError, match="step 0"):
        read_recording(write_recording(tmp_path, make_recording(make_step("__import__('os')"))))


# --- replay ----------------------------------------------------------------------------------------------------------


def replay(*actions: str, elements: Any = (), recording: Recording = TWO_STEPS, instruction: str = "do it") -> str:
    done = [parse_action(text) for text in actions]
    return render_action(next_action(recording, instruction, make_observation(*elements), done))


def test_replay_finds_the_element_where_it_is_now() -> None:
    assert replay(elements=[make_element(9, "Ana", role="radio")]) == 'click("Ana")'
    twins = [at(400, make_element(4, "Ana", role="radio")), at(44, make_element(7, "Ana", role="radio"))]
    assert replay(elements=twins) == "click(7)", "the nearer one, by its number of this time"


def test_replay_of_pixels_says_the_same_pixels_and_then_done() -> None:
    assert replay('click("Ana")') == "click(300, 200)"
    assert replay('click("Ana")', "click(300, 200)") == "done()"


def test_replay_element_missing_waits_then_says_what_was_recorded() -> None:
    assert replay() == "wait()" and replay("wait()") == "wait()"
    assert replay("wait()", "wait()") == 'click("Ana")'
    assert replay("wait()", 'click("Ana")') == "click(300, 200)", "waiting is no recorded step"


def test_replay_empty_field_must_be_about_where_it_was() -> None:
    field = make_recording(make_step("click(2)", target=RecordedTarget("entry", "", 100, 10)))
    assert replay(elements=[at(110, make_element(5, "", role="entry"))], recording=field) == "click(5)"
    assert replay(elements=[at(600, make_element(5, "", role="entry"))], recording=field) == "wait()"


def test_replay_by_pixels_acts_where_the_person_pointed_in_the_element_of_now() -> None:
    def acted(*elements: Element, text: str, pointed: tuple[int, ...], **targets: RecordedTarget) -> str:
        recording = make_recording(replace(make_step(text, **targets), pointed=pointed))
        return render_action(next_action(recording, "do it", make_observation(*elements), (), by_pixels=True))

    def button(x: int, y: int, text: str = "Ana") -> Element:
        return Element(9, "radio", text, x, y, 30, 20, ())

    assert acted(button(40, 50), text='click("Ana")', pointed=(46, 44), target=ANA) == "click(46, 44)"
    assert acted(button(240, 150), text='click("Ana")', pointed=(46, 44), target=ANA) == "click(246, 144)", "it has moved"
    assert acted(button(40, 50), text='click("Ana")', pointed=(90, 50), target=ANA) == "click(54, 50)", "it has shrunk"
    scrolled = acted(button(40, 50), text='scroll("Ana", direction="up")', pointed=(41, 51), target=ANA)
    assert scrolled == 'scroll(41, 51, "up")'
    bob = RecordedTarget("radio", "Bob", 80, 50)
    drag = {"text": 'drag("Ana", "Bob")', "pointed": (41, 52, 83, 49), "source": ANA, "target": bob}
    assert acted(button(40, 50), button(80, 60, "Bob"), **drag) == "drag_pixels([41, 52, 83, 59])"  # type: ignore[arg-type]
    # Without a pixel of the person's there is only the element.
    assert acted(button(40, 50), text='click("Ana")', pointed=(), target=ANA) == 'click("Ana")'
    assert acted(text="click(300, 200)", pointed=(300, 200)) == "click(300, 200)"
    assert acted(text='click("Ana")', pointed=(46, 44), target=ANA) == "wait()", "the element is missing"


def test_replay_of_an_agents_episode_finds_elements_by_text_or_by_place() -> None:
    def acted(target: RecordedTarget, *elements: Element, text: str = "click(7)", by_pixels: bool = False) -> str:
        recording = make_recording(replace(make_step(text, target=target), pointed=(target.x, target.y)))
        return render_action(next_action(recording, "do it", make_observation(*elements), (), by_pixels=by_pixels))

    def element(number: int, text: str, x: int, y: int, size: int, role: str = "button") -> Element:
        return Element(number, role, text, x, y, size, size, ())

    panel, ana, bob = element(1, "", 100, 100, 200), element(2, "Ana", 40, 50, 20), element(3, "Bob", 44, 50, 20)
    by_place = RecordedTarget("", "", 40, 50)
    assert acted(by_place, panel, bob, ana) == 'click("Ana")', "the element whose centre is there"
    assert acted(by_place, panel, bob) == 'click("Bob")', "else the smallest that holds the place"
    assert acted(by_place, element(2, "", 40, 50, 20)) == "click(2)"
    assert acted(by_place, panel, ana, by_pixels=True) == "click(40, 50)"
    assert acted(by_place, element(4, "Cy", 400, 50, 20)) == "wait()", "there is none"
    by_text = RecordedTarget("", "Save  as", 40, 50)
    label, near = element(5, "Save as", 40, 50, 20, role="static"), element(6, "Save as", 60, 50, 20)
    assert acted(by_text, label, near, element(7, "Save as", 300, 50, 20)) == "click(6)", "what can be operated, the nearer one"
    assert acted(by_text, label, text='click("Save as")') == 'click("Save as")'


def test_replay_of_an_instance_that_asks_for_something_else_is_given_up() -> None:
    assert replay(instruction="do that") == "fail()"


def test_recorded_wait_is_a_step() -> None:
    waits = make_recording(make_step("wait()"), make_step("click(1, 2)"))
    assert replay(recording=waits) == "wait()"
    assert replay("wait()", recording=waits) == "click(1, 2)"


def test_recording_stands_in_only_for_its_instance(tmp_path: Path) -> None:
    write_recording(tmp_path, make_recording(make_step("wait()"), family="files-move", instruction="x"))
    tasks = TasksConfig(recordings=str(tmp_path))

    def first_action(seed: int, **values: Any) -> tuple[str, str]:
        task = TaskRef("files-move", seed, "demonstration")
        instance = with_recording(task_instance(task, tasks=tasks), task, tasks=TasksConfig(**values))
        return instance.demonstrate("x", make_observation(), (), lambda kind: None).name, instance.shown_by

    assert first_action(3, recordings=str(tmp_path)) == ("wait", "recording of a person")
    assert first_action(4, recordings=str(tmp_path)) == ("files.move", "script")
    assert first_action(3) == ("files.move", "script")
    recording_path(tmp_path, family="files-move", seed=3).write_text("{")
    assert first_action(3, recordings=str(tmp_path)) == ("files.move", "script")


@pytest.mark.parametrize(("agent", "model", "name"), [("openai", "theirs", "theirs"), ("mine:Agent", "", "mine:Agent")])
def test_recording_of_an_agent_names_its_model(tmp_path: Path, agent: str, model: str, name: str) -> None:
    recording = replace(make_recording(family="files-move"), source=RecordedFrom(agent, model, "", "eval-x", "e/1"))
    write_recording(tmp_path, recording)
    tasks, task = TasksConfig(recordings=str(tmp_path)), TaskRef("files-move", 3, "demonstration")
    assert with_recording(task_instance(task, tasks=tasks), task, tasks=tasks).shown_by == f"recording of {name}"


# --- what a run makes of them ----------------------------------------------------------------------------------------


def config_with(folder: Path, **tasks: Any) -> RunConfig:
    families = ("calc-set-cell", "files-move", FAMILY)
    values = {"recordings": str(folder), "families": families, **tasks}
    return RunConfig.model_validate({"tasks": values, "learner": {"recipe": {"demos_per_family": 2}}})


def test_orders_cover_recorded_seeds_once(tmp_path: Path) -> None:
    for family, seed in [(FAMILY, 1), (FAMILY, 5), (FAMILY, 6), ("files-move", 5), ("files-move", 6), ("files-move", 40)]:
        write_recording(tmp_path, make_recording(make_step("done()"), family=family, seed=seed))
    write_recording(tmp_path, make_recording(make_step("done()"), family="unknown", seed=5))
    config = config_with(tmp_path)
    recorded = recorded_seeds(config.tasks, config.tasks.families)
    assert recorded == {FAMILY: [1, 5, 6], "files-move": [5, 6, 40]}
    phase = recipe.first_phase(config, temperature=1.0, recorded=recorded)
    plans = {plan.order_id: (plan.families, plan.first_seed, plan.num_per_family) for plan in phase.orders}
    assert plans.pop("eval-before") is not None
    assert plans == {
        "demonstrations": (None, 0, 2),
        "demonstrations-recorded-5": (("files-move", FAMILY), 5, 2),
        "demonstrations-recorded-40": (("files-move",), 40, 1),
    }
    assert recipe.max_demonstrations(config, recorded) == 5


def test_recordings_alone_are_enough_for_cloning(tmp_path: Path) -> None:
    write_recording(tmp_path, TWO_STEPS)
    config = RunConfig.model_validate({"learner": {"recipe": {"demos_per_family": 0, "eval_before_episodes_per_family": 0}}})
    recorded = recorded_seeds(TasksConfig(recordings=str(tmp_path)), [FAMILY])
    phase = recipe.first_phase(config, temperature=1.0, recorded=recorded)
    assert [plan.order_id for plan in phase.orders] == ["demonstrations-recorded-3"]
    assert recipe.phase_after(phase, config, temperature=1.0, recorded=recorded).name == "bc"
    assert recipe.phase_named("demonstrations", config, first_seed=0, temperature=1.0, recorded=recorded) == phase


def test_problems_name_file_and_next_step(tmp_path: Path) -> None:
    long = make_recording(*[make_step("wait()")] * 9, seed=1)
    write_recording(tmp_path, long)
    write_recording(tmp_path, make_recording(make_step("done()"), seed=123_456))
    write_recording(tmp_path, make_recording(make_step("done()"), seed=2))
    (tmp_path / f"{FAMILY}-7.json").write_text("{")
    problems = {p.field: p.reason for p in recording_problems(TasksConfig(recordings=str(tmp_path)), [FAMILY])}
    assert set(problems) == {f"tasks.recordings/{FAMILY}-{seed}.json" for seed in (1, 7, 123456)}
    assert "tasks.max_steps is 6" in problems[f"tasks.recordings/{FAMILY}-1.json"]
    assert recording_problems(TasksConfig(recordings=str(tmp_path)), ["calc-set-cell"]) == []
    missing = recording_problems(TasksConfig(recordings="/nowhere"), list(FAMILIES))
    assert len(missing) == 1 and "computerrl desktop" in missing[0].next_step
