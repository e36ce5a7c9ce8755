"""Copies between host and device: many arrays go to the device in one copy, many figures come back in one.

A copy from pageable memory makes the host wait until the device has done all its work, and so does reading a value. A small model
is then bound by the host. Callers decide which arrays and figures are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
