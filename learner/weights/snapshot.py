"""Snapshots of the policy's weights, packed into buckets, so that training can go on while they are sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from computerrl.common.messages import WeightUpdate
from computerrl.common.weight_plan import Manifest, SummedBy, TensorSpec, WeightPlan, plan_buckets
from computerrl.learner.weight_bytes import changes, checksum, make_buckets


@dataclass(slots=True, eq=False)
class Snapshot:
    """The weights of one policy version. Without buffers, the version is the base model itself."""

    policy_version: int
    model_digest: str
    plan: WeightPlan
    buffers: list[torch.Tensor]
    """uint8 [bytes] of each bucket."""
    probe_logprobs: np.ndarray
    summed_by: SummedBy = "xxh3"
    _update: WeightUpdate | None = None
    _content: str = ""
    _changes: tuple[str, list[torch.Tensor | None]] = ("", [])

    def update(self) -> WeightUpdate:
        """Description for the receivers. The first call computes the checksums, which is too slow for the training thread."""
        if self._update is None:
            sums = tuple(checksum(buffer, self.summed_by) for buffer in self.buffers)
            manifest = Manifest(self.policy_version, self.model_digest, self.plan, sums, self.summed_by)
            self._update = WeightUpdate(self.policy_version, manifest.to_json(), self.probe_logprobs)
            self._content = manifest.content
        return self._update

    @property
    def num_bytes(self) -> int:
        """Of all buckets."""
        return self.plan.total_bytes

    @property
    def content(self) -> str:
        """`Manifest.content`; as slow as `update`."""
        self.update()
        return self._content

    def changes_since(self, base: Snapshot) -> list[torch.Tensor | None]:
        """`learner.weight_bytes.changes` of each bucket. The first call for a ``base`` computes them, which is as slow as
        `update`."""
        if self._changes[0] != base.content:
            self._changes = (base.content, [changes(*pair) for pair in zip(base.buffers, self.buffers, strict=True)])
        return self._changes[1]


class SnapshotMaker:
    """Copies weights into buckets and reuses the buckets of snapshots that are no longer needed. Thread-safe."""

    def __init__(self, model_digest: str, *, device: torch.device) -> None:
        """``device`` holds the buckets, which are summed there: the GPU for a broadcast by NCCL, else the CPU."""
        self._summed_by: SummedBy = "words" if device.type == "cuda" else "xxh3"
        self._model_digest = model_digest
        self._device = device
        self._plan: WeightPlan | None = None
        self._free: list[list[torch.Tensor]] = []
        self._lock = threading.Lock()

    def base_model(self, policy_version: int, probe_logprobs: np.ndarray) -> Snapshot:
        """The snapshot that says that ``policy_version`` is the base model."""
        return Snapshot(policy_version, self._model_digest, WeightPlan((), ()), [], np.asarray(probe_logprobs, np.float32))

    def copy(self, policy_version: int, tensors: Mapping[str, torch.Tensor], probe_logprobs: np.ndarray) -> Snapshot:
        """A snapshot of ``tensors``, which have the same names, shapes and dtypes in every call."""
        if self._plan is None:
            specs = [TensorSpec(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()]
            self._plan = plan_buckets(specs)
        with self._lock:
            buffers = self._free.pop() if self._free else None
        if buffers is None:
            buffers = make_buckets(self._plan.bucket_bytes, self._device)
        _pack(self._plan, tensors, buffers)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        probe = np.asarray(probe_logprobs, np.float32)
        return Snapshot(policy_version, self._model_digest, self._plan, buffers, probe, self._summed_by)

    def reuse(self, snapshot: Snapshot) -> None:
        """Take the buckets of ``snapshot``, which nobody sends any more."""
        if snapshot.buffers:
            with self._lock:
                self._free.append(snapshot.buffers)


def _pack(plan: WeightPlan, tensors: Mapping[str, torch.Tensor], buffers: list[torch.Tensor]) -> None:
    """Copy the bytes of every tensor to its place."""
    for slot in plan.slots:
        source = tensors[slot.spec.name].detach().reshape(-1).view(torch.uint8)
        target = buffers[slot.bucket][slot.offset : slot.offset + slot.spec.num_bytes]
        if source.device.type == "cpu" and target.device.type == "cpu":
            # One plain memcpy: torch's parallel copy waits for all its threads, which takes 20 times as long on a busy machine.
            np.copyto(target.numpy(), source.numpy())
        else:
            target.copy_(source)
