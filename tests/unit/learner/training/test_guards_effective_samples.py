"""How much an optimizer step's trajectories say: VCPO's effective sample size, at the edges and against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from computerrl.learner.model.ranks import SOLO
from computerrl.learner.training.guards import EffectiveSamples


class OtherRank:
    """This rank and another one, whose trajectories have ``sums``."""

    rank, num_ranks = 0, 2

    def __init__(self, sums: dict[str, tuple[float, float]]) -> None:
        self._sums = sums

    def sum(self, values: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        names = {**values, **self._sums}
        return {name: (values.get(name, (0.0, 0.0))[0] + self._sums.get(name, (0.0, 0.0))[0], 0.0) for name in names}


def share_of(log_weights: list[list[float]]) -> float:
    samples = EffectiveSamples(len(log_weights))
    for number, tokens in enumerate(log_weights):
        samples.add(torch.tensor(tokens, dtype=torch.float32), torch.full((len(tokens),), number), [number])
    return samples.share(SOLO)


@pytest.mark.parametrize(
    ("log_weights", "share"),
    [
        ([[0.0, 0.0], [0.0]], 1.0),
        ([[0.0], [-1000.0]], 0.5),
        ([[-1000.0], [-1000.0]], 0.0),
        ([], 1.0),
        ([[50.0], [50.0]], 1.0),
        ([[500.0], [0.0]], 0.5),
        ([[25.0], [40.0]], 0.5),
        ([[800.0], [801.0]], (1 + math.e) ** 2 / (2 * (1 + math.e**2))),
        # The tokens' weights multiply: e^1 and e^-1 make 1, e^1 and e^1 make e^2.
        ([[1.0, -1.0], [0.0]], 1.0),
        ([[1.0, 1.0], [0.0]], (math.e**2 + 1) ** 2 / (2 * (math.e**4 + 1))),
    ],
)
def test_share_of_effective_samples(log_weights: list[list[float]], share: float) -> None:
    assert share_of(log_weights) == pytest.approx(share)


@pytest.mark.parametrize("spread", [0.05, 0.1, 0.2, 0.3])
def test_share_is_that_of_trajectories_whatever_packs_and_ranks_hold(spread: float) -> None:
    """`compute_ess_info` of the released VCPO: (sum w)^2 / sum w^2 / n, w the product of a trajectory's token ratios."""
    rng = np.random.default_rng(5)
    tokens = [rng.normal(0, spread, int(rng.integers(15, 81))) for _ in range(56)]
    w = [math.exp(math.fsum(one)) for one in tokens]
    wanted = math.fsum(w) ** 2 / math.fsum(one * one for one in w) / len(w)
    assert share_of([one.tolist() for one in tokens]) == pytest.approx(wanted, rel=1e-5)
    # Half of each trajectory in one pack, the rest in another; then on another rank.
    halves = [np.split(one, [len(one) // 2]) for one in tokens]
    for num_packs in (1, 2):
        samples = EffectiveSamples(len(tokens))
        for pack in range(num_packs):
            own = [both[pack] for both in halves]
            owner_M = torch.from_numpy(np.repeat(np.arange(len(own)), list(map(len, own))))
            samples.add(torch.tensor(np.concatenate(own), dtype=torch.float64), owner_M, range(len(own)))
        there = {str(number): (float(both[1].sum()), 0.0) for number, both in enumerate(halves)}
        assert samples.share(SOLO if num_packs == 2 else OtherRank(there)) == pytest.approx(wanted)  # type: ignore[arg-type]
    # Over tokens it would be near 1, whatever the trajectories say.
    of_tokens = np.exp(np.concatenate(tokens))
    assert of_tokens.sum() ** 2 / (len(of_tokens) * (of_tokens**2).sum()) > 0.9 and (spread < 0.2 or wanted < 0.4)
