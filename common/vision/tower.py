"""The vision tower of a vision-language model: processed images -> the vectors that take the place of their tokens' embeddings.

Both the learner and the transformers engine run it here, so that they cannot differ. The caller owns the model, caches and
gradients.

Shape legend: R pieces of all given images, E hidden size of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.vision.processor import Processed


@dataclass(frozen=True, slots=True)
class Features:
    """What the tower makes of one image, or of several one after the other."""

    rows_RE: torch.Tensor
    """Takes the place of the embeddings of the image's tokens."""
    deep: tuple[torch.Tensor, ...] = ()
    """[R, E] each: entry i is added at the image's tokens to the output of layer i of the language model (DeepStack, arXiv
    2406.04334; Qwen3-VL). Empty in other families."""

    @property
    def nbytes(self) -> int:
        return self.rows_RE.nbytes + sum(rows.nbytes for rows in self.deep)

    def at(self, rows_V: torch.Tensor, *, dtype: torch.dtype) -> Features:
        """Rows ``rows_V`` of all, in ``dtype``."""
        rows_VE, *deep = (rows_RE.to(dtype).index_select(0, rows_V) for rows_RE in (self.rows_RE, *self.deep))
        return Features(rows_VE, tuple(deep))

    def rows(self, rows: slice) -> Features:
        """Some rows of all, one after the other."""
        return Features(self.rows_RE[rows], tuple(one[rows] for one in self.deep))

    def clone(self) -> Features:
        """A copy that shares no memory."""
        return Features(self.rows_RE.clone(), tuple(rows.clone() for rows in self.deep))


def joined(features: Sequence[Features]) -> Features:
    """One image after the other; at least one."""
    deep = zip(*(one.deep for one in features), strict=True)
    return Features(torch.cat([one.rows_RE for one in features]), tuple(torch.cat(rows) for rows in deep))


class Tower:
    """The tower and connector inside a transformers model with ``get_image_features``."""

    def __init__(self, model: Any) -> None:
        """Makes ``model`` find the places of patches in float32, see `_find_places_exactly`."""
        self._model = model
        _find_places_exactly(tower_module(model))

    def encode(self, images: Sequence[Processed]) -> list[Features]:
        """Features of each of ``images``, with a graph where gradients are on.

        Raises `ConfigError` when their number is not that of the image's tokens: processor and tower are of two models."""
        features = self._encode(images)
        for image, found in zip(images, features, strict=True):
            if len(found.rows_RE) != image.layout.num_pieces:
                reason = f"the vision tower gives {len(found.rows_RE)} features for an image of {image.layout.num_pieces} tokens"
                raise ConfigError([Problem("model.name", reason, "copy preprocessor_config.json of the same model")])
        return features

    def _encode(self, images: Sequence[Processed]) -> list[Features]:
        found = self._model.get_image_features(**_tower_inputs(images, self._model.device), return_dict=True)
        if images[0].layout.grid is None:
            # [tiles, pieces, E]
            numbers = [len(image.tensors["pixel_values"]) for image in images]
            return [Features(tiles.flatten(0, 1)) for tiles in found.pooler_output.split(numbers)]
        deep = getattr(found, "deepstack_features", None) or []
        return [Features(rows, tuple(layer[i] for layer in deep)) for i, rows in enumerate(found.pooler_output)]


def model_inputs(images: Sequence[Processed], is_piece_BT: np.ndarray, *, device: torch.device | str) -> dict[str, torch.Tensor]:
    """The images of B prompts, one prompt after the other, as arguments of the model's own forward pass.

    ``is_piece_BT``: [B, T] bool, which of the input ids are image tokens of ``images``."""
    inputs = _tower_inputs(images, device)
    if images[0].layout.grid is not None:
        # Without them the model takes an image's pieces for text and gives them one position after the other.
        inputs["mm_token_type_ids"] = torch.from_numpy(is_piece_BT.astype(np.int32)).to(device)
    return inputs


def _tower_inputs(images: Sequence[Processed], device: torch.device | str) -> dict[str, torch.Tensor]:
    names = images[0].tensors
    joined_images = {name: torch.cat([torch.from_numpy(image.tensors[name]) for image in images]) for name in names}
    is_tiled = images[0].layout.grid is None
    # Families of tiles take [prompts, tiles, ...], and all tiles may be those of one prompt.
    return {name: (tensor[None] if is_tiled else tensor).to(device) for name, tensor in joined_images.items()}


def tower_module(model: Any) -> torch.nn.Module:
    """The part of ``model`` that sees pixels, without the connector behind it where that is a module of its own."""
    body = model.model
    return body.visual if hasattr(body, "visual") else body.vision_model


def _find_places_exactly(tower: torch.nn.Module) -> None:
    """Towers of tiles find a patch's place in a table by its share of the side, in the type of the pixels. In bfloat16 that is
    exact for powers of two alone: of 20 patches a side, 6 get a neighbour's place (transformers 5.19; vLLM does it in float32).
    So pixels stay float32 until the map from patches to vectors."""
    embeddings: Any = getattr(tower, "embeddings", None)
    if not hasattr(embeddings, "num_patches_per_side"):
        return

    def widen(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments, named | {"pixel_values": named["pixel_values"].float()}

    def narrow(patches: torch.nn.Module, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (arguments[0].to(patches.weight.dtype),)

    embeddings.register_forward_pre_hook(widen, with_kwargs=True)
    embeddings.patch_embedding.register_forward_pre_hook(narrow)


def tower_parameters(model: Any) -> frozenset[str]:
    """Names of the parameters of ``model`` that only images need: the tower's and the connector's."""
    of_text = [*model.get_decoder().parameters(), *model.get_input_embeddings().parameters()]
    of_text += model.get_output_embeddings().parameters()
    known = {id(parameter) for parameter in of_text}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) not in known)


def recompute_blocks(tower: torch.nn.Module) -> None:
    """From now on each block of ``tower`` keeps only its input for the way back and computes the rest again.

    Blocks are those that transformers marks for gradient checkpointing; its own switch works in training mode only, which would
    turn dropout on."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for block in tower.modules():
        if isinstance(block, GradientCheckpointingLayer):
            block.forward = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named)

    return run
