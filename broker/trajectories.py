"""Trajectories on their way in: checked against their order, put into their slots, and queued as complete groups. Pure."""

from __future__ import annotations

import math
import re

from computerrl.broker.counters import BrokerCounters
from computerrl.broker.delivery import DeliveryQueue
from computerrl.broker.events import Decision, LogEvent, PersistFirst
from computerrl.broker.images import ImageShelf
from computerrl.broker.orders.curriculum import group_size_limits
from computerrl.broker.orders.order_book import OrderBook
from computerrl.broker.orders.order_state import OrderState
from computerrl.broker.orders.slots import Group, Slot, group_id, slot_of
from computerrl.common.messages import (
    MAX_IMAGE_BYTES,
    SIZE_LIMITS,
    Ack,
    OrderKind,
    ReceiptBatch,
    ScreenshotRef,
    SlotGivenUp,
    Step,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
)

_GROUP_LIMIT = SIZE_LIMITS[TrajectoryGroup.__name__]
_MAX_GROUP_BYTES = _GROUP_LIMIT.total_bytes - _GROUP_LIMIT.header_bytes
_CONTENT_HASH = re.compile(r"[0-9a-f]{32}\Z")
_STEP_BYTES, _IMAGE_BYTES, _TRAJECTORY_BYTES = 2048, 1024, 8192
"""Maximum bytes of a step, of an image that it names and of a trajectory in a message's header, without the texts that may be of
any length."""


class TrajectoryIntake:
    """Takes trajectories in for the slots of ``orders`` and puts the groups that they complete into ``delivery``."""

    def __init__(
        self, orders: OrderBook, delivery: DeliveryQueue, images: ImageShelf, *, counters: BrokerCounters, log: LogEvent
    ) -> None:
        self._orders = orders
        self._delivery = delivery
        self._images = images
        self._counters = counters
        self._log = log

    def check(self, trajectory: Trajectory, incarnation: str) -> Decision:
        """Decision on a submission by ``incarnation``: a receipt that refuses it, the images that have to be submitted before, or
        the trajectory has to be durable first."""
        return self._refusal(trajectory, incarnation) or self._images.wanted([trajectory]) or PersistFirst(trajectory)

    def check_batch(self, batch: TrajectoryBatch, incarnation: str) -> Decision:
        """Decision on a submission of several; those that are not refused have to be durable first, and all images before."""
        if (wanted := self._images.wanted(batch.trajectories)) is not None:
            return wanted
        refusals = [self._refusal(trajectory, incarnation) for trajectory in batch.trajectories]
        pairs = list(zip(batch.trajectories, refusals, strict=True))
        accepted = tuple(trajectory for trajectory, refusal in pairs if refusal is None)
        if len(accepted) == len(refusals):
            return PersistFirst(batch)
        receipts = ReceiptBatch(tuple(refusal or _acceptance(trajectory) for trajectory, refusal in pairs))
        return PersistFirst(TrajectoryBatch(accepted), receipts) if accepted else receipts

    def accept(self, trajectory: Trajectory) -> TrajectoryReceipt:
        """Put a durable trajectory into its slot.

        Its slot is checked again: two copies may have come in before either was durable, or the order was closed in between.
        """
        slot = slot_of(trajectory)
        reason = self._slot_problem(trajectory.order_id, slot)
        if slot is None or reason:
            self._counters.count_rejected(reason)
            return TrajectoryReceipt(trajectory.trajectory_id, accepted=False, reason=reason)
        self._counters.count_accepted()
        results, family = self._orders.results, trajectory.task.family
        if trajectory.kind == "training":
            results.add(family, success=trajectory.success)
        if trajectory.success:
            results.add_success(family, num_steps=len(trajectory.steps))
        state = self._orders[trajectory.order_id]
        self._deliver(state, state.fill(slot, trajectory))
        return _acceptance(trajectory)

    def accept_batch(self, batch: TrajectoryBatch, receipts: ReceiptBatch | None = None) -> ReceiptBatch:
        """Put durable trajectories into their slots.

        ``receipts``: those of the whole submission, of which ``batch`` is the part that was not refused.
        """
        accepted = [self.accept(trajectory) for trajectory in batch.trajectories]
        if receipts is None:
            return ReceiptBatch(tuple(accepted))
        remaining = iter(accepted)
        return ReceiptBatch(tuple(next(remaining) if receipt.accepted else receipt for receipt in receipts.receipts))

    def give_up(self, given_up: SlotGivenUp) -> Ack:
        """Go on without the trajectory of a slot; no effect when it has one, or its order is closed."""
        state, slot = self._orders[given_up.order_id], (given_up.number, given_up.index)
        if not state.closed and not state.slots.is_filled(slot):
            self._counters["given_up"] += 1
            group = group_id(given_up.order_id, given_up.number)
            self._log("slot.given_up", group_id=group, index=given_up.index, reason=given_up.reason)
            self._deliver(state, state.give_up(slot))
        return Ack()

    def held(self) -> list[Trajectory]:
        """Trajectories of complete groups, then those of incomplete ones."""
        complete = [trajectory for group in self._delivery.groups() for trajectory in group.trajectories]
        return complete + [trajectory for state in self._orders for trajectory in state.slots.pending()]

    def restore(self, trajectory: Trajectory) -> None:
        """Put a trajectory back where it was at the time of a snapshot."""
        if not self._delivery.put_back(trajectory):
            slot = slot_of(trajectory)
            assert slot is not None
            self._orders[trajectory.order_id].fill(slot, trajectory)

    def _refusal(self, trajectory: Trajectory, incarnation: str) -> TrajectoryReceipt | None:
        slot = slot_of(trajectory)
        reason, detail = self._slot_problem(trajectory.order_id, slot), ""
        if slot is not None and not reason:
            state = self._orders[trajectory.order_id]
            detail = malformation(trajectory, state, slot)
            if not detail:
                return None
            reason = "malformed"
            # The episode is over for its actor: another actor may have the slot before the deadline.
            state.slots.release_if_held(slot, incarnation=incarnation)
        self._counters.count_rejected(reason)
        self._log("trajectory.rejected", trajectory_id=trajectory.trajectory_id, reason=reason, detail=detail)
        return TrajectoryReceipt(trajectory.trajectory_id, accepted=False, reason=reason)

    def _slot_problem(self, order_id: str, slot: Slot | None) -> str:
        """Reason why a trajectory has no slot to fill, empty when it has one."""
        state = self._orders.get(order_id)
        if state is None or slot is None or not state.is_plausible(slot):
            return "unknown_assignment"
        if state.slots.is_filled(slot):
            return "duplicate"
        return "order_closed" if state.closed else ""

    def _deliver(self, state: OrderState, group: Group | None) -> None:
        """Queue ``group`` for delivery unless it is None."""
        if group is None:
            return
        order, seq = state.order, self._delivery.next_seq
        name, num_given_up = group_id(order.order_id, group.number), len(group.given_up)
        self._delivery.put(
            TrajectoryGroup(seq, name, order.order_id, order.kind, group.task, group.trajectories, num_given_up=num_given_up)
        )
        self._counters["groups_completed"] += 1
        self._log("group.completed", group_id=name, group_seq=seq)


def _acceptance(trajectory: Trajectory) -> TrajectoryReceipt:
    return TrajectoryReceipt(trajectory.trajectory_id, accepted=True, reason="")


def malformation(trajectory: Trajectory, state: OrderState, slot: Slot) -> str:
    """Problem of a trajectory's content, empty when it is as its order wants it."""
    order = state.order
    if trajectory.kind != order.kind:
        return f"kind {trajectory.kind}, the order's is {order.kind}"
    task = state.task(slot[0])
    if trajectory.task != task:
        return f"task {trajectory.task.task_id}, the group's is {task.task_id}"
    if not (math.isfinite(trajectory.reward) and 0.0 <= trajectory.reward <= 1.0):
        return f"reward {trajectory.reward} is outside 0..1"
    most = order.max_steps * order.calls_per_action
    if len(trajectory.steps) > most:
        return f"{len(trajectory.steps)} steps, the order allows {most}"
    group_size = group_size_limits(order)[1]
    if group_size * trajectory.num_bytes > _MAX_GROUP_BYTES:
        return f"its arrays are too large: a group of {group_size} such would be larger than any message"
    if group_size * _max_header_bytes(trajectory) > _GROUP_LIMIT.header_bytes:
        return f"its texts and images are too many: a group of {group_size} such would be larger than any message"
    for number, step in enumerate(trajectory.steps):
        problem = _step_problem(step, kind=trajectory.kind)
        if problem:
            return f"step {number}: {problem}"
    return ""


def _max_header_bytes(trajectory: Trajectory) -> int:
    of_steps = sum(
        _STEP_BYTES + len(step.images) * _IMAGE_BYTES + _num_bytes(step.action_text) + _num_bytes(step.action_error)
        for step in trajectory.steps
    )
    return _TRAJECTORY_BYTES + _num_bytes(trajectory.instruction) + of_steps


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _step_problem(step: Step, *, kind: OrderKind) -> str:
    num_tokens, num_logprobs, num_versions = step.action_tokens.size, step.behavior_logprobs.size, step.policy_versions.size
    is_agents = kind == "evaluation" and not step.prompt_tokens.size
    if is_agents and not num_tokens == num_logprobs == num_versions == 0:
        return f"no prompt, but {num_tokens} action tokens, {num_logprobs} log-probs, {num_versions} policy versions"
    if not is_agents and (not step.prompt_tokens.size or not num_tokens):
        return f"{step.prompt_tokens.size} prompt and {num_tokens} action tokens"
    # Some servers send text alone; nothing is trained on an evaluation.
    possible = (num_tokens, 0) if kind == "evaluation" else (num_tokens,)
    if kind != "demonstration" and (num_versions != num_tokens or num_logprobs not in possible):
        return f"{num_tokens} action tokens, {num_logprobs} log-probs, {num_versions} policy versions"
    # One that is not finite makes the sum so; this is half the work of looking at each.
    if not math.isfinite(step.behavior_logprobs.sum()):
        return "log-probs are not finite"
    return next((problem for ref in step.images if (problem := _image_problem(ref))), "")


def _image_problem(ref: ScreenshotRef) -> str:
    if _CONTENT_HASH.match(ref.content_hash) is None:
        return f"{ref.content_hash!r} is no hash of an image"
    if not 1 <= ref.num_bytes <= MAX_IMAGE_BYTES:
        return f"image {ref.content_hash} has {ref.num_bytes} bytes, 1 to {MAX_IMAGE_BYTES} are allowed"
    return ""
