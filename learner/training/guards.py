"""Guards against wrong numbers: they stop a run whose engine and learner disagree, and dump steps that are not finite.

The gap: a token that the present weights sampled has a log-prob by the engine and one by the learner. They differ by rounding;
when they differ by more, engine and learner do not run the same model, and no importance weight means anything. The dump: the
inputs of an optimizer step that was not finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from computerrl.common.errors import EngineMismatch
from computerrl.learner.algorithms.base import LossBatch
from computerrl.learner.model.batching import Pack
from computerrl.learner.model.images import after_images
from computerrl.learner.model.ranks import Ranks
from computerrl.learner.model.transfers import fetch

_MAX_DUMPS = 5
"""Dumps that a run keeps, the first ones."""
_MIN_TOKENS = 32
"""Tokens that a mean needs to be compared with its limit."""


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    num: int = 0

    @property
    def value(self) -> float:
        return self.total / self.num if self.num else 0.0


class LogprobGap:
    """Mean absolute difference between learner's and engine's log-probs, over tokens that the present weights sampled.

    Tokens after an image are also compared alone: among much text, a vision tower that differs would hide in the mean of all.
    """

    def __init__(self, *, limit: float | None) -> None:
        """``limit``: largest mean that is accepted; None: no limit."""
        self._limit = limit
        self._all = _Mean()
        self._after_images = _Mean()
        self._largest = 0.0

    def add(self, passes: Sequence[SeenPass], ranks: Ranks) -> None:
        """All of ``passes`` on all ``ranks``, made with the weights at the start of the update."""
        batches = [(one.logprobs_M, one.batch) for one in passes if one.batch is not None]
        total = num_tokens = of_images = num_of_images = most = 0.0
        if batches:
            present = [batch.is_present_M for _, batch in batches if batch.is_present_M is not None]
            assert len(present) == len(batches), "batches of an update say which tokens the present weights sampled"
            present_M = torch.cat(present)
            gap_M = torch.cat([(logprobs_M - batch.behavior_logprobs_M).abs() for logprobs_M, batch in batches])
            gap_M = torch.where(present_M, gap_M, 0.0)
            after_M = np.concatenate([after_images(one.pack) for one in passes if one.batch is not None])
            seen_M = torch.from_numpy(after_M).to(gap_M.device)
            sums = [gap_M.sum(), present_M.sum(), (gap_M * seen_M).sum(), (present_M & seen_M).sum(), gap_M.max()]
            total, num_tokens, of_images, num_of_images, most = fetch(sums)
        own = {"gap": (total, num_tokens), "after_images": (of_images, num_of_images), f"largest/{ranks.rank}": (most, 0.0)}
        summed = ranks.sum(own)
        for mean, name in ((self._all, "gap"), (self._after_images, "after_images")):
            total, num_tokens = summed.pop(name)
            mean.total, mean.num = mean.total + total, mean.num + int(num_tokens)
        self._largest = max(self._largest, *(value for value, _ in summed.values()))

    def metrics(self) -> dict[str, float]:
        """Nothing when no token was sampled by the present weights."""
        if not self._all.num:
            return {}
        found = {"logprob_gap": self._all.value, "logprob_gap_max": self._largest}
        return found | {"logprob_gap_images": self._after_images.value} if self._after_images.num else found

    def check(self) -> None:
        """Raises `EngineMismatch` when the mean of all tokens, or of those after images, is beyond its limit."""
        for mean, which in ((self._all, ""), (self._after_images, " after images")):
            if self._limit is not None and mean.num >= _MIN_TOKENS and mean.value > self._limit:
                raise EngineMismatch(
                    f"engine and learner disagree: over {mean.num} tokens{which} that the present weights sampled their "
                    f"log-probs differ by {mean.value:.3f} on average; the largest difference of all is {self._largest:.3f}; "
                    f"learner.max_logprob_gap is {self._limit}. Look for other weights, another dtype or temperature, or "
                    "sampling masks in the engine; the batch was not trained on"
                )


class EffectiveSamples:
    """Effective sample size of an optimizer step's trajectories, by their importance weights (VCPO, arXiv 2602.17616).

    The weight of a trajectory is the product of the weights of its tokens in the step. Packs and ranks may each hold a part of a
    trajectory, so logarithms are summed first.
    """

    def __init__(self, num_trajectories: int) -> None:
        """``num_trajectories``: trajectories of the batch, of which the step may hold some."""
        self._num_trajectories = num_trajectories
        self._present: set[int] = set()
        self._log_weights_T: torch.Tensor | None = None
        """[num_trajectories] float64 sums of log weights, still on the device."""

    def add(self, log_weights_M: torch.Tensor, trajectory_M: torch.Tensor, present: Iterable[int]) -> None:
        """Tokens of one pass. ``trajectory_M``: int64, the trajectory of each; ``present``: those that are among them, as the
        host knows them."""
        self._present.update(present)
        sums_T = torch.zeros(self._num_trajectories, dtype=torch.float64, device=log_weights_M.device)
        sums_T.index_add_(0, trajectory_M, log_weights_M.double())
        self._log_weights_T = sums_T if self._log_weights_T is None else self._log_weights_T + sums_T

    def share(self, ranks: Ranks) -> float:
        """(sum w)^2 / (n sum w^2) over the trajectories of all ``ranks``; 1 on policy, and of no trajectories at all."""
        found = [] if self._log_weights_T is None else self._log_weights_T.tolist()
        summed = ranks.sum({str(number): (found[number], 0.0) for number in sorted(self._present)})
        if not summed:
            return 1.0
        log_weights = np.array([log_weight for log_weight, _ in summed.values()])
        # The share is the same for all multiples of w: none is above 1, so that none overflows.
        weights = np.exp(log_weights - max(0.0, log_weights.max()))
        of_squares = float((weights**2).sum())
        # All weights underflowed to 0: the step has no effective sample and must not get the full learning rate.
        return float(weights.sum()) ** 2 / (len(weights) * of_squares) if of_squares else 0.0


@dataclass(frozen=True, slots=True)
class SeenPass:
    """One forward pass of an optimizer step."""

    pack: Pack
    batch: LossBatch | None
    """None: a supervised step."""
    logprobs_M: torch.Tensor
    loss: torch.Tensor
    """Detached, and still on the device."""


def reason_not_finite(passes: Sequence[SeenPass], gradients: Mapping[str, torch.Tensor]) -> str:
    """The first value that was not finite, in words."""
    bad = [(one, loss) for one, loss in zip(passes, fetch([one.loss for one in passes]), strict=True) if not math.isfinite(loss)]
    if bad:
        reason = f"the loss of {len(bad)} of {len(passes)} passes ({', '.join(str(loss) for _, loss in bad[:3])})"
        finite = all(bool(torch.isfinite(one.logprobs_M).all()) for one, _ in bad)
        return f"{reason}, although their log-probs were finite" if finite else reason
    names = [name for name, grad in gradients.items() if not bool(torch.isfinite(grad).all())]
    return f"the gradients of {len(names)} tensors, {', '.join(names[:3])}" if names else "the gradients' norm (an overflow)"


def dump(folder: Path, passes: Sequence[SeenPass], *, reason: str, name: str) -> Path | None:
    """Write the inputs of the step to a file of ``name``; returns the path, None when there are enough already. Raises `OSError`.

    Per pass i: ``tokens_i`` [N] the packed tokens, ``logprobs_i``, ``behavior_logprobs_i``, ``advantage_i``, ``weight_i``,
    ``age_i`` [M] of its action tokens; of a supervised pass only the first two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.safetensors"))) >= _MAX_DUMPS:
        return None
    tensors: dict[str, torch.Tensor] = {}
    for i, one in enumerate(passes):
        tensors[f"tokens_{i}"] = torch.from_numpy(one.pack.tokens_N).clone()
        parts = {"logprobs": one.logprobs_M}
        if one.batch is not None:
            parts |= {
                "behavior_logprobs": one.batch.behavior_logprobs_M,
                "advantage": one.batch.advantage_M,
                "weight": one.batch.token_weight_M,
                "age": one.batch.age_M,
            }
        tensors |= {f"{name}_{i}": value.detach().cpu().contiguous().clone() for name, value in parts.items()}
    path = folder / f"not-finite-{name}.safetensors"
    notes = {"reason": reason, "losses": json.dumps([str(loss) for loss in fetch([one.loss for one in passes])])}
    save_file(tensors, path, metadata=notes)
    return path
