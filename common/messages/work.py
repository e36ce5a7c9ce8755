"""Work: tasks, the learner's orders for rollouts, and the assignments that actors play."""

from __future__ import annotations

from typing import Literal

from computerrl.common.messages.base import (
    Horizon,
    Id,
    Incarnation,
    Name,
    Number,
    OrderKind,
    Seed,
    ShownImages,
    Split,
    Temperature,
    Version,
    Wire,
)


class TaskRef(Wire, frozen=True):
    """Name of one task instance. An env_server builds the instance from family and seed, identically on every host."""

    family: Name
    seed: Number
    split: Split
    """Split of the seed. The ranges of two splits are disjoint; an env_server refuses a seed outside its split's range."""

    @property
    def task_id(self) -> str:
        return f"{self.family}:{self.seed}"


class CurriculumPlan(Wire, frozen=True):
    """Rules by which a training order chooses family and size of its groups. The learner fills it from `tasks.curriculum`,
    `tasks.family_weights` and `tasks.rollouts` of the configuration, which describe each field; the broker applies it."""

    name: Name = "uniform"
    """Name of the curriculum, a key of `broker.orders.curriculum.CURRICULA`."""
    family_weights: dict[Name, float] = {}  # noqa: RUF012  (msgspec copies it)
    """Weight of a family; 1 for families that are not listed, 0 for families that are never played."""
    band_low: float = 0.1
    """Lower end of the success band."""
    band_high: float = 0.9
    """Upper end of the success band."""
    floor: float = 0.25
    """Fraction of all groups that goes to all families by weight, whatever their success rates."""
    num_recent: Number = 64
    """Number of most recent rollouts of a family that its success rate is computed from."""
    min_results: Number = 8
    """Number of rollouts of a family below which its success rate counts as unknown."""
    min_group_size: Number | None = None
    """Smallest group; None: the order's group size."""
    max_group_size: Number | None = None
    """Largest group; None: the order's group size."""
    horizon: Horizon = ()
    """Pairs (group number, maximum number of actions per episode from that group on), ascending. Before the first pair the
    order's maximum holds."""
    length_cap: bool = False
    """Whether the length of the family's longest success, once there is one, also bounds the actions per episode."""


class RolloutOrder(Wire, frozen=True):
    """The learner's order for rollouts. The reply is `Ack`; placing the same open order again changes nothing.

    The reply is `ErrorReply` with code `order_refused` when the id belongs to a closed order or to one with other content.
    """

    order_id: Name
    """Identifier that is unique in the run, e.g. `rl-1`. It also names the phase that the order's groups belong to."""
    kind: OrderKind
    families: tuple[Name, ...]
    num_per_family: Number | None
    """Number of task instances per family; None: without end, until an `OrderClosure`."""
    group_size: Number
    """Number of rollouts per task instance (G). Where the curriculum chooses it, this is the size for families without
    results."""
    first_seed: Seed
    """First seed of every family; the instances of a family use first_seed, first_seed + 1, ..."""
    temperature: Temperature
    """Sampling temperature; ignored for demonstrations."""
    max_steps: Number
    """Maximum number of actions per episode."""
    min_policy_version: Version
    """Lowest policy version with which an actor may start an episode of this order."""
    num_patches: Number | None = None
    """Maximum number of actions that the family's demonstrator replaces in an episode, for training orders only. An action that
    differs from the demonstrator's is replaced that often; the next one ends the episode. None: no demonstrator takes part."""
    with_targets: bool = False
    """Whether the steps of training episodes record the element at which the demonstrator would point (`Step.target`). It
    changes nothing in the episode."""
    with_facts: bool = False
    """Whether training episodes record how many of the task's facts hold at each step (`Step.progress`)."""
    curriculum: CurriculumPlan = CurriculumPlan()
    """Rules for training orders without end; all other orders play every family alike."""
    split: Split | None = None
    """Split of the seeds. None: the split of the order's kind; an evaluation may play tuning seeds."""
    shown_images: ShownImages = "own"
    """Images that the policy is given in place of a prompt's own. `blank`: black ones. `foreign`: the screens of other prompts.
    A policy that looks at its screen falls to chance with both. For evaluations only."""
    calls_per_action: Number = 1
    """Maximum number of steps of a trajectory for each of the `max_steps` actions. Above 1 for agents, which may ask the policy
    several times before they act."""


class OrderClosure(Wire, frozen=True):
    """End of an order: it gets no more assignments, and its incomplete groups are dropped (reason `order_closed`)."""

    order_id: Name


class GroupDrawn(Wire, frozen=True):
    """A record of the broker's journal, never sent: the task and the size that a curriculum chose for a group from results.

    The record is on disk before the group's first assignment is sent, so that a restarted broker repeats the choice.
    """

    order_id: Name
    number: Number
    """Number of the group in its order."""
    task: TaskRef
    group_size: Number
    """Number of rollouts of this group."""


class SlotGivenUp(Wire, frozen=True):
    """A record of the broker's journal, never sent: this rollout was returned unplayed too often, and its group does without."""

    order_id: Name
    number: Number
    """Number of the group in its order."""
    index: Number
    """Index of the rollout in its group."""
    reason: Name
    """Reason of the last return."""


class AssignmentRequest(Wire, frozen=True):
    """An actor's request for one episode to play. The reply is `Assignment` or `NoAssignment`."""

    incarnation: Incarnation
    policy_version: Version
    """Version loaded in the actor's engine; -1 when there is none, which allows demonstrations only."""
    request_id: Name = ""
    """Identifier of the request. A repeated request with the same one gets the same assignment again, in case the reply was
    lost; an empty one always gets another assignment."""


class Assignment(Wire, frozen=True):
    """One episode to play: slot ``index`` of a group."""

    assignment_id: Id
    """Identifier `<order>/<group>/<index>`. It is also the trajectory's id, so a slot can be filled only once."""
    group_id: Id
    index: Number
    order_id: Name
    kind: OrderKind
    task: TaskRef
    temperature: Temperature
    max_steps: Number
    time_limit_s: float
    """Seconds after which the broker assigns the slot to another actor."""
    num_patches: Number | None = None
    """`RolloutOrder.num_patches` of the order."""
    with_targets: bool = False
    """`RolloutOrder.with_targets` of the order."""
    with_facts: bool = False
    """`RolloutOrder.with_facts` of the order."""
    shown_images: ShownImages = "own"
    """`RolloutOrder.shown_images` of the order."""
    next_task: TaskRef | None = None
    """Task that will probably be assigned next. An idle desktop can put it on screen in advance."""


class NoAssignment(Wire, frozen=True):
    """There is no episode to play now."""

    reason: Literal["no_order", "staleness_bound", "policy_version", "all_assigned", "paused", "stopping"]
    retry_after_s: float
    """Seconds after which the actor should ask again."""


class AssignmentReturn(Wire, frozen=True):
    """Return of an episode that the actor could not play, for a reason other than the policy; its slot is free again. The reply
    is `Ack`."""

    assignment_id: Id
    incarnation: Incarnation
    reason: Name
    """`ComputerRLError.code` of the error, for the counters."""
