"""What the battery `gpu` measures with: models, prompts and rounds, in full, quick, and tiny for a CPU.

The same parts run in all three. Tests play the tiny one, so that what a GPU will run has run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from computerrl.benchmarks.engines._images import TINY as TINY_SCREENS
from computerrl.benchmarks.engines._images import WIDE as WIDE_SCREENS
from computerrl.benchmarks.engines._images import Size
from computerrl.benchmarks.engines._load import Load


@dataclass(frozen=True, slots=True)
class Model:
    """A built-in model, or a random one of a given shape."""

    name: str
    shape: Mapping[str, Any] | None = None
    """Arguments of a `transformers.LlamaConfig`; None: built in."""
    training_gib: int = 0
    """GPU memory with which it can be trained, by the padded peer too."""

    def folder(self, models: Path) -> Path:
        """Its files; a random one is made below ``models`` when it is not there."""
        from computerrl.learner.model_store import ensure_model

        if self.shape is None:
            return ensure_model(self.name)
        folder = models / self.name
        if not (folder / "config.json").is_file():
            partial = folder.with_suffix(".partial")
            _save_random(self.shape, partial)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(ensure_model("tiny-random") / name, partial / name)
            partial.rename(folder)
        return folder


def _save_random(shape: Mapping[str, Any], folder: Path) -> None:
    import torch
    import transformers

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    # Some versions of vLLM choose the class of the model by it.
    config = transformers.LlamaConfig(**shape, **ids, tie_word_embeddings=True, architectures=["LlamaForCausalLM"])
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # In one file, so that its size is the model's.
    model.save_pretrained(folder, max_shard_size="100GB")


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """Of an engine's measurement."""

    model: Model
    load: Load
    episodes: tuple[int, ...]
    """Numbers of episodes at a time."""
    rounds: int
    """Besides one that warms up."""
    gap_episodes: int = 8
    """Whose answers the learner scores."""
    is_eager: bool = False
    """vLLM compiles nothing and captures no graphs: it starts sooner, and is slower."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the whole battery."""

    device: str
    dtype: str
    """Type of weights of learner and engines."""
    checked_model: str
    """Of the gradient, of ranks, and of broadcasts: a built-in one."""
    learner: tuple[Model, ...]
    vllm: EngineSizes
    transformers: EngineSizes
    split: Model
    """Of vLLM in parts: its heads can be divided."""
    screens: Size
    learner_steps: int = 3
    """Besides one that warms up."""
    num_groups: int = 2
    """Recorded groups of the learner's batch."""
    max_rollouts: int | None = None
    """Of a group; None: all."""
    max_steps: int | None = None
    """Of a rollout; None: all."""
    update_rounds: int = 3
    image_rounds: int = 2
    part_limit_s: float = 300.0
    """A part that takes longer hangs: it is ended, and failed."""
    gpu_memory: float = 0.6
    """vLLM's share of the GPU."""
    attention_kernel: Callable[..., Any] | None = None
    """In place of the installed one, which a CPU does not have."""
    models: Path = field(default_factory=Path)
    """Folder of random models; the battery sets it."""
    num_gpus: int = 1
    """The battery sets it: of parts that need several."""

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


SMOLLM2 = Model("smollm2-135m", training_gib=12)
WIDE = Model(
    "random-1.6b",
    shape={
        "vocab_size": 49_152,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    },
    training_gib=42,
)
_NARROW = Model(
    "random-narrow",
    shape={
        "vocab_size": 2048,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
    },
)
"""Heads of 32 numbers are the smallest that vLLM takes on a CPU."""
_LOAD = Load(num_steps=3, num_prompt_tokens=600, num_new_per_step=40, num_action_tokens=32)
_TINY_LOAD = Load(num_steps=2, num_prompt_tokens=40, num_new_per_step=8, num_action_tokens=4)
_TINY_ENGINE = EngineSizes(_NARROW, _TINY_LOAD, episodes=(2, 3), rounds=1, gap_episodes=2, is_eager=True)

FULL = Sizes(
    device="cuda",
    dtype="bfloat16",
    checked_model=SMOLLM2.name,
    learner=(WIDE, SMOLLM2),
    vllm=EngineSizes(WIDE, _LOAD, episodes=(16, 64, 256), rounds=2),
    transformers=EngineSizes(SMOLLM2, _LOAD, episodes=(16, 64), rounds=2),
    split=WIDE,
    screens=WIDE_SCREENS,
)
QUICK = replace(
    FULL,
    learner=(SMOLLM2,),
    vllm=EngineSizes(SMOLLM2, _LOAD, episodes=(16, 64), rounds=1, is_eager=True),
    learner_steps=2,
    update_rounds=1,
)
TINY = Sizes(
    device="cpu",
    dtype="bfloat16",
    checked_model="tiny-random",
    learner=(Model("tiny-random"),),
    vllm=_TINY_ENGINE,
    transformers=_TINY_ENGINE,
    split=_NARROW,
    screens=TINY_SCREENS,
    learner_steps=1,
    num_groups=1,
    max_rollouts=2,
    max_steps=1,
    update_rounds=1,
    image_rounds=1,
    part_limit_s=3000.0,
)
