"""How much an optimizer step's tokens say, at the edges."""

import pytest
import torch

from learner.guards import EffectiveSamples
from learner.ranks import Solo


@pytest.mark.parametrize(
    ("weights", "share"),
    [([1.0, 1.0], 1.0), ([1.0, 0.0], 0.5), ([0.0, 0.0], 0.0), ([], 1.0), ([5e21, 5e21], 1.0)],
)
def test_share_of_effective_samples(weights: list[float], share: float) -> None:
    samples = EffectiveSamples()
    samples.add(torch.tensor(weights))
    assert samples.share(Solo()) == pytest.approx(share)
