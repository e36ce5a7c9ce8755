"""The image processor of a model folder: pixels -> the tensors that its vision tower takes, and the tokens that they need.

Actors, engines and the learner call it here, with the PIL backend of transformers: the torchvision backend rounds pixels
differently, and which one transformers picks by itself depends on whether torchvision is installed. No torch model here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from computerrl.common.errors import ConfigError, PictureError, Problem
from computerrl.common.vision.layout import ImageLayout, PieceGrid

Arrangement = Literal["grid", "tiles"]
"""How pieces lie in a prompt, see `common.vision.layout`."""
CoordinateKind = Literal["thousand", "pixels"]
"""Places in a model's answers. `thousand`: 0 to 1000 over the whole image. `pixels`: pixels of the image as the processor resizes
it."""

FAMILIES: Mapping[str, Arrangement] = {
    "qwen2_vl": "grid",
    "qwen2_5_vl": "grid",
    "qwen3_vl": "grid",
    "glm4v": "grid",
    "idefics3": "tiles",
    "smolvlm": "tiles",
}
"""`model_type` in config.json -> arrangement. The learner runs these layer by layer and compares with the model's own forward
pass at every start."""
_IN_PIXELS = frozenset({"qwen2_5_vl"})
"""Families whose answers hold pixels (Qwen2.5-VL, arXiv 2502.13923). Qwen2-VL (arXiv 2409.12191), Qwen3-VL and GLM-4.1V were
trained on thousandths; the families of tiles have no published coordinates."""

MAX_PIXELS = 2**26
"""Twice an 8K screen. A size may come from another process, and must not decide how much memory is asked for."""

Tensors = Mapping[str, np.ndarray]
"""Inputs of the vision tower for one image, under transformers' names."""


@dataclass(frozen=True, slots=True)
class Processed:
    """One image."""

    layout: ImageLayout
    tensors: Tensors
    """grid: `pixel_values` [patches, values] float32 and `image_grid_thw` [1, 3] int64.
    tiles: `pixel_values` [tiles, 3, height, width] float32 and `pixel_attention_mask` [tiles, height, width] int64."""

    @property
    def nbytes(self) -> int:
        """Memory of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class ImageProcessor:
    """Safe to share between threads."""

    def __init__(
        self,
        call: Callable[..., Any],
        *,
        image_token: int,
        arrangement: Arrangement,
        coordinates: CoordinateKind = "thousand",
        merge_size: int = 1,
        patch_size: int = 1,
        pieces_per_tile: int = 0,
    ) -> None:
        """``call``: the processor of transformers. ``coordinates``: those of the model's family. ``merge_size``: side of a piece
        in patches, ``patch_size``: side of a patch in pixels (grid). ``pieces_per_tile``: number of image tokens of a tile
        (tiles)."""
        self.image_token = image_token
        self.arrangement = arrangement
        self.coordinates: CoordinateKind = coordinates
        self._call = call
        self._merge_size = merge_size
        self._patch_size = patch_size
        self._pieces_per_tile = pieces_per_tile
        self._layouts: dict[tuple[int, int], ImageLayout] = {}
        """(width, height) in pixels -> layout; a run has few sizes of screens."""

    def layout(self, width: int, height: int) -> ImageLayout:
        """The tokens of an image of this size in pixels. Raises `PictureError` for a size that the model does not take."""
        size = (width, height)
        if min(size) < 1 or width * height > MAX_PIXELS:
            raise PictureError(f"no screen is {width} x {height}", mismatch=True)
        if size not in self._layouts:
            # Asked of the processor itself, with a black image: the rules by which it rounds sizes are its own.
            try:
                self._layouts[size] = self.process(Image.new("RGB", size)).layout
            except ValueError as error:
                raise PictureError(f"the model takes no picture of {width} x {height}: {error}", mismatch=True) from error
        return self._layouts[size]

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of an image of this size after resizing, in pixels (grid). Raises `PictureError` like `layout`."""
        grid = self.layout(width, height).grid
        assert grid is not None, "tiles overlap the image at several scales"
        side = self._merge_size * self._patch_size
        return grid.width * side, grid.height * side

    def process(self, image: Image.Image) -> Processed:
        """Raises `ValueError` for an image that the processor refuses."""
        if self.arrangement == "grid":
            return self._on_grid(image)
        return self._in_tiles(image)

    def _on_grid(self, image: Image.Image) -> Processed:
        found = self._call(images=[image], return_tensors="np")
        grid_thw = np.asarray(found["image_grid_thw"], dtype=np.int64)
        ((time, height, width),) = grid_thw.tolist()
        assert time == 1
        grid = PieceGrid(height // self._merge_size, width // self._merge_size)
        pixels = np.asarray(found["pixel_values"], dtype=np.float32)
        return Processed(ImageLayout(grid.num_pieces, grid), {"pixel_values": pixels, "image_grid_thw": grid_thw})

    def _in_tiles(self, image: Image.Image) -> Processed:
        found = self._call(images=[[image]], return_tensors="np", return_row_col_info=True)
        pixels = np.asarray(found["pixel_values"], dtype=np.float32)[0]
        mask = np.asarray(found["pixel_attention_mask"], dtype=np.int64)[0]
        tiles = PieceGrid(int(found["rows"][0][0]), int(found["cols"][0][0]))
        num_tiles = tiles.num_pieces + 1
        assert len(pixels) == num_tiles, (pixels.shape, tiles)
        layout = ImageLayout(num_tiles * self._pieces_per_tile, tiles=tiles)
        return Processed(layout, {"pixel_values": pixels, "pixel_attention_mask": mask})


def load_processor(folder: Path) -> ImageProcessor:
    """The processor that ``folder`` holds. Raises `ConfigError` for a family that cannot be run here, for a folder without a
    processor that works with Pillow, and for one that belongs to another model."""
    model_type = str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type"))
    if model_type not in FAMILIES:
        reason = f"{model_type!r} in {str(folder)!r} takes images in a way that cannot be run layer by layer here"
        raise ConfigError([Problem("model.name", reason, f"use a model of type {' or '.join(FAMILIES)}, or one without images")])
    import transformers

    logging.getLogger("transformers.configuration_utils").addFilter(_is_of_the_model)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        call = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except (OSError, ValueError, ImportError) as error:
        step = "save the model's processor with save_pretrained() into that folder"
        raise ConfigError([Problem("model.name", f"{str(folder)!r} has no image processor: {error}", step)]) from error
    _require_pillow(call, folder)
    wanted = {"grid": "image_grid_thw", "tiles": "pixel_attention_mask"}[FAMILIES[model_type]]
    if wanted not in call.model_input_names:
        reason = f"{type(call).__name__} in {str(folder)!r} gives no {wanted}, which {model_type!r} takes"
        raise ConfigError([Problem("model.name", reason, _SAME_MODEL)])
    image_token = int(config.image_token_id)
    coordinates: CoordinateKind = "pixels" if model_type in _IN_PIXELS else "thousand"
    if FAMILIES[model_type] == "tiles":
        pieces = _pieces_per_tile(config, call, folder)
        return ImageProcessor(call, image_token=image_token, arrangement="tiles", coordinates=coordinates, pieces_per_tile=pieces)
    sizes = _grid_sizes(config, call, folder)
    return ImageProcessor(call, image_token=image_token, arrangement="grid", coordinates=coordinates, **sizes)


def _is_of_the_model(record: logging.LogRecord) -> bool:
    """False for a warning about the padding token of Idefics3's default configuration, with which transformers compares a model's
    where it prints one."""
    return "pad_token_id" not in record.getMessage() or "128002" not in record.getMessage()


def _require_pillow(processor: Any, folder: Path) -> None:
    from transformers.image_processing_backends import PilBackend

    if not isinstance(processor, PilBackend):
        name = type(processor).__name__
        reason = f"the image processor in {str(folder)!r} is {name}, which works with torchvision only"
        raise ConfigError([Problem("model.name", reason, "save the one that AutoImageProcessor(backend='pil') gives")])


_SAME_MODEL = "copy preprocessor_config.json of the same model"
_GRID_SIZES = {"merge_size": "spatial_merge_size", "patch_size": "patch_size", "temporal_patch_size": "temporal_patch_size"}
"""Attribute of the processor -> of the tower, which must agree: else the tower gives another number of pieces than the prompt
holds tokens, or reads pixels of two patches as one."""


def _grid_sizes(config: Any, processor: Any, folder: Path) -> dict[str, int]:
    for ours, theirs in _GRID_SIZES.items():
        found, wanted = getattr(processor, ours, None), getattr(config.vision_config, theirs)
        if found != wanted:
            reason = f"the image processor in {str(folder)!r} has {ours} {found}, and the vision tower {wanted}"
            raise ConfigError([Problem("model.name", reason, _SAME_MODEL)])
    return {"merge_size": int(processor.merge_size), "patch_size": int(processor.patch_size)}


def _pieces_per_tile(config: Any, processor: Any, folder: Path) -> int:
    """Patches of the tower's square, merged ``scale_factor`` by ``scale_factor``."""
    side, patch = int(config.vision_config.image_size), int(config.vision_config.patch_size)
    cut = (getattr(processor, "max_image_size", None) or {}).get("longest_edge")
    if cut != side:
        reason = f"the image processor in {str(folder)!r} cuts tiles of {cut} pixels, and the vision tower takes {side}"
        raise ConfigError([Problem("model.name", reason, _SAME_MODEL)])
    return (side // patch) ** 2 // int(config.scale_factor) ** 2
