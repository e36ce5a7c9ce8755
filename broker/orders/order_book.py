"""All orders by id: placing, closing, and the turns of the open ones. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from computerrl.broker.counters import BrokerCounters
from computerrl.broker.events import Decision, LogEvent, PersistFirst
from computerrl.broker.orders import curriculum
from computerrl.broker.orders.curriculum import RecentResults
from computerrl.broker.orders.order_state import OrderState
from computerrl.common.errors import OrderRefused, ProtocolError
from computerrl.common.messages import Ack, GroupDrawn, OrderClosure, RolloutOrder
from computerrl.common.wire import codec

_MAX_GROUP_SIZE = 4096
_MAX_GROUP_STEPS = codec.MAX_ARRAYS // 4
"""Each step has four arrays."""
_MAX_FAMILIES = 4096
_MAX_OPEN_ORDERS = 256


class OrderBook:
    """Orders by id."""

    def __init__(self, *, groups_per_batch: int, counters: BrokerCounters, log: LogEvent) -> None:
        self.results = RecentResults()
        """Results of all training orders together: the next order profits from those of the one before."""
        self._groups_per_batch = groups_per_batch
        self._counters = counters
        self._log = log
        self._orders: dict[str, OrderState] = {}
        self._turns: deque[str] = deque()
        """Ids of the open orders; the first one has its turn."""

    def __iter__(self) -> Iterator[OrderState]:
        return iter(self._orders.values())

    def get(self, order_id: str) -> OrderState | None:
        return self._orders.get(order_id)

    def __getitem__(self, order_id: str) -> OrderState:
        return self._orders[order_id]

    # --- turns

    @property
    def num_open(self) -> int:
        """Number of orders that are not closed."""
        return len(self._turns)

    def open_orders(self) -> Iterator[OrderState]:
        """Orders that are not closed, from the one whose turn it is. Only they have grants, and a long run has many others."""
        return (self._orders[order_id] for order_id in self._turns)

    def end_turn(self) -> None:
        """Give the turn to the next open order."""
        self._turns.rotate(-1)

    # --- messages

    def check_order(self, order: RolloutOrder) -> Decision:
        """Decision on a request to place ``order``. Raises `OrderRefused` for a taken id, `ProtocolError` for nonsense."""
        known = self._orders.get(order.order_id)
        if known is None:
            self._validate(order)
            return PersistFirst(order)
        if known.order != order:
            raise OrderRefused(f"order {order.order_id!r} was placed before with other content: give it another id")
        if known.closed:
            raise OrderRefused(f"order {order.order_id!r} is closed, nothing of it will be played: give it another id")
        return Ack()

    def place(self, order: RolloutOrder) -> Ack:
        """Open ``order``; no effect when it is open already. Raises as `check_order`."""
        if isinstance(self.check_order(order), PersistFirst):
            self._orders[order.order_id] = OrderState(order, self.results, groups_per_batch=self._groups_per_batch)
            self._turns.append(order.order_id)
            self._log("order.placed", order_id=order.order_id, kind=order.kind, families=list(order.families))
        return Ack()

    def check_closure(self, closure: OrderClosure) -> Decision:
        """Decision on a request to close an order. Raises `ProtocolError` for an unknown one."""
        state = self._orders.get(closure.order_id)
        if state is None:
            raise ProtocolError(f"order {closure.order_id!r} was never placed")
        return Ack() if state.closed else PersistFirst(closure)

    def close(self, closure: OrderClosure) -> Ack:
        """Close an order and drop the trajectories of its incomplete groups."""
        state = self._orders[closure.order_id]
        if not state.closed:
            self._turns.remove(closure.order_id)
            num_dropped = state.close()
            self._counters.count_dropped(num_dropped, "order_closed")
            self._log("order.closed", order_id=closure.order_id, num_dropped=num_dropped)
        return Ack()

    def begin_group(self, drawn: GroupDrawn) -> Ack:
        """Begin the group of a durable record."""
        self._orders[drawn.order_id].begin_group(drawn)
        return Ack()

    def _validate(self, order: RolloutOrder) -> None:
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
        if order.with_targets and order.kind != "training":
            raise ProtocolError(f"order {order.order_id!r} is a {order.kind} order with targets, which only training ones have")
        if order.with_facts and order.kind != "training":
            raise ProtocolError(f"order {order.order_id!r} is a {order.kind} order with facts, which only training ones have")
        problem = curriculum.problem(order, max_group_size=_MAX_GROUP_SIZE)
        if problem:
            raise ProtocolError(f"order {order.order_id!r} {problem}")

    # --- status and snapshots

    @property
    def versions_in_flight(self) -> tuple[int, ...]:
        """Policy versions of training slots being played and of training trajectories in incomplete groups, ascending."""
        training = (state for state in self if state.order.kind == "training")
        return tuple(sorted(set().union(*(state.slots.policy_versions for state in training))))

    def gauges(self) -> dict[str, int]:
        """Gauges of `Status`."""
        open_orders = [state for state in self if not state.done]
        return {
            "orders_open": len(open_orders),
            "assignments": sum(len(state.slots.grants) for state in open_orders),
            "trajectories_pending": sum(state.slots.num_pending for state in open_orders),
        }

    def snapshot(self) -> dict[str, Any]:
        """All orders without their trajectories, as plain values."""
        return {"orders": [state.snapshot() for state in self], "results": self.results.snapshot()}

    def restore(self, value: dict[str, Any]) -> None:
        """Continue from a value that `snapshot` returned."""
        self.results = RecentResults(**value["results"])
        self._orders = {one["order"]["order_id"]: OrderState.restore(one, self.results) for one in value["orders"]}
        self._turns = deque(order_id for order_id, state in self._orders.items() if not state.closed)
