"""A tiny random vision-language model, screenshots as the env_server stores them, and what transformers makes of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace

from computerrl.common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.learner.algorithms import PolicyAges
from tests.support.data.trainer_data import make_group, make_step

IMAGE, VISION_START, VISION_END = 1050, 1052, 1053
WIDE, TALL = (150, 100), (60, 120)
"""Width and height in pixels; as grids 5 x 4 and 2 x 4 pieces of 28 x 28."""


_TEXT: dict[str, Any] = {
    "vocab_size": 1100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOWER: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2, "initializer_range": 0.2}
_TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": 1051,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def save_model(path: Path, *, model_type: str = "qwen2_5_vl") -> Path:
    """A random model of 3 layers and a tower of 2, with image processor; its tokenizer is never asked."""
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 100.0}
    wide = {"intermediate_size": 64, "out_hidden_size": 32}
    if model_type == "qwen2_5_vl":
        tower = _TOWER | wide | {"window_size": 56, "fullatt_block_indexes": [1]}
    elif model_type == "qwen2_vl":
        tower = _TOWER | {"embed_dim": 32, "mlp_ratio": 2}
    else:
        tower = _TOWER | wide | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
        rope |= {"mrope_section": [2, 1, 1]}
    text = _TEXT | {"rope_parameters": rope} | ({"head_dim": 8} if model_type == "qwen3_vl" else {})
    config = transformers.AutoConfig.for_model(model_type, text_config=text, vision_config=tower, **_TOKENS)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(path)
    transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 64).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def make_config(folder: Path, tmp_path: Path, *, top_layers: int | None, **learner: Any) -> RunConfig:
    # The log-probs of these batches are made up.
    learner = {"max_logprob_gap": None, "device": "cpu", "optimizer": OptimizerConfig(lr=1e-2), **learner}
    return RunConfig(
        run_dir=str(tmp_path),
        model=ModelConfig(name=str(folder), dtype="float32", trainable_top_layers=top_layers),
        learner=LearnerConfig(**learner),
    )


class Screens:
    """Screenshots as the env_server stores them, and as the model's own processor sees them."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.trajectories = RunFolder(config.folder).trajectories
        self._store = ScreenshotStore(self.trajectories, picture_format="png", incarnation="test")
        self._pixels: dict[str, np.ndarray] = {}
        self._processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def take(self, seed: int, size: tuple[int, int]) -> ScreenshotRef:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        ref = self._store.put(pixels)
        self._pixels[ref.content_hash] = pixels
        return ref

    def inputs(self, ref: ScreenshotRef) -> dict[str, torch.Tensor]:
        """pixel_values and image_grid_thw."""
        return dict(self._processor(images=[self._pixels[ref.content_hash]], return_tensors="pt"))

    def step(
        self, ref: ScreenshotRef, action: Sequence[int], *, before: Sequence[int] = (5, 6), after: Sequence[int] = (7,)
    ) -> Step:
        """Its prompt shows ``ref`` between two texts."""
        num_tokens = int(self.inputs(ref)["image_grid_thw"].prod()) // 4
        prompt = [*before, VISION_START, *[IMAGE] * num_tokens, VISION_END, *after]
        return replace(make_step(prompt, action), screenshot=ref)


def all_tokens(step: Step) -> torch.Tensor:
    return torch.tensor([[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()]])


def own_logprobs(model: Any, screens: Screens, step: Step) -> torch.Tensor:
    """[A] by transformers' own forward pass over one step."""
    tokens = all_tokens(step)
    pictures: dict[str, Any] = {}
    if (step.prompt_tokens == IMAGE).any():
        assert step.screenshot is not None
        pictures = screens.inputs(step.screenshot) | {"mm_token_type_ids": _picture_mask(step)}
    logits = model(input_ids=tokens, **pictures).logits[0, :-1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logprobs[len(step.prompt_tokens) - 1 :]


def _picture_mask(step: Step) -> torch.Tensor:
    mask = np.concatenate([step.prompt_tokens == IMAGE, np.zeros(len(step.action_tokens), np.bool_)])
    return torch.from_numpy(mask.astype(np.int32))[None]


def own_model(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def make_batch(trainer: Any, screens: Screens, model: Any) -> Any:
    """Two groups on policy: the screens of one differ, those of the other are the same."""
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    shown = [[(first, [11, 12, 13]), (second, [11, 12, 13]), (first, [14, 15])], [(third, [11, 12]), (third, [12, 13, 14])]]
    groups = []
    for number, group in enumerate(shown):
        steps = [screens.step(ref, action, after=(7, number)) for ref, action in group]
        exact = [replace(step, behavior_logprobs=own_logprobs(model, screens, step).detach().numpy()) for step in steps]
        groups.append(make_group([(i == 0, [step]) for i, step in enumerate(exact)], group_seq=number))
    return trainer.algorithm.prepare(groups, ages=PolicyAges(0))
