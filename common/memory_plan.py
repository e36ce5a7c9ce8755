"""Memory that the processes of a run take, and what of it the learner may keep instead of computing it again. Estimates from the
configuration and the model's files; starts nothing and asks no machine.

Plans show these figures, and the learner chooses by them (`learner.activation_checkpointing` auto): one estimate for both.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from computerrl.common.config import RunConfig
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import BUILT_IN_MODELS, model_folder
from computerrl.common.models.teacher import teacher_name
from computerrl.common.vision.memory import Kept, text_shape, tower_shape
from computerrl.common.vision.screen_memory import Screen, actor_images, engine_images, screen_of

PROCESS_MB = {
    "broker": 150,
    "env_server": 200,
    "actor/transformers": 900,
    "actor/vllm": 1900,
    "actor/endpoint": 700,
    "actor/agent": 700,
    "actor/central": 450,
    "learner": 450,
}
"""Resident memory of each kind of process without its model: interpreter, libraries, buffers (measured, rounded up)."""
CUDA_HOST_MB = 2000
"""Of the host, for a learner's rank on a GPU: CUDA's libraries and page-locked buffers. Assumed, not measured."""
VLLM_CACHE_MB = 512
"""Of the keys and values that a second vLLM engine in a process keeps on a CPU; the first one's are counted above."""
BUILT_IN_PARAMETERS = {"smollm2-135m": (135_000_000, 30), "tiny-vision": (138_000_000, 30), "tiny-random": (4_000_000, 2)}
"""Parameters and layers of models that may not have been made yet."""
BUILT_IN_OUTPUTS = {"smollm2-135m": (49_152, 576), "tiny-vision": (49_152, 576), "tiny-random": (49_152, 16)}
"""Rows and columns of their output matrices: tokens, and numbers of a token's state."""

Recomputation = Literal["none", "full"]
"""What `learner.activation_checkpointing` comes to."""

LEARNING = ("learner", "one process")
"""Beginnings of the names of those parts of a plan that are the learner's ranks."""

_KEPT_WIDTHS: dict[Recomputation, float] = {"none": 19.7, "full": 1.0}
"""Numbers that a trained layer keeps of a token, by those of the token's state, beside probabilities of attention. Measured
(`computerrl bench learner`): SmolLM2-135M in packs of 4,096 tokens."""
_PROBABILITY_WIDTHS = 19.7 / 4096
"""The same of a token's probabilities of attention, by each token of its pack; nothing where they are recomputed."""
_HELD_SHARE = 0.47
"""Of what keeping all of a trained tower would take, what the C library holds where blocks are recomputed: tensors of many sizes
come and go, and the holes between them are not given back (measured, `computerrl bench vision`; with
MALLOC_MMAP_THRESHOLD_=1048576 in the environment a process holds half of that, and takes a third longer)."""
USED_SHARE = 0.9
"""Part of the free memory that may be planned for: allocators lose some, and activations are estimated."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the learner computes again, and why."""

    recomputation: Recomputation
    reason: str


def choose_recomputation(config: RunConfig, *, room_mb: float, num_sharing: int = 1, on_card: bool = False) -> Choice:
    """The configured value; for auto none where ``num_sharing`` ranks that keep all activations fit into ``room_mb``, which is a
    card's memory if ``on_card``, else full."""
    wanted = config.learner.activation_checkpointing
    if wanted != "auto":
        return Choice(wanted, "configured")
    keeping_mb = num_sharing * learner_mb(config, "none", on_card=on_card)
    fits = keeping_mb <= USED_SHARE * room_mb
    reason = f"keeping all activations takes {keeping_mb} MiB, with a tenth to spare, of {max(0.0, room_mb):.0f} MiB"
    return Choice("none" if fits else "full", reason)


def host_room_mb(config: RunConfig, *, total_mb: int, available_mb: int) -> int:
    """Memory for the learner's ranks on their node: what is available, but not what other processes of the run there take or
    will take."""
    others_mb = 0 if config.cluster.num_worker_nodes else _others_mb(config)
    return min(available_mb, total_mb - others_mb)


def card_room_mb(config: RunConfig, *, total_mb: float, free_mb: float, num_cards: int) -> float:
    """Memory for one rank on its GPU. Where there are no more GPUs than ranks, engines have a part of it."""
    is_shared = not config.cluster.num_worker_nodes and num_cards <= ranks_per_node(config)
    if not is_shared or config.actor.served_at is not None:
        return free_mb
    num_engines = config.actor.num_actors if config.actor.inference == "local" else config.actor.num_engines
    each_mb: float = engine_mb(config, on_card=True)
    if engine_here(config).engine == "vllm":
        # vLLM takes the memory for images beside its share.
        each_mb = config.actor.gpu_memory * total_mb + (engine_images(config).on_device >> 20)
    return min(free_mb, total_mb - math.ceil(num_engines / num_cards) * each_mb)


def ranks_per_node(config: RunConfig) -> int:
    """Ranks of the learner on each of its nodes."""
    return math.ceil(config.learner.num_ranks / config.cluster.num_learner_nodes)


def _others_mb(config: RunConfig) -> int:
    return sum(count * each_mb for what, count, each_mb in memory_parts(config) if not what.startswith(LEARNING))


def memory_parts(config: RunConfig, recomputation: Recomputation = "full") -> list[tuple[str, int, int]]:
    """(what, how many, MiB each) of a run on one machine; estimates, see `PROCESS_MB`. ``recomputation``: see `learner_mb`."""
    num_ranks, rank_mb = config.learner.num_ranks, learner_mb(config, recomputation)
    if config.mode == "serial":
        images_mb = engine_images(config).total >> 20
        return [("one process", 1, rank_mb), *([("images of its engine", 1, images_mb)] if images_mb else [])]
    return [
        ("desktops", config.desktop.num_desktops, config.desktop.memory_per_desktop_mb),
        *_sampling_parts(config, engine_mb(config)),
        ("learner ranks" if num_ranks > 1 else "learner", num_ranks, rank_mb),
        ("broker and env_server", 1, PROCESS_MB["broker"] + PROCESS_MB["env_server"]),
    ]


def _compute_bytes(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _head_bytes(config: RunConfig) -> int:
    """Of the float32 copy of the output matrix that `model.head_dtype` float32 costs."""
    if config.model.head_dtype == "model" or config.model.dtype == "float32" or config.actor.served_at is not None:
        return 0
    return 4 * math.prod(_output_size(config.model.name))


def _sizes(config: RunConfig) -> tuple[int, float, int]:
    """(parameters, trained ones among them, layers)."""
    num_parameters, num_layers = model_size(config.model.name) if config.actor.served_at is None else (0, 1)
    top, of_tower = config.model.trainable_top_layers, _tower_parameters(config)
    of_text = num_parameters - of_tower
    trained = of_text if top is None else of_text * min(1.0, top / max(1, num_layers))
    return num_parameters, trained + (of_tower if config.model.vision == "trained" else 0), num_layers


def _teacher_bytes(config: RunConfig) -> int:
    """Of the compute weights of the run's teacher, which each rank holds whole; 0 without one."""
    name = teacher_name(config)
    if name is None:
        return 0
    of_head = 4 * math.prod(_output_size(name)) if _head_bytes(config) else 0
    return model_size(name)[0] * _compute_bytes(config) + of_head


def _tower_parameters(config: RunConfig) -> int:
    """Of the vision tower; 0 where there is none, or none that is known."""
    tower = None if config.actor.served_at is not None else tower_shape(_config_tree(model_folder(config.model.name)))
    return 0 if tower is None else tower.num_parameters


def learner_mb(config: RunConfig, recomputation: Recomputation, *, on_card: bool = False) -> int:
    """Of one rank: its process, `learner_parts` and `checkpoint_mb`. ``on_card``: of a GPU, which has no part in checkpoints."""
    num_bytes = sum(learner_parts(config, recomputation, on_card=on_card).values())
    return PROCESS_MB["learner"] + int(num_bytes / 2**20) + (0 if on_card else checkpoint_mb(config))


def learner_parts(config: RunConfig, recomputation: Recomputation, *, on_card: bool = False) -> dict[str, float]:
    """Bytes of one rank that computes ``recomputation`` again, unless another one is configured: compute weights, which each rank
    loads whole, and a teacher's; for what is trained, which ranks divide, `_optimizer_bytes`; what a pack's forward pass keeps,
    images included. ``on_card``: without what `learner.optimizer.offload` has in the host's memory."""
    num_parameters, _, num_layers = _sizes(config)
    compute_bytes, wanted = _compute_bytes(config), config.learner.activation_checkpointing
    of_device, of_host = _optimizer_bytes(config)
    is_offloaded = config.learner.optimizer.offload
    computed_again = recomputation if wanted == "auto" else wanted
    widths = _KEPT_WIDTHS[computed_again] + (_PROBABILITY_WIDTHS * config.max_pack_tokens if computed_again == "none" else 0)
    kept = _activation_bytes(config, num_layers, kept_widths=widths, keeps_all=computed_again == "none")
    images = image_plan(config, recomputation, on_card=on_card)
    if images is not None:
        # A frozen tower has ended its work when the language model begins.
        pass_bytes, features = images.pass_mb * 2**20, images.features_mb * 2**20
        kept = (max(kept, pass_bytes) if config.model.vision == "frozen" else kept + pass_bytes) + features
    return {
        "weights": num_parameters * compute_bytes + _head_bytes(config),
        "gradient" if is_offloaded else "masters, moments and gradient": of_device,
        "activations": kept,
        "teacher": _teacher_bytes(config),
        "offloaded masters and moments": 0 if on_card else of_host,
    }


def _optimizer_bytes(config: RunConfig) -> tuple[float, float]:
    """Of one rank, which has its share of what is trained: (bytes of its device, bytes of the host).

    In fp32 two Adam moments, a gradient, and a master where the weights are none themselves. `learner.optimizer.offload` leaves
    the gradient on the device, and beside it fp32 slices of weights in 16 bits where ranks divide them; masters, moments and a
    buffer for the gradient are then the host's.
    """
    _, trained, _ = _sizes(config)
    share = trained / config.learner.num_ranks
    if config.learner.lora is not None:
        # Adapters are a hundredth of the weights.
        return 0.0, 0.0
    is_master = _compute_bytes(config) == 4
    if not config.learner.optimizer.offload:
        return share * (12 if is_master else 16), 0.0
    return share * (4 if is_master or config.learner.num_ranks == 1 else 8), share * 16


def offloaded_mb(config: RunConfig) -> int:
    """Of the host, for one rank: what `learner.optimizer.offload` has there."""
    return int(_optimizer_bytes(config)[1] / 2**20)


def checkpoint_mb(config: RunConfig) -> int:
    """Of the copy of masters and moments, in fp32, that one rank writes as a checkpoint; on the host, wherever it trains."""
    _, trained, _ = _sizes(config)
    return 0 if config.learner.lora is not None else int(12 * trained / config.learner.num_ranks / 2**20)


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What the images of a run take."""

    screen: Screen
    num_in_pack: int
    """Different screens that fit into a pack."""
    pass_mb: int
    """What the learner's tower takes at work: for one pass while it is frozen, for all screens of a pack when it is trained."""
    features_mb: int
    """Features that the learner keeps while the tower is frozen, at most."""


def image_plan(config: RunConfig, recomputation: Recomputation, *, on_card: bool = False) -> ImagePlan | None:
    """None without a `screen_of` the run. ``on_card``: the learner's tower works on a GPU.

    Raises `ConfigError` for a folder without an image processor."""
    screen = screen_of(config)
    if screen is None:
        return None
    num_in_pack = max(1, config.max_pack_tokens // screen.num_tokens)
    tower, patches = screen.tower, screen.num_patches
    element_bytes, wanted = _compute_bytes(config), config.learner.activation_checkpointing
    if config.model.vision == "frozen":
        kept: Kept = "nothing"
        num_at_once = min(config.learner.images_per_pass, num_in_pack)
    else:
        recomputed = (recomputation if wanted == "auto" else wanted) == "full"
        num_at_once, kept = num_in_pack, "inputs" if recomputed else "everything"
    num_bytes = tower.pass_bytes(num_at_once * patches, kept=kept, element_bytes=element_bytes)
    if kept == "inputs" and not on_card:
        everything = tower.pass_bytes(num_at_once * patches, kept="everything", element_bytes=element_bytes)
        num_bytes = max(num_bytes, int(_HELD_SHARE * everything))
    features_mb = config.learner.image_cache_mb if config.model.vision == "frozen" else 0
    return ImagePlan(screen, num_in_pack, num_bytes >> 20, features_mb)


def engine_mb(config: RunConfig, *, on_card: bool = False) -> int:
    """Of a process that samples: serving weights, which the transformers engine packs anew on a CPU, older ones beside them where
    it keeps some, a staging copy of what is broadcast, and images. ``on_card``: images count with their part on a GPU alone."""
    num_parameters, trained, _ = _sizes(config)
    engine = engine_here(config).engine
    packed = engine == "transformers" and config.learner.device != "cuda"
    num_models = 1 if config.actor.older_policy_every is None else 2
    served = num_parameters * (2 if packed else 1) * num_models
    num_bytes = (served + trained) * _compute_bytes(config) + num_models * _head_bytes(config)
    memory_mb = PROCESS_MB[f"actor/{engine}"] + int(num_bytes / 2**20)
    if engine == "vllm" and config.actor.older_policy_every is not None:
        memory_mb += VLLM_CACHE_MB
    images = engine_images(config)
    return memory_mb + ((images.on_device if on_card else images.total) >> 20)


@dataclass(frozen=True, slots=True)
class EngineCard:
    """What a vLLM engine takes of each of its GPUs."""

    weights_bytes: float
    images_bytes: float
    """Beside its share."""
    cache_bytes: float
    """Keys and values: what is left of its share. Below 0: the weights alone do not fit."""
    num_cached_tokens: int


def engine_card(config: RunConfig, *, card_bytes: float) -> EngineCard:
    """Of an engine whose GPUs have ``card_bytes`` each."""
    num_parts, element_bytes = config.actor.tensor_parallel_size, _compute_bytes(config)
    weights = (_sizes(config)[0] * element_bytes) / num_parts
    left = config.actor.gpu_memory * card_bytes - weights - PROCESS_MB["learner"] * 2**20
    shape = text_shape(_config_tree(model_folder(config.model.name)))
    token_bytes = 0.0 if shape is None else shape.kv_bytes(1, element_bytes=element_bytes) / min(num_parts, shape.num_kv_heads)
    num_tokens = int(max(0.0, left) / token_bytes) if token_bytes else 0
    return EngineCard(weights, engine_images(config).on_device, left, num_tokens)


def central_actor_mb(config: RunConfig) -> int:
    """Of an actor for which engine processes sample."""
    return PROCESS_MB["actor/central"] + (actor_images(config).total >> 20)


def _sampling_parts(config: RunConfig, engine_mb: int) -> list[tuple[str, int, int]]:
    """Actors, and engine processes where those have the engines."""
    actor = config.actor
    if actor.inference == "local":
        return [("actors" if actor.num_actors > 1 else "actor", actor.num_actors, engine_mb)]
    return [
        ("engines" if actor.num_engines > 1 else "engine", actor.num_engines, engine_mb),
        ("actors" if actor.num_actors > 1 else "actor", actor.num_actors, central_actor_mb(config)),
    ]


def _activation_bytes(config: RunConfig, num_layers: int, *, kept_widths: float, keeps_all: bool) -> float:
    """Of one pack, estimated; where ranks share it, of one's slice, and of the keys and values that layers gather."""
    if config.actor.served_at is not None:
        return 0.0
    # Gradients of a tower pass all layers.
    top = None if config.model.vision == "trained" else config.model.trainable_top_layers
    layers = num_layers if top is None else min(top, num_layers)
    _, width = _output_size(config.model.name)
    own = config.max_pack_tokens * width * kept_widths * _compute_bytes(config) * layers
    num_sharing = config.learner.context_parallel_size
    return own if num_sharing == 1 else own / num_sharing + _gathered_bytes(config, num_kept=layers if keeps_all else 1)


def _gathered_bytes(config: RunConfig, *, num_kept: int) -> float:
    """Of the keys and values of a whole pack: those that ``num_kept`` layers keep, and the fp32 gradients of one layer's. 0 where
    the model's files do not give their sizes."""
    shape = text_shape(_config_tree(model_folder(config.model.name)))
    if shape is None:
        return 0.0
    of_layers = num_kept * shape.kv_bytes(config.max_pack_tokens, element_bytes=_compute_bytes(config))
    return (of_layers + shape.kv_bytes(config.max_pack_tokens, element_bytes=4)) / shape.num_layers


def model_size(name: str) -> tuple[int, int]:
    """(parameters, layers), from the files' sizes; (0, 1) when there is no such model (another check reports it)."""
    if name in BUILT_IN_MODELS:
        return BUILT_IN_PARAMETERS[name]
    folder = model_folder(name)
    try:
        tree = _config_tree(folder)
        num_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        element_bytes = 4 if (tree.get("dtype") or tree.get("torch_dtype")) == "float32" else 2
        # A model that takes pictures has its language model's sizes in a tree of their own.
        return num_bytes // element_bytes, int((tree.get("text_config") or tree).get("num_hidden_layers", 1))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0, 1


def _output_size(name: str) -> tuple[int, int]:
    """(tokens, numbers of a token's state): rows and columns of the output matrix; zeros when there is no such model (another
    check reports it)."""
    if name in BUILT_IN_MODELS:
        return BUILT_IN_OUTPUTS[name]
    try:
        tree = _config_tree(model_folder(name))
        text = tree.get("text_config") or tree
        return int(text["vocab_size"]), int(text["hidden_size"])
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return 0, 0


def _config_tree(folder: Path) -> dict[str, Any]:
    """config.json in ``folder``; empty where there is none that can be read (another check reports it)."""
    try:
        tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
