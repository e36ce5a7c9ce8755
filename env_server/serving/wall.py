"""What each desktop of a host shows, for people who look on: filled from the requests that pass by, costs no desktop anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from computerrl.common.actions import render_action
from computerrl.common.messages import (
    DesktopView,
    Element,
    Evaluation,
    EvaluationRequest,
    Message,
    Observation,
    StepRequest,
    StepResult,
    TaskRef,
    TaskReset,
    TaskStarted,
)


@dataclass(slots=True)
class _Scene:
    """One desktop's latest episode."""

    task: TaskRef
    instruction: str
    observation: Observation
    seen_at: float
    num_steps: int = 0
    action: str = ""
    answer: str = ""
    action_error: str = ""
    reward: float | None = None


@dataclass(slots=True)
class Wall:
    """Not thread-safe: the service calls it under its lock."""

    clock: Callable[[], float]
    _scenes: dict[int, _Scene] = field(default_factory=dict)

    def take(self, desktop: int, request: Message | None, answer: Message) -> None:
        """``answer`` has just been given to ``request``; others than those of an episode are passed over."""
        match request, answer:
            case TaskReset(), TaskStarted():
                self._scenes[desktop] = _Scene(request.task, answer.instruction, answer.observation, self.clock())
            case StepRequest(), StepResult() if desktop in self._scenes:
                scene = self._scenes[desktop]
                scene.num_steps += 1
                scene.action, scene.answer = render_action(request.action), request.answer
                scene.action_error, scene.observation, scene.seen_at = answer.action_error, answer.observation, self.clock()
            case EvaluationRequest(), Evaluation() if desktop in self._scenes:
                self._scenes[desktop].reward = answer.reward

    def forget(self, desktop: int) -> None:
        """It broke: what it showed is gone."""
        self._scenes.pop(desktop, None)

    def view(self, desktop: int, *, state: str, reason: str, holder: str) -> DesktopView:
        """What is known of ``desktop``; the pool knows the rest."""
        scene = self._scenes.get(desktop)
        if scene is None:
            return DesktopView(desktop, state, reason, holder, None, "", 0, "", "", "", None, None, 0.0)
        return DesktopView(
            desktop,
            state,
            reason,
            holder,
            scene.task,
            scene.instruction,
            scene.num_steps,
            scene.action,
            scene.answer,
            scene.action_error,
            scene.reward,
            scene.observation.screenshot,
            self.clock() - scene.seen_at,
        )

    def elements(self, desktop: int) -> tuple[Element, ...]:
        """The tree that the agent saw last."""
        scene = self._scenes.get(desktop)
        return scene.observation.elements if scene is not None else ()
