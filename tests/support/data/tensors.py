"""Comparing numbers that two ways of computing give, and counting the memory of tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def assert_near(found: torch.Tensor, expected: torch.Tensor, *, part: float) -> None:
    """No number differs by more than ``part`` of the largest one of ``expected``, or of 1.

    Elements of a gradient are sums of larger terms that cancel, and each processor sums in its own order: what a small element
    lacks is no part of itself.
    """
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, atol=part * largest, rtol=0)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, while they live."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self._live = {tensor.untyped_storage()._cdata for tensor in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._live:
                storage = tensor.untyped_storage()
                self._live.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return out

    def _free(self, key: int, num_bytes: int) -> None:
        self._live.discard(key)
        self.now -= num_bytes
