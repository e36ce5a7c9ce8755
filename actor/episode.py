"""One episode: lease a desktop, put the task on screen, act until something ends it, judge, give the desktop back.

No sockets and no retries. The policy's mistakes (text that is no action, actions that cannot be done) cost it a step and are
recorded; errors of our own parts (`EnvError`, `PeerTimeout`, `EngineFailed`) are raised for the worker, who returns the
assignment: they never become a reward.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from computerrl.actor.agents.base import Agent
from computerrl.actor.choosing import (
    AgentChooser,
    Chooser,
    Chosen,
    DesktopCalls,
    EpisodeSetting,
    PolicyChooser,
    TeacherChooser,
)
from computerrl.actor.engines.base import Sampler
from computerrl.actor.prompts.builder import PromptBuilder
from computerrl.actor.prompts.formats.base import PastAction, Unsayable
from computerrl.common import log
from computerrl.common.actions import FINAL_ACTIONS, ActionSyntaxError, parse_action
from computerrl.common.actions.targets import holds, named_element, places_of, same_action
from computerrl.common.clock import unix_now
from computerrl.common.errors import ComputerRLError, TaskFailed
from computerrl.common.messages import (
    Action,
    Assignment,
    Demonstration,
    ElementTarget,
    EndReason,
    FinalAction,
    Lease,
    Observation,
    Step,
    StepTiming,
    TaskStarted,
    Trajectory,
    Usage,
    total_usage,
)

TIME_LIMIT_FRACTION = 0.8
"""Fraction of the assignment's time limit at which an episode is ended and evaluated. A trajectory after the limit is of no use:
the broker has assigned the slot to another actor by then."""

_FINAL: Mapping[EndReason, FinalAction] = {"done_action": "done", "fail_action": "fail"}


class EpisodeAborted(ComputerRLError):
    """The process is stopping; the episode was given up between two steps."""

    code = "aborted"


def play_episode(
    assignment: Assignment,
    desktops: DesktopCalls,
    engine: Sampler | None,
    player: PromptBuilder | Agent,
    *,
    setting: EpisodeSetting,
    asked_s: float = 0.0,
) -> Trajectory:
    """Play ``assignment`` by prompts for ``engine``, which may be None for demonstrations, or by an agent with its own model.
    ``asked_s``: seconds that the assignment request took.

    Raises `EnvError`, `PeerTimeout`, `EngineFailed` and `EpisodeAborted`, after returning the desktop if that is possible.
    """
    started_at, started = unix_now(), time.perf_counter()
    with setting.during("desktop"):
        lease = desktops.lease(setting.incarnation, assignment.task, next_task=assignment.next_task)
    try:
        with setting.during("desktop"):
            first = desktops.reset(lease, assignment.task)
        reset_s = time.perf_counter() - started
        episode = _Episode(assignment, desktops, lease, engine, player, setting, first, deadline=_deadline(assignment, started))
        try:
            end_reason = episode.run()
        finally:
            episode.close()
        judged = time.perf_counter()
        with setting.during("desktop"):
            verdict = desktops.evaluate(lease, _FINAL.get(end_reason, ""))
        evaluate_s = time.perf_counter() - judged
    finally:
        _release(desktops, lease)
    failed = setting.require_done and end_reason not in ("done_action", "fail_action", "task_finished")
    # An episode in which the demonstrator acted is no success of the policy, and half a demonstration shows nothing.
    broken_off = end_reason == "off_demonstration" or (assignment.kind == "demonstration" and end_reason == "agent_failed")
    failed = failed or broken_off or episode.num_patched > 0
    duration_s = time.perf_counter() - started
    busy_s = reset_s + evaluate_s + sum(step.timing.generate_s + step.timing.desktop_s for step in episode.steps)
    return Trajectory(
        trajectory_id=assignment.assignment_id,
        group_id=assignment.group_id,
        index=assignment.index,
        order_id=assignment.order_id,
        kind=assignment.kind,
        task=assignment.task,
        instruction=first.instruction,
        steps=episode.all_steps(),
        reward=0.0 if failed else verdict.reward,
        success=verdict.success and not failed,
        progress=verdict.progress if assignment.with_facts else None,
        end_reason=end_reason,
        final_screenshot=episode.observation.screenshot,
        actor=setting.actor,
        shown_by=episode.shown_by,
        started_at=started_at,
        duration_s=duration_s,
        reset_s=reset_s,
        wait_s=asked_s + max(0.0, duration_s - busy_s),
    )


def _chooser(
    assignment: Assignment,
    desktops: DesktopCalls,
    lease: Lease,
    engine: Sampler | None,
    player: PromptBuilder | Agent,
    instruction: str,
    setting: EpisodeSetting,
) -> Chooser:
    """Who chooses the actions of ``assignment``."""
    if not isinstance(player, PromptBuilder):
        return AgentChooser(assignment, desktops, lease, engine, player, instruction, setting=setting)
    is_taught = setting.teacher is not None and assignment.kind == "demonstration"
    kind = TeacherChooser if is_taught else PolicyChooser
    return kind(assignment, desktops, lease, engine, player, instruction, setting=setting)


def _deadline(assignment: Assignment, started: float) -> float:
    return started + TIME_LIMIT_FRACTION * assignment.time_limit_s


def _release(desktops: DesktopCalls, lease: Lease) -> None:
    """Give the desktop back; when that fails the lease runs out by itself, and whatever went wrong before matters more."""
    try:
        desktops.release(lease)
    except ComputerRLError as error:
        log.get_logger().warning("lease.release_failed", desktop=lease.desktop, error=error.code, reason=str(error))


class _Episode:
    """The loop of one episode, from the first observation to the end."""

    def __init__(
        self,
        assignment: Assignment,
        desktops: DesktopCalls,
        lease: Lease,
        engine: Sampler | None,
        player: PromptBuilder | Agent,
        setting: EpisodeSetting,
        first: TaskStarted,
        *,
        deadline: float,
    ) -> None:
        self._assignment = assignment
        self._desktops = desktops
        self._lease = lease
        self._chooser = _chooser(assignment, desktops, lease, engine, player, first.instruction, setting)
        self._setting = setting
        self._instruction = first.instruction
        self._deadline = deadline
        self._history: list[PastAction] = []
        self.num_patched = 0
        """Number of the demonstrator's actions that were done in place of the policy's."""
        self._knows_targets = assignment.with_targets
        """Whether the demonstrator's next action is known to be right here: the policy's actions were its own so far."""
        self._counts_facts = assignment.with_facts
        """Whether the task's evaluator is asked before each step; no longer once it has counted no facts."""
        self.observation: Observation = first.observation
        self.steps: list[Step] = []
        self._unrecorded: Usage | None = None
        """Of answers that became no step, since the last one that did."""
        self._num_invalid = 0
        """Number of invalid actions in a row."""

    def close(self) -> None:
        """No action is chosen any more."""
        self._chooser.close()

    @property
    def shown_by(self) -> str:
        """As in `Trajectory`. Where the demonstrator plays beside the policy, the episode is none of its own."""
        return self._chooser.shown_by if self._assignment.kind == "demonstration" else ""

    def all_steps(self) -> tuple[Step, ...]:
        """The steps, once the episode has ended; the last one tells what servers have counted since."""
        if self.steps and self._unrecorded is not None:
            usage = total_usage(self.steps[-1].usage, self._unrecorded)
            self.steps[-1], self._unrecorded = msgspec.structs.replace(self.steps[-1], usage=usage), None
        return tuple(self.steps)

    def run(self) -> EndReason:
        """Act until the episode ends; returns the reason."""
        for _ in range(self._assignment.max_steps):
            if self._setting.stopped():
                raise EpisodeAborted("the actor is stopping")
            if time.perf_counter() >= self._deadline:
                return "time_limit"
            end = self._step()
            if end is not None:
                return end
            if self._assignment.num_patches is not None:
                continue  # An invalid action was replaced by the demonstrator's, or it ended the episode.
            if self._num_invalid == self._setting.max_invalid_actions:
                return "invalid_limit"
        return "step_limit"

    def _step(self) -> EndReason | None:
        try:
            chosen = self._chooser.choose(self.observation, self._history, number=len(self.steps))
        except Unsayable:
            return "off_demonstration"
        for completion in chosen.earlier:
            self._record(completion, _Acted(format_ok=True))
        if chosen.failure:
            task = self._assignment.task
            log.get_logger().warning("agent.failed", family=task.family, seed=task.seed, reason=chosen.failure)
            self._record(chosen, _Acted(format_ok=False, error=chosen.failure))
            return "agent_failed"
        observation = self.observation
        places = self._places(chosen)
        began = time.perf_counter()
        progress = self._progress() if self._counts_facts else None
        target = self._target(chosen, places) if self._knows_targets else None
        acted = self._act(chosen) if self._assignment.num_patches is None else self._act_beside_demonstrator(chosen)
        desktop_s = time.perf_counter() - began + chosen.demonstrate_s
        self._num_invalid = 0 if acted.format_ok else self._num_invalid + 1
        self._record(chosen, acted, seen=observation, desktop_s=desktop_s, places=places, target=target, progress=progress)
        return acted.end

    def _progress(self) -> float | None:
        """Share of the task's facts that hold now; None where its evaluator counts none."""
        with self._setting.during("desktop"):
            progress = self._desktops.evaluate(self._lease, goes_on=True).progress
        self._counts_facts = progress is not None
        return progress

    def _record(
        self,
        chosen: Chosen,
        acted: _Acted,
        *,
        seen: Observation | None = None,
        desktop_s: float = 0.0,
        places: tuple[int, ...] = (),
        target: ElementTarget | None = None,
        progress: float | None = None,
    ) -> None:
        """Add a step. ``seen``: the screen that it was chosen on; None: the present one.

        An agent may act without asking the policy: such an action is no sample, and no step but in evaluations. What a server
        has counted for it goes to the next step."""
        usage = total_usage(self._unrecorded, chosen.usage)
        if not len(chosen.tokens) and self._assignment.kind != "evaluation":
            self._unrecorded = usage
            return
        self._unrecorded = None
        seen = seen or self.observation
        self.steps.append(
            Step(
                prompt_tokens=chosen.prompt.tokens,
                action_tokens=chosen.tokens,
                behavior_logprobs=chosen.logprobs,
                policy_versions=chosen.policy_versions,
                action_text=chosen.text,
                format_ok=acted.format_ok,
                action_error=acted.error,
                screenshot=seen.screenshot,
                settled_by=seen.settled_by,
                timing=StepTiming(generate_s=chosen.generate_s, desktop_s=desktop_s, settle_s=acted.settle_s),
                matched=acted.matched,
                images=chosen.prompt.images,
                places=places,
                target=target,
                state=seen.state,
                usage=usage,
                progress=progress,
            )
        )

    def _places(self, chosen: Chosen) -> tuple[int, ...]:
        """Pixels of the present screen at which the chosen action points."""
        try:
            action = self._chooser.parse(chosen, self.observation)
        except ActionSyntaxError:
            return ()
        seen = self.observation
        return places_of(action, seen.elements, width=seen.screen_width, height=seen.screen_height)

    def _target(self, chosen: Chosen, places: tuple[int, ...]) -> ElementTarget | None:
        """What the demonstrator would point at now; None where it names no single thing.

        A demonstrator may count its actions, so it knows no way back: after an action that is not its own it is not asked again.
        """
        try:
            with self._setting.during("desktop"):
                demonstration = self._desktops.demonstrate(self._lease)
        except TaskFailed as error:
            self._knows_targets = False
            task = self._assignment.task
            log.get_logger().warning("target.unknown", family=task.family, seed=task.seed, reason=str(error))
            return None
        seen, shown = self.observation, parse_action(demonstration.action_text)
        try:
            action = self._chooser.parse(chosen, self.observation)
        except ActionSyntaxError:
            action = None
        target = _element_target(seen, demonstration, shown, is_same_kind=action is not None and action.name == shown.name)
        hit = target is not None and target.is_same_kind and len(places) == 2 and holds(target, *places)
        self._knows_targets = hit or (action is not None and same_action(seen.elements, action, shown))
        return target

    def _act_beside_demonstrator(self, chosen: Chosen) -> _Acted:
        """Do the demonstrator's action, chosen or not; end the episode instead when it was not chosen and no patch is left."""
        try:
            expert = self._chooser.demonstrate(self.observation, number=len(self.steps))
        except Unsayable as error:
            reason = f"the demonstrator's action cannot be said: {error}"
            return _Acted(format_ok=self._is_action(chosen), error=reason, end="off_demonstration")
        deviation = self._deviation(chosen, expert)
        if deviation is None:
            return replace(self._act(chosen), matched=True)
        if self.num_patched == self._assignment.num_patches:
            return replace(deviation, end="off_demonstration")
        self.num_patched += 1
        patched = self._act(expert)
        return replace(deviation, end=patched.end, settle_s=patched.settle_s)

    def _deviation(self, chosen: Chosen, expert: Chosen) -> _Acted | None:
        """Why the chosen action is not the demonstrator's, which ends nothing by itself; None when it is."""
        try:
            action = self._chooser.parse(chosen, self.observation)
        except ActionSyntaxError as error:
            return _Acted(format_ok=False, error=str(error), matched=False)
        try:
            shown = self._chooser.parse(expert, self.observation)
        except ActionSyntaxError as problem:
            raise TaskFailed(f"the demonstrated {expert.text:.200} is no action: {problem}") from problem
        if same_action(self.observation.elements, action, shown):
            return None
        return _Acted(format_ok=True, error=f"the demonstrator did {expert.text}", matched=False)

    def _is_action(self, chosen: Chosen) -> bool:
        try:
            self._chooser.parse(chosen, self.observation)
        except ActionSyntaxError:
            return False
        return True

    def _act(self, chosen: Chosen) -> _Acted:
        """Do the chosen action."""
        text = chosen.text
        try:
            action = self._chooser.parse(chosen, self.observation)
        except ActionSyntaxError as error:
            self._history.append(PastAction(text, error=str(error), is_malformed=True, screenshot=self.observation.screenshot))
            return _Acted(format_ok=False, error=str(error))
        if action.name in FINAL_ACTIONS:
            return _Acted(format_ok=True, end="done_action" if action.name == "done" else "fail_action")
        with self._setting.during("desktop"):
            result = self._desktops.step(self._lease, action, completion=text)
        shown, self.observation = self.observation.screenshot, result.observation
        self._history.append(PastAction(text, result.action_error, result=result.observation.result, screenshot=shown))
        return _Acted(
            format_ok=True,
            error=result.action_error,
            end="task_finished" if result.finished else None,
            settle_s=result.observation.settle_s,
        )


def _element_target(
    seen: Observation, demonstration: Demonstration, shown: Action, *, is_same_kind: bool
) -> ElementTarget | None:
    """What ``shown``, the action of ``demonstration``, points at; None where that is no single thing of a known size."""
    element = named_element(seen.elements, shown)
    if element is not None:
        place = element.x, element.y, element.width, element.height
    elif demonstration.width and demonstration.height:
        place = shown.args["target"], shown.args["y"], demonstration.width, demonstration.height
    else:
        return None
    return ElementTarget(*place, seen.screen_width, seen.screen_height, is_same_kind)


@dataclass(frozen=True, slots=True)
class _Acted:
    """Result of an action."""

    format_ok: bool
    """Whether the completion parsed to an action."""
    error: str = ""
    """Reason why the chosen action was not done; empty when it was."""
    end: EndReason | None = None
    """End of the episode that followed, if any."""
    settle_s: float = 0.0
    matched: bool | None = None
    """Whether the chosen action is the demonstrator's; None: there is no demonstrator."""
