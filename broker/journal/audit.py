"""Inspection and verification of a journal without changing it, also of one whose broker is running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import StateRestored, TrajectoryRestored, trajectories_of
from computerrl.broker.journal import records
from computerrl.broker.journal.file import Position, find_end, read_record, read_records, segment_path, segments
from computerrl.common.errors import ResumeError

SNAPSHOT = "Snapshot"


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the journal."""

    number: int
    num_bytes: int
    num_tail_bytes: int
    """Bytes after the last whole record: never acknowledged, being written right now, or left from the file's earlier use."""
    kinds: Counter[str]
    """Number of messages by kind."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying a journal."""

    num_records: int
    """Number of records replayed."""
    num_held: int
    """Number of trajectories that the learner's checkpoints do not cover."""
    num_bytes: int
    counters: dict[str, int]
    problems: list[str]
    """Problems found; empty for a whole journal."""


def describe(folder: Path) -> list[Segment]:
    """All segments, oldest first. Raises `ResumeError` for a damaged one."""
    return [_segment(number, path) for number, path in segments(folder).items()]


def _segment(number: int, path: Path) -> Segment:
    end = find_end(path)
    kinds = Counter(kind for _, payload in read_records(path, end=end) for kind, _ in _contents(payload))
    num_bytes = path.stat().st_size
    return Segment(number, num_bytes, max(0, num_bytes - end), kinds)


def _contents(payload: bytes) -> list[tuple[str, Any]]:
    """(kind, message) of a record's contents; a snapshot is a dictionary."""
    if payload[:1] == b"S":
        state, held = records.snapshot_of(payload)
        return [(SNAPSHOT, {**state, "held": held})]
    message = records.message_of(payload)
    return [(type(part).__name__, part) for part in trajectories_of(message) or (message,)]


def read_all(folder: Path) -> Iterator[tuple[Position, str, dict[str, Any]]]:
    """(position, kind, content as plain values) of all records, oldest first. Raises `ResumeError`."""
    for number, path in segments(folder).items():
        for offset, payload in read_records(path, end=find_end(path)):
            for part, (kind, message) in enumerate(_contents(payload)):
                yield Position(number, offset, part), kind, _plain(message)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_plain_array)


def _plain_array(array: np.ndarray) -> Any:
    # Bytes of an image say nothing to people.
    return f"{array.nbytes} bytes" if array.dtype == np.uint8 else array.tolist()


def verify(folder: Path, core: BrokerCore, *, tell: Callable[[float, float | None], None] = lambda done, total: None) -> Verdict:
    """Check every byte of every segment and replay into ``core``, a new one. ``tell`` receives the number of checked segments and
    of all."""
    problems, found = [], segments(folder)
    newest = max(found, default=0)
    for num_checked, (number, path) in enumerate(found.items()):
        tell(num_checked, len(found))
        try:
            end = find_end(path)
        except ResumeError as error:
            problems.append(str(error))
            continue
        if number != newest and end < path.stat().st_size:
            problems.append(f"{path} is damaged at byte {end}: only the newest segment may go on behind its last record")
    num_records = 0
    try:
        for _, event in records.events(_ReadOnlyJournal(folder, newest)) if found else ():
            num_records += 1
            core.handle(event, 0.0)
            if not isinstance(event, (StateRestored, TrajectoryRestored)):
                problems += _imbalance(core)
    except ResumeError as error:
        problems += [str(error)] if str(error) not in problems else []
    num_bytes = sum(path.stat().st_size for path in found.values())
    return Verdict(num_records, core.counters["held"], num_bytes, dict(core.counters), problems)


def _imbalance(core: BrokerCore) -> list[str]:
    counters = core.counters
    if counters["received"] == counters["delivered"] + counters["held"] + counters["rejected"]:
        return []
    return [f"trajectories do not add up: {dict(counters)}"]


class _ReadOnlyJournal:
    """A `broker.journal.records.Readable` that opens nothing for writing."""

    def __init__(self, folder: Path, newest: int) -> None:
        self._folder = folder
        self._newest = newest

    def replay(self) -> Iterator[tuple[Position, bytes]]:
        path = segment_path(self._folder, self._newest)
        for offset, payload in read_records(path, end=find_end(path)):
            yield Position(self._newest, offset), payload

    def read(self, position: Position) -> bytes:
        return read_record(self._folder, position)
