"""Trajectories: the steps of an episode, from the actor to the broker and in groups to the learner.

Array shape legend: P prompt tokens of a step, A action tokens of a step.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from computerrl.common.messages.base import (
    FLOAT32,
    INT32,
    EndReason,
    FloatArray,
    Id,
    IntArray,
    Name,
    Number,
    OrderKind,
    Places,
    SettledBy,
    Share,
    Version,
    Wire,
    take_arrays,
)
from computerrl.common.messages.work import TaskRef

_STEP_ARRAYS = {"prompt_tokens": INT32, "action_tokens": INT32, "behavior_logprobs": FLOAT32, "policy_versions": INT32}


MAX_IMAGE_BYTES = 32 << 20
"""Maximum size of an encoded image: a 4K screen of noise, without loss, has 25 MB."""


class ScreenshotRef(Wire, frozen=True):
    """Location of a screenshot, which an env_server writes once per content into an append-only segment file."""

    content_hash: Name
    """BLAKE2b (128 bits) of the stored bytes: one name, one byte string."""
    segment: Name
    """File name in `runs/<name>/trajectories/`."""
    offset: Number
    """Offset of the image in the segment, in bytes."""
    num_bytes: Number
    width: Number
    """Width in pixels."""
    height: Number
    """Height in pixels."""


ScreenshotRefs = Annotated[tuple[ScreenshotRef, ...], Meta(max_length=64)]
"""At most 64 screenshots."""


class StepTiming(Wire, frozen=True):
    """Durations of the parts of one step, in seconds."""

    generate_s: float
    """Time from the submission of the prompt to the engine until its completion, queueing included."""
    desktop_s: float
    """Time for action, settling and observation, measured by the actor."""
    settle_s: float
    """Part of ``desktop_s`` in which the guest waited for a quiet screen."""


class ElementTarget(Wire, frozen=True):
    """The element, or the drawn thing, at which the demonstrator's next action points. Grounding rewards are computed from it
    (`learner.objective.grounding`); no prompt shows it."""

    x: int
    """Horizontal position of the centre in screen pixels."""
    y: int
    """Vertical position of the centre in screen pixels."""
    width: int
    height: int
    screen_width: int
    screen_height: int
    is_same_kind: bool
    """Whether the chosen action has the name of the demonstrator's (`click`, `scroll`, ...)."""


class Usage(Wire, frozen=True):
    """Tokens that the server of an agent's model has counted for the requests of one step."""

    input_tokens: Number
    """Tokens of the prompts, those included that the server had in its cache."""
    output_tokens: Number
    """Tokens of the answers, thoughts included."""
    num_requests: Number
    """Answers of the server."""


def total_usage(*parts: Usage | None) -> Usage | None:
    """The sum of ``parts``; None: no server was asked."""
    known = [part for part in parts if part is not None]
    names = Usage.__struct_fields__
    return Usage(*(sum(getattr(part, name) for part in known) for name in names)) if known else None


class Step(Wire, frozen=True):
    """One training sample: a prompt and the action that the policy sampled."""

    prompt_tokens: IntArray
    """[P] tokens of the prompt; empty for an agent with a model of its own, in evaluations alone, as all four arrays are then."""
    action_tokens: IntArray
    """[A] tokens of the completion, end-of-action token included."""
    behavior_logprobs: FloatArray
    """[A] log-probs under the sampling distribution (temperature applied); empty for demonstrations, and for evaluations of a
    server that sends text alone."""
    policy_versions: IntArray
    """[A] policy version that sampled each token; empty for demonstrations."""
    action_text: str
    format_ok: bool
    """Whether the text parsed to an action of the action space."""
    action_error: str
    """Reason of the environment or the parser for refusing the action; empty when it was done."""
    screenshot: ScreenshotRef | None
    """Screen on which the action was chosen."""
    settled_by: SettledBy
    """Reason why the wait for a quiet screen ended."""
    timing: StepTiming
    images: tuple[ScreenshotRef, ...] = ()
    """Screenshots that the prompt shows, in its order; none where the format shows text alone."""
    places: Places = ()
    """Pixels of the screenshot at which the action points: x, y, or x, y of each place of a drag, its start first. Empty: it
    points at none. For people and for grounding rewards; an element that the action names counts by its centre."""
    matched: bool | None = None
    """Whether the action equals the demonstrator's. If not, the demonstrator's was done instead, or the episode ended. None: no
    demonstrator took part."""
    target: ElementTarget | None = None
    """Element or drawn thing at which the demonstrator would have pointed, for an algorithm that `WantsTargets`. None: the
    episode had left the demonstration, the demonstrator's action names no single one, or the order asks for no targets."""
    state: Name = ""
    """Digest of the screen on which the action was chosen (`Observation.state`): equal in steps that saw the same, whatever came
    before. Empty: unknown."""
    usage: Usage | None = None
    """Tokens that an agent's model took for the step. None: no agent played, or its server counts nothing."""
    progress: Share | None = None
    """Share of the task's facts that held when the action was chosen (`Evaluation.progress`). None: the order asks for none, or
    the task's evaluator counts none."""

    def __post_init__(self) -> None:
        take_arrays(self, _STEP_ARRAYS)

    @property
    def min_policy_version(self) -> int:
        """Oldest version in the action, -1 for demonstrations."""
        return int(self.policy_versions.min()) if self.policy_versions.size else -1

    @property
    def num_bytes(self) -> int:
        """Size of the step's arrays."""
        of_text = self.prompt_tokens.nbytes + self.action_tokens.nbytes
        return of_text + self.behavior_logprobs.nbytes + self.policy_versions.nbytes


class Trajectory(Wire, frozen=True):
    """One finished episode. The actor sends it to the broker, whose reply is `TrajectoryReceipt`; the learner receives it inside
    a `TrajectoryGroup`."""

    trajectory_id: Id
    """Identifier of the assignment that was played."""
    group_id: Id
    index: Number
    """Index of the rollout in its group."""
    order_id: Name
    kind: OrderKind
    task: TaskRef
    instruction: str
    steps: tuple[Step, ...]
    reward: float
    """Reward from the task's evaluator, in [0, 1]."""
    success: bool
    end_reason: EndReason
    final_screenshot: ScreenshotRef | None
    actor: Id
    """Name of the actor, `actor-<index>:<incarnation>`."""
    shown_by: str
    """Who chose the actions of a demonstration: `script` (the family's demonstrator), `recording of a person`, `recording of
    <model>`, or `<model>` (the run's teacher). Empty: the policy, or the agent that is evaluated, chose them."""
    started_at: float
    """Start of the episode in Unix seconds."""
    duration_s: float
    reset_s: float
    """Time for lease and reset, measured by the actor."""
    wait_s: float
    """Time in this episode's slot that was neither desktop nor generation, such as waiting for an assignment."""

    progress: Share | None = None
    """Share of the task's facts that hold in the end, as `Step.progress`."""
    total_reward: float | None = None
    """Weighted sum of `learner.rewards`, set by the learner before it trains. None: on the wire, and where the evaluator's
    success alone counts."""
    earned_before: tuple[float, ...] = ()
    """Part of ``total_reward`` that was earned before each step, set by the learner with it. Empty: all is earned in the end."""

    @property
    def num_bytes(self) -> int:
        """Size of the arrays of its steps."""
        return sum(step.num_bytes for step in self.steps)


class TrajectoryReceipt(Wire, frozen=True):
    """The broker's reply to a `Trajectory`, sent only after an accepted one is on disk."""

    trajectory_id: Id
    accepted: bool
    reason: Name
    """Drop reason of a rejected trajectory: `duplicate`, `order_closed`, `unknown_assignment`, `malformed`, ..."""


MAX_TRAJECTORIES_PER_BATCH = 64
Trajectories = Annotated[tuple[Trajectory, ...], Meta(min_length=1, max_length=MAX_TRAJECTORIES_PER_BATCH)]
"""1 to 64 trajectories."""


class TrajectoryBatch(Wire, frozen=True):
    """Short episodes that finished while an earlier submission of the same process was under way. The reply is `ReceiptBatch`.

    They share a frame, a record of the journal and a reply; each is accepted or rejected separately. An `ErrorReply` applies to
    all of them: those that were accepted all the same are duplicates when the batch is sent again.
    """

    trajectories: Trajectories


class ReceiptBatch(Wire, frozen=True):
    """The broker's reply to a `TrajectoryBatch`."""

    receipts: tuple[TrajectoryReceipt, ...]
    """Receipt of each trajectory, in the order of the batch."""


class GroupRequest(Wire, frozen=True):
    """The learner's request for the group with number ``group_seq``. The reply is `TrajectoryGroup` or `NoGroup`; a repeated
    request gets the same group again."""

    group_seq: Number
    """Position of the learner: the first group that it has not taken yet."""


class TrajectoryGroup(Wire, frozen=True):
    """All rollouts of one task instance in one order. Groups are numbered 0, 1, ... in the order of their completion."""

    group_seq: Number
    group_id: Id
    order_id: Name
    kind: OrderKind
    task: TaskRef
    trajectories: tuple[Trajectory, ...]
    num_given_up: Number = 0
    """Number of rollouts that are missing because the task could not be put on screen; perhaps all of them."""


class NoGroup(Wire, frozen=True):
    """The requested group is not complete yet."""

    training_versions: tuple[int, ...] = ()
    """Policy versions in flight for training, ascending: those that running episodes were assigned with, and those of the steps
    of trajectories whose group is incomplete. All of them are listed, because after a restart of the learner a higher number may
    be the older version (`learner.recipe.lineage`)."""


class ConsumptionReport(Wire, frozen=True):
    """The learner's checkpoint on disk covers all groups below ``group_seq``, so the broker may drop them. The reply is `Ack`."""

    group_seq: Number


class VersionAnnouncement(Wire, frozen=True):
    """The learner has this policy version now, which moves the staleness bound. The reply is `Ack`."""

    policy_version: Version
    group_seq: Number
    """First group whose outcome the learner has not decided. The groups below it are trained or dropped, and the broker counts
    its credit from it."""
