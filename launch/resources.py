"""What each process of a run takes: memory, processor cores, GPUs. Estimates from the configuration and the model's files; starts
nothing and asks no machine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from common.config import RunConfig
from common.messages import Role
from common.model_folder import BUILT_IN_MODELS, model_folder

PROCESS_MB = {
    "broker": 150, "env_server": 200, "actor/transformers": 900, "actor/vllm": 1900, "actor/endpoint": 700,
    "actor/central": 450, "learner": 1000,
}  # fmt: skip
"""Resident memory of each kind of process without its model: interpreter, libraries, buffers (measured, rounded up)."""
VLLM_CACHE_MB = 512
"""Of the keys and values that a second vLLM engine in a process keeps on a CPU; the first one's are counted above."""
BUILT_IN_PARAMETERS = {"smollm2-135m": (135_000_000, 30), "tiny-random": (4_000_000, 2)}
"""Parameters and layers of models that may not have been made yet."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one process on one node."""

    num_cores: int = 1
    memory_mb: int = 0
    num_gpus: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.num_cores + other.num_cores, self.memory_mb + other.memory_mb, self.num_gpus + other.num_gpus
        )


def role_resources(config: RunConfig) -> dict[Role, Resources]:
    """What one process of each role takes on its node; the learner: all its ranks there. GPUs are one for each rank and for each
    process that samples, whether or not there are any."""
    cluster, actor = config.cluster, config.actor
    is_central = actor.inference == "central"
    ranks_per_node = math.ceil(config.learner.num_ranks / cluster.num_learner_nodes)
    engine_cores = actor.num_threads or cluster.cores_per_engine
    learner_mb, engine_mb = _learner_mb(config), _engine_mb(config)
    desktops_mb = config.desktop.num_desktops * config.desktop.memory_per_desktop_mb
    desktop_cores = max(1, math.ceil(config.desktop.num_desktops * cluster.cores_per_desktop))
    found: dict[Role, tuple[int, float, int]] = {
        "broker": (1, PROCESS_MB["broker"], 0),
        "env_server": (desktop_cores, PROCESS_MB["env_server"] + desktops_mb, 0),
        "engine": (engine_cores, engine_mb, 1),
        "actor": (1, PROCESS_MB["actor/central"], 0) if is_central else (engine_cores, engine_mb, 1),
        "learner": (
            ranks_per_node * (config.learner.num_threads or cluster.cores_per_rank), ranks_per_node * learner_mb, ranks_per_node,
        ),
    }  # fmt: skip
    return {
        role: Resources(num_cores, math.ceil(memory_mb * cluster.memory_margin), num_gpus)
        for role, (num_cores, memory_mb, num_gpus) in found.items()
    }


_KEPT_WIDTHS = {"none": 37.0, "selective": 10.0, "full": 1.0}
"""Numbers that a trained layer keeps of a token, by those of the token's state. Measured (`computerrl bench learner`):
SmolLM2-135M in packs of 4,096 tokens, where probabilities of attention are half of what is kept without recomputation."""


def memory_parts(config: RunConfig) -> list[tuple[str, int, int]]:
    """(what, how many, MiB each) of a run on one machine; estimates, see `PROCESS_MB`."""
    learner_mb, num_ranks = _learner_mb(config), config.learner.num_ranks
    if config.mode == "serial":
        return [("one process", 1, learner_mb)]
    return [
        ("desktops", config.desktop.num_desktops, config.desktop.memory_per_desktop_mb),
        *_sampling_parts(config, _engine_mb(config)),
        ("learner ranks" if num_ranks > 1 else "learner", num_ranks, learner_mb),
        ("broker and env_server", 1, PROCESS_MB["broker"] + PROCESS_MB["env_server"]),
    ]


def _compute_bytes(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _sizes(config: RunConfig) -> tuple[int, float, int]:
    """(parameters, trained ones among them, layers)."""
    num_parameters, num_layers = model_size(config.model.name) if config.actor.endpoint is None else (0, 1)
    top = config.model.trainable_top_layers
    trained = num_parameters if top is None else num_parameters * min(1.0, top / max(1, num_layers))
    return num_parameters, trained, num_layers


def _learner_mb(config: RunConfig) -> int:
    """Of one rank: compute weights, which each rank loads whole; for what is trained two Adam moments and a gradient in fp32, and
    a master where the weights are none themselves, which ranks divide; what a pack's forward pass keeps."""
    num_parameters, trained, num_layers = _sizes(config)
    compute_bytes = _compute_bytes(config)
    trained_bytes = 12 if compute_bytes == 4 else 16
    kept = _activation_bytes(config, num_parameters, num_layers, compute_bytes=compute_bytes)
    num_bytes = num_parameters * compute_bytes + trained * trained_bytes / config.learner.num_ranks + kept
    return PROCESS_MB["learner"] + int(num_bytes / 2**20)


def _engine_mb(config: RunConfig) -> int:
    """Of a process that samples: serving weights, which the transformers engine packs anew on a CPU, older ones beside them where
    it keeps some, and a staging copy of what is broadcast."""
    num_parameters, trained, _ = _sizes(config)
    packed = config.actor.engine == "transformers" and config.learner.device != "cuda"
    served = num_parameters * (2 if packed else 1) * (1 if config.actor.older_policy_every is None else 2)
    memory_mb = PROCESS_MB[f"actor/{config.actor.engine}"] + int((served + trained) * _compute_bytes(config) / 2**20)
    if config.actor.engine == "vllm" and config.actor.older_policy_every is not None:
        memory_mb += VLLM_CACHE_MB
    return memory_mb


def _sampling_parts(config: RunConfig, engine_mb: int) -> list[tuple[str, int, int]]:
    """Actors, and engine processes where those have the engines."""
    actor = config.actor
    if actor.inference == "local":
        return [("actors" if actor.num_actors > 1 else "actor", actor.num_actors, engine_mb)]
    return [
        ("engines" if actor.num_engines > 1 else "engine", actor.num_engines, engine_mb),
        ("actors" if actor.num_actors > 1 else "actor", actor.num_actors, PROCESS_MB["actor/central"]),
    ]


def _activation_bytes(config: RunConfig, num_parameters: int, num_layers: int, *, compute_bytes: int) -> float:
    """Of one pack, estimated."""
    top = config.model.trainable_top_layers
    layers = num_layers if top is None else min(top, num_layers)
    # A layer of a transformer has about 12 times the square of its width.
    width = (num_parameters / (12 * max(1, num_layers))) ** 0.5
    numbers = width * _KEPT_WIDTHS[config.learner.activation_checkpointing]
    return config.max_pack_tokens * numbers * compute_bytes * layers


def model_size(name: str) -> tuple[int, int]:
    """(parameters, layers), from the files' sizes; (0, 1) when there is no such model (another check reports it)."""
    if name in BUILT_IN_MODELS:
        return BUILT_IN_PARAMETERS[name]
    folder = model_folder(name)
    try:
        tree = json.loads((folder / "config.json").read_text())
        num_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        element_bytes = 4 if (tree.get("dtype") or tree.get("torch_dtype")) == "float32" else 2
        # A model that takes pictures has its language model's sizes in a tree of their own.
        return num_bytes // element_bytes, int((tree.get("text_config") or tree).get("num_hidden_layers", 1))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0, 1
