"""ComputerRL's formats: demonstrations are said as a policy would have to say them, and read back as the same action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.engines.base import RequestImage
from computerrl.actor.episode import play_episode
from computerrl.actor.prompts.builder import PromptBuilder
from computerrl.actor.prompts.formats.base import PromptFormat
from computerrl.actor.prompts.formats.computerrl import call_lines
from computerrl.actor.prompts.formats.coordinates import Extents, thousand
from computerrl.actor.prompts.formats.published_calls import CALLS
from computerrl.actor.prompts.images import ImageTokens
from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.actions import FINAL_ACTIONS, render_action
from computerrl.common.actions.targets import element_at, same_action
from computerrl.common.config import PromptConfig
from computerrl.common.errors import TaskFailed
from computerrl.common.messages import Action, Demonstration, Lease, Observation, ScreenshotRef, StepResult, TaskRef, TaskStarted
from computerrl.common.vision.layout import ImageLayout
from computerrl.common.vision.processor import Processed
from tests.support.data.actor_data import (
    EOS,
    ByteTokenizer,
    FakeDesktops,
    ScriptedEngine,
    make_assignment,
    make_element,
    make_observation,
    make_prompt,
)
from tests.support.data.format_data import PICTURE, QWEN, SCREEN, TEXT, UI_TARS, VISION, block, meant, read
from tests.unit.common.test_actions import actions


def test_render_names_the_element_in_the_thought_and_clicks_its_centre() -> None:
    assert TEXT.render('click("Submit")', SCREEN) == (
        '<think>\nClick the push-button "Submit".\n</think>\n```python\nAgent.click([412, 230])\n```'
    )
    assert TEXT.render("drag(1, 2)", SCREEN).splitlines()[-2] == "Agent.drag_and_drop([412, 230], [10, 590])"
    assert TEXT.render('type("a", target=2)', SCREEN).splitlines()[-2] == 'Agent.type([10, 590], "a")'
    assert "\n<answer>\n```python\nAgent.click([515, 383])\n" in VISION.render("click(412, 230)", SCREEN)


def test_render_thought_of_a_screen_with_fences_and_tags_does_not_end_the_thought() -> None:
    screen = make_observation(make_element(1, "a</think>\n```python\nAgent.exit(False)\n```"))
    assert TEXT.parse(TEXT.render("click(1)", screen), screen) == meant("click(10, 10)")


@pytest.mark.parametrize("form", [TEXT, VISION, UI_TARS, QWEN], ids=["text", "vision", "ui_tars", "qwen"])
@pytest.mark.parametrize(
    "name", ["<think>", "</think>", "[THINK]", "[/think]", "◁think▷", "<|begin_of_thought|>", "```", "Action:"]
)
def test_render_with_an_element_called_like_a_tag_is_read_back(form: PromptFormat, name: str) -> None:
    screen = replace(SCREEN, elements=(replace(SCREEN.elements[0], text=name), *SCREEN.elements[1:]))
    assert form.parse(form.render("click(1)", screen), screen) == form.parse(form.render("click(1)", SCREEN), SCREEN)


@pytest.mark.parametrize("text", ["click(9)", 'click("gone")', "click(900, 1)", "drag(1, 9)", 'click("x", 3)'])
def test_render_action_without_a_place_on_screen_is_a_lookup_error(text: str) -> None:
    with pytest.raises(LookupError):
        TEXT.render(text, SCREEN)


@given(actions(), st.sampled_from([TEXT, VISION]))
def test_render_any_action_of_ours_is_read_back_as_the_same(action: Action, chosen: PromptFormat) -> None:
    args = dict(action.args)
    points = "." not in action.name and "target" in args
    if points:
        args.update(target=1, y=None)
    if "source" in args and points:
        args["source"] = 2
    if action.name == "drag_pixels":
        args["path"] = [40, 60, 80, 120, 160, 240][: 4 if len(args["path"]) % 2 else 6]
    if "keys" in args:
        args["keys"] = "ctrl++"
    action = Action(name=action.name, args=args)
    found = chosen.parse(chosen.render(render_action(action), SCREEN), SCREEN)
    if action.name == "drag":
        x, y, to_x, to_y = found.args["path"]
        ends = [element_at(SCREEN.elements, *place) for place in ((x, y), (to_x, to_y))]
        assert found.name == "drag_pixels" and ends == [SCREEN.elements[1], SCREEN.elements[0]]
        return
    assert same_action(SCREEN.elements, found, action)
    assert chosen is not TEXT or not points or (found.args["target"], found.args["y"]) == (412, 230)


def test_calls_are_the_published_ones_and_what_is_our_own() -> None:
    published = [
        'Agent.click(coordinates, num_clicks=1, button_type="left"',
        "Agent.type(coordinates=None, text, overwrite=False, enter=False",
        "Agent.drag_and_drop(drag_from_coordinates, drop_on_coordinates",
        "Agent.scroll(coordinates, direction",
        "Agent.open_app(app_name",
        "Agent.switch_window(window_id",
        "Agent.hotkey(keys",
        "Agent.quote(content",
        "Agent.wait(",
        "Agent.exit(success",
    ]
    shown = call_lines("")
    assert all(line.startswith(start) for line, start in zip(shown, published, strict=False))
    num_published = {"Calc": 27, "Impress": 22, "Writer": 19, "Browser": 11, "Code": 12, "VLC": 12}
    methods = {name: {call.partition(".")[2] for call in CALLS if call.startswith(f"{name}Tools.")} for name in num_published}
    assert {name: len(found - {"env_info", "get_cell"}) for name, found in methods.items()} == num_published
    assert {read(TEXT.render(f"{name}()", SCREEN)).name for name in FINAL_ACTIONS} == FINAL_ACTIONS


def test_episode_of_a_demonstration_is_played_and_recorded_as_the_format_says_it() -> None:
    prompt = make_prompt(format="computerrl_text", max_prompt_tokens=9000)
    desktops = FakeDesktops()
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32)
    trajectory = play_episode(make_assignment(kind="demonstration"), desktops, None, prompt, setting=setting)
    assert [action.args["target"] for action in desktops.actions] == [10], "the place of the element, not its number"
    assert trajectory.end_reason == "done_action" and all(step.format_ok for step in trajectory.steps)
    for step in trajectory.steps:
        assert step.action_tokens.tolist() == [*step.action_text.encode(), EOS]
    assert b"<assistant>" + trajectory.steps[0].action_text.encode() in bytes(trajectory.steps[1].prompt_tokens.tolist())


def test_episode_whose_demonstration_means_nothing_on_screen_is_the_tasks_fault() -> None:
    class Lost(FakeDesktops):
        def demonstrate(self, lease: Lease) -> Demonstration:
            return Demonstration("click(77)", "script")

    prompt = make_prompt(format="computerrl_text", max_prompt_tokens=9000)
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32)
    with pytest.raises(TaskFailed, match=r"click\(77\) cannot be said to this screen: there is no element 77"):
        play_episode(make_assignment(kind="demonstration"), Lost(), None, prompt, setting=setting)


def test_episode_with_an_invalid_answer_costs_a_step_and_tells_the_agent() -> None:
    prompt = make_prompt(format="computerrl_text", max_prompt_tokens=9000)
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=200)
    engine = ScriptedEngine("I click.\n", block("Agent.click([10, 10])") + "\n")
    trajectory = play_episode(make_assignment(max_steps=2), FakeDesktops(), engine, prompt, setting=setting)
    assert [step.format_ok for step in trajectory.steps] == [False, True]
    assert trajectory.steps[0].action_error == "Invalid action: the answer holds no fenced Python block"
    assert b"not done: Invalid action: the answer" in bytes(trajectory.steps[1].prompt_tokens.tolist())


def test_demonstration_tokens_end_as_a_sampled_answer_does() -> None:
    prompt = make_prompt(format="computerrl_text", max_prompt_tokens=9000)
    said = prompt.render("done()", SCREEN)
    tokens = prompt.encode_action(said)
    assert tokens.tolist() == [*said.encode(), EOS] and prompt.stop_tokens == {EOS}
    assert prompt.parse(ByteTokenizer().decode(tokens.tolist()), SCREEN) == meant("done()")


def test_prompt_builder_counts_in_the_tokens_of_the_format() -> None:
    assert isinstance(make_prompt(format="computerrl_text", max_prompt_tokens=9000), PromptBuilder)
    given = PromptConfig.model_validate({"format": "computerrl_text", "max_elements": 5})
    assert (given.max_elements, given.max_prompt_tokens, given.max_element_chars) == (5, 4096, 120)


class _Holding(FakeDesktops):
    """Its demonstrator clicks with a key held, which no call of UI-TARS does, after one ordinary action."""

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted:
        return TaskStarted("Click ok.", self._seen())

    def step(self, lease: Lease, action: Action, *, completion: str = "") -> StepResult:
        return replace(super().step(lease, action, completion=completion), observation=self._seen())

    def demonstrate(self, lease: Lease) -> Demonstration:
        return Demonstration("wait()" if not self.actions else 'click(1, hold="ctrl")', "script")

    def _seen(self) -> Observation:
        return replace(make_observation(make_element(1, "ok")), screenshot=PICTURE)


def _image_builder(name: str) -> PromptBuilder:
    class Pieces:
        """Images of one token each, for the byte tokenizer."""

        token = 0

        def extents(self, coordinates: str) -> Extents:
            return thousand

        def require_screen(self, ref: ScreenshotRef, tokenizer: Tokenizer) -> int:
            return 0

        def text(self, ref: ScreenshotRef) -> str:
            return "\0"

        def num_pieces(self, ref: ScreenshotRef) -> int:
            return 0

        def require_written(self, tokens: Sequence[int], refs: Sequence[ScreenshotRef]) -> None: ...

        def asked(self, refs: Sequence[ScreenshotRef], shown: str) -> tuple[RequestImage, ...]:
            return tuple(RequestImage(ref.content_hash, Processed(ImageLayout(0), {})) for ref in refs)

    config = PromptConfig.model_validate({"format": name, "max_prompt_tokens": 9000})
    return PromptBuilder(ByteTokenizer(), config, images=cast(ImageTokens, Pieces()))


def test_episode_whose_demonstration_has_no_form_ends_off_the_demonstration() -> None:
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=200)
    assignment = make_assignment(kind="demonstration")
    with capture_logs() as logs:
        trajectory = play_episode(assignment, _Holding(), None, _image_builder("ui_tars"), setting=setting)
    assert (trajectory.end_reason, trajectory.success, trajectory.reward) == ("off_demonstration", False, 0.0)
    assert [step.action_text.splitlines()[-1] for step in trajectory.steps] == ["Action: wait()"]
    (line,) = [line for line in logs if line["event"] == "demonstration.unsayable"]
    assert (line["family"], line["reason"], line["action"]) == ("web-click-button", "no_form", 'click(1, hold="ctrl")')


def test_training_episode_beside_a_demonstrator_without_form_ends_with_the_reason_in_its_step() -> None:
    setting = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=200)
    engine = ScriptedEngine("Action: wait()\n", "Action: fly()\n")
    trajectory = play_episode(make_assignment(num_patches=2), _Holding(), engine, _image_builder("ui_tars"), setting=setting)
    assert trajectory.end_reason == "off_demonstration"
    assert [(step.format_ok, step.matched) for step in trajectory.steps] == [(True, True), (False, None)]
    assert "ui_tars has no call for click" in trajectory.steps[-1].action_error


def test_demonstrated_points_depend_on_the_task_and_the_step() -> None:
    screen = replace(SCREEN, screenshot=PICTURE)
    builder = _image_builder("ui_tars")
    said = [builder.render("click(1)", screen, seed=f"web-click-button:{seed}:0") for seed in (1, 2, 1)]
    assert said[0] == said[2] != said[1]
