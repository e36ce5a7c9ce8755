"""Loading a policy compares what its packs compute with the model's own forward pass, and refuses what computes another thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computerrl.common.errors import ConfigError
from computerrl.common.vision.layout import PieceGrid
from computerrl.common.vision.tower import Features
from computerrl.learner.model import images
from computerrl.learner.model.pack_tensors import PackTensors
from computerrl.learner.model.policy import Policy, load_policy
from tests.support.data.vision_data import FAMILIES, make_config, save_model


def half_as_far(own: Any) -> Any:
    return lambda tensors, *, has_grid: own(tensors, has_grid=has_grid) // 2


def positions_of_text(_: Any) -> Any:
    def found(depth_N: np.ndarray, end_N: np.ndarray, grids: Mapping[int, PieceGrid]) -> np.ndarray:
        return np.stack([depth_N] * 3)

    return found


def with_features(change: Callable[[Features], Features | None]) -> Any:
    def changed(own: Any) -> Any:
        def shown(*arguments: Any) -> Features | None:
            features = own(*arguments)
            return None if features is None else change(features)

        return shown

    return changed


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "positions": (PackTensors, "rope_positions", half_as_far),
    "rows and columns": (images, "rope_positions", positions_of_text),
    "no features": (Policy, "_shown", with_features(lambda one: None)),
    "order of pieces": (Policy, "_shown", with_features(lambda one: Features(one.rows_RE.roll(1, 0), one.deep))),
    "no deep features": (Policy, "_shown", with_features(lambda one: Features(one.rows_RE))),
}
"""What packs may get wrong: where it is computed, and what makes it wrong."""

OF_IMAGES = ("no features", "order of pieces")
FAULTS_OF = {
    "tiny-random": ("positions",),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "glm4v"), ("rows and columns", *OF_IMAGES)),
    "qwen3_vl": ("rows and columns", "no deep features", *OF_IMAGES),
    **dict.fromkeys(("idefics3", "smolvlm"), OF_IMAGES),
}


@pytest.mark.parametrize("model", ["tiny-random", *FAMILIES])
def test_model_whose_packed_logprobs_are_not_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    folder = save_model(tmp_path / "model", model_type=model) if model in FAMILIES else Path(model)
    config = make_config(folder, tmp_path, top_layers=1)
    load_policy(config)
    for name in FAULTS_OF[model]:
        place, part, fault = FAULTS[name]
        with monkeypatch.context() as patch:
            patch.setattr(place, part, fault(getattr(place, part)))
            with pytest.raises(ConfigError, match=r"is not supported: run layer by layer, its log-probs differ by \d\.\d+ from"):
                load_policy(config)
