"""Every type that crosses a process, in one file.

A message is a frozen `msgspec.Struct`. Its types and their bounds hold for whatever was decoded: they are checked by whoever
receives, not when a message is built. Numpy fields travel as raw frames (see `common.wire.codec`); everything else goes into the
msgpack header. Each field says who fills it and who reads it where that is not obvious. Messages are nouns. No behaviour lives
here beyond small derived properties.

What a peer can make another one remember has bounds: in the types below, and in the table of sizes at the end.

Array shape legend: P prompt tokens of a step, A action tokens of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import force_setattr

SCHEMA_VERSION = 10
"""Raised whenever a field changes meaning; peers of another schema version are refused with a clear error."""

INT32, FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
"""What arrays consist of; little-endian on every host."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message, or a part of one. The garbage collector leaves it alone: none can be in a cycle."""


_MAX_LINE, _MAX_TEXT = 1024, 8192
_STEP_ARRAYS = {"prompt_tokens": INT32, "action_tokens": INT32, "behavior_logprobs": FLOAT32, "policy_versions": INT32}


def _take_arrays(part: Part, fields: Mapping[str, np.dtype[Any]]) -> None:
    """Make ``fields`` of ``part`` one-dimensional arrays of their types, as those that the codec decoded are already."""
    for name, dtype in fields.items():
        value = getattr(part, name)
        if type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1 and value.flags.c_contiguous:
            continue
        array = np.asarray(value)
        if array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
        if array.size and array.dtype.kind not in "iuf":
            raise ValueError(f"{name}: expected numbers, got dtype {array.dtype}")
        if array.dtype.kind == "f" and dtype.kind == "i":
            raise ValueError(f"{name}: expected integers, got dtype {array.dtype}")
        force_setattr(part, name, np.ascontiguousarray(array, dtype=dtype))


def _cut(part: Part, name: str, length: int) -> None:
    text = getattr(part, name)
    if len(text) > length:
        force_setattr(part, name, f"{text[: length - 1]}…")


def _plain(value: Any, levels: int = 6) -> Any:
    """``value`` when it is made of numbers, texts, lists and maps, not nested deeper than ``levels``."""
    if value is None or isinstance(value, str | int | float):
        return value
    if levels == 0 or not isinstance(value, list | tuple | dict):
        raise ValueError("expected numbers, texts, lists and maps, at most 6 deep")
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise ValueError("expected names as the keys of maps")
    for item in value.values() if isinstance(value, dict) else value:
        _plain(item, levels - 1)
    return value


IntArray = Annotated[np.ndarray, "int32"]
"""Whole numbers of 32 bits, one dimension; a raw frame."""
FloatArray = Annotated[np.ndarray, "float32"]
"""Floats of 32 bits, one dimension; a raw frame."""
Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""A whole number between -2^53 and 2^53: sums of a few of them still travel."""
Seed = Annotated[int, Meta(ge=0, le=2**48)]
"""Where an order's seeds begin to count up, at most 2^48."""
Version = Annotated[int, Meta(ge=-1, lt=2**31)]
"""Policy version, -1 for none; fits the arrays that hold one a token."""
Index = Annotated[int, Meta(ge=0, lt=4096)]
"""Which process of its role, below 4,096."""
DesktopChoice = Annotated[int, Meta(ge=-1, lt=4096)]
"""One of a host's desktops, -1 for none."""
NewTokens = Annotated[int, Meta(ge=1, le=65536)]
"""Tokens of an answer at most, 1 to 65,536."""
Temperature = Annotated[float, Meta(ge=0, le=100)]
"""Of sampling, 0 to 100."""
Incarnation = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
"""1 to 64 letters, digits, `.`, `_` or `-`."""
Name = Annotated[str, Meta(max_length=128)]
"""Text of at most 128 characters."""
Id = Annotated[str, Meta(max_length=256)]
"""Text of at most 256 characters: several names in one."""
Line = Annotated[str, Meta(max_length=_MAX_LINE)]
"""Text for people; what is longer than 1,024 characters is cut by whoever builds the message."""
Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
"""The same with 8,192 characters."""
Metrics = Annotated[dict[Name, float], Meta(max_length=128)]
"""At most 128 names with a number each."""
Endpoints = Annotated[dict[Name, Id], Meta(max_length=4)]
"""At most 4 names with an address each."""
Arguments = Annotated[dict[Name, Any], Meta(max_length=32)]
"""At most 32 names with a number, a text, or lists and maps of them, at most 5 deep."""

Horizon = Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=64)]
"""At most 64 pairs of whole numbers."""

Role = Literal["broker", "learner", "actor", "engine", "env_server", "supervisor"]
OrderKind = Literal["demonstration", "evaluation", "training"]
Split = Literal["demonstration", "training", "evaluation", "tuning"]
FinalAction = Literal["", "done", "fail"]
SettledBy = Literal["quiet", "deadline", "none"]
EndReason = Literal[
    "task_finished", "done_action", "fail_action", "step_limit", "time_limit", "invalid_limit", "off_demonstration"
]


# --- presence --------------------------------------------------------------------------------------------------------


class Hello(Part, frozen=True):
    """First message of every process to the broker, and again after either side restarted. Answered by `Welcome`."""

    role: Role
    index: Index
    incarnation: Incarnation
    """New at every process start; a new one releases all that the old one held."""
    host: Id
    pid: Number
    endpoints: Endpoints
    """Name -> address this process serves (`{"desktops": "tcp://127.0.0.1:5001"}`); others find it through the broker."""


class Welcome(Part, frozen=True):
    """The broker's answer to `Hello`."""

    run_id: Id
    policy_version: Version
    """Highest version ever announced in this run, -1 before the first; a restarted learner continues above it."""


class Heartbeat(Part, frozen=True):
    """Sent by every process to the broker as often as that wants it, about once a second; answered by `HeartbeatAck`."""

    role: Role
    index: Index
    incarnation: Incarnation
    metrics: Metrics
    """`area/name` -> latest value; the broker keeps the newest per process and shows them in `Status`."""
    note: Line = ""
    """What the process is doing, for people."""

    def __post_init__(self) -> None:
        _cut(self, "note", _MAX_LINE)


class HeartbeatAck(Part, frozen=True):
    """The broker's answer to `Heartbeat`."""

    period_s: float
    """Until the next one is due: longer among many processes, so that they do not keep the broker from its work."""


class Ack(Part, frozen=True):
    """Done."""


class ErrorReply(Part, frozen=True):
    """Any request may be answered by this instead of its own answer."""

    code: Name
    """`ComputerRLError.code` of what was raised."""
    message: Text

    def __post_init__(self) -> None:
        _cut(self, "message", _MAX_TEXT)


class DirectoryRequest(Part, frozen=True):
    """Who serves ``role`` now? Answered by `Directory`."""

    role: Role


class PeerEntry(Part, frozen=True):
    """One live process."""

    role: Role
    index: Index
    incarnation: Incarnation
    host: Id
    pid: Number
    endpoints: Endpoints
    age_s: float
    """Seconds since its last heartbeat."""


class Directory(Part, frozen=True):
    """Live processes of one role, by index."""

    peers: tuple[PeerEntry, ...]


# --- tasks and work --------------------------------------------------------------------------------------------------


class TaskRef(Part, frozen=True):
    """Names one task instance; the environment side builds it from family and seed, the same on every host."""

    family: Name
    seed: Number
    split: Split
    """Seeds of two splits never meet; the environment side refuses a seed outside its split's range."""

    @property
    def task_id(self) -> str:
        return f"{self.family}:{self.seed}"


class CurriculumPlan(Part, frozen=True):
    """How a training order chooses family and size of its groups, from `tasks.curriculum`, `family_weights` and `rollouts` of
    the configuration, which explain each field. Filled by the learner, read by the broker."""

    name: Name = "uniform"
    """In broker.curriculum.CURRICULA."""
    family_weights: dict[Name, float] = {}
    """1 for families that are not named; 0: never played."""
    band_low: float = 0.1
    band_high: float = 0.9
    floor: float = 0.25
    num_recent: Number = 64
    min_results: Number = 8
    min_group_size: Number | None = None
    """None: the order's group size."""
    max_group_size: Number | None = None
    """None: the order's group size."""
    horizon: Horizon = ()
    """(from this group on, actions per episode at most), ascending; before the first, and without any, the order's number."""
    length_cap: bool = False
    """Actions per episode at most as many as the family's longest success had, once there is one."""


class RolloutOrder(Part, frozen=True):
    """The learner asks the broker for rollouts. Answered by `Ack`; placing the same open order again changes nothing.

    `ErrorReply` `order_refused` when the id belongs to a closed order or to one with other content.
    """

    order_id: Name
    """Unique in the run, e.g. `rl-1`; also names the phase its groups belong to."""
    kind: OrderKind
    families: tuple[Name, ...]
    num_per_family: Number | None
    """Task instances per family; None: without end, until an `OrderClosure`."""
    group_size: Number
    """Rollouts per task instance (G); where the curriculum chooses it, that of families of which nothing is known."""
    first_seed: Seed
    """Instances are seeds first_seed, first_seed + 1, ... per family."""
    temperature: Temperature
    """Sampling temperature; 0 is greedy. Ignored for demonstrations."""
    max_steps: Number
    """Actions per episode at most."""
    min_policy_version: Version
    """An actor starts an episode of this order only with at least this version loaded."""
    num_patches: Number | None = None
    """Training orders only: episodes are played beside the family's demonstrator. An action that is not the demonstrator's is
    replaced by that one, so often; the next one ends the episode. None: the policy plays alone."""
    curriculum: CurriculumPlan = CurriculumPlan()
    """Training orders without end only; all others play every family alike."""
    split: Split | None = None
    """Whose seeds these are. None: those of the order's kind; an evaluation may play tuning seeds."""


class OrderClosure(Part, frozen=True):
    """No more assignments of this order; its incomplete groups are given up (drop reason `order_closed`)."""

    order_id: Name


class GroupDrawn(Part, frozen=True):
    """A record of the broker's journal, never sent: what a group plays, where results decide that. On disk before the group's
    first assignment is answered, so that a restarted broker gives the same task again."""

    order_id: Name
    number: Number
    task: TaskRef
    group_size: Number
    """Rollouts of this group."""


class SlotGivenUp(Part, frozen=True):
    """A record of the broker's journal, never sent: this rollout came back unplayed too often; its group does without it."""

    order_id: Name
    number: Number
    """Of the group."""
    index: Number
    reason: Name
    """Of the last return."""


class AssignmentRequest(Part, frozen=True):
    """An actor asks for one episode to play. Answered by `Assignment` or `NoAssignment`."""

    incarnation: Incarnation
    policy_version: Version
    """Version loaded in the actor's engine; -1 when none (demonstrations only)."""
    request_id: Name = ""
    """Asking again with the same one (the answer was lost) gives the same assignment again; empty: always another one."""


class Assignment(Part, frozen=True):
    """One episode to play: slot ``index`` of a group."""

    assignment_id: Id
    """`<order>/<group>/<index>`; also the trajectory's id, so a slot can be filled only once."""
    group_id: Id
    index: Number
    order_id: Name
    kind: OrderKind
    task: TaskRef
    temperature: Temperature
    max_steps: Number
    time_limit_s: float
    """The broker hands the slot to somebody else after this long."""
    num_patches: Number | None = None
    """As in the order."""
    next_task: TaskRef | None = None
    """What will be handed out next, as things stand: a desktop that is idle meanwhile can put it on screen beforehand."""


class NoAssignment(Part, frozen=True):
    """Nothing to do now."""

    reason: Literal["no_order", "staleness_bound", "policy_version", "all_assigned", "paused", "stopping"]
    retry_after_s: float


class AssignmentReturn(Part, frozen=True):
    """The actor could not play the episode (our fault, never the policy's); the slot is free again. Answered by `Ack`."""

    assignment_id: Id
    incarnation: Incarnation
    reason: Name
    """`code` of the error, for the counters."""


# --- trajectories ----------------------------------------------------------------------------------------------------


class ScreenshotRef(Part, frozen=True):
    """Where a screenshot lies: written once per content by the env_server into an append-only segment file."""

    content_hash: Name
    segment: Name
    """File name below `runs/<name>/trajectories/`."""
    offset: Number
    num_bytes: Number
    width: Number
    height: Number


class StepTiming(Part, frozen=True):
    """Where the time of one step went, in seconds."""

    generate_s: float
    """From handing the prompt to the engine until the completion is there (queueing included)."""
    desktop_s: float
    """Action, settling and observation, seen from the actor."""
    settle_s: float
    """Of which the guest waited for the screen to be quiet."""


class Step(Part, frozen=True):
    """One training sample: a prompt and the action the policy answered with."""

    prompt_tokens: IntArray
    """[P]"""
    action_tokens: IntArray
    """[A], end-of-action token included."""
    behavior_logprobs: FloatArray
    """[A], from the sampler, of the distribution that really sampled (temperature applied); empty for demonstrations."""
    policy_versions: IntArray
    """[A], version that sampled each token; empty for demonstrations."""
    action_text: str
    format_ok: bool
    """The text parsed to an action of the action space."""
    action_error: str
    """What the environment or the parser answered when the action could not be done; empty when fine."""
    screenshot: ScreenshotRef | None
    """What the screen showed when the action was chosen."""
    settled_by: SettledBy
    timing: StepTiming
    matched: bool | None = None
    """Beside a demonstrator: was the action the demonstrator's? If not, that one was done in its place, or the episode ended.
    None: nobody asked."""

    def __post_init__(self) -> None:
        _take_arrays(self, _STEP_ARRAYS)

    @property
    def min_policy_version(self) -> int:
        """Oldest version in the action, -1 for demonstrations."""
        return int(self.policy_versions.min()) if self.policy_versions.size else -1

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        of_text = self.prompt_tokens.nbytes + self.action_tokens.nbytes
        return of_text + self.behavior_logprobs.nbytes + self.policy_versions.nbytes


class Trajectory(Part, frozen=True):
    """One finished episode. Sent actor -> broker (answered by `TrajectoryReceipt`), then inside a `TrajectoryGroup`."""

    trajectory_id: Id
    """The assignment's id."""
    group_id: Id
    index: Number
    order_id: Name
    kind: OrderKind
    task: TaskRef
    instruction: str
    steps: tuple[Step, ...]
    reward: float
    """In [0, 1], from the task's evaluator."""
    success: bool
    end_reason: EndReason
    final_screenshot: ScreenshotRef | None
    actor: Id
    """`actor-<index>:<incarnation>`"""
    started_at: float
    """Unix seconds."""
    duration_s: float
    reset_s: float
    """Lease and reset, seen from the actor."""
    wait_s: float
    """Time in this episode's slot that was neither desktop nor generation (asking for work, submitting)."""

    @property
    def num_bytes(self) -> int:
        """Of the arrays of its steps."""
        return sum(step.num_bytes for step in self.steps)


class TrajectoryReceipt(Part, frozen=True):
    """The broker's answer to a `Trajectory`, sent only after an accepted one is on disk."""

    trajectory_id: Id
    accepted: bool
    reason: Name
    """Named drop reason when not accepted: `duplicate`, `order_closed`, `unknown_assignment`, `malformed`, ..."""


MAX_TRAJECTORIES_PER_BATCH = 64
Trajectories = Annotated[tuple[Trajectory, ...], Meta(min_length=1, max_length=MAX_TRAJECTORIES_PER_BATCH)]
"""1 to 64 trajectories."""


class TrajectoryBatch(Part, frozen=True):
    """Short episodes that finished while an earlier submission of the same process was on its way. Answered by `ReceiptBatch`.

    They share a frame, a record of the journal and an answer; each is accepted or rejected by itself. An `ErrorReply` speaks for
    all of them: what was accepted all the same is a `duplicate` when the batch is sent again.
    """

    trajectories: Trajectories


class ReceiptBatch(Part, frozen=True):
    """The broker's answer to a `TrajectoryBatch`."""

    receipts: tuple[TrajectoryReceipt, ...]
    """One for each trajectory, in their order."""


class GroupRequest(Part, frozen=True):
    """The learner asks for the group with sequence number ``group_seq``; asking again gives the same group again."""

    group_seq: Number
    """The learner's consumption cursor: the first group it has not taken yet."""


class TrajectoryGroup(Part, frozen=True):
    """All rollouts of one task instance in one order; groups are numbered 0, 1, ... in order of completion."""

    group_seq: Number
    group_id: Id
    order_id: Name
    kind: OrderKind
    task: TaskRef
    trajectories: tuple[Trajectory, ...]
    num_given_up: Number = 0
    """Rollouts that are missing because the task could not be put on screen; perhaps all."""


class NoGroup(Part, frozen=True):
    """That group is not complete yet."""

    num_pending_trajectories: Number
    """Accepted, waiting for the rest of their group."""
    training_versions: tuple[int, ...] = ()
    """Policy versions in flight for training, ascending: of an episode being played the one it was assigned to, of a trajectory
    whose group is incomplete those of its steps. All of them and not the oldest only: after a restart of the learner a higher
    number may be the older one (`learner.recipe.lineage`)."""


class ConsumptionReport(Part, frozen=True):
    """The learner's checkpoint on disk covers all groups below ``group_seq``: the broker may forget them. `Ack`."""

    group_seq: Number


class VersionAnnouncement(Part, frozen=True):
    """The learner now has this policy version; moves the staleness bound. Answered by `Ack`."""

    policy_version: Version
    group_seq: Number
    """First group whose fate the learner has not decided: what it trained, and the broker's credit counts from, lies below."""


class StatusRequest(Part, frozen=True):
    """Answered by `Status`."""


class Status(Part, frozen=True):
    """All that is known about the run, for displays and tests."""

    run_id: Id
    policy_version: Version
    counters: dict[str, int]
    """`received`, `accepted`, `delivered`, `held`, `rejected`, `rejected/<reason>`, `assigned`, `returned/<reason>`, ..."""
    gauges: dict[str, float]
    """Queue depths."""
    peers: tuple[PeerEntry, ...]
    metrics: dict[str, Metrics]
    """`role-index` -> its latest heartbeat's metrics."""
    notes: dict[str, str]
    """`role-index` -> what it says it is doing."""


# --- desktops --------------------------------------------------------------------------------------------------------


_PLAIN_TEXT_ROLES = frozenset({"static", "label", "heading", "paragraph", "section"})


class Element(Part, frozen=True):
    """One row of the linearised accessibility tree."""

    number: int
    """What `click(number)` takes; stable while the element stays. `click(text)` works too, where the text is one element's."""
    role: str
    text: str
    x: int
    y: int
    """Centre, screen pixels."""
    width: int
    height: int
    states: tuple[str, ...]
    """Of: checked, selected, focused, disabled, expanded, editable."""
    in_content: bool = True
    """False for toolbars, menus, title and status bars: what a short prompt may leave out first."""

    @property
    def is_plain_text(self) -> bool:
        """Text and nothing else: it says something, but there is nothing to operate."""
        return self.role in _PLAIN_TEXT_ROLES


class Observation(Part, frozen=True):
    """What the agent sees of a desktop."""

    app: str
    """Application of the active window: `chromium`, `calc`, `editor`, `files`."""
    window_title: str
    elements: tuple[Element, ...]
    screenshot: ScreenshotRef | None
    screen_width: int
    screen_height: int
    settled_by: SettledBy
    settle_s: float
    tree_age_s: float
    """0 when read now; larger when the reader missed its deadline and the last tree is shown."""
    result: str
    """What the last action's API call returned, for the agent; empty for GUI actions."""


class Action(Part, frozen=True):
    """A parsed action: one function of `common.actions.ACTIONS` with checked arguments."""

    name: Name
    args: Arguments

    def __post_init__(self) -> None:
        _plain(self.args)


class LeaseRequest(Part, frozen=True):
    """An actor wants a desktop. Answered by `Lease`, or `ErrorReply` with code `no_desktop` and the reason."""

    incarnation: Incarnation
    task: TaskRef | None = None
    """What it will play, so that the pool can hand out a desktop that shows it already, or whose applications fit."""
    next_task: TaskRef | None = None
    """What it, or somebody else, will most likely ask for next: put on a spare desktop's screen meanwhile, if there is one."""


class Lease(Part, frozen=True):
    """The right to use one desktop, until it is released or not used for ``time_limit_s``."""

    desktop: Number
    token: Number
    """Fencing token: grows with every lease of the desktop; older ones are refused."""
    time_limit_s: float


class TaskReset(Part, frozen=True):
    """Put the desktop into the task's start state. Answered by `TaskStarted`."""

    lease: Lease
    task: TaskRef


class TaskStarted(Part, frozen=True):
    """The task is on screen."""

    instruction: str
    observation: Observation


class StepRequest(Part, frozen=True):
    """Do one action. Answered by `StepResult`."""

    lease: Lease
    action: Action
    answer: Text = ""
    """What the policy said, for those who look on (`DesktopView`)."""

    def __post_init__(self) -> None:
        _cut(self, "answer", _MAX_TEXT)


class StepResult(Part, frozen=True):
    """What an action led to."""

    observation: Observation
    action_error: str
    """Why the action could not be done (the policy's mistake), empty when it was done."""
    finished: bool
    """The task itself ended the episode (a web page that scores at once); further actions change nothing."""


class DemonstrationRequest(Part, frozen=True):
    """What would the family's scripted demonstrator do now? Answered by `Demonstration`."""

    lease: Lease


class Demonstration(Part, frozen=True):
    """The demonstrator's next action in text form, exactly as the policy would have to write it."""

    action_text: str


class EvaluationRequest(Part, frozen=True):
    """Judge the task's end state. Answered by `Evaluation`."""

    lease: Lease
    final_action: FinalAction = ""
    """The action that ended the episode; empty: none did (its limit, or the task itself)."""


class Evaluation(Part, frozen=True):
    """The evaluator's verdict."""

    reward: float
    success: bool
    detail: str
    """One line for people: what was compared."""


class LeaseRelease(Part, frozen=True):
    """Give the desktop back. Answered by `Ack`."""

    lease: Lease


class DesktopsRequest(Part, frozen=True):
    """What do the desktops of this host show? Changes nothing. Answered by `Desktops`."""

    elements_of: DesktopChoice = -1
    """A desktop whose elements are wanted as well; -1: none."""


class DesktopView(Part, frozen=True):
    """One desktop, for people who look on."""

    desktop: Number
    state: Name
    """`idle`, `preparing`, `leased`, `new`, `starting`, `broken` or `quarantined`."""
    reason: Line
    """Why it broke, empty while it works."""
    holder: Id
    """Whose it is: `actor-<index>:<incarnation>`, empty: nobody's."""
    task: TaskRef | None
    instruction: Line
    num_steps: Number
    action: Line
    """The last one, as text."""
    answer: Text
    """What the policy said with it."""
    action_error: Line
    reward: float | None
    """The evaluator's, None before."""
    screenshot: ScreenshotRef | None
    """What it showed last."""
    age_s: float
    """Seconds since that."""

    def __post_init__(self) -> None:
        for name in ("reason", "instruction", "action", "action_error"):
            _cut(self, name, _MAX_LINE)


class Desktops(Part, frozen=True):
    """All desktops of a host."""

    desktops: tuple[DesktopView, ...]
    elements: tuple[Element, ...]
    """Of the one that was asked for."""


# --- weights ---------------------------------------------------------------------------------------------------------


class WeightJoin(Part, frozen=True):
    """The receiver of an actor or an engine process asks the learner to be part of weight updates. Answered by
    `WeightInvitation`."""

    receiver: Id
    """`actor-<index>:<incarnation>` or `engine-<index>:<incarnation>`"""
    loaded_version: Version
    """-1: nothing yet, needs a full update."""
    model_digest: Id
    """Digest of the base model's tensor names, shapes and dtypes; must equal the learner's."""


class WeightInvitation(Part, frozen=True):
    """What a receiver needs to take part in the next broadcast."""

    epoch: int
    """Number of the process group; -1: nothing newer than ``loaded_version``, ask again after ``retry_after_s``."""
    policy_version: int
    rank: int
    world_size: int
    store_address: str
    """Of the group's store, with the group's prefix after a slash; the name of the file in the run's folder for weights when
    ``backend`` is file."""
    backend: Literal["gloo", "nccl", "file"]
    manifest: str
    """`common.weight_plan` manifest as JSON: buckets, names, shapes, dtypes, checksums."""
    probe_logprobs: FloatArray
    """The learner's log-probs of the fixed probe prompt at this version; an engine serves only after its own agree (within
    the noise of bf16; the checksums of the manifest are exact)."""
    retry_after_s: float
    form_timeout_s: float
    """The group must be whole by then."""
    timeout_s: float
    """For each bucket: whoever waits longer leaves the group, so that nobody waits for one that hangs."""

    def __post_init__(self) -> None:
        _take_arrays(self, {"probe_logprobs": FLOAT32})


class WeightLoaded(Part, frozen=True):
    """A receiver reports the version it serves now, or why it could not load it. Answered by `Ack`."""

    receiver: Id
    policy_version: Version
    error: Line
    load_s: float
    """How long generation stood still for it."""

    def __post_init__(self) -> None:
        _cut(self, "error", _MAX_LINE)


# --- engines ---------------------------------------------------------------------------------------------------------


class EngineQuery(Part, frozen=True):
    """What does this engine process serve? Answered by `EngineState`: at once when that is not ``known_version``, else within a
    second."""

    known_version: Version


class EngineState(Part, frozen=True):
    """What an engine process serves."""

    policy_version: Version
    """-1: nothing yet, or nothing any more."""


class CompletionRequest(Part, frozen=True):
    """Sample an answer. Answered by `CompletionResult`."""

    prompt_tokens: IntArray
    """[P]"""
    temperature: Temperature
    """0: the most likely tokens."""
    max_new_tokens: NewTokens
    stop_tokens: IntArray
    """Sampling ends after one of these."""
    may_be_older: bool
    """Older weights may sample this one too, where the engine keeps some."""

    def __post_init__(self) -> None:
        _take_arrays(self, {"prompt_tokens": INT32, "stop_tokens": INT32})


class CompletionResult(Part, frozen=True):
    """What was sampled; arrays are by token."""

    tokens: IntArray
    """[A], a stop token included."""
    logprobs: FloatArray
    """[A], of the distribution that sampled."""
    policy_versions: IntArray
    """[A], whose weights computed that."""
    text: str
    """Without the stop token."""
    finish: Literal["stop", "length"]
    queue_s: float
    """Until the engine took the request in."""
    generate_s: float
    """From there until the last token."""

    def __post_init__(self) -> None:
        _take_arrays(self, {"tokens": INT32, "logprobs": FLOAT32, "policy_versions": INT32})


RequestMessage = (
    Hello
    | Heartbeat
    | DirectoryRequest
    | StatusRequest
    | RolloutOrder
    | OrderClosure
    | AssignmentRequest
    | AssignmentReturn
    | Trajectory
    | TrajectoryBatch
    | GroupRequest
    | ConsumptionReport
    | VersionAnnouncement
    | LeaseRequest
    | TaskReset
    | StepRequest
    | DemonstrationRequest
    | EvaluationRequest
    | LeaseRelease
    | DesktopsRequest
    | WeightJoin
    | WeightLoaded
    | EngineQuery
    | CompletionRequest
)
"""What a server takes; it refuses the other kinds before it unpacks them."""

AnswerMessage = (
    Welcome
    | HeartbeatAck
    | Ack
    | ErrorReply
    | Directory
    | Status
    | Assignment
    | NoAssignment
    | TrajectoryReceipt
    | ReceiptBatch
    | TrajectoryGroup
    | NoGroup
    | Lease
    | TaskStarted
    | StepResult
    | Demonstration
    | Evaluation
    | Desktops
    | WeightInvitation
    | EngineState
    | CompletionResult
)

Message = RequestMessage | AnswerMessage | GroupDrawn | SlotGivenUp
"""Every message that may be the top of a frame; the codec's registry is made from this union."""

REQUEST_KINDS = frozenset(cls.__name__ for cls in get_args(RequestMessage))


# --- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """How large a kind of message may be on the wire."""

    header_bytes: int
    """Frame 0; unpacking takes up to 64 times as much memory."""
    total_bytes: int
    """All frames."""


MAX_PEERS = 2048
"""Processes that a broker or a learner remembers at a time."""

DEFAULT_SIZE_LIMIT = SizeLimit(64 << 10, 64 << 10)

_SIZE_LIMITS = {
    # A broker keeps one of each per process, and both times `MAX_PEERS` must fit a `Status`.
    Hello: SizeLimit(8 << 10, 8 << 10),
    Heartbeat: SizeLimit(16 << 10, 16 << 10),
    Directory: SizeLimit(16 << 20, 16 << 20),
    Status: SizeLimit(64 << 20, 64 << 20),
    RolloutOrder: SizeLimit(1 << 20, 1 << 20),
    # 1,000 steps of 4 KB beside their arrays; a group of 64 such episodes of 100 steps.
    Trajectory: SizeLimit(4 << 20, 1 << 30),
    TrajectoryBatch: SizeLimit(4 << 20, 1 << 30),
    TrajectoryGroup: SizeLimit(256 << 20, 1 << 30),
    # What is typed into a desktop, and what is to be read on it.
    StepRequest: SizeLimit(1 << 20, 1 << 20),
    Demonstration: SizeLimit(1 << 20, 1 << 20),
    TaskStarted: SizeLimit(16 << 20, 16 << 20),
    StepResult: SizeLimit(16 << 20, 16 << 20),
    Evaluation: SizeLimit(1 << 20, 1 << 20),
    # 4,096 desktops with a text each.
    Desktops: SizeLimit(64 << 20, 64 << 20),
    # Names, shapes and checksums of a large model's tensors.
    WeightInvitation: SizeLimit(64 << 20, 64 << 20),
    # A million tokens of a prompt; an answer's numbers and its text.
    CompletionRequest: SizeLimit(64 << 10, 4 << 20),
    CompletionResult: SizeLimit(1 << 20, 4 << 20),
}

SIZE_LIMITS = {cls.__name__: limit for cls, limit in _SIZE_LIMITS.items()}
"""By kind; `DEFAULT_SIZE_LIMIT` for those that are not named."""
