"""Views of a host's desktops for displays. They are made of the requests that pass by, and cost no desktop anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from computerrl.common.actions import render_action
from computerrl.common.actions.targets import places_of
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
from computerrl.env_server.serving.pool import PooledDesktop


@dataclass(slots=True)
class _ShownEpisode:
    """Latest episode of one desktop."""

    task: TaskRef
    instruction: str
    observation: Observation
    num_steps: int = 0
    action: str = ""
    completion: str = ""
    action_error: str = ""
    places: tuple[int, ...] = ()
    reward: float | None = None


@dataclass(slots=True)
class DesktopViews:
    """Latest episode of each desktop. Not thread-safe: the service calls it under its lock."""

    _shown: dict[int, _ShownEpisode] = field(default_factory=dict)

    def update(self, desktop: int, request: Message | None, reply: Message) -> None:
        """Record that ``reply`` was the reply to ``request``; pairs that belong to no episode are ignored."""
        match request, reply:
            case TaskReset(), TaskStarted():
                self._shown[desktop] = _ShownEpisode(request.task, reply.instruction, reply.observation)
            case StepRequest(), StepResult() if desktop in self._shown:
                scene = self._shown[desktop]
                scene.num_steps += 1
                seen = scene.observation
                size = (seen.screen_width, seen.screen_height)
                scene.places = places_of(request.action, seen.elements, width=size[0], height=size[1])
                scene.action, scene.completion = render_action(request.action), request.completion
                scene.action_error, scene.observation = reply.action_error, reply.observation
            case EvaluationRequest(), Evaluation() if desktop in self._shown:
                self._shown[desktop].reward = reply.reward

    def forget(self, desktop: int) -> None:
        """Remove the view of a desktop that broke."""
        self._shown.pop(desktop, None)

    def view(self, desktop: int, pooled: PooledDesktop) -> DesktopView:
        """View of ``desktop``, whose place in the pool is ``pooled``."""
        state, reason, holder = pooled.shown_state, pooled.shown_reason, pooled.holder
        scene = self._shown.get(desktop)
        if scene is None:
            return DesktopView(desktop, state, reason, holder, None, "", 0, "", "", "", None, None)
        return DesktopView(
            desktop,
            state,
            reason,
            holder,
            scene.task,
            scene.instruction,
            scene.num_steps,
            scene.action,
            scene.completion,
            scene.action_error,
            scene.reward,
            scene.observation.screenshot,
            scene.places,
        )

    def elements(self, desktop: int) -> tuple[Element, ...]:
        """Elements of the desktop's latest observation."""
        scene = self._shown.get(desktop)
        return scene.observation.elements if scene is not None else ()
