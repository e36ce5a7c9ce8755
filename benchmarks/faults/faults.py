"""1,000 random kill points over real broker, actor and learner processes: trajectories lost, trained twice or too old.

SIGKILL hits processes at any time: while they start, write the journal, begin a segment of it, write a checkpoint, train, play.
Sometimes two die at once, sometimes a process (or all of them) stands still for longer than the limit after which it counts as
dead, sometimes an actor is replaced while it sleeps and then wakes up. The learner is the real loop with its real ledger and
checkpoints; only the optimizer and the desktops are made up (`_roles.py`). Targets are guarantees: missing one is exit code 1.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from computerrl.benchmarks.faults._accounts import Accounts
from computerrl.benchmarks.faults._driver import Fleet, Havoc, make_config
from computerrl.benchmarks.faults._roles import Place

GUARANTEED = True

_NUM_ACTORS = 3
_SEED = 1


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6; a run that breaks a guarantee leaves its folder behind and prints its path."""
    num_kills, pause_s = (30, 0.4) if quick else (1000, 0.4)
    # The file system of the working folder, where runs lie; /tmp may be memory.
    folder = Path(tempfile.mkdtemp(prefix="computerrl-bench-", dir=Path.cwd()))
    rows = torment(folder, num_kills=num_kills, pause_s=pause_s)
    if all(row["value"] == 0 for row in rows if row["target"] == 0):
        shutil.rmtree(folder)
    else:
        print(f"the run's folder is kept: {folder}", file=sys.stderr)
    return rows


def torment(folder: Path, *, num_kills: int, pause_s: float, seed: int = _SEED) -> list[dict[str, Any]]:
    """Kill ``num_kills`` processes of a run in ``folder``, then let it finish and settle the accounts."""
    actors = [Place("actor", index) for index in range(_NUM_ACTORS)]
    fleet = Fleet(make_config(folder), [Place("broker"), Place("learner"), *actors])
    havoc = Havoc(fleet, seed=seed, pause_s=pause_s)
    started = time.monotonic()
    try:
        while fleet.kills.total() < num_kills:
            havoc.act()
        took_s = time.monotonic() - started
        accounts = fleet.drain()
    finally:
        fleet.close()
    for failure in fleet.failures:
        print(failure, file=sys.stderr)
    return [*guarantees(accounts, fleet), *_circumstances(accounts, fleet, havoc, took_s=took_s)]


def guarantees(accounts: Accounts, fleet: Fleet) -> list[dict[str, Any]]:
    """Rows that must be 0."""
    what = f"of {accounts.num_acknowledged:,} acknowledged"
    rows = {
        f"trajectories lost, {what}": accounts.num_lost,
        f"trajectories recorded or acknowledged twice, {what}": accounts.num_twice,
        "steps trained beyond max_age": accounts.num_too_old,
        "policy versions that named two sets of weights": accounts.num_versions_reused,
        "trajectories left with the broker": accounts.num_held,
        "processes that ended by themselves": len(fleet.failures),
    }
    return [{"name": name, "value": value, "unit": "", "target": 0, "better": "lower"} for name, value in rows.items()]


def _circumstances(accounts: Accounts, fleet: Fleet, havoc: Havoc, *, took_s: float) -> list[dict[str, Any]]:
    rows: dict[str, tuple[float, str]] = {
        **{f"kills of {role}": (number, "") for role, number in sorted(fleet.kills.items())},
        "kills per second": (fleet.kills.total() / took_s, "1/s"),
        "processes started": (fleet.num_started, ""),
        "processes frozen for 0.3 to 1.5 peer timeouts": (havoc.num_frozen, ""),
        "actors replaced while they slept": (havoc.num_zombies, ""),
        "of these still there 10 s after they woke": (havoc.num_zombies_left, ""),
        "processes ended as superseded": (fleet.num_superseded, ""),
        "trajectories of incomplete groups closed with their order": (accounts.num_closed, ""),
        **{f"trajectories {outcome}": (number, "") for outcome, number in sorted(accounts.outcomes.items())},
    }
    return [
        {"name": name, "value": value, "unit": unit, "target": None, "better": "lower"} for name, (value, unit) in rows.items()
    ]
