"""What stops a run that computes nonsense, or at least says where it began.

The gap: a token that the present weights sampled has a log-prob by the engine and one by the learner. They differ by rounding;
when they differ by more, engine and learner do not run the same model, and no importance weight means anything. The dump: what
an optimizer step that was not finite was made of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from common.errors import EngineMismatch
from learner.algorithms import LossBatch
from learner.batching import Pack
from learner.ranks import Ranks

_MAX_DUMPS = 5
"""Of a run; the first ones tell most."""
_MIN_TOKENS = 32
"""Fewer say little about a mean."""


class LogprobGap:
    """Mean absolute difference between learner's and engine's log-probs, over tokens that the present weights sampled."""

    def __init__(self, *, limit: float | None) -> None:
        """``limit``: of the mean; None: none."""
        self._limit = limit
        self._total = 0.0
        self._num_tokens = 0
        self._largest = 0.0

    def add(self, logprobs_M: torch.Tensor, batch: LossBatch) -> None:
        """``logprobs_M``: of the weights at the start of the update."""
        gap_M = (logprobs_M - batch.behavior_logprobs_M).abs()[batch.age_M == 0]
        if len(gap_M):
            self._total += float(gap_M.sum())
            self._num_tokens += len(gap_M)
            self._largest = max(self._largest, float(gap_M.max()))

    def add_up(self, ranks: Ranks) -> None:
        """Make it that of all ranks' tokens, so that all of them end when one must."""
        summed = ranks.sum({"total": (self._total, float(self._num_tokens)), f"largest-{ranks.rank}": (self._largest, 0.0)})
        total, num_tokens = summed.pop("total")
        self._total, self._num_tokens = total, int(num_tokens)
        self._largest = max(first for first, _ in summed.values())

    def metrics(self) -> dict[str, float]:
        """Nothing when no token was sampled by the present weights."""
        if not self._num_tokens:
            return {}
        return {"logprob_gap": self._total / self._num_tokens, "logprob_gap_max": self._largest}

    def check(self) -> None:
        """Raises `EngineMismatch` when the mean is beyond its limit."""
        mean = self._total / self._num_tokens if self._num_tokens else 0.0
        if self._limit is not None and self._num_tokens >= _MIN_TOKENS and mean > self._limit:
            raise EngineMismatch(
                f"engine and learner disagree: over {self._num_tokens} tokens that the present weights sampled their log-probs "
                f"differ by {mean:.3f} on average, at most {self._largest:.3f}; learner.max_logprob_gap is {self._limit}. Look "
                "for other weights, another dtype or temperature, or sampling masks in the engine; the batch was not trained on"
            )


@dataclass(frozen=True, slots=True)
class SeenPass:
    """One forward pass of an optimizer step."""

    pack: Pack
    batch: LossBatch
    logprobs_M: torch.Tensor
    loss: float


def reason_not_finite(passes: Sequence[SeenPass], gradients: Mapping[str, torch.Tensor | None]) -> str:
    """What was not finite first, in words."""
    losses = [f"{one.loss}" for one in passes if not torch.isfinite(torch.tensor(one.loss))]
    if losses:
        return f"the loss of {len(losses)} of {len(passes)} passes ({', '.join(losses[:3])})"
    names = [name for name, grad in gradients.items() if grad is not None and not bool(torch.isfinite(grad).all())]
    return f"the gradients of {len(names)} tensors, {', '.join(names[:3])}" if names else "the gradients' norm (an overflow)"


def dump(folder: Path, passes: Sequence[SeenPass], *, reason: str, update: int) -> Path | None:
    """Write what the step was made of; the path, None when there are enough already. Raises `OSError`.

    Per pass i: ``tokens_i`` [N] the packed tokens, ``logprobs_i``, ``behavior_logprobs_i``, ``advantage_i``, ``weight_i``,
    ``age_i`` [M] of its action tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.safetensors"))) >= _MAX_DUMPS:
        return None
    tensors: dict[str, torch.Tensor] = {}
    for i, one in enumerate(passes):
        tensors[f"tokens_{i}"] = torch.from_numpy(one.pack.tokens_N).clone()
        parts = {
            "logprobs": one.logprobs_M, "behavior_logprobs": one.batch.behavior_logprobs_M, "advantage": one.batch.advantage_M,
            "weight": one.batch.token_weight_M, "age": one.batch.age_M,
        }  # fmt: skip
        tensors |= {f"{name}_{i}": value.detach().cpu().contiguous().clone() for name, value in parts.items()}
    path = folder / f"not-finite-{update:06d}.safetensors"
    notes = {"reason": reason, "update": str(update), "losses": json.dumps([str(one.loss) for one in passes])}
    save_file(tensors, path, metadata=notes)
    return path
