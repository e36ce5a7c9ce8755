"""MiniWoB++'s registered pages as families: the registry, refusals, verdicts, and demonstrators on made-up screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.common.actions import parse_action, render_action
from computerrl.common.config import RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, TaskFailed
from computerrl.common.messages import Element, Observation, TaskRef
from computerrl.env_server.client import family_names
from computerrl.env_server.tasks import FAMILIES, REFUSED, miniwob, task_instance, web
from computerrl.env_server.tasks.miniwob.registry import registered_pages

UNDEMONSTRATED = "web-count-sides"


def test_registry_installed_package_gives_its_pages_and_sites() -> None:
    pages = registered_pages()
    assert len([page for page in pages if not page.is_site]) == 125
    assert sorted(REFUSED) == ["web-flight.AA", "web-flight.Alaska", "web-flight.Alaska-auto"]
    assert {page.name for page in pages if page.is_graded} == {
        "bisect-angle",
        "circle-center",
        "find-midpoint",
        "right-angle",
        "use-colorwheel",
        "use-colorwheel-2",
    }
    assert all(page.description for page in pages)


def test_registry_of_another_version_is_read_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "registration.py").write_text(
        'def f():\n    register(id="miniwob/new-page-v2", entry_point="miniwob.envs.new_envs:NewEnv", nondeterministic=True)\n'
    )
    (tmp_path / "envs" / "new_envs.py").write_text(
        'class NewEnv(Base):\n    """\n    ## Description\n\n    Do\n    it.\n\n    ## N\n    """\n\n    subdomain = "new-page"\n'
    )
    (page,) = registered_pages(tmp_path)
    assert (page.name, page.description, page.is_graded) == ("new-page", "Do it", False)


def test_families_every_page_is_one_and_hand_made_ones_stay() -> None:
    assert {f"web-{page.name}" for page in registered_pages() if not page.is_site} <= set(FAMILIES)
    assert all(FAMILIES[family.name] is family for family in web.FAMILIES)
    assert set(miniwob.DEMONSTRATORS) <= {page.name for page in registered_pages()}
    assert len(miniwob.DEMONSTRATORS) >= 50
    assert set(miniwob.UNREPEATABLE) <= {page.name for page in registered_pages()}


def test_family_names_default_leaves_single_pages_out() -> None:
    assert "web-click-button" in family_names(RunConfig()) and "web-click-link" not in family_names(RunConfig())


def _config(*families: str, demos: dict[str, int] | None = None) -> RunConfig:
    recipe = {"demos_of_family": demos or {}}
    return RunConfig.model_validate({"tasks": {"families": families}, "learner": {"recipe": recipe}})


def test_family_names_demonstrations_of_undemonstrated_page_refused() -> None:
    with pytest.raises(ConfigError, match=f"{UNDEMONSTRATED}.*no demonstrator"):
        family_names(_config("web-click-link", UNDEMONSTRATED))
    played = family_names(_config("web-click-link", UNDEMONSTRATED, demos={UNDEMONSTRATED: 0}))
    assert played == ("web-click-link", UNDEMONSTRATED)


def test_family_names_refused_site_says_why() -> None:
    with pytest.raises(ConfigError, match=r"flight\.AA.*copied web site"):
        family_names(_config("web-flight.AA"))


def test_family_names_page_on_scripted_driver_refused() -> None:
    config = RunConfig.model_validate(
        {"mode": "serial", "desktop": {"driver": "scripted"}, "tasks": {"families": ["web-click-link"]}}
    )
    with pytest.raises(ConfigError, match="it runs on apptainer, local"):
        family_names(config)


def test_demonstrate_undemonstrated_page_raises_naming_it() -> None:
    task = task_instance(TaskRef(UNDEMONSTRATED, 5, "demonstration"), tasks=TasksConfig())
    with pytest.raises(TaskFailed, match=f"{UNDEMONSTRATED} has no demonstrator"):
        task.demonstrate("Do it", _observation(), [], _getter())


@pytest.mark.parametrize(
    ("page", "state", "success"),
    [
        ("click-link", {"done": True, "raw_reward": 1.0}, True),
        ("click-link", {"done": True, "raw_reward": 0.9}, False),
        ("click-link", {"done": False, "raw_reward": 1.0, "episode_id": 0}, False),
        ("click-link", {"done": True, "raw_reward": 1.0, "episode_id": 2}, False),
        ("circle-center", {"done": True, "raw_reward": 0.93}, True),
        ("circle-center", {"done": True, "raw_reward": 0.8}, False),
    ],
)
def test_evaluate_raw_reward_becomes_binary(page: str, state: dict[str, Any], success: bool) -> None:
    outcome = FAMILIES[f"web-{page}"].make(0).evaluate(_getter(**state))
    assert (outcome.success, outcome.reward) == (success, float(success))


# --- demonstrators -------------------------------------------------------------------------------------------------------


def _getter(**state: Any) -> Any:
    page = {"done": True, "raw_reward": 0.0, "reason": "", "episode_id": 1, "fields": {"utterance": ""}, **state}
    shapes = page.pop("shapes", [])
    return lambda kind, **_: page if kind == "web_page" else shapes


def _observation(*rows: tuple[str, str, int, int]) -> Observation:
    """Elements given by role, text and centre; the instruction takes the upper 137 pixels."""
    elements = tuple(
        Element(number, role, text, x, y, 60, 20, ("focusable",)) for number, (role, text, x, y) in enumerate(rows, start=1)
    )
    return Observation("chromium", "", elements, None, 800, 600, "quiet", 0.0, "")


def _next(page: str, instruction: str, observation: Observation, *done: str, **state: Any) -> str:
    task = FAMILIES[f"web-{page}"].make(0)
    return render_action(task.demonstrate(instruction, observation, [parse_action(text) for text in done], _getter(**state)))


@pytest.mark.parametrize(
    ("action", "size"),
    [
        ("click(200, 300)", (20, 10)),  # the smaller of the two around this pixel
        ("click(203, 300)", (0, 0)),  # a point beside their middle
        ("click(60, 60)", (9, 9)),
        ("click(1)", (0, 0)),
        ('type("a")', (0, 0)),
    ],
)
def test_drawn_size_is_that_of_what_a_demonstration_names_by_its_middle(action: str, size: tuple[int, int]) -> None:
    def shape(x: float, y: float, width: float, height: float) -> dict[str, Any]:
        return {"tag": "rect", "id": "", "kind": "", "text": "", "color": "", "picture": "", **locals()}

    lies = [shape(60, 60, width, 5) for width in (1e300, float("inf"), float("nan"), -5)]
    get = _getter(shapes=[*lies, shape(200, 300.4, 90, 60), shape(200.3, 300, 20.2, 10), shape(60, 60.4, 9, 9)])
    drawn_size = FAMILIES["web-click-shape"].make(0).drawn_size
    assert drawn_size is not None and drawn_size(parse_action(action), _observation(), get) == size


def test_demonstrator_entry_page_clicks_types_submits() -> None:
    instruction = 'Type "ABC" in all lower case letters in the text input and press Submit.'
    screen = _observation(("static", "ABC", 50, 20), ("entry", "", 60, 200), ("button", "Submit", 60, 300))
    assert _next("enter-text-2", instruction, screen) == "click(2)"
    assert _next("enter-text-2", instruction, screen, "click(2)") == 'type("abc")'
    assert _next("enter-text-2", instruction, screen, "click(2)", 'type("abc")') == 'click("Submit")'


def test_demonstrator_cheapest_and_longest_ticket() -> None:
    rows = []
    for place, (price, duration) in enumerate([(300, "5h 10m"), (120, "11h 2m"), (250, "2h 59m")]):
        rows += [("static", duration, 200, 160 + 80 * place), ("button", f"Book for ${price}", 200, 190 + 80 * place)]
    screen = _observation(*rows)
    assert _next("buy-ticket", "Buy the ticket with the cheapest cost.", screen) == 'click("Book for $120")'
    assert _next("buy-ticket", "Buy the ticket with the shortest duration.", screen) == 'click("Book for $250")'


def test_demonstrator_guess_halves_by_where_guesses_went() -> None:
    said = "Guess the number between 0-9 and press Submit. Use the feedback below to find the right number."
    screen = _observation(("static", "The number is lower than 7.", 100, 200), ("spin-button", "", 60, 240))
    done = ["click(2)", 'key("ctrl+a")', 'type("4", enter=True)', 'key("ctrl+a")', 'type("7", enter=True)', 'key("ctrl+a")']
    assert _next("guess-number", said, screen, *done) == 'type("5", True)'


@pytest.mark.parametrize(
    ("problem", "answer"), [("x - 4 = 9", "13"), ("x + 4 = 9", "5"), ("3 - x = 9", "-6"), ("3 + x = 9", "6")]
)
def test_demonstrator_solves_for_x(problem: str, answer: str) -> None:
    screen = _observation(("static", problem, 100, 200), ("entry", "", 60, 240), ("button", "Submit", 60, 300))
    said = "Solve for x and type your answer into the textbox. Press Submit when done."
    assert _next("simple-algebra", said, screen, "click(2)") == f'type("{answer}")'


def test_demonstrator_counts_shapes_by_size_color_and_kind() -> None:
    def shape(tag: str, color: str, size: float, text: str = "") -> dict[str, Any]:
        return {
            "tag": tag,
            "id": "",
            "kind": "",
            "text": text,
            "color": color,
            "picture": "",
            "x": 100.0,
            "y": 200.0,
            "width": size,
            "height": size,
        }

    shapes = [shape("circle", "red", 55), shape("circle", "red", 27), shape("text", "red", 60, "B"), shape("rect", "blue", 55)]
    screen = _observation(*(("button", str(number), 40 * number, 560) for number in range(5)))
    for said, number in [("large red items", 2), ("circles", 2), ("small red shapes", 1), ("letters", 1)]:
        assert _next("count-shape", f"How many {said} are there?", screen, shapes=shapes) == f'click("{number}")'


def test_demonstrator_waits_for_a_page_that_answers_late_then_gives_up() -> None:
    said = 'Use the textbox to enter "Vina" and press "Search", then find and click the 4th search result.'
    done = ["click(1)", 'type("Vina")', 'click("Search")']
    late = _observation(("entry", "Vina", 60, 200), ("button", "Search", 60, 240))
    for waited in range(3):
        assert _next("search-engine", said, late, *done, *["wait()"] * waited) == "wait()"
    shown = _observation(("link", "2", 60, 400))
    assert _next("search-engine", said, shown, *done, "wait()", "wait()") == 'click("2")'
    with pytest.raises(TaskFailed, match="finds no link '2'"):
        _next("search-engine", said, late, *done, *["wait()"] * 3)


def test_demonstrator_unreadable_instruction_is_task_failure() -> None:
    with pytest.raises(TaskFailed, match="which does not read like"):
        _next("click-tab", "Fly to the moon.", _observation())
