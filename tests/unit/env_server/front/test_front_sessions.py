"""Sessions: leases that end, episodes that are judged once, requests that mean nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from computerrl.common.errors import DesktopBroken, NoDesktop
from computerrl.common.messages import StepRequest
from computerrl.env_server.front.sessions import BadRequest, SessionEnded, Sessions
from tests.support.clock import ManualClock

SOLUTION = ("calc.set_cell", {"cell": "C7", "value": "ocean"})
"""Of instance 5 of calc-set-cell."""


def test_episode_is_judged_once_it_is_said_to_be_done(sessions: Sessions) -> None:
    name = sessions.open()
    first = sessions.reset(name, "calc-set-cell", 5)
    assert first.instruction == "Set cell C7 to ocean." and first.verdict is None and first.num_steps == 0
    assert first.screenshot[:4] == b"RIFF" and first.screenshot[8:12] == b"WEBP"
    assert sessions.step(name, SOLUTION).verdict is None
    last = sessions.step(name, "done()")
    assert last.verdict is not None and last.verdict.reward == 1.0 and last.num_steps == 2 and not last.truncated
    with pytest.raises(BadRequest, match="has ended: reset first"):
        sessions.step(name, "done()")
    assert sessions.look(name) == last


@pytest.mark.parametrize(
    ("call", "error"), [("clik(3)", "unknown action"), (("click", {"target": True}), "must be"), ("", "not one")]
)
def test_what_is_no_action_costs_a_step_and_is_explained(sessions: Sessions, call: str, error: str) -> None:
    name = sessions.open()
    sessions.reset(name, "calc-set-cell", 5)
    view = sessions.step(name, call)
    assert error in view.action_error and view.num_steps == 1 and view.verdict is None


def test_episode_that_is_too_long_ends_and_is_judged(sessions: Sessions) -> None:
    name = sessions.open()
    sessions.reset(name, "calc-set-cell", 5)
    views = [sessions.step(name, call) for call in (SOLUTION, "wait()", "wait()")]
    assert [view.verdict is None for view in views] == [True, True, False]
    assert views[-1].truncated and views[-1].verdict is not None and views[-1].verdict.success


def test_giving_up_pays_nothing_on_a_solved_task(sessions: Sessions) -> None:
    name = sessions.open()
    sessions.reset(name, "calc-set-cell", 5)
    sessions.step(name, SOLUTION)
    verdict = sessions.step(name, "fail()").verdict
    assert verdict is not None and verdict.reward == 0.0


def test_more_sessions_than_desktops_are_refused_until_one_ends(sessions: Sessions) -> None:
    names = [sessions.open() for _ in range(2)]
    with pytest.raises(NoDesktop, match="2 leased"):
        sessions.open()
    assert len(sessions) == 2
    sessions.close(names[0])
    sessions.reset(sessions.open(), "calc-set-cell", 5)
    for call in (sessions.look, sessions.reset, lambda name: sessions.step(name, "wait()")):
        with pytest.raises(SessionEnded, match="no such session"):
            call(names[0])
    sessions.close(names[0])


def test_session_that_nobody_uses_ends_and_its_desktop_is_free(sessions: Sessions, clock: ManualClock) -> None:
    unused, used = sessions.open(), sessions.open()
    clock.advance(59.0)
    sessions.reset(used, "calc-set-cell", 5)
    clock.advance(2.0)
    assert sessions.end_unused() == 1
    with pytest.raises(SessionEnded):
        sessions.look(unused)
    assert sessions.look(used) is not None
    sessions.open()


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda sessions, name: sessions.step(name, "wait()"), "no task is on the screen: reset first"),
        (
            lambda sessions, name: sessions.reset(name, "web-click-tab"),
            "no task 'web-click-tab' here; there are 2: calc-set-cell",
        ),
        (lambda sessions, name: sessions.reset(name, "calc-set-cell", 10**12), "no instance has seed"),
    ],
)
def test_request_that_means_nothing_is_refused_with_the_way_out(
    sessions: Sessions, ask: Callable[[Sessions, str], object], reason: str
) -> None:
    name = sessions.open()
    with pytest.raises(BadRequest, match=reason):
        ask(sessions, name)
    assert sessions.reset(name).task.family in sessions.families, "the session goes on"


def test_instances_nobody_names_are_for_training(sessions: Sessions) -> None:
    name = sessions.open()
    tasks = [sessions.reset(name).task for _ in range(8)]
    assert {task.split for task in tasks} == {"training"} and len({task.seed for task in tasks}) > 1
    assert sessions.reset(name, "calc-set-cell", 10_000_000).task.split == "evaluation"


def test_second_request_beside_one_at_work_is_refused(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sessions.open()
    sessions.reset(name, "calc-set-cell", 5)
    entered, go_on = threading.Event(), threading.Event()
    handle = sessions._service.handle

    def slow(message: object, sender: str = "local") -> object:
        if isinstance(message, StepRequest):
            entered.set()
            assert go_on.wait(30)
        return handle(message, sender)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions._sessions[name].client._channel, "_handler", slow)
    thread = threading.Thread(target=sessions.step, args=(name, "wait()"))
    thread.start()
    assert entered.wait(30)
    with pytest.raises(BadRequest, match="at work on another request"):
        sessions.step(name, "wait()")
    go_on.set()
    thread.join(30)
    view = sessions.look(name)
    assert view is not None and view.num_steps == 1


def test_session_whose_desktop_broke_gets_another_one_with_its_next_task(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sessions.open()
    sessions.reset(name, "calc-set-cell", 5)
    lease = sessions._sessions[name].lease
    assert lease is not None

    def breaking(*_: object) -> None:
        raise DesktopBroken("it died")

    driver = sessions._service._fleet.workers[lease.desktop].driver
    monkeypatch.setattr(driver, "step", breaking)
    with pytest.raises(DesktopBroken, match="it died"):
        sessions.step(name, "wait()")
    with pytest.raises(BadRequest, match="reset first"):
        sessions.step(name, "wait()")
    assert sessions.reset(name, "calc-set-cell", 5).num_steps == 0
