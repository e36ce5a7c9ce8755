"""Small fakes and builders for the actor's tests: a byte tokenizer, a scripted engine, a counting desktop, a queue broker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from computerrl.actor.engines.base import Completion, GenerationRequest
from computerrl.actor.prompts.builder import PromptBuilder
from computerrl.actor.prompts.formats.base import ChatMessage
from computerrl.common.config import PromptConfig
from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import (
    Action,
    Assignment,
    Demonstration,
    Element,
    Evaluation,
    FinalAction,
    Lease,
    NoAssignment,
    Observation,
    OrderKind,
    ScreenshotRef,
    StepResult,
    TaskRef,
    TaskStarted,
    Trajectory,
    TrajectoryReceipt,
)

EOS = 256


class ByteTokenizer:
    """One token per UTF-8 byte."""

    start_tokens = ()
    stop_tokens = frozenset({EOS})
    num_rows = EOS + 1
    image_token = None

    def line_ends(self, after: str) -> frozenset[int]:
        return frozenset()

    def encode_text(self, text: str, *, after: str = "") -> list[int]:
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < EOS).decode(errors="replace")

    def encode_image(self, text: str) -> list[int]:
        return self.encode(text)

    def harmless(self, message: ChatMessage) -> ChatMessage:
        return message

    def encode_chat(self, messages: Sequence[ChatMessage], *, image_texts: Sequence[str] = ()) -> list[int]:
        return self.encode("".join(f"<{m.role}>{m.text}</{m.role}>" for m in messages) + "<assistant>")

    def encode_completion(self, completion: str) -> list[int]:
        return [*self.encode(completion), EOS]

    def opening(self) -> str:
        return ""

    def template_ends(self) -> frozenset[int]:
        return frozenset()

    def end_of_turn(self) -> int:
        return EOS


def make_prompt(**options: object) -> PromptBuilder:
    return PromptBuilder(ByteTokenizer(), PromptConfig.model_validate({"max_prompt_tokens": 4096, **options}))


def make_element(
    number: int, text: str = "", *, role: str = "button", states: tuple[str, ...] = (), content: bool = True
) -> Element:
    return Element(number, role, text, 10, 10, 5, 5, states, content)


def make_observation(*elements: Element, title: str = "Page", result: str = "") -> Observation:
    return Observation("chromium", title, elements, None, 800, 600, "quiet", 0.01, result)


def make_assignment(
    number: int = 0,
    *,
    kind: OrderKind = "training",
    max_steps: int = 4,
    time_limit_s: float = 100.0,
    num_patches: int | None = None,
) -> Assignment:
    task = TaskRef("web-click-button", 100_000 + number, "training")
    return Assignment(f"rl-1/{number}/0", f"rl-1/{number}", 0, "rl-1", kind, task, 1.0, max_steps, time_limit_s, num_patches)


class ScriptedEngine:
    """Answers with the given texts in turn; an exception in the list is raised instead."""

    def __init__(self, *answers: str | Exception, policy_version: int = 3) -> None:
        self.answers = deque(answers)
        self.policy_version = policy_version
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        self.requests.append(request)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.popleft()
        future: Future[Completion] = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
            return future
        tokens = np.frombuffer(answer.encode(), dtype=np.uint8).astype(np.int32)[: request.max_new_tokens]
        stopped = answer.endswith("\n") and len(tokens) == len(answer.encode())
        text = bytes(tokens.tolist()).decode().removesuffix("\n")
        versions = np.full(len(tokens), self.policy_version, dtype=np.int32)
        future.set_result(
            Completion(tokens, np.full(len(tokens), -0.5), versions, text, "stop" if stopped else "length", 0.0, 0.0)
        )
        return future

    def close(self) -> None: ...


class FakeDesktops:
    """One desktop that counts; ``fail`` maps a call's name to the error it raises."""

    def __init__(self, *, finish_after: int | None = None, fail: dict[str, ComputerRLError] | None = None) -> None:
        self.finish_after = finish_after
        self.fail = fail or {}
        self.actions: list[Action] = []
        self.calls: list[str] = []
        self.num_leased = 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def lease(self, incarnation: str, task: TaskRef | None = None, *, next_task: TaskRef | None = None) -> Lease:
        self._call("lease")
        self.num_leased += 1
        return Lease(0, self.num_leased)

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted:
        self._call("reset")
        return TaskStarted("Click ok.", make_observation(make_element(1, "ok")))

    def step(self, lease: Lease, action: Action, *, completion: str = "") -> StepResult:
        self._call("step")
        self.actions.append(action)
        finished = self.finish_after is not None and len(self.actions) >= self.finish_after
        error = "no element 99" if action.args.get("target") == 99 else ""
        return StepResult(make_observation(make_element(1, "ok"), result="42"), error, finished)

    def demonstrate(self, lease: Lease) -> Demonstration:
        self._call("demonstrate")
        return Demonstration("click(1)" if len(self.actions) < 1 else "done()", "script")

    def evaluate(self, lease: Lease, final_action: FinalAction = "", *, goes_on: bool = False) -> Evaluation:
        self._call("evaluate")
        won = final_action != "fail"
        return Evaluation(float(won), won, "clicked")

    def release(self, lease: Lease) -> None:
        self._call("release")

    def screenshot(self, ref: ScreenshotRef) -> bytes:
        raise AssertionError("prompts show no images here")

    def close(self) -> None: ...


class QueueBroker:
    """Hands out the given answers, then ``NoAssignment``; remembers everything. ``submit_errors`` are raised first."""

    def __init__(self, *answers: Assignment | NoAssignment, submit_errors: Sequence[ComputerRLError] = ()) -> None:
        self._answers = deque(answers)
        self._submit_errors = deque(submit_errors)
        self._changed = threading.Condition()
        self.asked_versions: list[int] = []
        self.submitted: list[Trajectory] = []
        self.returned: list[tuple[str, str]] = []

    def request_assignment(self, incarnation: str, policy_version: int) -> Assignment | NoAssignment:
        with self._changed:
            self.asked_versions.append(policy_version)
            answer = self._answers.popleft() if self._answers else NoAssignment("no_order", 0.01)
            if isinstance(answer, Assignment) and answer.kind != "demonstration" and policy_version < 0:
                self._answers.appendleft(answer)
                return NoAssignment("policy_version", 0.01)
            self._changed.notify_all()
            return answer

    def return_assignment(self, assignment_id: str, *, incarnation: str, reason: str) -> None:
        with self._changed:
            self.returned.append((assignment_id, reason))
            self._changed.notify_all()

    def submit(self, trajectory: Trajectory, images: Mapping[str, bytes]) -> TrajectoryReceipt:
        with self._changed:
            if self._submit_errors:
                raise self._submit_errors.popleft()
            self.submitted.append(trajectory)
            self._changed.notify_all()
            return TrajectoryReceipt(trajectory.trajectory_id, True, "")

    def wait(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout=timeout_s)
