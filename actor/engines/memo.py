"""Next-token logits by context: a context that was computed under the present weights is not computed again.

The rollouts of a group have the same prompts, and their completions mostly begin alike. Sampling from stored logits equals
sampling from a pass over the same tokens, at any temperature. Pure bookkeeping: no model, no sampling.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch


class Memo:
    """Rows of logits in at most ``max_bytes``, by the tokens that precede; the least recently used row is given up first."""

    def __init__(self, *, max_bytes: int, vocabulary: int) -> None:
        """No room for a single row: nothing is ever kept."""
        self._row_bytes = vocabulary * torch.float32.itemsize
        num_rows = max_bytes // self._row_bytes
        # Memory that is allocated and never written takes none.
        self._rows_RV = torch.empty(num_rows, vocabulary, dtype=torch.float32)
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._unused = list(range(num_rows))

    def __len__(self) -> int:
        """Contexts kept."""
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Of the rows kept."""
        return len(self._places) * self._row_bytes

    def put(self, context: bytes, logits_V: torch.Tensor) -> None:
        """Keep a copy of the logits after ``context`` (see `context_key`)."""
        if context in self._places or not len(self._rows_RV):
            return
        place = self._unused.pop() if self._unused else self._places.popitem(last=False)[1]
        self._rows_RV[place].copy_(logits_V)
        self._places[context] = place

    def find(self, context: bytes) -> torch.Tensor | None:
        """The logits [V] after ``context``, to read before the next `put`; None: not kept."""
        place = self._places.get(context)
        if place is None:
            return None
        self._places.move_to_end(context)
        return self._rows_RV[place]

    def forget(self) -> None:
        """The weights have changed."""
        self._unused.extend(self._places.values())
        self._places.clear()


def context_key(prompt: np.ndarray, completion: Sequence[int] = ()) -> bytes:
    """Key of a context: the tokens of prompt and completion so far, one after the other."""
    return prompt.astype(np.int32).tobytes() + np.asarray(completion, dtype=np.int32).tobytes()


def longer_key(context: bytes, token: int) -> bytes:
    """Key of a context with one token more."""
    return context + token.to_bytes(4, sys.byteorder)
