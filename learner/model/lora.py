"""Low-rank adapters (LoRA, Hu et al. 2021, eq. 3): weight + alpha / rank * up down, of which only `up` and `down` are trained.

peft puts them into the model; which tensors they are is then told from their names, so that a checkpoint can be merged without
it. Receivers of weights and exported folders never see an adapter: they get merged weights under the base model's names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from computerrl.common.config import LoraConfig
from computerrl.common.errors import ConfigError, Problem, SetupError

_DOWN = ".lora_A.default.weight"
_UP = ".lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class Adapter:
    """The names of one adapted weight's parts."""

    module: str
    scaling: float
    """alpha / rank"""

    @property
    def weight(self) -> str:
        """In the base model."""
        return f"{self.module}.weight"

    @property
    def base(self) -> str:
        """The same tensor in the adapted model; frozen."""
        return f"{self.module}.base_layer.weight"

    @property
    def down(self) -> str:
        """[rank, in]"""
        return self.module + _DOWN

    @property
    def up(self) -> str:
        """[out, rank]"""
        return self.module + _UP

    def merged(self, base: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """[out, in] in the type of ``base``; added up in float32."""
        return (base.float() + self.scaling * (up.float() @ down.float())).to(base.dtype)


def adapters_among(names: Iterable[str], lora: LoraConfig | None) -> tuple[Adapter, ...]:
    """The adapters whose parts are among the tensors ``names``; none without ``lora``."""
    if lora is None:
        return ()
    modules = [name.removesuffix(_DOWN) for name in names if name.endswith(_DOWN)]
    return tuple(Adapter(module, lora.alpha / lora.rank) for module in modules)


def add_adapters(model: Any, lora: LoraConfig, *, first_layer: int, seed: int) -> None:
    """Put adapters into the layers of ``model`` from ``first_layer`` on. They change nothing yet: every `up` begins as zero.

    ``seed``: of the other half, which must begin the same on all ranks and after every restart. Raises `SetupError` without
    peft, `ConfigError` when a target is no linear layer of the model.
    """
    if importlib.util.find_spec("peft") is None:
        step = ".venv/bin/pip install peft, or remove learner.lora"
        raise SetupError(Problem("peft", "not installed, and learner.lora needs it", step))
    import peft

    layers = model.get_decoder().layers
    linear = {name.rpartition(".")[2] for name, module in layers.named_modules() if isinstance(module, torch.nn.Linear)}
    unknown = [target for target in lora.targets if target not in linear]
    if unknown:
        reason = f"{', '.join(unknown)}: no linear layer of {type(model).__name__} is called so"
        raise ConfigError([Problem("learner.lora.targets", reason, f"use some of {', '.join(sorted(linear))}")])
    # A vision tower's layers have numbers and names as well; it stays as it is.
    of_layers = set(layers.modules())
    outside = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module not in of_layers]
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        lora_dropout=0.0,
        bias="none",
        layers_to_transform=list(range(first_layer, len(layers))),
        exclude_modules=outside,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model)
