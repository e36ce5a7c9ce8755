"""A real desktop: a guest process that acts and observes, and a frame buffer that shows its screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.config import DesktopConfig
from computerrl.common.descriptor_store import Kept
from computerrl.common.errors import DesktopBroken
from computerrl.common.messages import Action, Element, Observation, ScreenshotRef, StepResult
from computerrl.env_server.driver import GetterKind, TaskInstance
from computerrl.env_server.drivers import guest_answers
from computerrl.env_server.drivers.action_pixels import ActionResolver
from computerrl.env_server.drivers.frame_buffer import FrameBuffer
from computerrl.env_server.drivers.guest_process import GuestLauncher, GuestProcess
from computerrl.env_server.drivers.observation import Numbering, TreeNode, linearise
from computerrl.env_server.drivers.screenshots import Screenshots

ONE_CLICK = "one click answers this task, and nothing else is done in it"
"""Error of another action, for the agent."""


class GuestDriver:
    """One real desktop; see `env_server.driver.DesktopDriver`. One call at a time; `healthy` and `close` from any thread."""

    def __init__(
        self,
        launcher: GuestLauncher,
        config: DesktopConfig,
        *,
        index: int,
        folder: Path,
        screenshots: Screenshots | None,
        kept: Kept | None = None,
    ) -> None:
        """Starts desktop ``index``, or takes it over with ``kept``; ``folder`` is for its log. Raises `DesktopBroken`,
        `HostBroken`."""
        self._config = config
        self._index = index
        self._screenshots = screenshots if config.observation != "tree" else None
        self._numbering = Numbering()
        self._elements: tuple[Element, ...] = ()
        """Elements of the last observation, to which targets refer."""
        self._tree = 0
        """The guest's number of the tree that ``_elements`` come from; 0: none."""
        self._is_pointed = False
        """Whether one click answers the task (`TaskInstance.is_pointed`)."""
        self._pointed: tuple[int, int] | None = None
        """The pixel of that click."""
        self._screenshot: tuple[int, ScreenshotRef] | None = None
        """The guest's count of changes on screen, and the screenshot taken at it."""
        self._guest = GuestProcess(launcher, config, index=index, folder=folder, kept=kept)
        try:
            descriptor = self._guest.receive_screen(config.step_deadline_s)
            self._screen = FrameBuffer(descriptor, width=config.screen_width, height=config.screen_height, index=index)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """See `DesktopDriver`."""
        return self._guest.pid

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        """See `DesktopDriver`."""
        setup = [{"kind": step.kind, "args": step.args} for step in task.setup]
        self._numbering, self._elements, self._tree = Numbering(), (), 0
        self._is_pointed, self._pointed = task.is_pointed, None
        self._guest.sites = task.sites
        observation = self._observe({"request": "reset", "setup": setup}, self._config.reset_deadline_s).observation
        if task.prepare is not None:
            task.prepare(self.get)
            observation = self._observe({"request": "observe", "settle": True}, self._config.step_deadline_s).observation
        return task.instruction_of(self.get), observation

    def step(self, action: Action) -> StepResult:
        """See `DesktopDriver`."""
        resolver = ActionResolver(self._elements, self._config.screen_width, self._config.screen_height)
        try:
            args = resolver.arguments(action)
        except LookupError as error:
            result = self._observe({"request": "observe"}, self._config.step_deadline_s)
            return StepResult(observation=result.observation, action_error=str(error.args[0]), finished=result.finished)
        if self._is_pointed and action.name != "wait":
            answers = action.name == "click"
            self._pointed = (args["x"], args["y"]) if answers else self._pointed
            return StepResult(observation=self.observe(), action_error="" if answers else ONE_CLICK, finished=answers)
        return self._observe({"request": "step", "action": action.name, "args": args}, self._config.step_deadline_s)

    def observe(self) -> Observation:
        """See `DesktopDriver`."""
        return self._observe({"request": "observe"}, self._config.step_deadline_s).observation

    def get(self, kind: GetterKind, **args: Any) -> Any:
        """See `DesktopDriver`."""
        if kind == "pointed":
            return self._pointed
        if kind == "screen":
            return self._observe({"request": "observe", "settle": True}, self._config.step_deadline_s, with_tree=True).observation
        # A call of a task file may start a program, as a reset does, or be a command with a time limit of its own.
        limit_s = self._config.reset_deadline_s if kind == "osworld" else self._config.step_deadline_s
        limit_s += float(args.get("timeout_s", 0.0))
        answer = self._guest.ask({"request": "get", "kind": kind, "args": args}, limit_s)
        return guest_answers.value_of(answer.value, index=self._index)

    def healthy(self) -> bool:
        """See `DesktopDriver`. A desktop busy with a call within its deadline counts as healthy."""
        return self._guest.healthy()

    def close(self) -> None:
        """See `DesktopDriver`."""
        self._guest.close()

    def handles(self) -> Kept:
        """See `LiveDesktop`."""
        return self._guest.handles()

    def frame(self) -> np.ndarray:
        """See `LiveScreen`. After `close` it is the last frame."""
        return self._screen.frame()

    def _observe(self, request: dict[str, Any], limit_s: float, *, with_tree: bool = False) -> StepResult:
        """Make a request that is answered by an observation. ``with_tree``: with elements, whatever the configuration says."""
        request |= {"with_tree": with_tree or self._config.observation != "screenshot", "known_tree": self._tree}
        answer = self._guest.ask(request, limit_s)
        if answer.picture is None:
            raise DesktopBroken(f"desktop {self._index} sent no observation")
        if answer.nodes is not None:
            self._elements = self._linearise(guest_answers.tree_of(answer.nodes, index=self._index), answer.app)
        self._tree = answer.tree
        observation = Observation(
            app=answer.app,
            window_title=answer.title,
            elements=self._elements,
            screenshot=self._take_screenshot(answer.picture),
            screen_width=self._config.screen_width,
            screen_height=self._config.screen_height,
            settled_by=answer.settled_by,
            settle_s=answer.settle_s,
            result=answer.result,
        )
        return StepResult(observation=observation, action_error=answer.action_error, finished=answer.finished)

    def _linearise(self, nodes: Sequence[TreeNode], app: str) -> tuple[Element, ...]:
        return linearise(
            nodes,
            app=app,
            width=self._config.screen_width,
            height=self._config.screen_height,
            max_elements=self._config.max_elements,
            numbering=self._numbering,
        )

    def _take_screenshot(self, num_changes: int) -> ScreenshotRef | None:
        if self._screenshots is None:
            return None
        # The guest counted the changes before the pixels are read: they may be newer than the count, never older.
        if self._screenshot is None or self._screenshot[0] != num_changes:
            pixels = (self._screen.pixels().view("<u4") & 0xFFFFFF).view(np.uint8)
            self._screenshot = (num_changes, self._screenshots.put(pixels))
        return self._screenshot[1]
