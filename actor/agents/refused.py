"""Errors of the interfaces for agents: a request that is not answered, and what other people's code raised."""

from __future__ import annotations

import traceback

from computerrl.common import log


class Refused(Exception):
    """A request that is not answered, with status and type as OpenAI's interface has them."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.kind = status, kind


def told(error: Exception) -> str:
    """``error`` of other people's code and where it was raised, on one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return log.on_one_line(f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")[:500]
