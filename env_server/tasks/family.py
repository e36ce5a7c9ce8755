"""What a task family is: a name and a function from a seed to a `TaskInstance`.

Families are pure: same seed, same instance, on every host. They start no process and touch no file; drivers carry out
their setup steps and answer their getters.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from computerrl.common.messages import Action, Element, Evaluation, Observation
from computerrl.env_server.driver import TaskInstance
from computerrl.env_server.tasks.targets import name_of

ALL_DRIVERS = frozenset({"apptainer", "local", "scripted"})
REAL_DRIVERS = ALL_DRIVERS - {"scripted"}
OSWORLD_PREFIX = "osworld-"
"""Beginning of the names of families that are OSWorld's task files; the file's id follows."""
BUNDLE_PREFIX = "cua-gym-"
"""Beginning of the names of families that are imported bundles; the bundle's id follows."""
SYNTHESIZED_PREFIX = "synthesized-"
"""Beginning of the names of families that are synthesized tasks; the task's id follows."""
NO_VERDICT: Final = "no verdict"
"""Beginning of the detail of an evaluation whose reward script gave none."""


def is_foreign(name: str) -> bool:
    """Whether the family of this name is a task file, an imported bundle or a synthesized task."""
    return name.startswith((OSWORLD_PREFIX, BUNDLE_PREFIX, SYNTHESIZED_PREFIX))


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of task with random instances."""

    name: str
    app: str
    """Application the agent works in: `chromium`, `calc`, `editor`, `files`."""
    description: str
    """One line for people."""
    build: Callable[[random.Random], TaskInstance]
    drivers: frozenset[str] = field(default=ALL_DRIVERS)
    """Drivers that can play it."""
    has_demonstrator: bool = True
    """Can it be demonstrated? If not, a run that asks for demonstrations of it is refused before it starts."""
    can_be_done: bool = True
    """Can an agent do it? If not, to say so is what succeeds."""
    is_default: bool = True
    """Is it played when a configuration names no families?"""
    more_apps: frozenset[str] = frozenset()
    """Applications it needs besides ``app``."""
    counts_facts: bool = False
    """Do its evaluators count the facts that an episode has brought about (`TaskInstance.counts_facts`)?"""
    needs_tools: bool = False
    """Does it need programs that only the image `osworld` has?"""

    @property
    def apps(self) -> frozenset[str]:
        """All applications it needs."""
        return self.more_apps | {self.app}

    def make(self, seed: int) -> TaskInstance:
        """The instance of ``seed``."""
        return self.build(random.Random(f"{self.name}:{seed}"))


def verdict(expected: object, found: object) -> Evaluation:
    """Success when both are equal; the detail quotes them."""
    success = expected == found
    detail = f"as expected: {expected!r}" if success else f"expected {expected!r}, found {found!r}"
    return Evaluation(reward=1.0 if success else 0.0, success=success, detail=detail[:400])


DONE = Action(name="done", args={})
"""The demonstrator's last action where the task does not finish itself."""
WAIT = Action(name="wait", args={})
"""Its action where the screen does not show yet what it looks for."""


def click(observation: Observation, element: Element) -> Action:
    """A left click on ``element``, which a person would name by its text where it has one of its own."""
    return Action(name="click", args={"target": name_of(observation.elements, element)})


def type_text(text: str, *, enter: bool = False) -> Action:
    """Typing where the focus is."""
    return Action(name="type", args={"text": text, "enter": enter})
