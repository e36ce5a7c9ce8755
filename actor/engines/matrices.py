"""Matrices of a model on a CPU, packed for products with few rows: in half precision by fbgemm, else by oneDNN, else plain.

A pass of few tokens spends its time on reading the weights, so that half the bytes are half the time. Measured with matrices of
SmolLM2-135M on one core of an AMD EPYC with AVX2, processor time of fbgemm's kernel as a share of oneDNN's in float32: 0.4 to 0.6
for 1 to 4 rows, 0.5 to 0.9 for 8 to 24, 0.9 to 1.1 for 256. oneDNN's packing in float32 as a share of plain: 0.7 for 2 to 8 rows,
0.85 for 16, 1.05 for 128 and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from computerrl.common import log

BLOCK_ROWS = 4096
"""Rows of a matrix in half precision that are multiplied at a time: 5 MB of SmolLM2-135M's output matrix. fbgemm reads the matrix
once for every 6 rows of the other operand, so it must fit into a cache: for 64 of those rows the whole one takes 1.7 times as
long."""

_SMALLEST_NORMAL = 2.0**-14
"""Of half precision. Smaller values lose digits; larger ones up to `_LARGEST` are rounded by at most 2**-11 of themselves."""

_LARGEST = 65504.0
"""Of half precision; fbgemm clips larger values, in its argument too."""


def half_loss(weight: torch.Tensor) -> str:
    """Reason why ``weight`` cannot be kept in half precision; empty when it can.

    Rounding must cost each row and each column at most 2**-10 of its norm. Columns count because the input of a column of tiny
    weights may always be large.
    """
    low, high = (float(bound) for bound in weight.aminmax())
    if not (low >= -_LARGEST and high <= _LARGEST):
        return f"values from {low:g} to {high:g} exceed {_LARGEST:g}"
    squares = weight.square()
    if all(bool((squares.mean(dim) >= _SMALLEST_NORMAL**2).all()) for dim in (0, 1)):
        return ""
    lost = (weight.half().float() - weight).square_()
    for dim, name in ((1, "rows"), (0, "columns")):
        damaged = int((lost.sum(dim) > 2.0**-20 * squares.sum(dim)).sum())
        if damaged:
            return f"{damaged} {name} would lose more than a thousandth"
    return ""


def can_halve(weight: torch.Tensor) -> bool:
    """Has this process fbgemm's kernel for matrices of this type?"""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.quantized.engine in ("x86", "fbgemm")


class Matrix:
    """A linear map without bias."""

    def __init__(self, name: str, parts: Sequence[torch.Tensor], *, half: bool, dtype: torch.dtype | None = None) -> None:
        """``parts`` are stacked; `refresh` must be called when their values have changed. ``half``: keep a matrix of float32 in
        half precision, with float32 inputs, sums and outputs. A matrix that would lose too much (`half_loss`) is logged and
        stays in float32. ``dtype``: of the products and their inputs, in which a copy is kept; None: that of the parts."""
        self._name = name
        self._parts = parts
        self.dtype = dtype or parts[0].dtype
        """Of inputs and outputs."""
        self._wants_half = half and can_halve(parts[0])
        self._half: list[Any] = []
        """Blocks of `BLOCK_ROWS`."""
        self._plain = parts[0]
        self._packed: torch.Tensor | None = None
        self._kept = ""
        self.refresh()

    @property
    def is_half(self) -> bool:
        """Its products are those of weights rounded to half precision."""
        return bool(self._half)

    def refresh(self) -> None:
        """Pack the present values of the parts."""
        plain = (self._parts[0] if len(self._parts) == 1 else torch.cat(list(self._parts))).to(self.dtype)
        self._half, self._packed, self._plain = [], None, self._parts[0]
        if self._wants_half:
            reason = half_loss(plain)
            if not reason:
                blocks = plain.split(BLOCK_ROWS)
                self._half = [torch.ops.quantized.linear_prepack_fp16(block.contiguous(), None) for block in blocks]
            elif not self._kept:
                log.get_logger().warning("engine.matrix_kept_float32", matrix=self._name, reason=reason)
            self._kept = reason
            if not reason:
                return
        if _can_pack(plain):
            # The batch size is a hint: layouts made for 8 rows also serve 1 to several hundred at full speed.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, 8)
        else:
            self._plain = plain

    def __call__(self, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, activation, [], "")
        out = self._product(x)
        return F.silu(out, inplace=True) if activation == "swish" else out

    def combine(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """(W x) + other, or (W x) * other."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, None, operation)
        out = self._product(x)
        return out.add_(other) if operation == "add" else out.mul_(other)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if not self._half:
            return F.linear(x, self._plain)
        blocks = [torch.ops.quantized.linear_dynamic_fp16(x, block) for block in self._half]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
