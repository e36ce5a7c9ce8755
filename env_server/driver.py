"""The desktop driver protocol and the task contract it serves.

A driver owns one desktop. Every call has a deadline and raises only `TaskFailed`, `DesktopBroken` or `HostBroken` from
`common.errors`; the pool decides about the next step. Task families (``env_server/tasks``) are pure. They turn a seed into a
`TaskInstance`: setup steps, an evaluator over named getters and a demonstrator over observations. They never touch a process or
a file. The contract suite in ``tests/contracts`` runs against every driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from computerrl.common.descriptor_store import Kept
from computerrl.common.messages import Action, Evaluation, Observation, StepResult

SetupKind = Literal[
    "web_page",
    "web_file",
    "calc_open",
    "editor_open",
    "files_open",
    "write_file",
    "put_file",
    "make_folder",
    "open",
    "open_app",
    "web_sites",
]
GetterKind = Literal[
    "web_page",
    "web_shapes",
    "web_result",
    "calc_cells",
    "file_text",
    "file_bytes",
    "folder_listing",
    "editor_text",
    "osworld",
    "final_action",
    "outputs",
    "pause",
    "pointed",
    "screen",
    "fingerprint",
]

Getter = Callable[..., Any]
"""``get(kind, **args)`` reads one fact of the desktop for an evaluator or demonstrator. Kinds and their values:

- ``web_page``: ``{"done": bool, "raw_reward": float, "reason": str, "episode_id": int, "fields": dict}``
- ``web_shapes``: every leaf and shape of the page, for demonstrators, because the accessibility tree lacks most of them:
  ``{"tag", "id", "kind" (class), "text", "color", "picture" (an icon's file name), "x", "y" (centre), "width", "height"}``
- ``web_result``: the value of ``window.result`` in the page of a ``web_file``, None before the page sets it
- ``calc_cells`` (``range="A1:C9"``): rows of cell contents as text (a formula's value, numbers without trailing zeros)
- ``file_text`` (``path``): the text, or None when there is no such file
- ``file_bytes`` (``path``): the file's bytes, or None when there is no such file
- ``folder_listing`` (``path="."``): sorted relative paths of everything below, folders end with ``/``
- ``editor_text``: the text in the editor's window, saved or not
- ``osworld`` (``call``, and that call's arguments): one call of `env_server.tasks.osworld.desktop.CalledDesktop`; calls act too.
  With ``by_agent`` keys that are held down stay down; no evaluator asks so
- ``fingerprint``: everything that an episode could leave behind, for tests and soaks (`guest.fingerprint.take`)
- ``final_action``: the action that ended the episode, ``done``, ``fail`` or empty; known to evaluators only
- ``outputs``: the instance's `TaskInstance.outputs`; known to evaluators only
- ``pointed``: pixel (x, y) of the click that answered the task, None before it; known to evaluators of `is_pointed` tasks only
- ``screen``: the present `Observation`, with its elements; for ``prepare`` only
- ``pause`` (``seconds``): None after that time, which does not count as judging time; for evaluators only
"""


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One step of a task's set-up on a clean desktop, before the first observation. Paths are relative to the agent's folder.

    Kinds and their arguments: ``web_page`` (page: name of a MiniWoB++ task file without ending, seed: int),
    ``web_file`` (path: an .html file put there before, shown in the browser),
    ``calc_open`` (cells: dict such as ``{"A1": "Name"}``, active_cell: str), ``editor_open`` (path, text),
    ``files_open`` (folder), ``write_file`` (path, text), ``put_file`` (path, data: bytes), ``make_folder`` (path),
    ``open`` (path: a file or folder put there before, opened with its application), ``open_app`` (app: any name that the action
    ``apps.open`` takes, such as ``terminal``), ``web_sites`` (of_copy: bool; from now on the free browser shows a page for every
    address of a web site: with ``of_copy`` that of `TaskInstance.sites`, else a stand-in that only keeps the address). The last
    step that opens something decides which window is in front.

    A page is seeded by ``Math.seedrandom(seed)`` (a number, not a text) right before ``core.startEpisodeReal()``, in data mode
    ``train``, with its time limit lifted, its animations ended and its clock at a fixed day: the families know from
    `env_server.tasks.pages` what that shows. Typed text stays as typed: no auto-completion and no auto-correction in any
    application.
    """

    kind: SetupKind
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SitePage:
    """Answer of a copy of web sites to one address."""

    type: str
    """Its MIME type."""
    body: bytes
    status: int = 200
    location: str = ""
    """Address to go on to, where ``status`` says so."""


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One playable instance of a family."""

    instruction: str | None
    """Instruction for the agent; None: ``prepare`` has put it into ``outputs`` as ``instruction``, or else it is the page's
    (``get("web_page")["fields"]["utterance"]`` after the reset)."""
    setup: Sequence[SetupStep]
    evaluate: Callable[[Getter], Evaluation]
    demonstrate: Callable[[str, Observation, Sequence[Action], Getter], Action]
    """Demonstrator: (instruction, observation, actions so far, get) -> next action. The getter is for facts no screen shows."""
    calls_applications: bool = False
    """Whether ``demonstrate`` calls functions of applications; else it uses mouse and keyboard alone."""
    drawn_size: Callable[[Action, Observation, Getter], tuple[int, int]] | None = None
    """Width and height in pixels of the drawn thing, in no element, whose middle a demonstrated action names; (0, 0) where it
    names none. None: demonstrations name elements."""
    shown_by: str = "script"
    """Who demonstrates, as in `Trajectory`."""
    demonstrate_by_hand: Callable[[str, Observation, Sequence[Action], Getter], Action] | None = None
    """Demonstrator with mouse and keyboard alone, where ``demonstrate`` calls applications; None: there is none."""
    judges_giving_up: bool = False
    """Whether the evaluator decides the reward of a final ``fail()`` (`final_action`); else it is 0, as the task can be done."""
    prepare: Callable[[Getter], None] | None = None
    """Set-up that needs answers of the desktop. It runs through the getter after ``setup``, before the first observation."""
    outputs: dict[str, str] = field(default_factory=dict)
    """Output of the commands of ``prepare``, which fills it anew for each episode. Evaluators run in another process and read it
    by ``get("outputs")``."""
    is_pointed: bool = False
    """Whether one click answers the task: it is not carried out, and ends the episode. Other actions but `wait` are refused."""
    sites: Callable[[str], SitePage | None] | None = None
    """``sites(address)`` is the answer of a copy of web sites, which the browser of the desktop shows; None: it has none. Called
    from any thread. None instead of a function: the task has no copy."""
    counts_facts: bool = False
    """Whether ``evaluate`` counts facts (`Evaluation.progress`). It must then change nothing: it is also run during episodes."""
    digest: Callable[[], str] | None = None
    """Hash of a foreign task's definition. Such a task is judged on an untouched desktop before an agent gets it
    (`env_server.judging.untouched`). None: the task belongs to one of the product's families."""

    def instruction_of(self, get: Getter) -> str:
        """The instruction after a reset of the desktop that ``get`` asks; see ``instruction``. It may be empty."""
        found = self.outputs.get("instruction") if self.instruction is None else self.instruction
        return str(get("web_page")["fields"]["utterance"]) if found is None else found


class DesktopDriver(Protocol):
    """One desktop: Xvfb, window manager and applications, with the guest that drives them."""

    @property
    def pid(self) -> int | None:
        """Outermost process of the desktop; all others are below it. None: the desktop has no process."""

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        """Put the desktop into the task's start state; returns the instruction and the first observation."""

    def step(self, action: Action) -> StepResult:
        """Carry out one action, wait until the screen is quiet, and observe."""

    def observe(self) -> Observation:
        """Observe the present screen."""

    def get(self, kind: GetterKind, **args: Any) -> Any:
        """Read one fact, see `Getter`."""

    def healthy(self) -> bool:
        """Whether the desktop still answers. Never raises, takes at most a second."""

    def close(self) -> None:
        """End the desktop and remove all its traces; may be called twice."""


class LiveScreen(Protocol):
    """The present screen of a desktop, for people and for programs that need pixels."""

    def frame(self) -> np.ndarray:
        """[height, width, 3] uint8 RGB, a copy. Makes no request to the desktop; may be called from any thread."""


class LiveDesktop(DesktopDriver, LiveScreen, Protocol):
    """A desktop whose screen can be watched; every driver of the product is one."""

    def handles(self) -> Kept | None:
        """Its outermost process and the descriptors by which another process can take the desktop over when this one is dead; the
        driver goes on owning them. None: it dies with this process."""
