"""Memory of a trained tower: less with recomputed blocks and with fewer images at once, and the gradients are the same."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from computerrl.learner.model.policy import load_policy
from tests.support.data.vision_data import FAMILIES, WIDE, Screens, make_config, save_model


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


@pytest.mark.parametrize("family", FAMILIES)
def test_peak_falls_with_recomputed_blocks_and_fewer_images_at_once(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", model_type=family)
    peaks, gradients = [], []
    for number, (recompute, at_once) in enumerate((("none", 4), ("full", 4), ("full", 1))):
        learner = {"activation_checkpointing": recompute, "images_per_pass": at_once}
        config = make_config(folder, tmp_path / str(number), top_layers=1, vision="trained", **learner)
        policy, screens = load_policy(config), Screens(folder, config)
        assert policy.vision is not None
        steps = [screens.step(*(screens.take(seed, WIDE) for seed in range(4)), action=[11])]
        (pack,) = policy.packs(steps, max_tokens=4096)
        assert pack.images is not None and len(pack.images.refs) == 4
        model = policy.vision.model
        with LiveBytes(list(model.parameters())) as live:
            (policy.vision.features(pack.images).rows_RE ** 2).sum().backward()
        peaks.append(live.peak)
        gradients.append({name: one.clone() for name, one in policy.weights.gradients().items()})
    assert peaks[2] < peaks[1] < peaks[0]
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, atol=1e-4, rtol=1e-4)
