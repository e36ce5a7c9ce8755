"""Every family on the scripted desktop: untouched scores 0, the demonstrator 1, instances differ and cannot be guessed."""

from __future__ import annotations

import itertools

import pytest

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Element, Evaluation, Observation, TaskRef
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.tasks import FAMILIES, task_instance
from computerrl.env_server.tasks.elements import BUTTON, find
from computerrl.env_server.tasks.words import FOLDERS, NOUNS

NAMES = sorted(name for name, family in FAMILIES.items() if "scripted" in family.drivers)
CONFIG = DesktopConfig(driver="scripted", observation="tree")


def demonstrate(driver: ScriptedDriver, task: TaskInstance) -> list[str]:
    """Play ``task`` by its demonstrator through action texts; gives them."""
    instruction, observation = driver.reset(task)
    texts: list[str] = []
    actions: list[Action] = []
    while len(actions) < 8:
        text = render_action(task.demonstrate(instruction, observation, actions, driver.get))
        texts.append(text)
        action = parse_action(text)
        if action.name == "done":
            break
        result = driver.step(action)
        assert result.action_error == ""
        observation = result.observation
        actions.append(action)
        if result.finished:
            break
    return texts


@pytest.mark.parametrize("name", NAMES)
def test_family_untouched_scores_zero_and_demonstrated_one(name: str) -> None:
    for seed in range(60):
        task, driver = FAMILIES[name].make(seed), ScriptedDriver(CONFIG)
        driver.reset(task)
        assert task.evaluate(driver.get).reward == 0.0
        texts = demonstrate(driver, task)
        outcome = task.evaluate(driver.get)
        assert outcome.success and outcome.reward == 1.0, (seed, texts, outcome.detail)
        assert 1 <= len(texts) <= 4
        assert all(len(text) <= 60 for text in texts)


@pytest.mark.parametrize("name", NAMES)
def test_family_same_seed_gives_same_instance_and_others_differ(name: str) -> None:
    make = FAMILIES[name].make
    assert (make(7).instruction, make(7).setup) == (make(7).instruction, make(7).setup)
    distinct = {(task.instruction, repr(task.setup)) for task in map(make, range(500))}
    assert len(distinct) >= 495


@pytest.mark.parametrize("name", NAMES)
def test_family_demonstration_of_another_instance_scores_zero(name: str) -> None:
    """Nothing is solved by doing what solved the last one."""
    solved = 0
    for seed in range(40):
        task, other = FAMILIES[name].make(seed), FAMILIES[name].make(seed + 1000)
        texts = demonstrate(ScriptedDriver(CONFIG), other)
        driver = ScriptedDriver(CONFIG)
        driver.reset(task)
        for text in texts:
            if text != "done()" and not driver.step(parse_action(text)).finished:
                continue
        solved += task.evaluate(driver.get).success
    assert solved <= 10  # 25 %


def test_families_cover_four_applications() -> None:
    assert {"chromium", "calc", "editor", "files"} <= {family.app for family in FAMILIES.values()}
    assert len(FAMILIES) >= 7


@pytest.mark.parametrize(
    ("seed", "split"), [(100_000, "demonstration"), (99_999, "training"), (10_000_000, "training"), (5, "evaluation")]
)
def test_task_instance_seed_of_another_split_refused(seed: int, split: str) -> None:
    with pytest.raises(TaskFailed, match="outside the"):
        task_instance(TaskRef("calc-set-cell", seed, split), tasks=TasksConfig())  # type: ignore[arg-type]


def test_task_instance_unknown_family_refused() -> None:
    with pytest.raises(TaskFailed, match="unknown task family"):
        task_instance(TaskRef("no-such", 5, "demonstration"), tasks=TasksConfig())


def test_words_none_begins_another_one() -> None:
    """A spreadsheet completes what is typed from the column's other words."""
    words = sorted(NOUNS)
    assert [pair for pair in itertools.pairwise(words) if pair[1].startswith(pair[0])] == []
    assert len(set(NOUNS)) == len(NOUNS) and len(set(FOLDERS)) == len(FOLDERS)


def test_calc_evaluator_other_cell_changed_scores_zero() -> None:
    task, driver = FAMILIES["calc-set-cell"].make(3), ScriptedDriver(CONFIG)
    demonstrate(driver, task)
    driver.step(parse_action('calc.set_cell("F9", "stray")'))
    outcome = task.evaluate(driver.get)
    assert not outcome.success and "stray" in outcome.detail


def test_files_evaluator_file_emptied_on_the_way_scores_zero() -> None:
    task, driver = FAMILIES["files-rename"].make(3), ScriptedDriver(CONFIG)
    texts = demonstrate(driver, task)
    new_name = parse_action(texts[0]).args["new_name"]
    driver.step(Action("files.write", {"path": new_name, "text": ""}))
    assert not task.evaluate(driver.get).success


def test_editor_evaluator_typed_but_not_saved_scores_zero() -> None:
    task, driver = FAMILIES["editor-type-save"].make(3), ScriptedDriver(CONFIG)
    instruction, observation = driver.reset(task)
    driver.step(task.demonstrate(instruction, observation, [], driver.get))
    assert not task.evaluate(driver.get).success


def test_find_missing_element_raises_task_failed_with_what_is_there() -> None:
    element = Element(1, "button", "Cancel", 5, 5, 10, 10, ())
    observation = Observation("chromium", "Task", (element,), None, 800, 600, "none", 0.0, "")
    with pytest.raises(TaskFailed, match="Cancel"):
        find(observation, BUTTON, "Submit")


def test_find_role_spellings_and_content_first() -> None:
    toolbar = Element(1, "push-button", "Save", 5, 5, 10, 10, (), in_content=False)
    content = Element(2, "Push Button", "Save", 5, 5, 10, 10, ())
    observation = Observation("editor", "", (toolbar, content), None, 800, 600, "none", 0.0, "")
    assert find(observation, BUTTON, "Save").number == 2


@pytest.mark.parametrize(
    ("instruction", "output", "told"),
    [
        ("Click it.", None, "Click it."),
        ("", None, ""),
        ("", "Click the bin.", ""),
        (None, "Click the bin.", "Click the bin."),
        (None, "", ""),
        (None, None, "Click Bella."),
    ],
)
def test_the_instruction_is_the_tasks_own_then_what_was_prepared_then_the_pages(
    instruction: str | None, output: str | None, told: str
) -> None:
    def get(kind: str, **_: object) -> dict[str, object]:
        assert (kind, instruction, output) == ("web_page", None, None), "no page is asked for nothing"
        return {"fields": {"utterance": "Click Bella."}}

    def nothing(*_: object) -> Action:
        return Action("wait", {})

    outputs = {} if output is None else {"instruction": output}
    task = TaskInstance(instruction, (), lambda _: Evaluation(0.0, False, ""), nothing, outputs=outputs)
    assert task.instruction_of(get) == told
    driver = ScriptedDriver(CONFIG)
    if told != "Click Bella.":
        assert driver.reset(task)[0] == told
