"""Images in prompts: the tokens and tensors of every family against transformers' own processors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from computerrl.common.errors import PictureError
from computerrl.common.vision.layout import ImageLayout, PieceGrid, image_text
from computerrl.common.vision.processor import FAMILIES, load_processor
from tests.support.data.vision_data import save_model

SIZES = [(800, 600), (1280, 720), (60, 120), (57, 56), (113, 30), (448, 580)]
_MARKERS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: save_model(tmp_path_factory.mktemp(family), model_type=family) for family in FAMILIES}


def screen(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_layout_of_a_size_is_that_of_any_image_of_it(folders: dict[str, Path], family: str) -> None:
    processor = load_processor(folders[family])
    for width, height in SIZES:
        layout = processor.layout(width, height)
        assert processor.process(screen(width, height)).layout == layout
        num_tiles = layout.tiles.num_pieces + 1
        expected = layout.grid.num_pieces if layout.grid is not None else num_tiles * (56 // 14) ** 2 // 2**2
        assert layout.num_pieces == expected


def test_grids_of_200_sizes_are_what_transformers_counts(folders: dict[str, Path]) -> None:
    processor = load_processor(folders["qwen2_5_vl"])
    call = transformers.AutoImageProcessor.from_pretrained(folders["qwen2_5_vl"], backend="pil")
    for width, height in np.random.default_rng(0).integers(28, 1500, (200, 2)).tolist():
        patches = call.get_number_of_image_patches(height, width, {})
        assert processor.layout(width, height).num_pieces == patches // 2**2, (width, height)


@pytest.mark.parametrize("size", SIZES)
def test_text_of_tiles_is_that_of_transformers(folders: dict[str, Path], size: tuple[int, int]) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "\n": 1, "\n\n": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = [*_MARKERS, *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))]
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    call = transformers.AutoImageProcessor.from_pretrained(folders["idefics3"], backend="pil")
    processor = load_processor(folders["idefics3"])
    layout = processor.layout(*size)
    own = transformers.Idefics3Processor(call, tokenizer, image_seq_len=layout.num_pieces // (layout.tiles.num_pieces + 1))
    found = own(images=[screen(*size)], text="a<image>a", return_tensors="np")
    expected = tokenizer(f"a{image_text(layout, '<image>')}a")["input_ids"]
    assert found["input_ids"][0].tolist() == expected
    processed = processor.process(screen(*size))
    np.testing.assert_array_equal(found["pixel_values"][0], processed.tensors["pixel_values"])
    assert expected.count(tokenizer.convert_tokens_to_ids("<image>")) == layout.num_pieces


def test_text_of_a_grid_is_one_token_for_each_piece() -> None:
    assert image_text(ImageLayout(6, PieceGrid(2, 3)), "<p>") == "<p>" * 6


@pytest.mark.parametrize("size", [(0, 10), (-5, -5), (10, 0), (10**5, 10**5), (10_000, 28)])
def test_size_that_no_screen_has_is_refused(folders: dict[str, Path], size: tuple[int, int]) -> None:
    with pytest.raises(PictureError):
        load_processor(folders["qwen2_vl"]).layout(*size)
