"""Assignments: slots of open orders granted to actors, returned by them, or expired. Pure.

Open orders take turns slot by slot, so that demonstrations and an evaluation run at the same time. Within an order the slots of
one group are granted one after the other, so that the engine's prefix cache serves the whole group.
"""

from __future__ import annotations

from typing import Literal

from computerrl.broker.counters import BrokerCounters
from computerrl.broker.delivery import DeliveryQueue
from computerrl.broker.events import Decision, LogEvent, PersistFirst
from computerrl.broker.orders.order_book import OrderBook
from computerrl.broker.orders.order_state import OrderState
from computerrl.broker.orders.slots import Grant, Slot, assignment_id, group_id
from computerrl.common.messages import Ack, Assignment, AssignmentRequest, AssignmentReturn, NoAssignment, TaskRef

_Refusal = Literal["staleness_bound", "policy_version", "all_assigned", "no_order"]
_RETRY_AFTER_S: dict[_Refusal, float] = {"staleness_bound": 0.1, "policy_version": 0.1, "all_assigned": 0.25, "no_order": 0.25}
"""Pause before an actor repeats its request, by the reason of the refusal. Of several reasons the first one here is returned."""
PAUSED_RETRY_S = 1.0
"""Pause before an actor repeats its request to a paused run."""


class Assignments:
    """Grants of slots of all open orders."""

    def __init__(
        self,
        orders: OrderBook,
        delivery: DeliveryQueue,
        *,
        eta: int,
        max_assignment_s: float,
        counters: BrokerCounters,
        log: LogEvent,
    ) -> None:
        self.eta = eta
        self.is_paused = False
        """A paused run grants nothing new; granted slots are played to their end."""
        self._orders = orders
        self._delivery = delivery
        self._max_assignment_s = max_assignment_s
        self._counters = counters
        self._log = log

    def pause(self, *, is_paused: bool) -> None:
        """Grant nothing new, or resume."""
        if is_paused != self.is_paused:
            self.is_paused = is_paused
            self._log("admission.paused" if is_paused else "admission.resumed")

    def assign(self, request: AssignmentRequest, *, newest_version: int, now: float) -> Decision:
        """The next slot, the reason why there is none, or the drawn group that must be durable before its first slot is granted.

        A repeated request whose reply was lost returns the same assignment. ``newest_version``: policy version announced last.
        """
        granted = self._granted_before(request)
        if granted is not None:
            return granted
        if self.is_paused:
            return NoAssignment("paused", PAUSED_RETRY_S)
        reasons: set[_Refusal] = set()
        for _ in range(self._orders.num_open):
            state = next(self._orders.open_orders())
            reason = self._refusal(state, request, newest_version=newest_version)
            if reason is None and (drawn := state.undrawn()) is not None:
                return PersistFirst(drawn, request)  # The order keeps its turn until the request is handled again.
            self._orders.end_turn()
            if reason is None:
                deadline = now + self._max_assignment_s
                slot = state.grant(Grant(request.incarnation, request.request_id, deadline, request.policy_version))
                self._counters["assigned"] += 1
                return self._assignment(state, slot)
            reasons.add(reason)
        soonest: _Refusal = next((reason for reason in _RETRY_AFTER_S if reason in reasons), "no_order")
        return NoAssignment(soonest, _RETRY_AFTER_S[soonest])

    def return_assignment(self, returned: AssignmentReturn) -> Decision:
        """Release the slot of an assignment that could not be played; no effect unless its sender holds it."""
        for state in self._orders.open_orders():
            for slot in state.slots.grants.slots_of(returned.incarnation):
                if assignment_id(state.order.order_id, slot) == returned.assignment_id:
                    self._counters.count_returned(returned.reason)
                    given_up = state.return_slot(slot, returned.reason)
                    return Ack() if given_up is None else PersistFirst(given_up)
        return Ack()

    def release_all(self, incarnation: str) -> None:
        """Release every slot granted to ``incarnation``."""
        self._counters["released"] += sum(state.slots.release_all(incarnation) for state in self._orders.open_orders())

    def expire(self, now: float) -> None:
        """Release every slot whose deadline has passed."""
        for state in self._orders.open_orders():
            for slot in state.slots.expire(now):
                self._counters["expired"] += 1
                self._log("assignment.expired", assignment_id=assignment_id(state.order.order_id, slot))

    def _granted_before(self, request: AssignmentRequest) -> Assignment | None:
        """The assignment that this very request was granted and that still holds."""
        if not request.request_id:
            return None
        for state in self._orders.open_orders():
            for slot in state.slots.grants.slots_of(request.incarnation):
                if state.slots.grants[slot].request_id == request.request_id:
                    return self._assignment(state, slot)
        return None

    def _refusal(self, state: OrderState, request: AssignmentRequest, *, newest_version: int) -> _Refusal | None:
        order = state.order
        if state.done:
            return "no_order"
        if not state.has_free_slot:
            return "all_assigned"
        if order.kind != "demonstration" and request.policy_version < order.min_policy_version:
            return "policy_version"
        if order.kind != "training":
            return None
        num_trained = state.num_consumed + self._delivery.num_decided(order.order_id)
        if not state.has_credit(num_trained=num_trained, eta=self.eta):
            return "staleness_bound"
        # A version gives credit before its weights arrive: with eta 0 an actor without them would play with older ones.
        if self.eta == 0 and request.policy_version < newest_version:
            return "policy_version"
        return None

    def _assignment(self, state: OrderState, slot: Slot) -> Assignment:
        number, index = slot
        order, group = state.order, state.slots.groups[number]
        return Assignment(
            assignment_id=assignment_id(order.order_id, slot),
            group_id=group_id(order.order_id, number),
            index=index,
            order_id=order.order_id,
            kind=order.kind,
            task=group.task,
            temperature=order.temperature,
            max_steps=group.max_steps,
            time_limit_s=self._max_assignment_s,
            num_patches=order.num_patches,
            with_targets=order.with_targets,
            with_facts=order.with_facts,
            shown_images=order.shown_images,
            next_task=self._next_task(),
        )

    def _next_task(self) -> TaskRef | None:
        """Task of the next turn. It is a guess: credit and versions are ignored, and other requests may come first."""
        tasks = (state.next_task for state in self._orders.open_orders())
        return next((task for task in tasks if task is not None), None)
