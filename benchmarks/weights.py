"""Weight broadcast: how long a new version takes to reach the receivers, and how long training and generation stand still.

Sender here, receivers in processes of their own, gloo over loopback, tensors of SmolLM2-135M's trained part. The
baseline, measured in the same run, is what a straightforward way would do: save the tensors to a file and load them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from common import log
from common.transport import Server, create_keys
from common.weight_plan import checksum
from learner.weight_sender import WeightSender

_HIDDEN, _FFN, _KV = 576, 1536, 192
_ATTENTION = ((_HIDDEN, _HIDDEN), (_KV, _HIDDEN), (_KV, _HIDDEN), (_HIDDEN, _HIDDEN))
_LAYER = (*_ATTENTION, (_FFN, _HIDDEN), (_FFN, _HIDDEN), (_HIDDEN, _FFN))
"""Matrices of one layer of SmolLM2-135M."""

_RECEIVER = """
import sys, torch
from pathlib import Path
import numpy as np
from actor.weight_receiver import WeightReceiver
from common import log
from common.lifecycle import StopToken
from common.transport import Client, load_keys
from learner.client import WeightClient

class Engine:
    policy_version = -1
    held = {}
    def load(self, version, tensors):
        if not self.held:
            self.held = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self.held[name].copy_(tensor)
        self.policy_version = version
        return 0.0
    def probe(self):
        return np.zeros(31, np.float32)

log.configure(level="error")
torch.set_num_threads(1)
folder, address, name = sys.argv[1:]
keys = load_keys(Path(folder))
stop = StopToken()
client = WeightClient(lambda: Client(address, keys=keys, sender=name))
WeightReceiver(client, Engine(), receiver=name, model_digest="bench", stop=stop).start()
sys.stdin.read()
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows for `computerrl bench weights`."""
    log.configure(level="error")
    tensors = {
        f"model.layers.{layer}.{i}": torch.randn(shape).to(torch.bfloat16)
        for layer in range(18, 30)
        for i, shape in enumerate(_LAYER)
    }
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    rounds = 5 if quick else 20
    rows = [_checksum_row(tensors, rounds)]
    for num_receivers in (1, 2) if quick else (1, 2, 4):
        rows += _broadcast_rows(tensors, num_bytes, num_receivers=num_receivers, rounds=rounds)
    return rows


def _broadcast_rows(tensors: dict[str, torch.Tensor], num_bytes: int, *, num_receivers: int, rounds: int) -> list[dict[str, Any]]:
    publish, reach, broadcast, files = [], [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        keys_folder = Path(temporary) / "keys"
        keys = create_keys(keys_folder)
        sender = WeightSender(
            Server("tcp://127.0.0.1:0", keys=keys, sender="learner-0:bench"), model_digest="bench", host="127.0.0.1"
        )
        names = [f"actor-{i}:bench" for i in range(num_receivers)]
        processes = [_start(keys_folder, sender.address, name) for name in names]
        try:
            for version in range(rounds + 1):
                started = time.perf_counter()
                sender.publish(version, tensors, probe_logprobs=np.zeros(31, np.float32))
                published = time.perf_counter() - started
                _wait_loaded(sender, dict.fromkeys(names, version), limit_s=60)
                if version:  # The first one forms the group and touches the memory.
                    publish.append(published)
                    reach.append(time.perf_counter() - started)
                    broadcast.append(sender.metrics()["learner/weight_broadcast_s"])
                    files.append(_through_a_file(tensors, Path(temporary) / "weights.safetensors", num_receivers))
        finally:
            sender.close()
            for process in processes:
                process.kill()
                process.wait()
    label = f"{num_bytes / 1e6:.0f} MB, {num_receivers} receiver{'s' if num_receivers > 1 else ''}"
    return [
        _row(f"training stands still, {label}", publish, target=0.1),
        _row(f"version at all receivers, {label}", reach, peer="file", peer_values=files, target=1.0),
        _row(f"broadcast alone, {label}", broadcast),
    ]


def _start(keys_folder: Path, address: str, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _RECEIVER, str(keys_folder), address, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[1])


def _wait_loaded(sender: WeightSender, expected: dict[str, int], *, limit_s: float) -> None:
    deadline = time.perf_counter() + limit_s
    while any(sender.loaded_versions().get(name) != version for name, version in expected.items()):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"receivers did not load the version within {limit_s:g} s")
        time.sleep(0.001)


def _through_a_file(tensors: dict[str, torch.Tensor], path: Path, num_receivers: int) -> float:
    """Baseline: save once, load as often as there are receivers (one after the other: they share this machine)."""
    started = time.perf_counter()
    save_file(tensors, path)
    for _ in range(num_receivers):
        for tensor in load_file(path).values():
            tensor.clone()
    return time.perf_counter() - started


def _checksum_row(tensors: dict[str, torch.Tensor], rounds: int) -> dict[str, Any]:
    data = torch.cat([tensor.flatten() for tensor in tensors.values()]).view(torch.uint8).numpy()
    speeds = []
    for _ in range(rounds):
        started = time.perf_counter()
        checksum(data)
        speeds.append(data.nbytes / 1e9 / (time.perf_counter() - started))
    return {
        "name": "checksum of weights", "value": statistics.median(speeds), "unit": "GB/s", "spread": _spread(speeds),
        "target": 1.0, "better": "higher", "peer": None, "peer_value": None, "ratio": None,
    }  # fmt: skip


def _row(
    name: str,
    values: list[float],
    *,
    target: float | None = None,
    peer: str | None = None,
    peer_values: list[float] | None = None,
) -> dict[str, Any]:
    value = statistics.median(values)
    peer_value = statistics.median(peer_values) if peer_values else None
    return {
        "name": name, "value": value, "unit": "s", "spread": _spread(values), "target": target, "better": "lower",
        "peer": peer, "peer_value": peer_value, "ratio": peer_value / value if peer_value else None,
    }  # fmt: skip


def _spread(values: list[float]) -> float:
    """Interquartile range."""
    ordered = sorted(values)
    return ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]
