"""A tiny random vision-language model, screenshots as the env_server stores them, and what transformers makes of both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from PIL import Image

from computerrl.common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.messages import ScreenshotRef, Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.vision.processor import Processed, load_processor
from computerrl.common.vision.tower import model_inputs
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.images import ImageFolder
from computerrl.learner.model.policy import Policy
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


FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "idefics3", "smolvlm")
"""One of each kind of folder that is a policy."""

TILE, PATCH, SCALE = 56, 14, 2
"""Families of tiles: side of a tile and of a patch in pixels, and how many patches by how many one token stands for."""


def save_model(
    path: Path,
    *,
    model_type: str = "qwen2_5_vl",
    vocab_size: int = _TEXT["vocab_size"],
    image_token: int = IMAGE,
    text: Mapping[str, Any] | None = None,
    tower: Mapping[str, Any] | None = None,
    tied: bool = False,
) -> Path:
    """A random model of 3 layers and a tower of 2, with image processor; its tokenizer is never asked. ``text``, ``tower``:
    settings of the language model and of the tower that are others than here. ``tied``: the output matrix is the embedding."""
    config = _tiled_config(model_type) if model_type in ("idefics3", "smolvlm") else _grid_config(model_type)
    config.text_config.vocab_size, config.image_token_id = vocab_size, image_token
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = tied
    for name, value in (text or {}).items():
        setattr(config.text_config, name, value)
    for name, value in (tower or {}).items():
        setattr(config.vision_config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(path)
    _processor(model_type).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def _grid_config(model_type: str) -> Any:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 100.0}
    wide = {"intermediate_size": 64, "out_hidden_size": 32}
    tokens = dict(_TOKENS)
    if model_type == "qwen2_5_vl":
        tower = _TOWER | wide | {"window_size": 56, "fullatt_block_indexes": [1]}
    elif model_type == "qwen2_vl":
        tower = _TOWER | {"embed_dim": 32, "mlp_ratio": 2}
    elif model_type == "glm4v":
        tower = _TOWER | wide | {"image_size": 336}
        tokens = {name.replace("vision_", "image_"): token for name, token in tokens.items()}
    else:
        tower = _TOWER | wide | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16, "patch_size": PATCH}
        rope |= {"mrope_section": [2, 1, 1]}
    text = _TEXT | {"rope_parameters": rope, "pad_token_id": 0} | ({"head_dim": 8} if model_type == "qwen3_vl" else {})
    return transformers.AutoConfig.for_model(model_type, text_config=text, vision_config=tower, **tokens)


def _tiled_config(model_type: str) -> Any:
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
    }
    tower |= {"image_size": TILE, "patch_size": PATCH}
    text = _TEXT | {"model_type": "llama", "pad_token_id": 0}
    return transformers.AutoConfig.for_model(
        model_type, text_config=text, vision_config=tower, image_token_id=IMAGE, scale_factor=SCALE, pad_token_id=0
    )


def _processor(model_type: str) -> Any:
    if model_type in ("idefics3", "smolvlm"):
        name = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessor"}[model_type]
        edges = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
        return getattr(transformers, name)(**edges)
    name = "Glm4vImageProcessor" if model_type == "glm4v" else "Qwen2VLImageProcessor"
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}
    return getattr(transformers, name)(size=size, patch_size=PATCH)


def make_config(
    folder: Path, tmp_path: Path, *, top_layers: int | None, vision: Literal["frozen", "trained"] = "frozen", **learner: Any
) -> RunConfig:
    # The log-probs of these batches are made up.
    learner = {"max_logprob_gap": None, "device": "cpu", "optimizer": OptimizerConfig(lr=1e-2), **learner}
    return RunConfig(
        run_dir=str(tmp_path),
        model=ModelConfig(name=str(folder), dtype="float32", trainable_top_layers=top_layers, vision=vision),
        learner=LearnerConfig(**learner),
    )


class Screens:
    """Screenshots as the learner has them, and as the model's own processor sees them."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.images = RunFolder(config.folder).images
        self._store = ScreenshotStore(RunFolder(config.folder).trajectories, picture_format="png", incarnation="test")
        self._pixels: dict[str, np.ndarray] = {}
        self._processor = load_processor(folder)
        self.image_token = self._processor.image_token

    def take(self, seed: int, size: tuple[int, int]) -> ScreenshotRef:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        ref = self._store.put(pixels)
        ImageFolder(self.images).fetch([ref.content_hash], lambda names: {ref.content_hash: self._store.get(ref)})
        self._pixels[ref.content_hash] = pixels
        return ref

    def processed(self, ref: ScreenshotRef) -> Processed:
        return self._processor.process(Image.fromarray(self._pixels[ref.content_hash]))

    def step(
        self, *refs: ScreenshotRef, action: Sequence[int], before: Sequence[int] = (5, 6), after: Sequence[int] = (7,)
    ) -> Step:
        """Its prompt shows ``refs`` between two texts."""
        shown = [token for ref in refs for token in self._tokens(ref)]
        return replace(make_step([*before, *shown, *after], action), screenshot=refs[-1] if refs else None, images=refs)

    def _tokens(self, ref: ScreenshotRef) -> list[int]:
        """Tokens of one image, with markers as its family has them."""
        layout = self._processor.layout(ref.width, ref.height)
        if layout.grid is not None:
            return [VISION_START, *[self.image_token] * layout.num_pieces, VISION_END]
        num_tiles = layout.tiles.num_pieces + 1
        pieces = [self.image_token] * (layout.num_pieces // num_tiles)
        tiles = [[VISION_START, 1060 + number, *pieces] for number in range(num_tiles)]
        return [*itertools.chain.from_iterable(tiles), VISION_END]


def all_tokens(step: Step) -> torch.Tensor:
    return torch.tensor([[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()]])


def image_inputs(screens: Screens, step: Step) -> dict[str, torch.Tensor]:
    """The images of a step as arguments of transformers' own forward pass; none without images."""
    if not step.images:
        return {}
    is_piece = np.concatenate([step.prompt_tokens == screens.image_token, np.zeros(len(step.action_tokens), np.bool_)])
    return model_inputs([screens.processed(ref) for ref in step.images], is_piece[None], device="cpu")


def own_logprobs(model: Any, screens: Screens, step: Step) -> torch.Tensor:
    """[A] by transformers' own forward pass over one step.

    An image token in the action is text. transformers would look for an image behind it, so that it gets an unused token there,
    which is embedded as the image token is."""
    tokens, num_prompt = all_tokens(step), len(step.prompt_tokens)
    unused = next(token for token in range(100, 1000) if token not in tokens)
    given = tokens.clone()
    given[0, num_prompt:][given[0, num_prompt:] == screens.image_token] = unused

    def embed_as_image_token(_: Any, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (arguments[0].masked_fill(arguments[0] == unused, screens.image_token),)

    with model.get_input_embeddings().register_forward_pre_hook(embed_as_image_token):
        logits = model(input_ids=given, **image_inputs(screens, step)).logits[0, :-1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    return logprobs[num_prompt - 1 :]


def packed_logprobs(policy: Policy, steps: Sequence[Step], *, max_tokens: int = 4096) -> list[torch.Tensor]:
    """[A] of each step, by a learner's passes over packs of at most ``max_tokens`` tokens."""
    found: dict[int, torch.Tensor] = {}
    for pack in policy.packs(steps, max_tokens=max_tokens):
        logprobs_M = policy.forward(pack, temperature=1.0).logprobs_U[torch.from_numpy(pack.token_pair_M)]
        lengths = [len(steps[i].action_tokens) for i in pack.samples_S]
        found |= dict(zip(pack.samples_S.tolist(), logprobs_M.detach().split(lengths), strict=True))
    return [found[i] for i in range(len(steps))]


def own_model(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def make_batch(trainer: Any, screens: Screens, model: Any) -> Any:
    """Two groups on policy: the screens of one differ; those of the other begin with the same one, and some are two or three."""
    first, second, third = screens.take(1, WIDE), screens.take(2, WIDE), screens.take(3, TALL)
    shown: list[list[tuple[tuple[ScreenshotRef, ...], list[int]]]] = [
        [((first,), [11, 12, 13]), ((second,), [11, 12, 13]), ((first,), [14, 15])],
        [
            ((third,), [11, 12]),
            ((third,), [12, 13, 14]),
            ((third, first), [11, 12]),
            ((third, second), [11, 12]),
            ((third, second, third), [13]),
        ],
    ]
    groups = []
    for number, group in enumerate(shown):
        steps = [screens.step(*refs, action=action, after=(7, number)) for refs, action in group]
        exact = [replace(step, behavior_logprobs=own_logprobs(model, screens, step).detach().numpy()) for step in steps]
        groups.append(make_group([(i == 0, [step]) for i, step in enumerate(exact)], group_seq=number))
    return trainer.algorithm.prepare(groups, ages=PolicyAges(0))
