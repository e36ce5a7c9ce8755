"""The vision tower of a vision-language model: images of a pack -> features in place of the embeddings of their image tokens.

Each image of a pack is encoded once, however many samples show it. A frozen tower always gives the same result for an image, so
its results are kept and shared between passes, packs and updates. `common.vision.processor.FAMILIES` names the models; loading
one compares log-probs after an image with the model's own.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import ScreenshotRef
from computerrl.common.run_files.imported import image_folders
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.probe import PROBE_HASH, PROBE_SIZE, make_image_probe, probe_image
from computerrl.common.vision.processor import ImageProcessor, load_processor
from computerrl.common.vision.screens import ReadScreenshot, Screens
from computerrl.common.vision.tower import Features, Tower, joined, model_inputs, recompute_blocks, tower_module
from computerrl.learner.images import ImageFolder
from computerrl.learner.model.batching import Pack, PackImages
from computerrl.learner.model.images import PromptImages


class Vision:
    """Prompt images and the tower that encodes them."""

    def __init__(
        self,
        model: Any,
        images: PromptImages,
        probe: ImageProbe,
        *,
        has_rope_grid: bool,
        frozen: bool,
        recompute: bool,
        images_per_pass: int,
        cache_bytes: int,
    ) -> None:
        """``probe``: one whose image ``images`` can read. ``has_rope_grid``: rotary positions have three rows. ``recompute``: a
        trained tower keeps only each block's input for the way back and computes the rest again. ``cache_bytes``: maximum size of
        the kept results of a frozen tower."""
        self.images = images
        self.probe = probe
        self.model = model
        self.has_rope_grid = has_rope_grid
        self._tower = Tower(model)
        self.frozen = frozen
        self._images_per_pass = images_per_pass
        self._cache_bytes = cache_bytes
        self._num_hits = self._num_misses = 0
        if recompute and not frozen:
            recompute_blocks(tower_module(model))
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._kept_bytes = 0

    def features(self, shown: PackImages) -> Features:
        """Of all images of a pack, one after the other; with a graph unless the tower is frozen. Raises `PictureError`."""
        if not self.frozen:
            return joined(self._encode(shown.refs))
        found = {ref.content_hash: self._kept[ref.content_hash] for ref in shown.refs if ref.content_hash in self._kept}
        missing = [ref for ref in shown.refs if ref.content_hash not in found]
        self._num_hits += sum(name != PROBE_HASH for name in found)
        self._num_misses += sum(ref.content_hash != PROBE_HASH for ref in missing)
        if missing:
            with torch.no_grad():
                found |= {ref.content_hash: features for ref, features in zip(missing, self._encode(missing), strict=True)}
        for ref in shown.refs:
            self._keep(ref.content_hash, found[ref.content_hash])
        return joined([found[ref.content_hash] for ref in shown.refs])

    def _encode(self, refs: Sequence[ScreenshotRef]) -> list[Features]:
        found: list[Features] = []
        for first in range(0, len(refs), self._images_per_pass):
            part = refs[first : first + self._images_per_pass]
            found += self._tower.encode([self.images.screens.processed(ref) for ref in part])
        return found

    def cache_counts(self) -> dict[str, int]:
        """Metric -> images of packs since the last call whose features were kept, or had to be computed; none of a trained
        tower."""
        counts = {"image_cache_hits": self._num_hits, "image_cache_misses": self._num_misses}
        self._num_hits = self._num_misses = 0
        return {} if not self.frozen else counts

    def _keep(self, content_hash: str, features: Features) -> None:
        if content_hash in self._kept:
            self._kept.move_to_end(content_hash)
            return
        # A copy: a part of what several images gave would hold all of it.
        features = features.clone()
        self._kept[content_hash] = features
        self._kept_bytes += features.nbytes
        while self._kept_bytes > self._cache_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def auto_class(folder: Path) -> Any:
    """The transformers class that loads the model in ``folder``. Raises `OSError`, `ValueError`."""
    import transformers

    found = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    has_tower = hasattr(found, "vision_config")
    return transformers.AutoModelForImageTextToText if has_tower else transformers.AutoModelForCausalLM


def load_vision(model: Any, config: RunConfig, *, folder: Path, recompute: bool) -> Vision | None:
    """None for a model without a vision tower. ``recompute``: see `Vision`.

    Raises `ConfigError` for one that cannot be run, or without image processor, and where there is no tower to train.
    """
    if not hasattr(model.config, "vision_config"):
        if config.model.vision == "trained":
            reason = f"trained, and {str(folder)!r} has no vision tower"
            raise ConfigError([Problem("model.vision", reason, "remove it, or use a vision-language model")])
        return None
    processor = load_processor(folder)
    probe = ImageProbe(processor, vocabulary=int(model.get_input_embeddings().num_embeddings))
    recipe = config.learner.recipe
    others = [*image_folders(recipe.imported), *(RunFolder(run).images for run in recipe.specialists)]
    read = probe.reading(ImageFolder(RunFolder(config.folder).images, others=others).read)
    images = PromptImages(Screens(read, processor))
    return Vision(
        model,
        images,
        probe,
        has_rope_grid=processor.arrangement == "grid",
        frozen=config.model.vision == "frozen",
        recompute=recompute,
        images_per_pass=config.learner.images_per_pass,
        cache_bytes=config.learner.image_cache_mb * 2**20,
    )


# --- probe -------------------------------------------------------------------------------------------------------------


class ImageProbe:
    """`common.vision.probe` as a sample for `PromptImages.packs`."""

    def __init__(self, processor: ImageProcessor, *, vocabulary: int) -> None:
        self._sequence = make_image_probe(processor, vocabulary=vocabulary)
        self.prompt_tokens, self.action_tokens = self._sequence.prompt_tokens, self._sequence.scored_tokens
        encoded = io.BytesIO()
        probe_image().save(encoded, format="PNG")
        self._data = encoded.getvalue()
        self.images = (ScreenshotRef(PROBE_HASH, PROBE_HASH, 0, len(self._data), *PROBE_SIZE),)

    def reading(self, read: ReadScreenshot) -> ReadScreenshot:
        """``read``, which then reads the probe's image too."""
        return lambda ref: self._data if ref == self.images[0] else read(ref)

    def pack(self, images: PromptImages) -> Pack:
        """The probe alone."""
        (pack,) = images.packs([self], max_tokens=len(self.prompt_tokens) + len(self.action_tokens))
        return pack

    @torch.no_grad()
    def own_logprobs(self, model: Any) -> np.ndarray:
        """[12] float32 of the scored tokens, by the forward pass of ``model`` itself."""
        tokens_T = np.concatenate([self.prompt_tokens, self.action_tokens])
        is_piece_T = np.zeros(len(tokens_T), dtype=np.bool_)
        num_pieces = self._sequence.processed.layout.num_pieces
        is_piece_T[len(self.prompt_tokens) - num_pieces : len(self.prompt_tokens)] = True
        tokens = torch.from_numpy(tokens_T).long()[None].to(model.device)
        shown = model_inputs([self._sequence.processed], is_piece_T[None], device=model.device)
        logits = model(input_ids=tokens, **shown, use_cache=False).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        return logprobs[-len(self.action_tokens) :].cpu().numpy()
