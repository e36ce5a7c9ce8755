"""Figures of an update: sums over passes, then over ranks (a collective), then means."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from computerrl.common.messages import Step
from computerrl.learner.model.batching import Pack, padded_tokens
from computerrl.learner.model.ranks import Ranks
from computerrl.learner.model.transfers import fetch

_PADDED_BATCH_SIZE = 16
"""Batch size of the padded computation that `padded_tokens_ratio` compares with."""


class Totals:
    """Metrics as running (sum, count), of this rank until `add_up`."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}
        self._added: list[tuple[str, torch.Tensor | float, torch.Tensor | float]] = []
        self._counts = {"num_packs": 0.0, "num_computed_tokens": 0.0, "num_sample_tokens": 0.0}

    def add(self, name: str, total: torch.Tensor | float, count: torch.Tensor | float) -> None:
        """Add to a metric. Tensors have one element; their values are read when they are first needed, all at once."""
        kept = total.detach() if isinstance(total, torch.Tensor) else total
        self._added.append((name, kept, count))

    def add_packs(self, packs: Sequence[Pack]) -> None:
        """Count the tokens of ``packs``."""
        for pack in packs:
            self._counts["num_packs"] += 1.0
            self._counts["num_computed_tokens"] += pack.num_nodes
            self._counts["num_sample_tokens"] += pack.num_sample_tokens

    def add_up(self, ranks: Ranks) -> None:
        """Add the totals of all ranks."""
        self._settle()
        counts = {name: (count, 0.0) for name, count in self._counts.items()}
        summed = ranks.sum(self._totals | counts)
        self._counts = {name: summed.pop(name)[0] for name in counts}
        self._totals = summed

    def _settle(self) -> None:
        """Read the values that were added since the last time."""
        tensors = [value for _, *pair in self._added for value in pair if isinstance(value, torch.Tensor)]
        values = iter(fetch(tensors))
        for name, *pair in self._added:
            total, count = (next(values) if isinstance(value, torch.Tensor) else value for value in pair)
            before, counted = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = (before + total, counted + count)
        self._added.clear()

    def sum(self, name: str) -> float:
        """One total or count, not divided."""
        self._settle()
        return self._counts[name] if name in self._counts else self._totals[name][0]

    def means(self, *, default: Sequence[str]) -> dict[str, float]:
        """All means; names in ``default`` are 0 when nothing was added."""
        self._settle()
        means = {name: 0.0 for name in default}
        return means | {name: total / count for name, (total, count) in self._totals.items() if count}

    def pack_metrics(self, samples: Sequence[Step], *, seconds: float) -> dict[str, float]:
        """Amount and speed of the computation for ``samples``."""
        num_nodes, num_sample_tokens = self._counts["num_computed_tokens"], self._counts["num_sample_tokens"]
        padded = padded_tokens(samples, batch_size=_PADDED_BATCH_SIZE)
        return {
            "train_s": seconds,
            "trained_tokens_per_s": num_sample_tokens / seconds if seconds > 0 else 0.0,
            "num_packs": self._counts["num_packs"],
            "num_computed_tokens": num_nodes,
            "padded_tokens_ratio": padded / num_nodes if num_nodes else 1.0,
        }
