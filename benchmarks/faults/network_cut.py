"""Links between broker, learner and actors cut and healed: trajectories lost, trained twice or too old.

Three hosts are three network namespaces with a virtual cable between the broker's and each other one; pulling it is `ip link set
down`, without a notice to any process. Cuts are shorter and longer than the time after which a process counts as dead, and
longer than ZeroMQ's own heartbeats. It needs no root where users may have namespaces; elsewhere its row says that it cannot run.
Targets are guarantees.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from computerrl import SOURCE_ROOT

GUARANTEED = True

_OWN_NETWORK = (["unshare", "--net"], ["unshare", "--map-root-user", "--net"])
"""Commands for root and for other users."""
_QUICK_CUTS_S = (0.3, 2.5)
_CUTS_S = (0.3, 0.9, 2.5, 8.0, 20.0, 45.0)
_LIMIT_S = 1800.0


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6; a run that breaks a guarantee leaves its folder behind and prints its path."""
    folder = Path(tempfile.mkdtemp(prefix="computerrl-bench-", dir=Path.cwd()))
    rows = cut_and_heal(folder, cuts_s=_QUICK_CUTS_S if quick else _CUTS_S)
    if all(row["value"] in (0, None) for row in rows if row["target"] == 0):
        shutil.rmtree(folder)
    else:
        print(f"the run's folder is kept: {folder}", file=sys.stderr)
    return rows


def cut_and_heal(folder: Path, *, cuts_s: tuple[float, ...]) -> list[dict[str, Any]]:
    """Each of ``cuts_s`` for the actors' host, the learner's, and both at once. One row that says so where that is impossible."""
    prefix, missing = own_network()
    if missing:
        name = "network cut and heal between namespaces"
        return [{"name": name, "value": None, "unit": "", "target": 0, "better": "lower", "peer": f"missing: {missing}"}]
    command = [*prefix, sys.executable, "-m", "computerrl.benchmarks.faults._network_driver", str(folder), *map(str, cuts_s)]
    done = subprocess.run(command, cwd=SOURCE_ROOT, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def own_network() -> tuple[list[str], str]:
    """(prefix that gives a command a network of its own, the reason why that is impossible or empty)."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return [], f"the program {program}"
    reason = ""
    for prefix in _OWN_NETWORK:
        command = [*prefix, "ip", "link", "add", "crl-try", "type", "veth", "peer", "name", "crl-try-peer"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            return prefix, ""
        reason = done.stderr.strip().partition("\n")[0]
    return [], f"network namespaces with virtual cables ({reason})"
