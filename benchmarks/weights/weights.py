"""Weight updates: speed of a broadcast to its receivers, and cost of a receiver that dies or comes late.

Sender here, receivers in processes of their own, gloo over loopback, all of SmolLM2-135M in bfloat16. Measured beside plain
torch.distributed in the same number of processes in the same run: one broadcast of all bytes, which is as fast as gloo gets, and
one per tensor, which is the straightforward way. Times of a broadcast are the sender's, from the first call until its last one is
done; ours holds invitations and checksums of every bucket as well. The same through files is what sites without a network for
collectives pay. By changes alone (`learner.weight_encoding`), each update is a random step of the size that Adam takes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl import SOURCE_ROOT
from computerrl.benchmarks.weights._tensors import MODEL, model_tensors
from computerrl.common import log
from computerrl.common.wire.transport import Server, create_keys
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.sender import WeightSender

_PROBE = np.zeros(31, np.float32)
_LIMIT_S = 60.0
_STEPS = (1e-6, 1e-5)
"""Learning rates of the updates by changes."""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows for `computerrl bench weights`."""
    log.configure(level="error")
    tensors = model_tensors()
    rounds = 3 if quick else 15
    rows: list[dict[str, Any]] = []
    for num_receivers in (1, 2) if quick else (1, 2, 4):
        rows += broadcast_rows(num_receivers=num_receivers, rounds=rounds)
    rows += _file_rows(tensors, num_receivers=2, rounds=rounds)
    rows += [row for step in _STEPS for row in change_rows(tensors, step=step, num_receivers=2, rounds=min(rounds, 5))]
    return rows + _membership_rows(tensors, num_receivers=2 if quick else 4, rounds=rounds)


class _Run:
    """A sender and its receivers; a context manager."""

    def __init__(self, num_receivers: int, *, backend: str = "gloo", by_changes: bool = False) -> None:
        """``backend``: gloo, nccl (the learner on GPU 0, each receiver on one of the next) or file."""
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        server = Server("tcp://127.0.0.1:0", keys=create_keys(self._folder / "keys"), sender="learner-0:bench")
        files = WeightFiles(self._folder / "weights") if backend == "file" else None
        self.sender = WeightSender(
            server,
            model_digest="bench",
            host="127.0.0.1",
            backend="nccl" if backend == "nccl" else "gloo",
            files=files,
            by_changes=by_changes,
        )
        self.version = 0
        self.receivers = {f"actor-{i}:bench": self.start(f"actor-{i}:bench") for i in range(num_receivers)}

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.close()
        for process in self.receivers.values():
            process.kill()
            process.wait()
        self._temporary.cleanup()

    def start(self, name: str) -> subprocess.Popen[str]:
        """A receiver that is about to ask for weights."""
        arguments = (str(self._folder / "keys"), self.sender.address, name, str(self._folder / "weights"))
        index = 1 + int(name.removeprefix("actor-").partition(":")[0])
        # A job's own numbers of its GPUs, where it has been given some of a machine's.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        gpu = visible[index] if index < len(visible) else str(index)
        process = subprocess.Popen(
            [sys.executable, "-m", "computerrl.benchmarks.weights._receiver", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SOURCE_ROOT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def publish(self, tensors: dict[str, torch.Tensor]) -> float:
        """The next version; seconds that the caller stood still."""
        self.version += 1
        started = time.perf_counter()
        self.sender.publish(self.version, tensors, probe_logprobs=_PROBE)
        return time.perf_counter() - started

    def wait_loaded(self, names: Sequence[str]) -> None:
        """Until all of ``names`` have reported the newest version. Raises `TimeoutError`."""
        deadline = time.perf_counter() + _LIMIT_S
        while any(self.sender.loaded_versions().get(name) != self.version for name in names):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"receivers did not load version {self.version} within {_LIMIT_S:g} s")
            time.sleep(0.001)


def broadcast_rows(*, num_receivers: int, rounds: int, backend: str = "gloo", model: str = MODEL) -> list[dict[str, Any]]:
    """Ours beside plain torch.distributed. ``backend``: gloo, or nccl with a GPU for each receiver besides the sender's."""
    device = "cuda" if backend == "nccl" else "cpu"
    tensors = {name: tensor.to(device) for name, tensor in model_tensors(model).items()}
    stood, reached, sent = _updates(tensors, num_receivers=num_receivers, rounds=rounds, backend=backend)
    peers = _peers(num_receivers, rounds, backend, model)
    label = f"{_megabytes(tensors)}, {num_receivers} receiver{'s' if num_receivers > 1 else ''}, {backend}"
    flat, each = (statistics.median(peers[way]) for way in ("flat", "each"))
    return [
        _row(f"training stands still, {label}", stood, target=0.1),
        _row(f"broadcast, {label}", sent, target=flat / 0.8, peer="one flat broadcast", peer_value=flat),
        _row(f"broadcast, {label}", sent, target=each / 3.6, peer="one per tensor", peer_value=each),
        _row(f"from publish to served by all, {label}", reached),
    ]


def _file_rows(tensors: dict[str, torch.Tensor], *, num_receivers: int, rounds: int) -> list[dict[str, Any]]:
    _, reached, _ = _updates(tensors, num_receivers=num_receivers, rounds=rounds, backend="file")
    return [_row(f"from publish to served by all, {_megabytes(tensors)}, {num_receivers} receivers, by file", reached)]


def change_rows(tensors: dict[str, torch.Tensor], *, step: float, num_receivers: int, rounds: int) -> list[dict[str, Any]]:
    """Updates by changes after steps of about ``step`` in float32, from weights that lie anywhere between two of bfloat16."""
    rng = torch.Generator().manual_seed(0)
    place = {name: (torch.rand(one.shape, generator=rng) - 0.5) * 2**-7 for name, one in tensors.items()}
    masters = {name: one.float() * (1 + place[name]) for name, one in tensors.items()}
    sent, reached = [], []
    with _Run(num_receivers, by_changes=True) as found:
        for number in range(rounds + 2):
            for master in masters.values():
                master.add_(torch.randn(master.shape, generator=rng), alpha=step)
            weights = {name: master.bfloat16() for name, master in masters.items()}
            started = time.perf_counter()
            found.publish(weights)
            found.wait_loaded(list(found.receivers))
            if number > 1:  # The first one, or one more where a receiver came late, travels whole.
                reached.append(time.perf_counter() - started)
                sent.append(found.sender.metrics()["learner/weight_broadcast_mb"])
    label = f"{_megabytes(tensors)}, {num_receivers} receivers, gloo, changes after a step of {step:g}"
    whole = sum(tensor.nbytes for tensor in tensors.values()) / 2**20
    megabytes = _row(f"to each receiver, {label}", sent, peer="whole", peer_value=whole)
    return [{**megabytes, "unit": "MiB"}, _row(f"from publish to served by all, {label}", reached)]


def _updates(
    tensors: dict[str, torch.Tensor], *, num_receivers: int, rounds: int, backend: str
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each update: publishing, until all serve it, broadcast alone."""
    stood, reached, sent = [], [], []
    with _Run(num_receivers, backend=backend) as found:
        for number in range(rounds + 1):
            started = time.perf_counter()
            stood_s = found.publish(tensors)
            found.wait_loaded(list(found.receivers))
            if number:  # The first one forms the group and touches the memory.
                stood.append(stood_s)
                reached.append(time.perf_counter() - started)
                sent.append(found.sender.metrics()["learner/weight_broadcast_s"])
    return stood, reached, sent


def _membership_rows(tensors: dict[str, torch.Tensor], *, num_receivers: int, rounds: int) -> list[dict[str, Any]]:
    """One of the receivers is killed in the middle of an update; then a new one comes."""
    killed, joined = [], []
    with _Run(num_receivers) as found:
        found.publish(tensors)
        found.wait_loaded(list(found.receivers))
        typical_s = found.sender.metrics()["learner/weight_broadcast_s"]
        for number in range(min(rounds, 6)):
            victim = next(iter(found.receivers))
            process = found.receivers.pop(victim)
            found.publish(tensors)
            time.sleep(typical_s * (number + 1) / 7)
            process.send_signal(signal.SIGKILL)
            started = time.perf_counter()
            found.publish(tensors)
            found.wait_loaded(list(found.receivers))
            killed.append(time.perf_counter() - started)
            process.wait()
            name = f"actor-{num_receivers + number}:bench"
            found.receivers[name] = found.start(name)
            started = time.perf_counter()
            found.wait_loaded([name])
            joined.append(time.perf_counter() - started)
    label = f"{_megabytes(tensors)}, one of {num_receivers}"
    worst = "from SIGKILL in an update to the next version served by the others"
    return [
        _row(f"{worst}, {label}, worst", killed, worst=True, target=5.0),
        _row(f"a late joiner serves the version, {label}, worst", joined, worst=True, target=3.0),
    ]


def _peers(num_receivers: int, rounds: int, backend: str, model: str) -> dict[str, list[float]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world_size = num_receivers + 1
    command = [sys.executable, "-m", "computerrl.benchmarks.weights._peers"]
    rest = (str(world_size), str(port), str(rounds), backend, model)
    ranks = [
        subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, text=True, cwd=SOURCE_ROOT)
        for rank in range(world_size)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "a process of plain torch.distributed failed"
    found: dict[str, list[float]] = json.loads(said[0])
    return found


def _megabytes(tensors: dict[str, torch.Tensor]) -> str:
    return f"{sum(tensor.nbytes for tensor in tensors.values()) / 1e6:.0f} MB"


def _row(
    name: str,
    values: list[float],
    *,
    worst: bool = False,
    target: float | None = None,
    peer: str | None = None,
    peer_value: float | None = None,
) -> dict[str, Any]:
    value = max(values) if worst else statistics.median(values)
    return {
        "name": name,
        "value": value,
        "unit": "s",
        "spread": _spread(values),
        "target": target,
        "better": "lower",
        "peer": peer,
        "peer_value": peer_value,
        "ratio": peer_value / value if peer_value else None,
    }


def _spread(values: list[float]) -> float:
    """Interquartile range."""
    ordered = sorted(values)
    return ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]
