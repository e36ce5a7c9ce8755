"""The vision tower of a vision-language model: images of a pack -> features in place of the embeddings of their image tokens.

Each image of a pack is encoded once, however many samples show it. A frozen tower always gives the same result for an image, so
its results are kept and shared between passes, packs and updates. Supported are models whose images enter at the bottom of the
language model alone and whose positions are those of `learner.model.images`; loading compares log-probs after an image with the
model's own.

Shape legend: R pieces of the images of a pack, E hidden size of the language model.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.checkpoint import checkpoint

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import probe_tokens
from computerrl.env_server.client import read_screenshot
from computerrl.learner.model.batching import Pack, PackImages
from computerrl.learner.model.images import PromptImages

MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")
"""Supported values of `model_type` in config.json."""

KEPT_FEATURES_BYTES = 256 * 2**20
"""Size of the kept results of a frozen tower: about a dozen full-size screens for a model of 7 billion parameters."""

_PROBE_SIZE = (112, 84)
"""Width and height in pixels: unequal, so that a mix-up shows."""


class Vision:
    """Prompt images and the tower that encodes them."""

    def __init__(self, model: Any, images: PromptImages, *, frozen: bool, recompute: bool = False) -> None:
        """``recompute``: keep nothing of the tower for the way back and compute it again."""
        self.images = images
        self.model = model
        self._frozen = frozen
        self._recompute = recompute
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._kept_bytes = 0

    def features(self, shown: PackImages) -> torch.Tensor:
        """[R, E] image after image; with a graph unless the tower is frozen. Raises `PictureError`."""
        if not self._frozen:
            return torch.cat(self._encode(shown.refs))
        found = {ref.content_hash: self._kept[ref.content_hash] for ref in shown.refs if ref.content_hash in self._kept}
        missing = [ref for ref in shown.refs if ref.content_hash not in found]
        if missing:
            with torch.no_grad():
                found |= {ref.content_hash: rows for ref, rows in zip(missing, self._encode(missing), strict=True)}
        for ref in shown.refs:
            self._keep(ref.content_hash, found[ref.content_hash])
        return torch.cat([found[ref.content_hash] for ref in shown.refs])

    def _encode(self, refs: Sequence[ScreenshotRef]) -> tuple[torch.Tensor, ...]:
        patches, grids = zip(*[self.images.patches_of(ref) for ref in refs], strict=True)
        pixels = torch.from_numpy(np.concatenate(patches)).to(self.model.device)
        grid = torch.tensor(grids, device=self.model.device)
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self._tower, pixels, grid, use_reentrant=False, preserve_rng_state=False)
        return self._tower(pixels, grid)

    def _tower(self, pixels: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model.get_image_features(pixel_values=pixels, image_grid_thw=grid, return_dict=True)
        return tuple(found.pooler_output)

    def forget(self) -> None:
        """Keep no results any more."""
        self._kept.clear()
        self._kept_bytes = 0

    def _keep(self, content_hash: str, rows: torch.Tensor) -> None:
        if content_hash in self._kept:
            self._kept.move_to_end(content_hash)
            return
        # A copy: a slice of the result for several images would keep all of it in memory.
        rows = rows.clone()
        self._kept[content_hash] = rows
        self._kept_bytes += rows.nbytes
        while self._kept_bytes > KEPT_FEATURES_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def auto_class(folder: Path) -> Any:
    """The transformers class that loads the model in ``folder``. Raises `OSError`, `ValueError`."""
    import transformers

    found = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    has_tower = hasattr(found, "vision_config")
    return transformers.AutoModelForImageTextToText if has_tower else transformers.AutoModelForCausalLM


def load_vision(model: Any, config: RunConfig, *, folder: Path, recompute: bool) -> Vision | None:
    """None for a model without a vision tower. ``recompute``: see `Vision`.

    Raises `ConfigError` for one that cannot be run, or without image processor.
    """
    if not hasattr(model.config, "vision_config"):
        return None
    if model.config.model_type not in MODEL_TYPES:
        reason = f"{model.config.model_type!r} in {str(folder)!r} takes images in a way that cannot be run layer by layer here"
        step = f"use a model of type {' or '.join(MODEL_TYPES)}, or one without images"
        raise ConfigError([Problem("model.name", reason, step)])
    import transformers

    try:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        step = "save the model's processor with save_pretrained() into that folder"
        raise ConfigError([Problem("model.name", f"{str(folder)!r} has no image processor: {error}", step)]) from error
    read = partial(read_screenshot, RunFolder(config.folder).trajectories)
    images = PromptImages(read, processor=processor, image_token=int(model.config.image_token_id))
    frozen = config.model.trainable_top_layers is not None or config.learner.lora is not None
    return Vision(model, images, frozen=frozen, recompute=recompute)


# --- probe -------------------------------------------------------------------------------------------------------------


class ImageProbe:
    """A small image amid `probe_tokens`, as the model itself computes it; a sample for `PromptImages.packs`."""

    def __init__(self, vision: Vision, *, image_token: int) -> None:
        """Runs the model's own forward pass."""
        self._vision = vision
        pixels = np.random.default_rng(0).integers(0, 256, (*_PROBE_SIZE[::-1], 3), dtype=np.uint8)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, format="PNG")
        self._data = encoded.getvalue()
        self.screenshot = ScreenshotRef("probe", "probe", 0, len(self._data), *_PROBE_SIZE)
        with vision.images.reading(lambda ref: self._data):
            patches, grid = vision.images.patches_of(self.screenshot)
            pieces = [image_token] * vision.images.num_tokens(self.screenshot)
        probe = probe_tokens(int(vision.model.get_input_embeddings().num_embeddings))
        self.prompt_tokens = np.array([*probe[:4], *pieces, *probe[4:8]], dtype=np.int32)
        self.action_tokens = np.array(probe[8:], dtype=np.int32)
        self._expected = self._own(vision.model, patches, grid, is_piece=self._all_tokens() == image_token)

    def _all_tokens(self) -> np.ndarray:
        return np.concatenate([self.prompt_tokens, self.action_tokens])

    @torch.no_grad()
    def _own(self, model: Any, patches: np.ndarray, grid: tuple[int, int, int], *, is_piece: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(self._all_tokens()).long()[None].to(model.device)
        logits = model(
            input_ids=tokens,
            pixel_values=torch.from_numpy(patches).to(model.device),
            image_grid_thw=torch.tensor([grid], device=model.device),
            # Without it the model takes an image's pieces for text and gives them one position after the other.
            mm_token_type_ids=torch.from_numpy(is_piece.astype(np.int32))[None].to(model.device),
            use_cache=False,
        ).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        return logprobs[-len(self.action_tokens) :].cpu()

    @torch.no_grad()
    def difference(self, logprobs_of: Callable[[Pack], torch.Tensor]) -> float:
        """Mean absolute difference between ``logprobs_of`` (pack -> [U]) and the model's own."""
        (pack,) = self._vision.images.packs([self], max_tokens=len(self._all_tokens()))
        with self._vision.images.reading(lambda ref: self._data):
            logprobs_U = logprobs_of(pack).float().cpu()
        self._vision.forget()
        return float((logprobs_U[torch.from_numpy(pack.token_pair_M)] - self._expected).abs().mean())
