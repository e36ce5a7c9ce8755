"""Desktops: leases, actions, observations and verdicts, between an actor and an env_server."""

from __future__ import annotations

import hashlib

from computerrl.common.messages.base import (
    Arguments,
    DesktopChoice,
    FinalAction,
    Id,
    Incarnation,
    Line,
    Name,
    Number,
    Places,
    SettledBy,
    Share,
    Text,
    Wire,
    cut_lines,
    cut_texts,
    require_plain,
)
from computerrl.common.messages.trajectories import ScreenshotRef
from computerrl.common.messages.work import TaskRef

_PLAIN_TEXT_ROLES = frozenset({"static", "label", "heading", "paragraph", "section"})


class Element(Wire, frozen=True):
    """One row of the linearised accessibility tree."""

    number: int
    """Argument of `click(number)`, stable while the element stays. `click(text)` works too where the text is unique."""
    role: str
    text: str
    x: int
    """Horizontal position of the centre in screen pixels."""
    y: int
    """Vertical position of the centre in screen pixels."""
    width: int
    height: int
    states: tuple[str, ...]
    """States among: checked, selected, focused, disabled, expanded, editable."""
    in_content: bool = True
    """Whether the element belongs to the content. False for toolbars, menus, title and status bars, which a short prompt drops
    first."""

    @property
    def is_plain_text(self) -> bool:
        """Whether the element is text that cannot be operated."""
        return self.role in _PLAIN_TEXT_ROLES


class Observation(Wire, frozen=True):
    """State of a desktop as the agent observes it."""

    app: str
    """Application of the active window: `chromium`, `calc`, `editor`, `files`."""
    window_title: str
    elements: tuple[Element, ...]
    screenshot: ScreenshotRef | None
    screen_width: int
    screen_height: int
    settled_by: SettledBy
    """Reason why the wait for a quiet screen ended."""
    settle_s: float
    """Duration of that wait in seconds."""
    result: str
    """Return value of the last action's API call, for the agent; empty for GUI actions."""

    @property
    def state(self) -> str:
        """Digest of what is on screen: BLAKE2b (128 bits) of application, title and elements. Numbers of elements are left out,
        since two desktops may count otherwise. Where no elements are read, that of the screenshot; empty without either."""
        if not self.elements:
            return self.screenshot.content_hash if self.screenshot is not None else ""
        rows = [(one.role, one.text, one.x, one.y, one.width, one.height, one.states) for one in self.elements]
        return hashlib.blake2b(repr((self.app, self.window_title, rows)).encode(), digest_size=16).hexdigest()


class Action(Wire, frozen=True):
    """A parsed action: one function of `common.actions.ACTIONS` with checked arguments."""

    name: Name
    args: Arguments

    def __post_init__(self) -> None:
        require_plain(self.args)


class LeaseRequest(Wire, frozen=True):
    """An actor's request for a desktop. The reply is `Lease`, or `ErrorReply` with code `no_desktop` and the reason."""

    incarnation: Incarnation
    task: TaskRef | None = None
    """Task to be played. The pool prefers a desktop that shows it already, or whose applications fit."""
    next_task: TaskRef | None = None
    """Task that an actor will probably request next. A spare desktop puts it on screen in advance."""


class Lease(Wire, frozen=True):
    """The right to use one desktop, until it is released or was unused for `desktop.lease_time_limit_s`."""

    desktop: Number
    """Index of the desktop on its host."""
    token: Number
    """Fencing token. It grows with every lease of the desktop; requests with an older one are refused."""


class TaskReset(Wire, frozen=True):
    """Request to put the desktop into the task's start state. The reply is `TaskStarted`."""

    lease: Lease
    task: TaskRef


class TaskStarted(Wire, frozen=True):
    """The task is on screen."""

    instruction: str
    observation: Observation


class StepRequest(Wire, frozen=True):
    """Request to do one action. The reply is `StepResult`."""

    lease: Lease
    action: Action
    completion: Text = ""
    """Completion that the action was parsed from, shown in `DesktopView`."""

    def __post_init__(self) -> None:
        cut_texts(self, "completion")


class StepResult(Wire, frozen=True):
    """Result of an action."""

    observation: Observation
    action_error: str
    """Reason why the action could not be done, which is the policy's mistake; empty when it was done."""
    finished: bool
    """Whether the task itself ended the episode (a web page that scores at once); further actions change nothing."""


class DemonstrationRequest(Wire, frozen=True):
    """Request for the next action of the family's scripted demonstrator. The reply is `Demonstration`."""

    lease: Lease


class Demonstration(Wire, frozen=True):
    """The demonstrator's next action."""

    action_text: str
    """Text that the policy would have to write for this action."""
    shown_by: str
    """Who demonstrates, as in `Trajectory`."""
    width: Number = 0
    """Width in pixels of the drawn thing whose middle the action names as a pixel; 0: the action names none, or its size is not
    known."""
    height: Number = 0
    """Height of that thing."""


class EvaluationRequest(Wire, frozen=True):
    """Request to evaluate the task's end state. The reply is `Evaluation`."""

    lease: Lease
    final_action: FinalAction = ""
    """Action that ended the episode; empty when a limit or the task itself ended it."""
    goes_on: bool = False
    """Whether the episode goes on, and only its facts are wanted. An evaluator that counts none is not run then: it may act."""


class Evaluation(Wire, frozen=True):
    """The evaluator's verdict."""

    reward: float
    success: bool
    detail: str
    """One line for people that names the facts that were compared."""
    progress: Share | None = None
    """Share of the facts to be changed that are as wanted, less those broken beside them, and at least 0: 0 at the start, and 1
    only for a success. None: the evaluator counts no facts."""


class LeaseRelease(Wire, frozen=True):
    """Return of a desktop. The reply is `Ack`."""

    lease: Lease


class DesktopsRequest(Wire, frozen=True):
    """Request for the present content of all desktops of a host. The reply is `Desktops`; nothing changes."""

    elements_of: DesktopChoice = -1
    """Desktop whose elements are requested as well; -1: none."""


class DesktopView(Wire, frozen=True):
    """One desktop as shown to people."""

    desktop: Number
    """Index of the desktop on its host."""
    state: Name
    """State in the pool: `idle`, `preparing`, `leased`, `new`, `starting`, `broken` or `quarantined`."""
    reason: Line
    """Reason why the desktop broke; empty while it works."""
    holder: Id
    """Holder of the lease, `actor-<index>:<incarnation>`; empty when there is none."""
    task: TaskRef | None
    instruction: Line
    num_steps: Number
    action: Line
    """Last action, as text."""
    completion: Text
    """Completion that the last action was parsed from."""
    action_error: Line
    reward: float | None
    """Reward from the evaluator, None before the evaluation."""
    screenshot: ScreenshotRef | None
    """Last screenshot."""
    places: Places = ()
    """Pixels at which the last action pointed, as in `Step.places`."""

    def __post_init__(self) -> None:
        cut_lines(self, "reason", "instruction", "action", "action_error")


class Desktops(Wire, frozen=True):
    """All desktops of a host."""

    desktops: tuple[DesktopView, ...]
    elements: tuple[Element, ...]
    """Elements of the desktop that was named in the request."""
