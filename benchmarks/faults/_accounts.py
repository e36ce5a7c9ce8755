"""Accounts of the trajectories that actors have receipts for: receipts against the ledger and the broker's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from computerrl.benchmarks.faults._roles import published_path, too_old_path
from computerrl.common.metrics import read_json_lines
from computerrl.learner.accounts.records import LEDGER_FILE


@dataclass(frozen=True, slots=True)
class Accounts:
    """All counts of one run, taken after everything has drained."""

    num_acknowledged: int
    num_recorded: int
    """Lines of the ledger: trained, or not for a named reason."""
    num_closed: int
    """Acknowledged, and given up by name with their order (`order_closed`): their groups were incomplete."""
    num_lost: int
    """Acknowledged, and neither of both."""
    num_twice: int
    """Recorded or acknowledged more than once."""
    num_too_old: int
    """Steps that were trained beyond `max_age`."""
    num_versions_reused: int
    """Policy versions that named two sets of weights."""
    num_held: int
    """Still with the broker, though nothing is asked for any more."""
    outcomes: dict[str, int]


def settle(folder: Path, counters: Mapping[str, int]) -> Accounts:
    """Compare; ``counters`` are the broker's at the end, when the learner has finished."""
    acknowledged = Counter(line for path in sorted((folder / "receipts").glob("*.txt")) for line in path.read_text().splitlines())
    ledger = read_json_lines(folder / LEDGER_FILE)
    recorded = Counter(line["trajectory_id"] for line in ledger)
    published = published_path(folder).read_text().split()
    groups_recorded = {_group(trajectory_id) for trajectory_id in recorded}
    missing = acknowledged.keys() - recorded.keys()
    # Given up when its order was closed: nothing of its group was delivered, and the broker counted it.
    closed = {trajectory_id for trajectory_id in missing if _group(trajectory_id) not in groups_recorded}
    num_given_up = counters["accepted"] - counters["delivered"] - counters["held"]
    num_unrecorded = counters["delivered"] - len(ledger)
    return Accounts(
        num_acknowledged=len(acknowledged),
        num_recorded=len(ledger),
        num_closed=len(closed),
        num_lost=len(missing - closed) + max(0, len(closed) - num_given_up) + max(0, num_unrecorded),
        num_twice=sum(times - 1 for found in (recorded, acknowledged) for times in found.values()),
        num_too_old=len(read_json_lines(too_old_path(folder))),
        num_versions_reused=len(published) - len(set(published)),
        num_held=counters["held"],
        outcomes=dict(Counter(line["outcome"] for line in ledger)),
    )


def _group(trajectory_id: str) -> str:
    return trajectory_id.rpartition("/")[0]
