"""A vision tower gives one row of features for each token of an image, or says that its processor is another model's; every patch
has its own place, whatever the type of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from computerrl.common.errors import ConfigError
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.tower import Tower
from tests.support.data.vision_data import PATCH, own_model, save_model


@pytest.mark.parametrize("family", ["qwen3_vl", "idefics3"])
def test_features_for_another_number_of_tokens_are_refused(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", model_type=family)
    tower = Tower(own_model(folder))
    images = [load_processor(folder).process(Image.new("RGB", size)) for size in ((150, 100), (60, 120))]
    assert [len(one.rows_RE) for one in tower.encode(images)] == [image.layout.num_pieces for image in images]
    wrong = replace(images[1], layout=replace(images[1].layout, num_pieces=images[1].layout.num_pieces + 4))
    with pytest.raises(
        ConfigError, match=f"gives {wrong.layout.num_pieces - 4} features for an image of {wrong.layout.num_pieces}"
    ):
        tower.encode([images[0], wrong])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_side", [16, 20, 26])
@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_every_patch_of_a_tile_has_its_own_place(tmp_path: Path, family: str, num_side: int, dtype: torch.dtype) -> None:
    side = num_side * PATCH
    model = own_model(save_model(tmp_path / "model", model_type=family, tower={"image_size": side})).to(dtype)
    Tower(model)
    places: list[torch.Tensor] = []
    table = model.model.vision_model.embeddings.position_embedding
    table.register_forward_pre_hook(lambda _, arguments: places.append(arguments[0]))
    model.get_image_features(
        pixel_values=torch.ones(1, 1, 3, side, side), pixel_attention_mask=torch.ones(1, 1, side, side, dtype=torch.bool)
    )
    assert places[0].flatten().tolist() == list(range(num_side**2))
