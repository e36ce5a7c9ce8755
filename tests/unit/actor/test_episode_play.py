"""One episode against a counting desktop and a scripted engine."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.engines.base import Completion, GenerationRequest
from computerrl.actor.episode import EpisodeAborted, play_episode
from computerrl.common.errors import DesktopBroken, EngineFailed, LeaseRefused, PeerTimeout, TaskFailed
from computerrl.common.messages import Demonstration, ElementTarget, Evaluation, FinalAction, Lease, Trajectory
from tests.support.data.actor_data import (
    FakeDesktops,
    ScriptedEngine,
    make_assignment,
    make_element,
    make_observation,
    make_prompt,
)

NONE = np.zeros(0, np.int32)
SETTING = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32)


def play(desktops: FakeDesktops, engine: ScriptedEngine | None, **options: object) -> Trajectory:
    assignment = make_assignment(**options)  # type: ignore[arg-type]
    return play_episode(assignment, desktops, engine, make_prompt(), setting=SETTING)  # type: ignore[arg-type]


def test_episode_until_the_task_finishes_records_tokens_as_sampled() -> None:
    desktops, engine = FakeDesktops(finish_after=2), ScriptedEngine("click(1)\n", " click( 1 )\n")
    trajectory = play(desktops, engine)
    assert trajectory.end_reason == "task_finished" and trajectory.success and trajectory.reward == 1.0
    assert [step.action_text for step in trajectory.steps] == ["click(1)", "click( 1 )"]
    second = trajectory.steps[1]
    assert bytes(second.action_tokens.tolist()) == b" click( 1 )\n"
    assert len(second.behavior_logprobs) == len(second.policy_versions) == len(second.action_tokens)
    assert second.min_policy_version == 3
    assert all(len(step.state) == 32 for step in trajectory.steps)
    assert (second.prompt_tokens == engine.requests[1].prompt_tokens).all()
    assert desktops.calls == ["lease", "reset", "step", "step", "evaluate", "release"]


def test_episode_records_where_each_action_pointed_on_the_screen_before_it() -> None:
    engine = ScriptedEngine('click("ok")\n', "drag_pixels([1, 2, 30, 40])\n", "I would click\n", "click(99)\n", "done()\n")
    trajectory = play(FakeDesktops(), engine, max_steps=5)
    assert [step.places for step in trajectory.steps] == [(10, 10), (1, 2, 30, 40), (), (), ()]


def test_episode_of_a_server_that_sends_text_alone_has_tokens_and_versions_but_no_log_probs() -> None:
    class TextAlone(ScriptedEngine):
        def submit(self, request: GenerationRequest) -> Future[Completion]:
            done = super().submit(request).result()
            answer: Future[Completion] = Future()
            answer.set_result(replace(done, tokens=NONE, logprobs=NONE, policy_versions=NONE))
            return answer

    trajectory = play(FakeDesktops(), TextAlone("click(1)\n", "done()\n"), kind="evaluation")
    first = trajectory.steps[0]
    assert bytes(first.action_tokens.tolist()) == b" click(1)\n" and first.policy_versions.tolist() == [3] * 10
    assert first.behavior_logprobs.size == 0 and trajectory.success


def test_episode_with_done_action_ends_without_a_desktop_step() -> None:
    desktops = FakeDesktops()
    assert play(desktops, ScriptedEngine("done()\n")).end_reason == "done_action"
    assert "step" not in desktops.calls


def test_episode_given_up_scores_nothing_whatever_the_desktop_shows() -> None:
    trajectory = play(FakeDesktops(), ScriptedEngine("click(1)\n", "fail()\n"))
    assert (trajectory.end_reason, trajectory.success, trajectory.reward) == ("fail_action", False, 0.0)


def test_episode_with_badly_formed_text_costs_a_step_and_is_recorded() -> None:
    desktops, engine = FakeDesktops(), ScriptedEngine("I would click\n", "click(1)\n")
    trajectory = play(desktops, engine, max_steps=2)
    first, second = trajectory.steps
    assert (first.format_ok, second.format_ok) == (False, True)
    assert first.action_error and not second.action_error
    assert trajectory.end_reason == "step_limit" and len(desktops.actions) == 1
    assert b"Error: not one function call" in bytes(second.prompt_tokens.tolist())


def test_episode_of_a_policy_that_rambles_ends_after_two_answers_in_a_row() -> None:
    engine = ScriptedEngine("hm\n", "click(1)\n", "well\n", "so\n")
    trajectory = play(FakeDesktops(), engine, max_steps=6)
    assert trajectory.end_reason == "invalid_limit"
    assert [step.format_ok for step in trajectory.steps] == [False, True, False, False]


def test_episode_that_never_says_done_succeeds_only_where_the_end_state_alone_counts() -> None:
    def success(*, require_done: bool) -> bool:
        setting = EpisodeSetting("actor-0:i", "i", 32, require_done=require_done)
        engine = ScriptedEngine("click(1)\n")
        return play_episode(make_assignment(max_steps=1), FakeDesktops(), engine, make_prompt(), setting=setting).success

    assert success(require_done=False) and not success(require_done=True)


def test_episode_with_answer_cut_by_length_is_badly_formed_even_when_it_parses() -> None:
    trajectory = play(FakeDesktops(), ScriptedEngine("click(1)"), max_steps=1)
    assert not trajectory.steps[0].format_ok and "cut off" in trajectory.steps[0].action_error


def test_episode_with_impossible_action_records_the_desktops_answer() -> None:
    trajectory = play(FakeDesktops(), ScriptedEngine("click(99)\n", "done()\n"))
    assert trajectory.steps[0].format_ok and trajectory.steps[0].action_error == "no element 99"


def test_episode_of_a_demonstration_needs_no_engine_and_has_no_logprobs() -> None:
    trajectory = play(FakeDesktops(), None, kind="demonstration")
    assert trajectory.shown_by == "script"
    assert [step.action_text for step in trajectory.steps] == ["click(1)", "done()"]
    assert bytes(trajectory.steps[0].action_tokens.tolist()) == b" click(1)\n"
    assert all(step.behavior_logprobs.size == 0 and step.policy_versions.size == 0 for step in trajectory.steps)
    assert trajectory.steps[0].min_policy_version == -1


def test_episode_beside_a_demonstrator_goes_on_with_the_policys_own_words_where_they_agree() -> None:
    desktops = FakeDesktops()
    trajectory = play(desktops, ScriptedEngine(" click( 1 )\n", "done()\n"), num_patches=0)
    assert [step.matched for step in trajectory.steps] == [True, True]
    assert [step.action_text for step in trajectory.steps] == ["click( 1 )", "done()"]
    assert trajectory.end_reason == "done_action" and trajectory.success
    assert b"click( 1 )" in bytes(trajectory.steps[1].prompt_tokens.tolist())


@pytest.mark.parametrize("wrong", ["click(99)\n", "I would click\n", "done()\n"])
def test_episode_beside_a_demonstrator_is_patched_and_is_no_success_then(wrong: str) -> None:
    desktops = FakeDesktops()
    trajectory = play(desktops, ScriptedEngine(wrong, "done()\n"), num_patches=1)
    assert [step.matched for step in trajectory.steps] == [False, True]
    assert [action.args["target"] for action in desktops.actions] == [1], "the demonstrator's action was done"
    assert trajectory.steps[0].action_text == wrong.strip() and len(trajectory.steps[0].behavior_logprobs)
    assert trajectory.steps[0].format_ok == (wrong != "I would click\n") and trajectory.steps[0].action_error
    assert b"click(1)" in bytes(trajectory.steps[1].prompt_tokens.tolist()), "and stands in the history"
    assert trajectory.end_reason == "done_action" and (trajectory.success, trajectory.reward) == (False, 0.0)


def test_episode_beside_a_demonstrator_may_name_an_element_as_it_likes() -> None:
    trajectory = play(FakeDesktops(), ScriptedEngine('click("ok")\n', "done()\n"), num_patches=0)
    assert [step.matched for step in trajectory.steps] == [True, True]


def test_episode_beside_a_demonstrator_is_not_ended_by_answers_that_are_patched() -> None:
    class Patient(FakeDesktops):
        def demonstrate(self, lease: Lease) -> Demonstration:
            return Demonstration("click(1)" if len(self.actions) < 3 else "done()", "script")

    trajectory = play(Patient(), ScriptedEngine("hm\n", "well\n", "click(1)\n", "done()\n"), num_patches=2)
    assert [step.matched for step in trajectory.steps] == [False, False, True, True]
    assert trajectory.end_reason == "done_action" and not trajectory.success and not trajectory.shown_by


def test_episode_off_the_demonstration_is_no_success_whatever_the_desktop_shows() -> None:
    trajectory = play(FakeDesktops(), ScriptedEngine("click(99)\n"), num_patches=0)
    assert (trajectory.end_reason, trajectory.success, trajectory.reward) == ("off_demonstration", False, 0.0)


def test_episode_beside_a_demonstrator_ends_at_the_mismatch_after_its_last_patch() -> None:
    desktops = FakeDesktops()
    trajectory = play(desktops, ScriptedEngine("click(99)\n", "click(1)\n"), num_patches=1)
    assert trajectory.end_reason == "off_demonstration" and not trajectory.success
    assert [step.matched for step in trajectory.steps] == [False, False] and len(desktops.actions) == 1
    assert "evaluate" in desktops.calls


def test_episode_with_targets_records_where_the_demonstrator_would_point_and_no_prompt_shows_it() -> None:
    answers = ("click(10, 12)\n", "done()\n")
    desktops, engine = FakeDesktops(), ScriptedEngine(*answers)
    assignment = replace_fields(make_assignment(), with_targets=True)
    trajectory = play_episode(assignment, desktops, engine, make_prompt(), setting=SETTING)
    box = ElementTarget(10, 10, 5, 5, 800, 600, is_same_kind=True)
    assert [step.target for step in trajectory.steps] == [box, None], "done() points at nothing"
    assert trajectory.success and trajectory.num_bytes and "demonstrate" in desktops.calls
    without = ScriptedEngine(*answers)
    plain = play(FakeDesktops(), without)
    assert [step.target for step in plain.steps] == [None, None]
    for one, other in zip(engine.requests, without.requests, strict=True):
        assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()


@pytest.mark.parametrize(("progress", "num_asked"), [(0.5, 3), (None, 2)])
def test_episode_with_facts_records_their_share_before_each_step_and_in_the_end(progress: float | None, num_asked: int) -> None:
    class Counting(FakeDesktops):
        def evaluate(self, lease: Lease, final_action: FinalAction = "", *, goes_on: bool = False) -> Evaluation:
            verdict = super().evaluate(lease, final_action, goes_on=goes_on)
            done = progress is not None and len(self.actions) > 0
            return replace_fields(verdict, progress=progress and progress * done if goes_on else progress)

    assignment = replace_fields(make_assignment(), with_facts=True)
    desktops, answers = Counting(), ("click(1)\n", "done()\n")
    trajectory = play_episode(assignment, desktops, ScriptedEngine(*answers), make_prompt(), setting=SETTING)
    assert [step.progress for step in trajectory.steps] == [progress and 0.0, progress] and trajectory.progress == progress
    assert desktops.calls.count("evaluate") == num_asked, "a task without facts is asked once, and judged in the end"
    plain = play(without := Counting(), ScriptedEngine(*answers))
    assert without.calls.count("evaluate") == 1 and plain.progress is None


def test_the_state_of_a_step_is_what_the_screen_shows_whatever_numbers_it_has() -> None:
    button = make_element(1, text="Save")
    seen = make_observation(button)
    same = make_observation(replace_fields(button, number=7))
    others = [
        make_observation(replace_fields(button, states=("focused",))),
        make_observation(replace_fields(button, x=button.x + 1)),
        make_observation(button, title="Another page"),
        make_observation(button, button),
    ]
    assert seen.state == same.state and len(seen.state) == 32
    assert len({seen.state, *(one.state for one in others)}) == 5
    assert make_observation().state == ""


def test_episode_records_the_drawn_thing_whose_middle_the_demonstrator_names_as_a_pixel() -> None:
    class Drawn(FakeDesktops):
        def demonstrate(self, lease: Lease) -> Demonstration:
            self._call("demonstrate")
            return (
                Demonstration("click(200, 300)", "script", 40, 20)
                if len(self.actions) < 2
                else Demonstration("click(7, 8)", "script")
            )

    assignment = replace_fields(make_assignment(), with_targets=True)
    desktops, engine = Drawn(), ScriptedEngine("click(219, 291)\n", "click(221, 300)\n", "click(9, 9)\n")
    trajectory = play_episode(assignment, desktops, engine, make_prompt(), setting=SETTING)
    box = ElementTarget(200, 300, 40, 20, 800, 600, is_same_kind=True)
    # Inside is the demonstrator's own action; after the second, which is beside it, nobody is asked.
    assert [step.target for step in trajectory.steps][:3] == [box, box, None] and desktops.calls.count("demonstrate") == 2


@pytest.mark.parametrize(
    ("answer", "is_same_kind"), [("click(400, 300)\n", True), ("hover(1)\n", False), ("I would click\n", False)]
)
def test_episode_that_left_the_demonstration_has_no_targets_any_more(answer: str, is_same_kind: bool) -> None:
    desktops, engine = FakeDesktops(), ScriptedEngine(answer, "click(1)\n", "done()\n")
    assignment = replace_fields(make_assignment(), with_targets=True)
    trajectory = play_episode(assignment, desktops, engine, make_prompt(), setting=SETTING)
    first, *later = (step.target for step in trajectory.steps)
    assert first == ElementTarget(10, 10, 5, 5, 800, 600, is_same_kind=is_same_kind)
    assert later == [None, None] and desktops.calls.count("demonstrate") == 1


def test_episode_of_a_family_without_demonstrator_is_played_without_targets_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    desktops = FakeDesktops(fail={"demonstrate": TaskFailed("it is not demonstrated")})
    assignment = replace_fields(make_assignment(), with_targets=True)
    trajectory = play_episode(assignment, desktops, ScriptedEngine("click(1)\n", "done()\n"), make_prompt(), setting=SETTING)
    assert trajectory.success and [step.target for step in trajectory.steps] == [None, None]
    assert desktops.calls.count("demonstrate") == 1
    said = capsys.readouterr()
    assert "target.unknown" in said.out + said.err and "web-click-button" in said.out + said.err


def test_episode_over_its_time_limit_is_judged_as_it_stands() -> None:
    desktops = FakeDesktops()
    trajectory = play(desktops, ScriptedEngine("click(1)\n"), time_limit_s=0.0)
    assert trajectory.end_reason == "time_limit" and trajectory.steps == () and "evaluate" in desktops.calls


@pytest.mark.parametrize(
    ("call", "error"),
    [("reset", TaskFailed("x")), ("step", DesktopBroken("x")), ("evaluate", PeerTimeout("x"))],
)
def test_episode_with_failing_desktop_raises_and_gives_it_back(call: str, error: Exception) -> None:
    desktops = FakeDesktops(fail={call: error}, finish_after=1)  # type: ignore[dict-item]
    with pytest.raises(type(error)):
        play(desktops, ScriptedEngine("click(1)\n"))
    assert desktops.calls[-1] == "release"


def test_episode_with_failing_engine_raises_and_gives_the_desktop_back() -> None:
    desktops = FakeDesktops()
    with pytest.raises(EngineFailed):
        play(desktops, ScriptedEngine(EngineFailed("broke")))
    assert desktops.calls[-1] == "release"


def test_episode_whose_release_fails_too_raises_the_first_error() -> None:
    desktops = FakeDesktops(fail={"step": DesktopBroken("first"), "release": LeaseRefused("second")})
    with pytest.raises(DesktopBroken):
        play(desktops, ScriptedEngine("click(1)\n"))


def test_episode_whose_release_alone_fails_keeps_its_trajectory() -> None:
    assert play(FakeDesktops(finish_after=1, fail={"release": PeerTimeout("late")}), ScriptedEngine("click(1)\n")).success


def test_episode_without_a_lease_releases_nothing() -> None:
    desktops = FakeDesktops(fail={"lease": PeerTimeout("x")})
    with pytest.raises(PeerTimeout):
        play(desktops, ScriptedEngine("click(1)\n"))
    assert desktops.calls == ["lease"]


def test_episode_asked_to_stop_is_aborted_between_steps() -> None:
    desktops = FakeDesktops()
    setting = EpisodeSetting("actor-0:i", "i", 32, stopped=lambda: len(desktops.actions) == 1)
    with pytest.raises(EpisodeAborted):
        play_episode(make_assignment(), desktops, ScriptedEngine("click(1)\n"), make_prompt(), setting=setting)  # type: ignore[arg-type]
    assert desktops.calls[-1] == "release" and len(desktops.actions) == 1


def test_episode_times_add_up() -> None:
    trajectory = play(FakeDesktops(finish_after=3), ScriptedEngine("click(1)\n"))
    spent = trajectory.reset_s + sum(step.timing.generate_s + step.timing.desktop_s for step in trajectory.steps)
    assert 0 <= spent <= trajectory.duration_s
    assert 0 <= trajectory.wait_s <= trajectory.duration_s
    assert np.isclose(trajectory.steps[0].timing.settle_s, 0.01)
