"""Counts and logs of the messages that a server refused. The first of a kind get a log line each, later ones every thousandth
time, so that a sender cannot fill the disk with them."""

from __future__ import annotations

from computerrl.common import log

_NUM_LOGGED, _LOG_EVERY = 100, 1000


class Refusals:
    """Number of refusals since the start, by `transport/<reason>`."""

    def __init__(self) -> None:
        self.counters = {"transport/malformed": 0, "transport/unauthorised": 0, "transport/too_large": 0}

    def count(self, event: str, **fields: object) -> None:
        """Count one refusal. ``event``: name of the counter with a dot for the slash."""
        name = event.replace(".", "/")
        self.counters[name] += 1
        if self.counters[name] <= _NUM_LOGGED or self.counters[name] % _LOG_EVERY == 0:
            log.get_logger().warning(event, number=self.counters[name], **fields)
