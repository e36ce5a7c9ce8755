"""Key/value memory of the transformers engine: one live row per running request, and stored rows to share prefixes from.

Stored rows are copies of finished prompts' keys and values under one policy version; a new request starts from the stored or
live row with the longest common token prefix. Pure bookkeeping and copies: no model, no sampling.

Shape legend: L layers, K = 2 (keys, values), S rows, H key/value heads, T token positions, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from computerrl.common.sampling_limits import STORED_PER_LIVE

MIN_SHARED_TOKENS = 8
"""Shorter common prefixes are computed again: copying them costs more than it saves."""


@dataclass(slots=True)
class _Stored:
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    used: int = 0
    """When last useful, in lookups."""


class KVCache:
    """Live and stored rows for up to ``num_live`` requests of at most ``max_tokens`` tokens."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_live: int,
        max_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        num_stored = STORED_PER_LIVE * num_live
        self.max_tokens = max_tokens

        def rows(count: int) -> torch.Tensor:
            return torch.zeros(num_layers, 2, count, num_kv_heads, max_tokens, head_dim, dtype=dtype, device=device)

        self._live_LKSHTD, self._stored_LKSHTD = rows(num_live), rows(num_stored)
        self._stored = [_Stored() for _ in range(num_stored)]
        self._clock = 0
        self.keys_SHTD = [self._live_LKSHTD[layer, 0] for layer in range(num_layers)]
        self.values_SHTD = [self._live_LKSHTD[layer, 1] for layer in range(num_layers)]
        self._flat_LND = self._live_LKSHTD.view(num_layers, -1, head_dim)
        heads = torch.arange(num_kv_heads, device=device)
        kinds = torch.arange(2, device=device) * num_live * num_kv_heads
        self._heads = (kinds[:, None] + heads[None, :]).flatten()
        """[2 * H] offsets of a token's key heads, then value heads, in units of max_tokens."""
        self._num_kv_heads = num_kv_heads

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._live_LKSHTD.dtype

    def places(self, rows_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """[N * 2 * H] where `write` puts the key heads and value heads of N new tokens."""
        blocks = rows_N[:, None] * self._num_kv_heads + self._heads[None, :]
        return (blocks * self.max_tokens + positions_N[:, None]).flatten()

    def write(self, layer: int, places: torch.Tensor, new: torch.Tensor) -> None:
        """Put ``new`` [N, 2 * H, D], key heads then value heads of each token, into the live rows."""
        self._flat_LND[layer].index_copy_(0, places, new.reshape(len(places), -1))

    def best_stored(self, tokens: np.ndarray) -> tuple[int, int]:
        """(stored row, number of leading tokens of ``tokens`` it holds); (-1, 0) when too few are shared."""
        self._clock += 1
        best, best_shared = -1, MIN_SHARED_TOKENS - 1
        for row, stored in enumerate(self._stored):
            shared = common_prefix(stored.tokens, tokens)
            if shared > best_shared:
                best, best_shared = row, shared
        if best < 0:
            return -1, 0
        self._stored[best].used = self._clock
        return best, best_shared

    def restore(self, row: int, *, live: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` of a stored row into a live row."""
        self._live_LKSHTD[:, :, live, :, :num_tokens] = self._stored_LKSHTD[:, :, row, :, :num_tokens]

    def store(self, tokens: np.ndarray, *, live: int) -> None:
        """Keep a live row's keys and values of ``tokens`` for later requests, in place of what was useful longest ago."""
        self._clock += 1
        row, shared = self.best_stored(tokens)
        if shared == len(tokens):
            return
        if row < 0 or shared < len(self._stored[row].tokens):
            row = min(range(len(self._stored)), key=lambda candidate: self._stored[candidate].used)
        self._stored_LKSHTD[:, :, row, :, : len(tokens)] = self._live_LKSHTD[:, :, live, :, : len(tokens)]
        self._stored[row] = _Stored(tokens.copy(), self._clock)

    def forget_stored(self) -> None:
        """Stored rows came from older weights: none of them serves again."""
        self._stored = [_Stored() for _ in self._stored]


def common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Number of leading tokens both have."""
    length = min(len(first), len(second))
    different = np.nonzero(first[:length] != second[:length])[0]
    return int(different[0]) if different.size else length
