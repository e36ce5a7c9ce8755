"""Who chooses the actions of an episode: the policy, the task's demonstrator, an agent, or a teacher that demonstrates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from computerrl.actor.agents.base import Agent, Answer, Call, Conversation, Sight
from computerrl.actor.engines.base import Completion, GenerationRequest, Sampler
from computerrl.actor.prompts.builder import Prompt, PromptBuilder
from computerrl.actor.prompts.formats.base import PastAction, Unsayable
from computerrl.common import log
from computerrl.common.actions import ActionSyntaxError, parse_action, render_action
from computerrl.common.actions.targets import by_number, same_action
from computerrl.common.errors import ConfigError, Problem, TaskFailed
from computerrl.common.messages import (
    Action,
    Assignment,
    Demonstration,
    Evaluation,
    FinalAction,
    Lease,
    Observation,
    ScreenshotRef,
    StepResult,
    TaskRef,
    TaskStarted,
    Usage,
)

_NO_INTS = np.zeros(0, dtype=np.int32)
_NO_FLOATS = np.zeros(0, dtype=np.float32)
_NO_PROMPT = Prompt(_NO_INTS)
"""Of an agent, whose model's prompts are not ours."""

Activity = Literal["generate", "desktop"]


class DesktopCalls(Protocol):
    """Requests of an episode to its desktop; the part of `env_server.client.DesktopClient` used here."""

    def lease(self, incarnation: str, task: TaskRef | None = None, *, next_task: TaskRef | None = None) -> Lease: ...

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted: ...

    def step(self, lease: Lease, action: Action, *, completion: str = "") -> StepResult: ...

    def demonstrate(self, lease: Lease) -> Demonstration: ...

    def evaluate(self, lease: Lease, final_action: FinalAction = "", *, goes_on: bool = False) -> Evaluation: ...

    def release(self, lease: Lease) -> None: ...

    def screenshot(self, ref: ScreenshotRef) -> bytes: ...


def _no_activity(_: Activity) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class EpisodeSetting:
    """Settings that all episodes of an actor share."""

    actor: str
    """`actor-<index>:<incarnation>`"""
    incarnation: str
    max_new_tokens: int
    max_invalid_actions: int = 2
    """Number of invalid actions in a row after which the episode ends and is evaluated as it is."""
    require_done: bool = False
    """Whether success needs `done()`, or a task that ends by itself."""
    stopped: Callable[[], bool] = lambda: False
    """Whether the actor is stopping; checked before every step."""
    during: Callable[[Activity], AbstractContextManager[object]] = _no_activity
    """Context manager around generation and around waiting for the desktop, for the actor's meters."""
    teacher: Agent | None = None
    """Agent with a model of its own that plays demonstrations; None: the tasks' demonstrators do."""
    teacher_name: str = ""
    """Name under which its demonstrations are recorded."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chosen action as text, with its tokens and log-probs for training."""

    text: str
    tokens: np.ndarray
    logprobs: np.ndarray
    policy_versions: np.ndarray
    generate_s: float
    demonstrate_s: float
    cut: bool = False
    """Whether sampling ended by length. Then the policy did not end its action, whatever the text says."""
    action: Action | None = None
    """An agent's action; None: it stands in the text."""
    problem: str = ""
    """Reason why an agent's answer holds no action."""
    failure: str = ""
    """Reason why an agent cannot go on."""
    usage: Usage | None = None
    """Tokens that an agent's model took."""
    prompt: Prompt = _NO_PROMPT
    """Prompt that the policy answered."""
    earlier: tuple[Chosen, ...] = ()
    """Completions that an agent asked of the policy before this one, for the same action."""


_NOTHING_SAID = Chosen("", _NO_INTS, _NO_FLOATS, _NO_INTS, 0.0, 0.0)
"""Without tokens, log-probs and versions."""


class Chooser(Protocol):
    """Source of the actions of one episode; close it."""

    shown_by: str
    """Who has chosen so far in a demonstration, as in `Trajectory`; empty: nobody but the policy or the agent."""

    def close(self) -> None:
        """The episode has ended."""

    def choose(self, observation: Observation, history: Sequence[PastAction], *, number: int) -> Chosen:
        """The action after ``number`` ones, which are ``history``. Raises `Unsayable`, `EngineFailed`."""

    def demonstrate(self, observation: Observation, *, number: int) -> Chosen:
        """The demonstrator's action, where it plays beside the policy. Raises `Unsayable`."""

    def parse(self, chosen: Chosen, observation: Observation) -> Action:
        """Raises `ActionSyntaxError`."""


class PolicyChooser:
    """The policy or the demonstrator, as the assignment says. See `Chooser`."""

    shown_by = ""

    def __init__(
        self,
        assignment: Assignment,
        desktops: DesktopCalls,
        lease: Lease,
        engine: Sampler | None,
        builder: PromptBuilder,
        instruction: str,
        *,
        setting: EpisodeSetting,
    ) -> None:
        self._assignment = assignment
        self._desktops = desktops
        self._lease = lease
        self._engine = engine
        self._builder = builder
        self._instruction = instruction
        self._setting = setting

    def close(self) -> None:
        """Nothing is open."""

    def choose(self, observation: Observation, history: Sequence[PastAction], *, number: int) -> Chosen:
        prompt = self._builder.build(self._instruction, observation, history)
        is_shown = self._assignment.kind == "demonstration"
        chosen = self.demonstrate(observation, number=number) if is_shown else self._generate(prompt)
        return replace(chosen, prompt=prompt)

    def demonstrate(self, observation: Observation, *, number: int) -> Chosen:
        """The demonstrator's action after ``number`` ones, as the policy would have to say it. Raises `Unsayable`, with a
        warning in the log."""
        began = time.perf_counter()
        with self._setting.during("desktop"):
            demonstration = self._desktops.demonstrate(self._lease)
        self.shown_by, action_text = demonstration.shown_by, demonstration.action_text
        try:
            chosen = self._said(action_text, observation, number=number)
        except LookupError as error:
            raise TaskFailed(f"the demonstrated {action_text:.200} cannot be said to this screen: {error.args[0]}") from error
        return replace(chosen, demonstrate_s=time.perf_counter() - began)

    def _said(self, action_text: str, observation: Observation, *, number: int) -> Chosen:
        """An action as the policy would have to say it. Raises `Unsayable`, with a warning in the log, and `LookupError` for a
        target that is not on the screen."""
        task = self._assignment.task
        try:
            text = self._builder.render(action_text, observation, seed=f"{task.task_id}:{number}")
        except Unsayable as error:
            _log_unsayable(task, error, action_text)
            raise
        tokens = self._builder.encode_action(text)
        if len(tokens) > self._setting.max_new_tokens:
            # The policy would learn it and could never sample it to the end.
            log.get_logger().warning(
                "demonstration.too_long", num_tokens=len(tokens), max_new_tokens=self._setting.max_new_tokens, action=action_text
            )
        return replace(_NOTHING_SAID, text=text, tokens=tokens)

    def _generate(self, prompt: Prompt) -> Chosen:
        assert self._engine is not None, "only demonstrations are played without an engine"
        began = time.perf_counter()
        with self._setting.during("generate"):
            completion: Completion = self._engine.submit(
                GenerationRequest(
                    prompt_tokens=prompt.tokens,
                    temperature=self._assignment.temperature,
                    max_new_tokens=self._setting.max_new_tokens,
                    stop_tokens=self._builder.stop_tokens,
                    may_be_older=self._assignment.kind == "training",
                    images=self._builder.request_images(prompt, shown=self._assignment.shown_images),
                    sent=self._builder.sent_images(prompt, shown=self._assignment.shown_images),
                    chat=self._builder.chat_turns(prompt, shown=self._assignment.shown_images),
                )
            ).result()
        text, tokens, versions = completion.text, completion.tokens, completion.policy_versions
        if not len(tokens):
            # A server sent text alone. Its tokens are written as those of a demonstration; nothing is trained on them.
            tokens = self._builder.encode_action(text)
            versions = np.full(len(tokens), self._engine.policy_version, dtype=np.int32)
        return Chosen(
            text=self._builder.said(text, tokens),
            tokens=tokens,
            logprobs=completion.logprobs,
            policy_versions=versions,
            generate_s=time.perf_counter() - began,
            demonstrate_s=0.0,
            cut=completion.finish == "length",
        )

    def parse(self, chosen: Chosen, observation: Observation) -> Action:
        """Raises `ActionSyntaxError`."""
        if chosen.cut:
            raise ActionSyntaxError(f"cut off after {len(chosen.tokens)} tokens")
        return self._builder.parse(chosen.text, observation)


class TeacherChooser(PolicyChooser):
    """The setting's teacher, whose actions are said as the policy would have to say them: a demonstration.

    What it could not do stands in no prompt: the policy is to learn the way, not the detours."""

    _conversation: Conversation | None = None

    def choose(self, observation: Observation, history: Sequence[PastAction], *, number: int) -> Chosen:
        began = time.perf_counter()
        self.shown_by = self._setting.teacher_name
        with self._setting.during("desktop"):
            sight = _sight(self._desktops, observation, history)
        with self._setting.during("generate"):
            if self._conversation is None:
                assert self._setting.teacher is not None, "the caller checked"
                self._conversation = self._setting.teacher.begin(self._instruction, assignment=self._assignment, engine=None)
            answer = self._conversation.act(sight)
        if answer.action is None:
            return replace(_NOTHING_SAID, text=answer.text, problem=answer.problem, failure=answer.failure, usage=answer.usage)
        prompt = self._builder.build(self._instruction, observation, [past for past in history if not past.error])
        action = answer.action if prompt.images else by_number(observation.elements, answer.action)
        try:
            chosen = self._said(render_action(action), observation, number=number)
        except LookupError as error:
            return replace(_NOTHING_SAID, text=answer.text, problem=str(error.args[0]), usage=answer.usage)
        return replace(chosen, prompt=prompt, usage=answer.usage, generate_s=time.perf_counter() - began)

    def parse(self, chosen: Chosen, observation: Observation) -> Action:
        """Raises `ActionSyntaxError`."""
        if chosen.problem:
            raise ActionSyntaxError(chosen.problem)
        return super().parse(chosen, observation)

    def close(self) -> None:
        if self._conversation is not None:
            self._conversation.close()


class AgentChooser:
    """An agent, with a model of its own or the run's policy. See `Chooser`."""

    shown_by = ""

    def __init__(
        self,
        assignment: Assignment,
        desktops: DesktopCalls,
        lease: Lease,
        engine: Sampler | None,
        agent: Agent,
        instruction: str,
        *,
        setting: EpisodeSetting,
    ) -> None:
        self._assignment = assignment
        self._desktops = desktops
        self._lease = lease
        self._engine = engine
        self._agent = agent
        self._instruction = instruction
        self._setting = setting
        self._conversation: Conversation | None = None

    def choose(self, observation: Observation, history: Sequence[PastAction], *, number: int) -> Chosen:
        began = time.perf_counter()
        with self._setting.during("desktop"):
            sight = _sight(self._desktops, observation, history)
            shown = ""
            if self._assignment.kind == "demonstration":
                demonstration = self._desktops.demonstrate(self._lease)
                self.shown_by, shown = demonstration.shown_by, demonstration.action_text
        asked = time.perf_counter()
        with self._setting.during("generate"):
            if self._conversation is None:
                self._conversation = self._agent.begin(self._instruction, assignment=self._assignment, engine=self._engine)
            answer = self._conversation.act(sight, shown=shown)
        if shown and not answer.failure:
            self._require(answer, shown, observation)
        chosen = Chosen(
            text=answer.text,
            tokens=_NO_INTS,
            logprobs=_NO_FLOATS,
            policy_versions=_NO_INTS,
            generate_s=time.perf_counter() - asked,
            demonstrate_s=asked - began,
            action=answer.action,
            problem=answer.problem,
            failure=answer.failure,
            usage=answer.usage,
        )
        if not answer.calls:
            return chosen
        *earlier, last = map(_chosen, answer.calls)
        # The last completion is taken for the one that led to the action, whatever the agent has made of its text.
        return replace(
            chosen,
            tokens=last.tokens,
            logprobs=last.logprobs,
            policy_versions=last.policy_versions,
            prompt=last.prompt,
            earlier=tuple(earlier),
        )

    def _require(self, answer: Answer, shown: str, observation: Observation) -> None:
        """Raises `Unsayable` for any action but the demonstrator's, with a warning in the log."""
        if answer.action is None or not same_action(observation.elements, answer.action, parse_action(shown)):
            made = f"{answer.text!r:.200}" + (f", which is no action: {answer.problem}" if answer.action is None else "")
            error = Unsayable("other_action", f"of what demonstrate answered, the agent made {made}")
            _log_unsayable(self._assignment.task, error, shown)
            raise error

    def close(self) -> None:
        if self._conversation is not None:
            self._conversation.close()

    def demonstrate(self, observation: Observation, *, number: int) -> Chosen:
        reason = "has the demonstrator play beside the policy, and its actions cannot be said in an agent's own prompts"
        raise ConfigError([Problem("learner.algorithm.name", reason, "use another algorithm, or leave out actor.agent")])

    def parse(self, chosen: Chosen, observation: Observation) -> Action:
        if chosen.action is None:
            raise ActionSyntaxError(chosen.problem)
        return chosen.action


def _sight(desktops: DesktopCalls, observation: Observation, history: Sequence[PastAction]) -> Sight:
    """What an agent sees before its next action."""
    ref = observation.screenshot
    screenshot = None if ref is None else desktops.screenshot(ref)
    return Sight(observation, screenshot, history[-1].error if history else "")


def _log_unsayable(task: TaskRef, error: Unsayable, action: str) -> None:
    place = {"family": task.family, "seed": task.seed, "action": action}
    log.get_logger().warning("demonstration.unsayable", **place, reason=error.reason, detail=str(error))


def _chosen(call: Call) -> Chosen:
    """A completion that an agent asked of the policy, which is no action by itself."""
    completion = call.completion
    return Chosen(
        text=completion.text,
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        policy_versions=completion.policy_versions,
        generate_s=completion.queue_s + completion.generate_s,
        demonstrate_s=0.0,
        prompt=Prompt(call.prompt_tokens, call.images),
    )
