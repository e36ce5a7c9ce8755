"""The tensors that `weights` sends: all of a model in bfloat16, 269 MB of SmolLM2-135M."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from computerrl.learner.model_store import ensure_model

MODEL = "smollm2-135m"


def model_tensors(model: str = MODEL) -> dict[str, torch.Tensor]:
    """Hugging Face name -> tensor. ``model``: a built-in one or a folder."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(ensure_model(model).glob("*.safetensors")):
        found |= load_file(path)
    return {name: tensor.to(torch.bfloat16) for name, tensor in found.items()}
