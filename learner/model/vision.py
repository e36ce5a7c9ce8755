"""The vision tower of a vision-language model: images of a pack -> features in place of the embeddings of their image tokens.

Each image of a pack is encoded once, however many samples show it. A frozen tower always gives the same result for an image, so
its results are kept and shared between passes, packs and updates. `common.vision.processor.FAMILIES` names the models; loading
one compares log-probs after an image with the model's own.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from computerrl.common.config import RunConfig
from computerrl.common.messages import ScreenshotRef
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.processor import Processed, load_processor
from computerrl.common.vision.screens import Screens
from computerrl.common.vision.tower import Features, Tower, joined, model_inputs, recompute_blocks, tower_module
from computerrl.common.weight_plan import probe_tokens
from computerrl.learner.images import ImageFolder
from computerrl.learner.model.batching import Pack, PackImages
from computerrl.learner.model.images import PromptImages

KEPT_FEATURES_BYTES = 256 * 2**20
"""Size of the kept results of a frozen tower: about a dozen full-size screens for a model of 7 billion parameters."""

_PROBE_SIZE = (112, 84)
"""Width and height in pixels: unequal, so that a mix-up shows."""


class Vision:
    """Prompt images and the tower that encodes them."""

    def __init__(self, model: Any, images: PromptImages, *, has_rope_grid: bool, frozen: bool, recompute: bool = False) -> None:
        """``has_rope_grid``: rotary positions have three rows. ``recompute``: a trained tower keeps only each block's input for
        the way back and computes the rest again."""
        self.images = images
        self.model = model
        self.has_rope_grid = has_rope_grid
        self._tower = Tower(model)
        self._frozen = frozen
        if recompute and not frozen:
            recompute_blocks(tower_module(model))
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._kept_bytes = 0

    def features(self, shown: PackImages) -> Features:
        """Of all images of a pack, one after the other; with a graph unless the tower is frozen. Raises `PictureError`."""
        if not self._frozen:
            return joined(self._encode(shown.refs))
        found = {ref.content_hash: self._kept[ref.content_hash] for ref in shown.refs if ref.content_hash in self._kept}
        missing = [ref for ref in shown.refs if ref.content_hash not in found]
        if missing:
            with torch.no_grad():
                found |= {ref.content_hash: features for ref, features in zip(missing, self._encode(missing), strict=True)}
        for ref in shown.refs:
            self._keep(ref.content_hash, found[ref.content_hash])
        return joined([found[ref.content_hash] for ref in shown.refs])

    def _encode(self, refs: Sequence[ScreenshotRef]) -> list[Features]:
        return self._tower.encode([self.images.screens.processed(ref) for ref in refs])

    def forget(self) -> None:
        """Keep no results any more."""
        self._kept.clear()
        self._kept_bytes = 0

    def _keep(self, content_hash: str, features: Features) -> None:
        if content_hash in self._kept:
            self._kept.move_to_end(content_hash)
            return
        # A copy: a part of what several images gave would hold all of it.
        features = features.clone()
        self._kept[content_hash] = features
        self._kept_bytes += features.nbytes
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
    processor = load_processor(folder)
    images = PromptImages(Screens(ImageFolder(RunFolder(config.folder).images).read, processor))
    frozen = config.model.trainable_top_layers is not None or config.learner.lora is not None
    return Vision(model, images, has_rope_grid=processor.arrangement == "grid", frozen=frozen, recompute=recompute)


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
        self.images = (ScreenshotRef("probe", "probe", 0, len(self._data), *_PROBE_SIZE),)
        with vision.images.screens.reading(lambda ref: self._data):
            processed = vision.images.screens.processed(self.images[0])
        pieces = [image_token] * processed.layout.num_pieces
        probe = probe_tokens(int(vision.model.get_input_embeddings().num_embeddings))
        self.prompt_tokens = np.array([*probe[:4], *pieces, *probe[4:8]], dtype=np.int32)
        self.action_tokens = np.array(probe[8:], dtype=np.int32)
        self._expected = self._own(vision.model, processed, is_piece=self._all_tokens() == image_token)

    def _all_tokens(self) -> np.ndarray:
        return np.concatenate([self.prompt_tokens, self.action_tokens])

    @torch.no_grad()
    def _own(self, model: Any, processed: Processed, *, is_piece: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(self._all_tokens()).long()[None].to(model.device)
        shown = model_inputs([processed], is_piece[None], device=model.device)
        logits = model(input_ids=tokens, **shown, use_cache=False).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        return logprobs[-len(self.action_tokens) :].cpu()

    @torch.no_grad()
    def difference(self, logprobs_of: Callable[[Pack], torch.Tensor]) -> float:
        """Mean absolute difference between ``logprobs_of`` (pack -> [U]) and the model's own."""
        (pack,) = self._vision.images.packs([self], max_tokens=len(self._all_tokens()))
        with self._vision.images.screens.reading(lambda ref: self._data):
            logprobs_U = logprobs_of(pack).float().cpu()
        self._vision.forget()
        return float((logprobs_U[torch.from_numpy(pack.token_pair_M)] - self._expected).abs().mean())
