"""The clock, the broker core and the records that all parts of one simulated run share.

Events lie in a heap; the clock jumps from one to the next. Events of one time are handled in the order in which they were
scheduled, timeouts last. The broker core is the real one: it receives the messages that actors and learners send, and replies at
once. Pure: no file, no real clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import MessagePersisted, MessageReceived, Persist, Reply
from computerrl.common.config import RunConfig
from computerrl.common.messages import Message
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.records import Counts, Span

_MAX_ASSIGNMENT_S = 1e9
"""The broker's time limit of an assignment plays no part: the simulation returns lost episodes itself."""


class World:
    """One simulated run's clock, broker, random numbers and records."""

    def __init__(self, config: RunConfig, cluster: Cluster, *, seed: int, keep_spans_s: float) -> None:
        """``keep_spans_s``: stages that begin before this time are kept for a picture."""
        self.config = config
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.counts = Counts()
        self.spans: list[Span] = []
        self.steps_by_version: dict[str, Counter[int]] = {}
        """Trajectory that was submitted and not yet trained -> policy version -> steps sampled by it."""
        self.now = 0.0
        self._keep_spans_s = keep_spans_s
        self._core = BrokerCore.from_config(_without_time_limit(config), run_id="simulated")
        self._order = itertools.count()
        self._events: list[tuple[float, bool, int, Callable[..., None], tuple[Any, ...]]] = []
        """Heap of (seconds, whether it is a timeout, number, handler, arguments)."""

    @property
    def broker_counters(self) -> Mapping[str, int]:
        """The broker core's own counters."""
        return self._core.counters

    def later(self, delay_s: float, handle: Callable[..., None], *arguments: Any, is_timeout: bool = False) -> None:
        """Call ``handle`` with ``arguments`` after ``delay_s`` simulated seconds.

        A timeout comes after all other events of its time: an event for which it waits may happen at the last moment.
        """
        heapq.heappush(self._events, (self.now + delay_s, is_timeout, next(self._order), handle, arguments))

    def run_next(self, *, until_s: float) -> bool:
        """Handle the next event; False when there is none until ``until_s``, which is then the time."""
        if not self._events or self._events[0][0] > until_s:
            self.now = until_s
            return False
        self.now, _, _, handle, arguments = heapq.heappop(self._events)
        handle(*arguments)
        return True

    def ask(self, message: Message) -> Message:
        """The broker's reply to ``message``; a record that has to be durable first is durable at once."""
        (effect, *_) = self._core.handle(MessageReceived(0, message, "sim-0:x"), self.now)
        effects = [effect]
        if isinstance(effect, Persist):
            effects = self._core.handle(MessagePersisted(0, message), self.now)
        return next(effect.message for effect in effects if isinstance(effect, Reply))

    def note_span(self, who: str, stage: str, began_s: float) -> None:
        """Keep a stage that ends now, if it began early enough."""
        if began_s < self._keep_spans_s:
            self.spans.append(Span(who, stage, began_s, self.now))


def _without_time_limit(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"broker": config.broker.model_copy(update={"max_assignment_s": _MAX_ASSIGNMENT_S})})
