"""How far a stage has come: kept in a file from time to time, so that whoever was ended goes on from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

_STEP = "step"


class Progress:
    """Trained tensors, the state of their optimizer, and the number of steps done, in one file."""

    def __init__(self, file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        """``tensors``: those that are trained; kept and restored in place."""
        self._file = file
        self._tensors = tensors

    def restore(self, optimizer: torch.optim.Optimizer) -> int:
        """Number of steps done: 0 where there is no file. Raises `RuntimeError` when the file is of another model."""
        if not self._file.exists():
            return 0
        kept = load_file(self._file)
        with safe_open(self._file, framework="pt") as file:
            steps = int((file.metadata() or {})[_STEP])
        if set(self._tensors) != {name.removeprefix("value.") for name in kept if name.startswith("value.")}:
            raise RuntimeError(f"{self._file} is of another model: remove it to begin anew")
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(kept[f"value.{name}"])
        for number, parameter in enumerate(_parameters(optimizer)):
            parts = {part: kept[key] for part in ("step", "exp_avg", "exp_avg_sq") if (key := f"{part}.{number}") in kept}
            if parts:
                optimizer.state[parameter] = {
                    part: tensor if part == "step" else tensor.to(parameter.device) for part, tensor in parts.items()
                }
        return steps

    def keep(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Replaces the file as a whole."""
        kept = {f"value.{name}": tensor.detach().contiguous() for name, tensor in self._tensors.items()}
        for number, parameter in enumerate(_parameters(optimizer)):
            kept |= {f"{part}.{number}": tensor for part, tensor in optimizer.state.get(parameter, {}).items()}
        new = self._file.with_suffix(".new")
        save_file(kept, new, metadata={_STEP: str(steps)})
        os.replace(new, self._file)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
