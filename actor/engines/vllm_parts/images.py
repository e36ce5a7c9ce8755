"""Images of requests for vLLM, which gets the tensors of our own processor and prompts whose tokens are final.

vLLM's own processing of images is never used: it would resize and normalise by other code than the learner's. Names of images are
their content hashes. They need no version, since results of the tower are dropped with every load of weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from computerrl.actor.engines.base import GenerationRequest, RequestImage
from computerrl.common.errors import EngineFailed

MAX_IMAGES = 256
"""Images of a prompt. vLLM's default is 999; none at all would leave the tower out of the model."""


def image_options() -> dict[str, Any]:
    """Options of `EngineArgs` for a model that takes images."""
    return {
        # vLLM makes the model's processor at the start, if only to learn the largest size of an image.
        "skip_tokenizer_init": False,
        # The default is to normalise on the device what is normalised already.
        "mm_device_do_normalize": False,
        "limit_mm_per_prompt": {"image": MAX_IMAGES, "video": 0},
        # Caches of what vLLM's processor makes, and the memory that its largest images take: none of them is ever made.
        "mm_processor_cache_gb": 0,
        "skip_mm_profiling": True,
    }


def features_of(request: GenerationRequest, *, image_token: int) -> list[Any] | None:
    """vLLM's `MultiModalFeatureSpec` for each image of ``request``; None without images.

    Raises `EngineFailed` when the prompt does not hold the images of the request.
    """
    if not request.images:
        return None
    from vllm.multimodal.inputs import MultiModalFeatureSpec

    spans = spans_of(request, image_token=image_token)
    return [
        MultiModalFeatureSpec(
            data=_item(image), modality="image", identifier=image.content_hash, mm_position=span, mm_hash=image.content_hash
        )
        for image, span in zip(request.images, spans, strict=True)
    ]


def spans_of(request: GenerationRequest, *, image_token: int) -> list[Any]:
    """vLLM's `PlaceholderRange` for each image of ``request``: from its first image token to its last."""
    from vllm.multimodal.inputs import PlaceholderRange

    layouts = [image.processed.layout for image in request.images]
    num_pieces = sum(layout.num_pieces for layout in layouts)
    # Tokens behind the last image are text: they were sampled before the request was interrupted.
    at_I = np.flatnonzero(request.prompt_tokens == image_token)
    if len(at_I) < num_pieces:
        raise EngineFailed(f"the prompt holds {len(at_I)} image tokens for images that take {num_pieces}")
    spans, begin = [], 0
    for layout in layouts:
        places = at_I[begin : begin + layout.num_pieces]
        begin += layout.num_pieces
        first, length = int(places[0]), int(places[-1] - places[0]) + 1
        is_embed = None
        if length != len(places):
            if layout.grid is not None:
                raise EngineFailed("the prompt holds other tokens between the tokens of one image")
            is_embed = torch.zeros(length, dtype=torch.bool)
            is_embed[torch.from_numpy(places - first)] = True
        spans.append(PlaceholderRange(offset=first, length=length, is_embed=is_embed))
    return spans


def _item(image: RequestImage) -> Any:
    """The tensors of one image, as vLLM's processor of the family would give them."""
    from transformers.feature_extraction_utils import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    tensors = {name: torch.from_numpy(tensor) for name, tensor in image.processed.tensors.items()}
    if image.processed.layout.grid is not None:
        sizes = tensors["image_grid_thw"].prod(-1)
        fields = {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", sizes),
            "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }
    else:
        sizes = tensors["num_patches"] = torch.tensor([len(tensors["pixel_values"])])
        fields = {name: MultiModalFieldConfig.flat_from_sizes("image", sizes) for name in image.processed.tensors}
        fields["num_patches"] = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
    (item,) = MultiModalKwargsItems.from_hf_inputs(BatchFeature(tensors), fields)["image"]
    return item
