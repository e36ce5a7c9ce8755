"""The orders of the present phase at the broker: opened, closed, and opened under another id where theirs is taken.

An id is taken when a checkpoint older than the newest is resumed: the broker remembers how the run went on after it, the
learner does not. An RL order may then be closed already, an evaluation be known with another policy version. Both are left
behind closed, and a successor (`rl-1.2`, then `rl-1.3`) is placed. What a successor asks for follows from the checkpoint
alone, so resuming from that again finds the same one.

Keeps its books in `LoopState`. Takes no groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from computerrl.common import log
from computerrl.common.errors import OrderRefused
from computerrl.common.messages import RolloutOrder
from computerrl.learner.contracts import Broker
from computerrl.learner.recipe.state import LoopState, Tally

_MARK = "."


def plan_id(order_id: str) -> str:
    """The id in the recipe of an order or its successors: `rl-1.2` -> `rl-1`."""
    return order_id.partition(_MARK)[0]


def enter(state: LoopState, orders: Sequence[RolloutOrder], *, close_present: bool) -> None:
    """Note ``orders`` as the present ones; nothing is asked of the broker yet. ``close_present``: give up those before."""
    if close_present:
        state.old_orders += [order_id for order_id in state.orders if order_id not in state.old_orders]
    state.orders = {order.order_id: _plain(order) for order in orders}
    state.tallies = {order.order_id: Tally() for order in orders if order.kind != "training"}


def open_all(state: LoopState, broker: Broker) -> None:
    """Close what earlier phases left and place the present orders; may be done again at any time."""
    for order_id in state.old_orders:
        broker.close_order(order_id)
    for order in state.order_messages():
        if order.order_id not in state.old_orders:
            _place(order, state, broker)


def _place(order: RolloutOrder, state: LoopState, broker: Broker) -> None:
    while True:
        try:
            broker.place_order(order)
            return
        except OrderRefused as error:
            successor = _successor(order, state)
            log.get_logger().warning("order.refused", order_id=order.order_id, successor=successor.order_id, reason=str(error))
        broker.close_order(order.order_id)
        state.old_orders.append(order.order_id)
        if order.kind != "training":
            # Its groups are of other weights; training groups count whichever order they come from, by their own versions.
            del state.orders[order.order_id]
            state.tallies[plan_id(order.order_id)] = Tally()
        state.orders[successor.order_id] = _plain(successor)
        order = successor


def _successor(order: RolloutOrder, state: LoopState) -> RolloutOrder:
    base, _, number = order.order_id.partition(_MARK)
    order_id = f"{base}{_MARK}{int(number or 1) + 1}"
    if order.kind != "training":
        return replace(order, order_id=order_id)
    return replace(order, order_id=order_id, first_seed=max(order.first_seed, state.next_seed))


def _plain(order: RolloutOrder) -> dict[str, object]:
    return to_builtins(order)
