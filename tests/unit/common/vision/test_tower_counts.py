"""A vision tower gives one row of features for each token of an image, or says that its processor is another model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from computerrl.common.errors import ConfigError
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.tower import Tower
from tests.support.data.vision_data import own_model, save_model


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
