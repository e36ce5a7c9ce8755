"""What is known about a run that is under way: metrics lines and broker status in, one state out.

Reads nothing but for `MetricsTail`, which reads what was appended to a file since the last look. Displays and reports are made
from this; it draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl.common.messages import Status

Record = dict[str, Any]

_PHASE_TITLES = {
    "demonstrations": "demonstrations",
    "bc": "cloning",
    "done": "finished",
    "eval-before": "evaluation before",
    "eval-after-bc": "evaluation after cloning",
    "eval-after-rl": "evaluation after RL",
    "eval-controls": "evaluation with other images",
}


CONTROLS = ("eval-blank-images", "eval-foreign-images")


def phase_title(phase: str) -> str:
    """A phase of the recipe in words: `rl-2` is `RL 2`."""
    kind, _, number = phase.partition("-")
    if kind in ("rl", "sft") and number:
        return f"{'RL' if kind == 'rl' else 'Entropulse'} {number}"
    return _PHASE_TITLES.get(phase, phase)


@dataclass(slots=True)
class RunState:
    """Grows with every record; a resumed run's records are replayed from the start of the file."""

    phase: str = ""
    phase_reason: str = ""
    phase_started: float | None = None
    """Unix seconds."""
    phases: list[Record] = field(default_factory=list)
    evaluations: list[Record] = field(default_factory=list)
    controls: list[Record] = field(default_factory=list)
    """Evaluations with images that do not belong to the prompts: they say nothing about how good the policy is."""
    updates: list[Record] = field(default_factory=list)
    sft_steps: list[Record] = field(default_factory=list)
    summary: Record | None = None
    status: Status | None = None
    """The broker's latest answer; None while it cannot be reached."""

    def take(self, record: Record) -> None:
        """Take one line of metrics.jsonl in; unknown events and malformed records are passed over."""
        match record.get("event"):
            case "phase":
                self.phase, self.phase_reason = str(record.get("phase", "")), str(record.get("reason", ""))
                self.phase_started = record.get("time")
                self.phases.append(record)
            case "evaluation":
                (self.controls if record.get("phase") in CONTROLS else self.evaluations).append(record)
            case "update":
                self.updates.append(record)
            case "sft":
                self.sft_steps.append(record)
            case "summary":
                self.summary = record

    def take_all(self, records: Iterable[Record]) -> RunState:
        """Take several; gives itself."""
        for record in records:
            self.take(record)
        return self

    @property
    def policy_version(self) -> int | None:
        """The newest policy version that is known of; None before the first."""
        recorded = [
            int(record["policy_version"])
            for record in (*self.phases[-1:], *self.updates[-1:], *self.evaluations[-1:])
            if record.get("policy_version") is not None
        ]
        answered = [self.status.policy_version] if self.status is not None else []
        return max((*recorded, *answered), default=None)

    @property
    def last_update(self) -> Record:
        """The newest update, empty before the first."""
        return self.updates[-1] if self.updates else {}

    def metric(self, name: str, default: float | None = None) -> float | None:
        """A heartbeat metric: summed over processes for totals and rates, else the mean of those that report it."""
        if self.status is None:
            return default
        values = [metrics[name] for metrics in self.status.metrics.values() if name in metrics]
        if not values:
            return default
        is_sum = name.endswith(("_total", "_per_s", "_ready", "_leased", "restarts"))
        return sum(values) if is_sum else sum(values) / len(values)

    def learner_note(self) -> str:
        """What the learner says it is doing: the phase and, where it knows, how far."""
        return self.status.notes.get("learner-0", "") if self.status is not None else ""


class MetricsTail:
    """Reads whole new lines of a JSON-lines file; starts over when the file became shorter (a restarted learner cut it)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> tuple[bool, list[Record]]:
        """(started over, new records): after a start over the records are all of the file."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                started_over = size < self._offset
                if started_over:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = self._rest + file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return False, []
        *lines, self._rest = data.split(b"\n")
        return started_over, [record for line in lines if (record := _parse(line)) is not None]


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # torn by a crash
    return record if isinstance(record, dict) else None
