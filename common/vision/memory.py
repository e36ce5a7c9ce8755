"""Memory that images take, from the sizes in config.json: the vision tower at work, prepared images, features, keys and values.
Estimates, like those of `common.memory_plan`, which adds them up. No torch here.

Numbers kept of a patch were counted as bytes of live tensors on small models of each family; attention without probabilities, as
torch's `scaled_dot_product_attention` computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kept = Literal["nothing", "inputs", "everything"]
"""What a tower keeps of each block for the way back: nothing when frozen, its input when blocks are recomputed, or all."""

_OF_BLOCK: Mapping[str, tuple[float, float]] = {
    "qwen2_vl": (11.0, 3.0),
    "qwen2_5_vl": (13.0, 4.0),
    "qwen3_vl": (11.0, 2.0),
    "glm4v": (13.0, 4.0),
    "idefics3": (8.0, 2.0),
    "smolvlm": (8.0, 2.0),
}
"""`model_type` -> numbers that a block keeps of a patch, as multiples of its width and of its MLP's width."""
_OF_TILES = ("idefics3", "smolvlm")
_MASK_BYTES = 8
"""Bytes of a pixel's entry in the mask that families of tiles have."""
_OF_CONNECTOR = 5.0
"""Numbers that all behind the blocks keeps of a patch, as a multiple of their width."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """Sizes of a vision tower."""

    family: str
    """`model_type` in config.json."""
    num_blocks: int
    width: int
    mlp_width: int
    pixels_per_patch: int
    """Numbers that stand for a patch at the tower's entry."""
    patches_per_token: int

    @property
    def num_parameters(self) -> int:
        """Of the blocks, and of what merges patches into tokens (families of grids)."""
        gated = self.family in ("qwen2_5_vl", "glm4v")
        merger = 0 if self.family in _OF_TILES else (self.patches_per_token * self.width) ** 2
        return self.num_blocks * (4 * self.width**2 + (3 if gated else 2) * self.width * self.mlp_width) + merger

    def prepared_bytes(self, num_patches: int) -> int:
        """Of images with ``num_patches`` as the image processor gives them: pixels in float32, and the mask of tiles."""
        mask = _MASK_BYTES * self.pixels_per_patch // 3 if self.family in _OF_TILES else 0
        return num_patches * (4 * self.pixels_per_patch + mask)

    def pass_bytes(self, num_patches: int, *, kept: Kept, element_bytes: int) -> int:
        """Of the images with ``num_patches`` that the tower encodes: those of one pass where it keeps nothing, else of all images
        of a pack. With the pixels in float32, as the image processor gives them."""
        width, mlp = _OF_BLOCK[self.family]
        block, connector = width * self.width + mlp * self.mlp_width, _OF_CONNECTOR * self.width
        # Families of tiles pick the tiles that are no padding.
        pixels = self.pixels_per_patch * (2 if self.family in _OF_TILES else 1)
        if kept == "nothing":
            at_work = max(11.0 * self.width, 8.0 * self.width + 2 * self.mlp_width)
            numbers = max(2.0 * pixels, pixels + at_work)
        elif kept == "inputs":
            numbers = pixels + self.num_blocks * self.width + block + connector
        else:
            numbers = pixels + self.num_blocks * block + connector
        return int(num_patches * (numbers * element_bytes + self.pixels_per_patch * 4))


@dataclass(frozen=True, slots=True)
class TextShape:
    """Sizes of the language model behind a tower."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    width: int
    num_deep: int = 0
    """Number of further vectors of a token's features, which enter higher layers (DeepStack)."""

    def kv_bytes(self, num_tokens: int, *, element_bytes: int) -> int:
        """Of the keys and values of ``num_tokens`` in all layers."""
        return num_tokens * 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes

    def feature_bytes(self, num_tokens: int, *, element_bytes: int) -> int:
        """Of the features that the tower gives for ``num_tokens``."""
        return num_tokens * self.width * (1 + self.num_deep) * element_bytes


def text_shape(tree: Mapping[str, Any]) -> TextShape | None:
    """Of the model whose config.json is ``tree``; None where a size is missing or no number (other checks report it)."""
    text, tower = tree.get("text_config") or tree, tree.get("vision_config") or {}
    try:
        width, num_heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        deep = tower.get("deepstack_visual_indexes") or ()
        return TextShape(
            num_layers=int(text["num_hidden_layers"]),
            num_kv_heads=int(text.get("num_key_value_heads") or num_heads),
            head_dim=int(text.get("head_dim") or width // num_heads),
            width=width,
            num_deep=len(deep),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None


def tower_shape(tree: Mapping[str, Any]) -> TowerShape | None:
    """Of the model whose config.json is ``tree``; None for one without a tower, or of a family that is not known here, or whose
    settings are no numbers (other checks report it)."""
    family, tower = str(tree.get("model_type")), tree.get("vision_config")
    if family not in _OF_BLOCK or not isinstance(tower, dict):
        return None
    try:
        patch = int(tower.get("patch_size", 14))
        if family in _OF_TILES:
            scale, mlp_width = int(tree["scale_factor"]), int(tower["intermediate_size"])
            return TowerShape(
                family, int(tower["num_hidden_layers"]), int(tower["hidden_size"]), mlp_width, 3 * patch**2, scale**2
            )
        width = int(tower["embed_dim"] if family == "qwen2_vl" else tower["hidden_size"])
        # The MLP of a GLM block is as wide as the language model.
        named = {"qwen2_vl": "mlp_ratio", "glm4v": "out_hidden_size"}.get(family, "intermediate_size")
        mlp_width = int(tower[named]) * (width if family == "qwen2_vl" else 1)
        merged = int(tower.get("spatial_merge_size", 2)) ** 2
        pixels = 3 * int(tower.get("temporal_patch_size", 2)) * patch**2
        return TowerShape(family, int(tower["depth"]), width, mlp_width, pixels, merged)
    except (KeyError, TypeError, ValueError):
        return None
