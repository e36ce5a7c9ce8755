"""The work of each request on a desktop: put a task on screen, step, demonstrate, evaluate, check health.

Each function turns a request into the work that a `DesktopWorker` runs in its thread. A driver whose answer breaks the protocol
raises `DesktopBroken`; it never leads to a reward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from computerrl.common.actions import FINAL_ACTIONS, calls_application, parse_action, render_action
from computerrl.common.config import TasksConfig
from computerrl.common.errors import DesktopBroken, TaskFailed
from computerrl.common.messages import (
    Ack,
    Action,
    Demonstration,
    DemonstrationRequest,
    Evaluation,
    EvaluationRequest,
    FinalAction,
    Lease,
    Message,
    Observation,
    StepRequest,
    StepResult,
    TaskRef,
    TaskReset,
    TaskStarted,
)
from computerrl.common.metrics import Timings
from computerrl.env_server.driver import DesktopDriver, TaskInstance
from computerrl.env_server.judging.judge import Judge, evaluator_getter
from computerrl.env_server.judging.untouched import Untouched
from computerrl.env_server.serving.desktop_worker import DesktopWorker, PreparedTask, TaskSession
from computerrl.env_server.serving.replay import with_recording
from computerrl.env_server.tasks import task_instance
from computerrl.env_server.tasks.wordings import said_to_agents

SPARE_LIFETIME_S = 60.0
"""Maximum age of a spare. An older one is set up anew: set-ups may name times, and pages move by themselves."""

Work = Callable[[DesktopWorker], Message]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskSetting:
    """Configuration of the tasks of this host, their judge, and the check of untouched desktops."""

    tasks: TasksConfig
    judge: Judge
    untouched: Untouched
    by_pixels: bool = False
    """Whether recorded demonstrations name the pixels at which people pointed instead of elements."""


def reset(message: TaskReset, *, setting: TaskSetting, timings: Mapping[str, Timings]) -> Work:
    """Put the task on screen; on a spare that shows it already, only observe it again."""

    def work(worker: DesktopWorker) -> Message:
        prepared, worker.session, worker.prepared = worker.prepared, None, None
        with timings["reset"].measure():
            observation = _still_shown(worker, prepared, message.task)
            if prepared is None or observation is None:
                prepared, observation = _put_on_screen(worker, message.task, setting)
        # Demonstrators read the family's own words, agents what the wording makes of them.
        worker.session = TaskSession(message.lease.token, message.task, prepared.instance, prepared.instruction, observation)
        return TaskStarted(instruction=said_to_agents(prepared.instruction, message.task, setting.tasks), observation=observation)

    return work


def prepare(task: TaskRef, *, setting: TaskSetting) -> Work:
    """Put a task on a spare desktop's screen."""

    def work(worker: DesktopWorker) -> Message:
        worker.session = worker.prepared = None
        worker.prepared, _ = _put_on_screen(worker, task, setting)
        return Ack()

    return work


def _still_shown(worker: DesktopWorker, prepared: PreparedTask | None, task: TaskRef) -> Observation | None:
    """Observation of a spare prepared for ``task``; None when there is none, it is too old, or its window is gone."""
    if prepared is None or prepared.task != task or time.monotonic() - prepared.prepared_at > SPARE_LIFETIME_S:
        return None
    seen = _checked(_driver(worker).observe(), Observation, "observe")
    return seen if (seen.app, seen.window_title) == (prepared.app, prepared.window_title) else None


def _put_on_screen(worker: DesktopWorker, task: TaskRef, setting: TaskSetting) -> tuple[PreparedTask, Observation]:
    scripted = task_instance(task, tasks=setting.tasks)
    instance = with_recording(scripted, task, tasks=setting.tasks, by_pixels=setting.by_pixels)

    def judge_untouched() -> Evaluation:
        _reset(worker, task, instance)
        return _verdict(worker, task, instance, "done", setting.judge)

    setting.untouched.refuse_or_try(task, instance, judge_untouched)
    instruction, observation = _reset(worker, task, instance)
    return PreparedTask(task, instance, instruction, observation.app, observation.window_title, time.monotonic()), observation


def _reset(worker: DesktopWorker, task: TaskRef, instance: TaskInstance) -> tuple[str, Observation]:
    answer = _driver(worker).reset(instance)
    worker.reset_at = time.monotonic()
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise DesktopBroken(f"reset gave {_short(answer)} instead of instruction and observation")
    instruction = _checked(answer[0], str, "instruction")
    if not instruction.strip():
        raise TaskFailed(f"{task.task_id} has no instruction")
    return instruction, _checked(answer[1], Observation, "observation")


NO_CALLS = "there are no calls of applications here; use mouse and keyboard"
"""Error of an application's call, for the agent, where `tasks.actions` is gui."""


def step(message: StepRequest, *, tasks: TasksConfig, timings: Mapping[str, Timings]) -> Work:
    """Carry out one action. After the task has ended nothing is done any more: a further click may start the page anew."""

    def work(worker: DesktopWorker) -> Message:
        session = _session(worker, message.lease)
        if session.finished or message.action.name in FINAL_ACTIONS:
            return StepResult(observation=session.observation, action_error="", finished=True)
        if tasks.actions == "gui" and calls_application(message.action.name):
            return StepResult(observation=session.observation, action_error=NO_CALLS, finished=False)
        started = time.perf_counter()
        result = _checked(_driver(worker).step(message.action), StepResult, "step")
        duration_s = time.perf_counter() - started
        timings["step"].add(duration_s)
        timings["settle"].add(result.observation.settle_s)
        timings["observe"].add(max(0.0, duration_s - result.observation.settle_s))
        session.observation = result.observation
        session.finished = result.finished
        session.actions = (*session.actions, message.action)
        return result

    return work


def demonstrate(message: DemonstrationRequest) -> Work:
    """The demonstrator's next action for the latest observation."""

    def work(worker: DesktopWorker) -> Message:
        session = _session(worker, message.lease)
        instance, seen, get = session.instance, session.observation, _driver(worker).get
        action = instance.demonstrate(session.instruction, seen, session.actions, get)
        text = render_action(_checked(action, Action, "demonstrator"))
        assert parse_action(text).name == action.name
        width, height = (0, 0) if instance.drawn_size is None else instance.drawn_size(action, seen, get)
        return Demonstration(text, instance.shown_by, width, height)

    return work


def evaluate(message: EvaluationRequest, *, setting: TaskSetting, timings: Mapping[str, Timings]) -> Work:
    """Judge the desktop's state."""

    def work(worker: DesktopWorker) -> Message:
        session = _session(worker, message.lease)
        if message.goes_on and not session.instance.counts_facts:
            return Evaluation(reward=0.0, success=False, detail="its evaluator counts no facts")
        with timings["evaluate"].measure():
            verdict = _verdict(worker, session.task, session.instance, message.final_action, setting.judge)
        if message.final_action == "fail" and not session.instance.judges_giving_up:
            return msgspec.structs.replace(verdict, reward=0.0, success=False, detail="given up, though the task can be done")
        return verdict

    return work


def _verdict(worker: DesktopWorker, task: TaskRef, instance: TaskInstance, final_action: FinalAction, judge: Judge) -> Evaluation:
    get = evaluator_getter(_driver(worker).get, instance, final_action=final_action)
    verdict = _checked(judge.judge(task, instance, get), Evaluation, "evaluator")
    if not 0.0 <= verdict.reward <= 1.0:
        raise TaskFailed(f"the evaluator gave reward {verdict.reward}, which is outside 0..1")
    return verdict


def use(work: Callable[[DesktopDriver], T], found: list[T]) -> Work:
    """Run ``work`` on the driver and put into ``found`` what it returns. A task that is on the screen is over, as nobody knows
    what is done to it."""

    def on_driver(worker: DesktopWorker) -> Message:
        worker.session = worker.prepared = None
        found.append(work(_driver(worker)))
        return Ack()

    return on_driver


def health(worker: DesktopWorker) -> Message:
    """Check that the driver still answers."""
    if _driver(worker).healthy() is not True:
        raise DesktopBroken("the health check failed")
    return Ack()


def _driver(worker: DesktopWorker) -> DesktopDriver:
    assert worker.driver is not None, "calls run only after the start"
    return worker.driver


def _session(worker: DesktopWorker, lease: Lease) -> TaskSession:
    session = worker.session
    if session is None or session.token != lease.token:
        raise TaskFailed("no task was set up under this lease: send a TaskReset first")
    return session


def _checked(value: Any, kind: type[T], what: str) -> T:
    """``value`` as the receiver will decode it: its fields have their types, and every text can be sent."""
    if not isinstance(value, kind):
        raise DesktopBroken(f"{what} gave {_short(value)} instead of {kind.__name__}")
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_scalar), type=kind)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise DesktopBroken(f"{what} gave a {kind.__name__} that cannot be sent: {error}") from error


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{_short(value)} in it")


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
