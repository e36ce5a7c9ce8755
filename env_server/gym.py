"""The desktops alone, as a Gymnasium environment: ``gymnasium.make("computerrl/Desktop-v0", task="calc-set-cell")``.

Gymnasium 1.x looks for environments only where it is told to: ``import computerrl.env_server.gym`` before, or name this module in
the id, ``gymnasium.make("computerrl.env_server.gym:computerrl/Desktop-v0", ...)``. One environment is one desktop, started by the
first `reset` and gone with `close`; no other part of the training system takes part.

What an agent sees is a dictionary: the picture, the elements as the very text that the trained policies read, and the
instruction. What it does is one text, the call that a policy would write. The evaluator's verdict is the reward of the last step,
all others get 0.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.error import ResetNeeded

from computerrl.common import log
from computerrl.common.actions import (
    ACTIONS,
    FINAL_ACTIONS,
    MAX_ACTION_CHARS,
    ActionSyntaxError,
    Param,
    parse_action,
    render_action,
)
from computerrl.common.actions.screen_text import app_line, cut, element_rows
from computerrl.common.config import DesktopConfig, PromptConfig, TasksConfig
from computerrl.common.messages import Action, Evaluation, FinalAction, Observation, Split, TaskRef
from computerrl.env_server.client import image_problem, with_needed_apps
from computerrl.env_server.driver import LiveDesktop, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.judging.judge import Judge, evaluator_getter, make_judge
from computerrl.env_server.tasks import advice, families_of, task_instance

ENV_ID = "computerrl/Desktop-v0"

_OPTIONS = frozenset({"task", "seed"})
_ROW_EXTRA_CHARS = 80
"""Of an element's row besides role and text: states, number, blanks."""
MAX_INSTRUCTION_CHARS = 16_384
"""Several times the longest instruction of the public task collections: arrays of a fixed size have to hold any."""
_NUM_EXAMPLES = 6
"""Families that an error names as examples."""
_UNKNOWN_CHAR = "\N{REPLACEMENT CHARACTER}"


class ScreenText(spaces.Text):
    """Text from a screen: every printable character of Unicode's basic plane, and the newline.

    Rarer ones (emoji) are shown as U+FFFD, so that vectorised environments can share observations as arrays.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=_screen_characters())

    def __repr__(self) -> str:
        return f"ScreenText({self.max_length})"

    def fit(self, text: str) -> str:
        """``text`` as a member of this space."""
        return "".join(c if c in self.character_set else _UNKNOWN_CHAR for c in text)[: self.max_length]


def _text_of(action: object) -> str:
    """``action`` as text. Raises `ActionSyntaxError` for anything else."""
    if not isinstance(action, str):
        raise ActionSyntaxError(f"an action is text such as 'click(3)', not {type(action).__name__}")
    return action


class ActionText(spaces.Text):
    """One action as a policy writes it: ``click("Submit")``, ``click(412, 300)``, ``calc.set_cell("B2", 5)``; see `ACTIONS`.

    Printable ASCII says everything: other characters are written as escapes, ``type("caf\\u00e9")``. What is no action is taken,
    changes nothing, and is explained in ``info["action_error"]``. Samples are well-formed actions with random arguments.
    """

    def __init__(self, *, width: int, height: int) -> None:
        super().__init__(MAX_ACTION_CHARS, min_length=0, charset="".join(map(chr, range(0x20, 0x7F))))
        self._size = (width, height)

    def __repr__(self) -> str:
        return f"ActionText({len(ACTIONS)} actions)"

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random action. Masks of characters mean nothing here: raises `ValueError`."""
        if mask is not None or probability is not None:
            raise ValueError("an action cannot be sampled by character: give neither mask nor probability")
        spec = ACTIONS[str(self.np_random.choice(sorted(ACTIONS)))]
        args = {param.name: self._value(param) for param in spec.params}
        if "y" in args and self.np_random.random() < 0.5:
            args |= {"target": int(self.np_random.integers(self._size[0])), "y": int(self.np_random.integers(self._size[1]))}
        return render_action(Action(name=spec.name, args=args))

    def _value(self, param: Param) -> object:
        if param.choices:
            return self.np_random.choice(np.array(param.choices, dtype=object))
        if param.default is not ...:
            return param.default
        if list in param.kinds:
            return [self._scalar(param.items, param.name) for _ in range(4)]
        return self._scalar(param.kinds, param.name)

    def _scalar(self, kinds: tuple[type, ...], name: str) -> object:
        if int in kinds:
            return int(self.np_random.integers(1, 40))
        if float in kinds:
            return float(self.np_random.integers(1, 40))
        if bool in kinds:
            return bool(self.np_random.integers(2))
        if name == "keys":
            return str(self.np_random.choice(["enter", "tab", "esc", "up", "down", "ctrl+a", "ctrl+z"]))
        letters = self.np_random.choice(list("abcdefgh"), size=3)
        return "".join(letters) if name != "cell" else f"{letters[0].upper()}{self.np_random.integers(1, 10)}"


class DesktopEnv(gymnasium.Env[dict[str, Any], str]):
    """One desktop that plays tasks of one family.

    ``task``: a family (`env_server.tasks.FAMILIES`), or `module:NAME` for one of your own. ``driver``: `apptainer` (contained),
    `local`, or `scripted` (an imitation without processes). ``max_steps``: the episode is truncated, and judged, after so many
    actions. ``split``: where `reset` draws instances from; those of `evaluation` are never trained on. ``prompt``: fields of
    `PromptConfig` that say how much of the screen the text shows; the default is what policies get. ``desktop``: further fields
    of `DesktopConfig`.

    ``reset(seed=7)`` seeds the drawing of instances, so it always leads to the same task; ``options={"task": ..., "seed": ...}``
    names family and instance instead. ``info`` holds ``task``, ``task_seed``, ``app``, ``action_error``, ``result`` (what an API
    call returned), ``settled_by``, ``elements`` (those of the accessibility tree, with their boxes in pixels), and at the end
    ``success`` and the evaluator's ``detail``. Raises `SetupError` where the machine lacks something, `DesktopBroken` when the
    desktop does not answer; the next `reset` starts another.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  # as gymnasium declares it

    def __init__(
        self,
        task: str = "web-click-button",
        *,
        driver: Literal["apptainer", "local", "scripted"] = "apptainer",
        image: str = "core",
        max_steps: int = 10,
        split: Split = "training",
        render_mode: str | None = None,
        prompt: Mapping[str, Any] | None = None,
        desktop: Mapping[str, Any] | None = None,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}: give at least 1")
        # The picture comes straight from the screen: nothing is stored, and no encoding loses anything.
        self._config = DesktopConfig.model_validate(
            {**(desktop or {}), "driver": driver, "image": image, "num_desktops": 1, "observation": "tree"}
        )
        self._prompt = PromptConfig.model_validate(prompt or {})
        self._tasks = TasksConfig(families=(task,) if ":" in task else ())
        self._split = split
        self._max_steps = max_steps
        self._family = self._checked_family(task)
        self._config = with_needed_apps(self._config, [families_of(self._tasks)[self._family]])
        self.render_mode = render_mode
        width, height = self._config.screen_width, self._config.screen_height
        num_row_chars = 2 * self._prompt.max_element_chars + _ROW_EXTRA_CHARS
        self._texts = {
            "elements": ScreenText((self._prompt.max_elements + 1) * num_row_chars),
            "instruction": ScreenText(MAX_INSTRUCTION_CHARS),
        }
        screenshot = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.observation_space = spaces.Dict({"screenshot": screenshot, **self._texts})
        self.action_space = ActionText(width=width, height=height)
        self._driver: LiveDesktop | None = None
        self._judge: Judge | None = None
        self._remove_folder: Callable[[], object] | None = None
        self._instance: TaskInstance | None = None
        self._task = TaskRef(self._family, 0, split)

    # --- gymnasium.Env -----------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put a task on screen; see the class."""
        super().reset(seed=seed)
        options = options or {}
        if set(options) - _OPTIONS:
            raise ValueError(f"unknown options {sorted(set(options) - _OPTIONS)}: reset takes {sorted(_OPTIONS)}")
        family = self._checked_family(options.get("task", self._family))
        self._task = self._draw(family) if options.get("seed") is None else self._named(family, int(options["seed"]))
        instance = task_instance(self._task, tasks=self._tasks)
        self._instance = None
        driver = self._living_driver()
        assert self._judge is not None, "made with the driver"
        self._judge.prepare(self._task)
        self._instruction, self._observation = driver.reset(instance)
        self._instance = instance
        self._num_steps = 0
        if len(self._instruction) > MAX_INSTRUCTION_CHARS:
            log.get_logger().warning(
                "instruction.cut", task=family, num_chars=len(self._instruction), max_chars=MAX_INSTRUCTION_CHARS
            )
        return self._seen(driver), self._info("", "", None)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Do ``action``; see the class."""
        if self._instance is None or self._driver is None or self._judge is None:
            raise ResetNeeded("call reset() first: the episode has ended, or none was begun")
        said, error, terminated = "", "", False
        final: FinalAction = ""
        try:
            parsed = parse_action(_text_of(action))
        except ActionSyntaxError as problem:
            error = str(problem)
        else:
            if parsed.name in FINAL_ACTIONS:
                terminated, final = True, "fail" if parsed.name == "fail" else "done"
            else:
                result = self._driver.step(parsed)
                self._observation, error, terminated = result.observation, result.action_error, result.finished
                said = self._observation.result
        self._num_steps += 1
        truncated = not terminated and self._num_steps >= self._max_steps
        verdict: Evaluation | None = None
        if terminated or truncated:
            get = evaluator_getter(self._driver.get, self._instance, final_action=final)
            verdict = self._judge.judge(self._task, self._instance, get)
            if final == "fail":
                # Every task can be done: saying that it cannot is wrong, whatever the desktop shows.
                verdict = Evaluation(reward=0.0, success=False, detail="given up")
            self._instance = None
        reward = verdict.reward if verdict else 0.0
        return self._seen(self._driver), reward, terminated, truncated, self._info(said, error, verdict)

    def render(self) -> np.ndarray | None:
        """The screen in mode `rgb_array`, otherwise nothing."""
        if self.render_mode != "rgb_array" or self._driver is None:
            return None
        return self._driver.frame()

    def close(self) -> None:
        """End the desktop; may be called twice."""
        driver, self._driver = self._driver, None
        remove_folder, self._remove_folder = self._remove_folder, None
        self._instance = None
        judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()
        if driver is not None:
            driver.close()
        if remove_folder is not None:
            remove_folder()

    # --- parts -------------------------------------------------------------------------------------------------------

    def _living_driver(self) -> LiveDesktop:
        """The desktop, started anew where there is none or it broke. Not before: environments are made in one process and
        used in another."""
        if self._driver is not None and not self._driver.healthy():
            self.close()
        if self._driver is None:
            folder = Path(tempfile.mkdtemp(prefix="computerrl-gym-"))
            # Also where nobody calls `close`: at the end of the process.
            self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            is_slow = self._config.driver != "scripted"
            began = time.monotonic()
            self._judge = make_judge(self._config.driver, self._tasks)
            if is_slow:
                # The first reset takes up to half a minute on a slow machine, later ones a fraction of a second.
                log.get_logger().info("desktop.starting", driver=self._config.driver, image=self._config.image)
            try:
                self._driver = make_driver(self._config, index=0, folder=folder, screenshots=None)
            except BaseException:
                self.close()
                raise
            if is_slow:
                log.get_logger().info("desktop.started", took_s=round(time.monotonic() - began, 1))
        return self._driver

    def _checked_family(self, name: str) -> str:
        known = families_of(self._tasks)
        possible = [key for key, family in known.items() if self._config.driver in family.drivers]
        if name not in possible:
            step = f"`computerrl tasks list` lists them all, for example {', '.join(possible[:_NUM_EXAMPLES])}"
            reason = f"no task family {name!r} for driver {self._config.driver!r}: {advice(name, self._tasks)}"
            raise ValueError(f"{reason}\n    -> {step}")
        if problem := image_problem(known[name], self._config):
            raise ValueError(f"{problem.reason}\n    -> make setup IMAGE=full, then make the environment with image='full'")
        return name

    def _draw(self, family: str) -> TaskRef:
        first, past_last = self._tasks.seeds_of(self._split)
        return TaskRef(family, int(self.np_random.integers(first, past_last)), self._split)

    def _named(self, family: str, seed: int) -> TaskRef:
        split = self._tasks.split_of(seed)
        if split is None:
            raise ValueError(f"no task has seed {seed}: seeds go up to {self._tasks.evaluation_seeds[1] - 1}")
        return TaskRef(family, seed, split)

    def _seen(self, driver: LiveDesktop) -> dict[str, Any]:
        rows = element_rows(self._observation.elements, self._prompt, instruction=self._instruction)
        text = "\n".join([app_line(self._observation, window_title=self._prompt.window_title), *rows])
        return {
            "screenshot": driver.frame(),
            "elements": self._texts["elements"].fit(text),
            "instruction": self._texts["instruction"].fit(cut(self._instruction, MAX_INSTRUCTION_CHARS)),
        }

    def _info(self, said: str, error: str, verdict: Evaluation | None) -> dict[str, Any]:
        seen: Observation = self._observation
        return {
            "task": self._task.family,
            "task_seed": self._task.seed,
            "app": seen.app,
            "action_error": error,
            "result": said,
            "settled_by": seen.settled_by,
            "elements": [msgspec.to_builtins(element) for element in seen.elements],
            "success": bool(verdict and verdict.success),
            "detail": verdict.detail if verdict else "",
        }


@functools.cache
def _screen_characters() -> frozenset[str]:
    basic_plane = map(chr, range(min(sys.maxunicode, 0xFFFF) + 1))
    return frozenset(char for char in basic_plane if char.isprintable()) | {"\n"}


def register() -> None:
    """Make the id known to gymnasium; again is fine. Also this distribution's entry point in the group `gymnasium.envs`."""
    if ENV_ID not in registration.registry:
        registration.register(id=ENV_ID, entry_point="computerrl.env_server.gym:DesktopEnv")


register()
