"""All orders together: whose turn it is, who may have the next assignment, who lost his. Pure.

Open orders take turns (demonstrations and an evaluation run at the same time), slot by slot; within an order the slots of one
group go out one after the other, so that the engine's prefix cache serves the whole group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from computerrl.broker.orders import curriculum
from computerrl.broker.orders.curriculum import RecentResults
from computerrl.broker.orders.orders import OrderState, Slot
from computerrl.common.errors import OrderRefused, ProtocolError
from computerrl.common.messages import (
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    GroupDrawn,
    NoAssignment,
    RolloutOrder,
    TaskRef,
)
from computerrl.common.wire import codec

_RETRY_AFTER_S = {"no_order": 0.25, "all_assigned": 0.25, "policy_version": 0.1, "staleness_bound": 0.1}
_MAX_GROUP_SIZE = 4096
_MAX_GROUP_STEPS = codec.MAX_ARRAYS // 4
"""Each has four arrays."""
_MAX_FAMILIES = 4096
_MAX_OPEN_ORDERS = 256


class OrderBook:
    """Orders by id."""

    def __init__(self, *, eta: int, groups_per_batch: int, max_assignment_s: float) -> None:
        self._eta = eta
        self._groups_per_batch = groups_per_batch
        self._max_assignment_s = max_assignment_s
        self._orders: dict[str, OrderState] = {}
        self._turns: deque[str] = deque()
        self.results = RecentResults()
        """Of all training orders together: what one of them learned about the families holds for the next."""

    def __iter__(self) -> Iterator[OrderState]:
        return iter(self._orders.values())

    def get(self, order_id: str) -> OrderState | None:
        return self._orders.get(order_id)

    def __getitem__(self, order_id: str) -> OrderState:
        return self._orders[order_id]

    # --- orders

    def is_new(self, order: RolloutOrder) -> bool:
        """False when this very order is there. Raises `OrderRefused` for an id that is taken, `ProtocolError` for nonsense."""
        known = self._orders.get(order.order_id)
        if known is not None:
            if known.order != order:
                raise OrderRefused(f"order {order.order_id!r} was placed before with other content: give it another id")
            if known.closed:
                raise OrderRefused(f"order {order.order_id!r} is closed, nothing of it will be played: give it another id")
            return False
        if not order.order_id or not order.families or order.group_size < 1 or order.max_steps < 1:
            raise ProtocolError(f"order {order.order_id!r} needs an id, families, a group size and a number of steps")
        if len(order.families) > _MAX_FAMILIES:
            raise ProtocolError(f"order {order.order_id!r} names {len(order.families)} families, at most {_MAX_FAMILIES}")
        if len(self._turns) >= _MAX_OPEN_ORDERS:
            raise ProtocolError(f"order {order.order_id!r} is one too many: {_MAX_OPEN_ORDERS} are open")
        if order.num_per_family is not None and order.num_per_family < 0:
            raise ProtocolError(f"order {order.order_id!r} asks for {order.num_per_family} instances per family")
        if len(set(order.families)) < len(order.families):
            raise ProtocolError(f"order {order.order_id!r} names a family twice")
        if curriculum.group_size_limits(order)[1] * order.max_steps > _MAX_GROUP_STEPS:
            raise ProtocolError(f"order {order.order_id!r} has more than {_MAX_GROUP_STEPS} steps a group: too many to send")
        if order.num_patches is not None and (order.kind != "training" or order.num_patches < 0):
            raise ProtocolError(f"order {order.order_id!r} is a {order.kind} order with {order.num_patches} patches")
        problem = curriculum.problem(order, max_group_size=_MAX_GROUP_SIZE)
        if problem:
            raise ProtocolError(f"order {order.order_id!r} {problem}")
        return True

    def place(self, order: RolloutOrder) -> None:
        """Open an order."""
        self._orders[order.order_id] = OrderState(order, self.results, groups_per_batch=self._groups_per_batch)
        self._turns.append(order.order_id)

    def close(self, order_id: str) -> int:
        """End an order; returns how many trajectories of incomplete groups are given up."""
        self._turns.remove(order_id)
        return self._orders[order_id].close()

    # --- assignments

    def assign(
        self, request: AssignmentRequest, *, num_trained: Callable[[OrderState], int], newest_version: int, now: float
    ) -> Assignment | NoAssignment | GroupDrawn:
        """The next slot, or why there is none, or the group that must be on disk before there is one.

        ``num_trained``: groups of an order that its credit counts from. ``newest_version``: the one announced last.
        """
        reasons = set()
        for _ in range(len(self._turns)):
            state = self._orders[self._turns[0]]
            reason = self._refusal(state, request, num_trained=num_trained, newest_version=newest_version)
            if reason is None and (drawn := state.undrawn()) is not None:
                return drawn  # It is still this order's turn when the request is looked at again.
            self._turns.rotate(-1)
            if reason is None:
                deadline = now + self._max_assignment_s
                slot = state.grant(
                    incarnation=request.incarnation,
                    request_id=request.request_id,
                    deadline=deadline,
                    policy_version=request.policy_version,
                )
                return self._assignment(state, slot)
            reasons.add(reason)
        # Of several reasons, the one that passes soonest: it decides how long the actor waits before it asks again.
        for candidate in ("staleness_bound", "policy_version", "all_assigned"):
            if candidate in reasons:
                return NoAssignment(candidate, _RETRY_AFTER_S[candidate])
        return NoAssignment("no_order", _RETRY_AFTER_S["no_order"])

    def granted_before(self, request: AssignmentRequest) -> Assignment | None:
        """What this very request was given, if its answer was lost and it still holds."""
        if not request.request_id:
            return None
        for state in self._open():
            for slot in state.slots_of(request.incarnation):
                if state.grants[slot].request_id == request.request_id:
                    return self._assignment(state, slot)
        return None

    def find_grant(self, returned: AssignmentReturn) -> tuple[OrderState, Slot] | None:
        """What was given back, None when its sender does not hold it (any more)."""
        for state in self._open():
            for number, index in state.slots_of(returned.incarnation):
                if f"{state.group_id(number)}/{index}" == returned.assignment_id:
                    return state, (number, index)
        return None

    def versions_in_flight(self) -> tuple[int, ...]:
        """Policy versions of what is being played for training or waits for the rest of its group, ascending."""
        training = (state for state in self if state.order.kind == "training")
        return tuple(sorted(set().union(*(state.versions_in_flight for state in training))))

    def release_all(self, incarnation: str) -> int:
        """Free all that ``incarnation`` holds."""
        return sum(state.release_all(incarnation) for state in self._open())

    def expire(self, now: float) -> list[str]:
        """Free all whose deadline has passed; returns their ids."""
        return [f"{state.group_id(number)}/{index}" for state in self._open() for number, index in state.expire(now)]

    def _open(self) -> Iterator[OrderState]:
        """Orders that are not closed: only they have grants, and a long run has many that are."""
        return (self._orders[order_id] for order_id in self._turns)

    def _refusal(
        self, state: OrderState, request: AssignmentRequest, *, num_trained: Callable[[OrderState], int], newest_version: int
    ) -> str | None:
        order = state.order
        if state.done:
            return "no_order"
        if not state.has_free_slot:
            return "all_assigned"
        if order.kind != "demonstration" and request.policy_version < order.min_policy_version:
            return "policy_version"
        if order.kind == "training" and not state.has_credit(num_trained=num_trained(state), eta=self._eta):
            return "staleness_bound"
        # A version gives credit before its weights arrive: with eta 0 an actor without them would play with older ones.
        if order.kind == "training" and self._eta == 0 and request.policy_version < newest_version:
            return "policy_version"
        return None

    def _assignment(self, state: OrderState, slot: Slot) -> Assignment:
        number, index = slot
        order, group_id, task = state.order, state.group_id(number), state.groups[number].task
        return Assignment(
            assignment_id=f"{group_id}/{index}",
            group_id=group_id,
            index=index,
            order_id=order.order_id,
            kind=order.kind,
            task=task,
            temperature=order.temperature,
            max_steps=state.groups[number].max_steps,
            time_limit_s=self._max_assignment_s,
            num_patches=order.num_patches,
            next_task=self._next_task(),
        )

    def _next_task(self) -> TaskRef | None:
        """Of the order whose turn it is. A guess: credit and versions are not looked at, and other requests may come first."""
        tasks = (self._orders[order_id].next_task for order_id in self._turns)
        return next((task for task in tasks if task is not None), None)

    def gauges(self) -> dict[str, int]:
        """For `Status`."""
        open_orders = [state for state in self if not state.done]
        return {
            "orders_open": len(open_orders),
            "assignments": sum(len(state.grants) for state in open_orders),
            "trajectories_pending": sum(state.num_pending for state in open_orders),
        }

    # --- snapshots

    def snapshot(self) -> dict[str, Any]:
        """All orders without their trajectories, as plain values."""
        return {"orders": [state.snapshot() for state in self], "results": self.results.snapshot()}

    def restore(self, value: dict[str, Any]) -> None:
        """From what `snapshot` gave."""
        self.results = RecentResults(**value["results"])
        self._orders = {one["order"]["order_id"]: OrderState.restore(one, self.results) for one in value["orders"]}
        self._turns = deque(order_id for order_id, state in self._orders.items() if not state.closed)
