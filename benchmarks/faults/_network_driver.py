"""`python -m computerrl.benchmarks.faults._network_driver FOLDER CUT_S...` prints rows of `network_cut` as JSON.

It runs in a network namespace of its own. All namespaces and cables end with this process and the ones it started: none has a
name that could stay behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from computerrl.benchmarks.faults._driver import PEER_TIMEOUT_S, Fleet, make_config
from computerrl.benchmarks.faults._roles import Place, receipts_path
from computerrl.benchmarks.faults.faults import guarantees
from computerrl.common.run_files.run_folder import BROKER_ADDRESS_VARIABLE
from computerrl.learner.accounts.records import LEDGER_FILE

_PORT = 23_456
"""The network is ours alone, so no port is taken."""
_NUM_ACTORS = 2
_HEAL_LIMIT_S = 150.0
"""After the longest cut TCP and ZeroMQ may both be waiting for their next try."""


class Host:
    """A network namespace at the other end of a cable."""

    def __init__(self, name: str, number: int) -> None:
        self.cable = f"crl-{name}"
        self.broker_address = f"tcp://10.77.{number}.1:{_PORT}"
        ours = os.readlink("/proc/self/ns/net")
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)  # Ends when we do.
        self.pid = self._holder.pid
        while os.readlink(f"/proc/{self.pid}/ns/net") == ours:
            time.sleep(0.01)
        _ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        _ip("address", "add", f"10.77.{number}.1/24", "dev", self.cable)
        _ip("link", "set", self.cable, "up")
        for command in (["address", "add", f"10.77.{number}.2/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            subprocess.run(["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *command], check=True)

    def cut(self) -> None:
        """Nothing arrives any more, in either direction, and no side is informed."""
        _ip("link", "set", self.cable, "down")

    def heal(self) -> None:
        _ip("link", "set", self.cable, "up")

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._holder.kill()
        self._holder.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class _Progress:
    """How far the run is, from its files."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        folder = fleet.folder.folder
        self._paths = [receipts_path(folder, place) for place in fleet.places if place.role == "actor"]
        self._paths.append(folder / LEDGER_FILE)

    def now(self) -> list[int]:
        """Bytes of every actor's receipts, and of the ledger: all grow only while everybody reaches the broker."""
        return [path.stat().st_size if path.exists() else 0 for path in self._paths]

    def wait(self) -> float:
        """Until all have grown; how long that took, seconds. Raises `TimeoutError`."""
        started, before = time.monotonic(), self.now()
        while (passed_s := time.monotonic() - started) < _HEAL_LIMIT_S:
            self._fleet.tend()
            if all(size > was for size, was in zip(self.now(), before, strict=True)):
                return passed_s
            time.sleep(0.02)
        raise TimeoutError(f"nothing moved for {_HEAL_LIMIT_S:g} s; see {self._fleet.folder.logs}")


def torment(folder: Path, cuts_s: list[float]) -> list[dict[str, Any]]:
    """Rows of a run whose links are cut, for each length one host after the other and both."""
    _ip("link", "set", "lo", "up")
    os.environ[BROKER_ADDRESS_VARIABLE] = f"tcp://127.0.0.1:{_PORT}"
    healed: dict[float, list[float]] = {cut_s: [] for cut_s in cuts_s}
    with Host("actors", 1) as actors, Host("learner", 2) as learner:
        places = [Place("broker"), Place("learner", 0, learner.pid, learner.broker_address)]
        places += [Place("actor", index, actors.pid, actors.broker_address) for index in range(_NUM_ACTORS)]
        fleet = Fleet(make_config(folder, bind_address="0.0.0.0", port=_PORT), places)
        progress = _Progress(fleet)
        try:
            progress.wait()
            for cut_s in cuts_s:
                for hosts in ([actors], [learner], [actors, learner]):
                    for host in hosts:
                        host.cut()
                    time.sleep(cut_s)
                    for host in hosts:
                        host.heal()
                    healed[cut_s].append(progress.wait())
            accounts = fleet.drain()
        finally:
            fleet.close()
    for failure in fleet.failures:
        print(failure, file=sys.stderr)
    rows = guarantees(accounts, fleet)
    for cut_s, times_s in healed.items():
        name = f"{len(times_s)} cuts of {cut_s:g} s ({cut_s / PEER_TIMEOUT_S:g} peer timeouts): longest until all goes on"
        rows.append(
            {
                "name": name,
                "value": max(times_s),
                "unit": "s",
                "spread": [min(times_s), max(times_s)],
                "target": None,
                "better": "lower",
            }
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(torment(Path(sys.argv[1]), [float(cut) for cut in sys.argv[2:]])))
