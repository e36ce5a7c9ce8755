"""Copies between host and device: many arrays go to the device in one copy, many figures come back in one.

A copy from pageable memory makes the host wait until the device has done all its work, and so does reading a value. A small model
is then bound by the host. Callers decide which arrays and figures are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 16
"""Alignment of an array in the copy, in bytes: a view of a type starts at a multiple of its size."""


def to_device(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
    """``arrays`` as tensors on ``device``; on the CPU they share the arrays' memory. The host does not wait for the copy."""
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    return in_one_copy(arrays, device, pinned=device.type == "cuda")


def in_one_copy(arrays: Mapping[str, np.ndarray], device: torch.device, *, pinned: bool) -> dict[str, torch.Tensor]:
    """``arrays`` as parts of one tensor on ``device``. ``pinned``: the copy starts from page-locked memory, which the device
    reads by itself."""
    starts: dict[str, int] = {}
    num_bytes = 0
    for name, array in arrays.items():
        starts[name] = num_bytes
        num_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    # torch reuses pinned memory only after the copy out of it has ended.
    staged = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
    host = staged.numpy()
    for name, array in arrays.items():
        host[starts[name] : starts[name] + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    found = {}
    for name, array in arrays.items():
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        found[name] = there[starts[name] : starts[name] + array.nbytes].view(dtype).view(array.shape)
    return found


class HostBuffers:
    """Float32 buffers in the host's memory, one for each tensor of a device: gradients come through them, and weights go back.

    The device copies from and to page-locked memory by itself. The host waits once, before it reads what came.
    """

    def __init__(self, device: torch.device, *, wait: Callable[[], None] | None = None) -> None:
        """``wait``: returns when the device has done the copies that it was given; None: that of ``device``."""
        self._pinned = device.type == "cuda"
        self._wait = wait or (_wait_for_stream if self._pinned else _wait_for_nothing)
        self._buffers: dict[str, torch.Tensor] = {}

    def fetch(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``tensors`` in the buffers of their names, which the next call overwrites."""
        for name, tensor in tensors.items():
            self._of(name, tensor).copy_(tensor, non_blocking=True)
        self._wait()
        return {name: self._buffers[name] for name in tensors}

    def send(self, tensors: Mapping[str, torch.Tensor], *, into: Mapping[str, torch.Tensor]) -> None:
        """Copy ``tensors`` of the host into those of the device, in the latter's types. The host does not wait: the next `fetch`
        writes into a buffer after the device has read it."""
        for name, tensor in tensors.items():
            # A copy that changes the type as well would start from a new tensor, which is not page-locked.
            buffer = self._of(name, tensor).view(-1).view(into[name].dtype)[: tensor.numel()].view(tensor.shape)
            buffer.copy_(tensor)
            into[name].copy_(buffer, non_blocking=True)

    def _of(self, name: str, like: torch.Tensor) -> torch.Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty(like.shape, dtype=torch.float32, pin_memory=self._pinned)
        return self._buffers[name]


def _wait_for_stream() -> None:
    torch.cuda.current_stream().synchronize()


def _wait_for_nothing() -> None:
    """Copies on the CPU have ended when they return."""


def fetch(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors of one element each, with one wait for the device."""
    by_kind: dict[tuple[Any, Any], list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(index)
    found = [0.0] * len(tensors)
    for indices in by_kind.values():
        values = torch.stack([tensors[index].detach().reshape(()) for index in indices]).tolist()
        for index, value in zip(indices, values, strict=True):
            found[index] = float(value)
    return found
