"""What a server refused, counted and logged. The first of a kind get a log line each, later ones every so often: whoever sends
them cannot fill the disk with it."""

from __future__ import annotations

from computerrl.common import log

_NUM_LOGGED, _LOG_EVERY = 100, 1000


class Refusals:
    """Counters since the start, `transport/<what>`."""

    def __init__(self) -> None:
        self.counters = {"transport/malformed": 0, "transport/unauthorised": 0, "transport/too_large": 0}

    def count(self, event: str, **fields: object) -> None:
        """One more of ``event``, which is a counter's name with a dot for the slash."""
        name = event.replace(".", "/")
        self.counters[name] += 1
        if self.counters[name] <= _NUM_LOGGED or self.counters[name] % _LOG_EVERY == 0:
            log.get_logger().warning(event, number=self.counters[name], **fields)
