"""Trajectories that came in one message are judged one by one; their receipts go out together. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.messages import ErrorReply, Message, ReceiptBatch, Trajectory, TrajectoryBatch, TrajectoryReceipt


@dataclass(slots=True)
class _Bundle:
    ticket: int
    parts: tuple[int, ...]
    answers: dict[int, Message] = field(default_factory=dict)


class Bundles:
    """Messages of several trajectories on their way. A part's ticket is negative, those of whole messages are not."""

    def __init__(self) -> None:
        self._tickets = itertools.count(-1, -1)
        self._bundles: dict[int, _Bundle] = {}

    def open(self, ticket: int, message: TrajectoryBatch) -> Iterator[tuple[int, Trajectory]]:
        """(ticket, trajectory) of each part of ``message``."""
        bundle = _Bundle(ticket, tuple(next(self._tickets) for _ in message.trajectories))
        self._bundles.update(dict.fromkeys(bundle.parts, bundle))
        return zip(bundle.parts, message.trajectories, strict=True)

    def answer(self, part: int, message: Message) -> list[tuple[int, Message]]:
        """A part was answered; the (ticket, answer) of its whole message, once that is known."""
        bundle = self._bundles.pop(part)
        bundle.answers[part] = message
        if len(bundle.answers) < len(bundle.parts):
            return []
        answers = [bundle.answers[one] for one in bundle.parts]
        error = next((answer for answer in answers if isinstance(answer, ErrorReply)), None)
        if error is not None:
            return [(bundle.ticket, error)]
        return [(bundle.ticket, ReceiptBatch(tuple(answer for answer in answers if isinstance(answer, TrajectoryReceipt))))]
