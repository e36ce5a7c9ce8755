"""What a GPU holds of a run, part by part, and what to change where it does not fit: estimates, see `common.memory_plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from computerrl.common.config import RunConfig
from computerrl.common.memory_plan import (
    PROCESS_MB,
    USED_SHARE,
    Recomputation,
    choose_recomputation,
    engine_card,
    learner_mb,
    learner_parts,
    offloaded_mb,
)

_MAX_RANKS = 64
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class CardPlan:
    """Lines that tell what each kind of GPU of a run holds."""

    lines: tuple[str, ...]
    fits: bool


def plan_cards(config: RunConfig, *, num_cards: int, card_gb: float) -> CardPlan:
    """For ``num_cards`` GPUs of ``card_gb`` gigabytes (of 10^9 bytes) on each node: ranks take the first, engines those of the
    worker nodes, the others, or a part of each rank's where none is left. Engines are vLLM's."""
    card_bytes = card_gb * 1e9
    num_nodes, num_free = config.cluster.num_worker_nodes, num_cards - config.learner.num_ranks
    has_own = num_nodes > 0 or num_free > 0
    num_engines = config.actor.num_actors if config.actor.inference == "local" else config.actor.num_engines
    num_of_engines = num_cards if num_nodes or not has_own else num_free
    num_on_card = math.ceil(math.ceil(num_engines / max(1, num_nodes)) * config.actor.tensor_parallel_size / num_of_engines)
    engine = engine_card(config, card_bytes=card_bytes)
    share = num_on_card * (config.actor.gpu_memory * card_bytes + engine.images_bytes)
    room = card_bytes - (0 if has_own else share)
    learner_lines, learner_fits = _learner(config, room=room, card_bytes=card_bytes, shares=not has_own)
    engine_lines, engine_fits = _engine(config, card_bytes=card_bytes)
    if share > card_bytes:
        reason = f"{num_on_card} engines on a GPU take {_gib(share)} of {_gib(card_bytes)}"
        engine_lines.append(f"  does not fit: {reason}; lower actor.gpu_memory, actor.num_actors or actor.num_engines")
        engine_fits = False
    return CardPlan((*learner_lines, *engine_lines), learner_fits and engine_fits)


def _learner(config: RunConfig, *, room: float, card_bytes: float, shares: bool) -> tuple[list[str], bool]:
    recomputation = choose_recomputation(config, room_mb=room / 2**20, on_card=True).recomputation
    parts = learner_parts(config, recomputation, on_card=True)
    told = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size)
    need = _rank_bytes(config, recomputation)
    beside = f", which engines share: {_gib(room)} are left" if shares else ""
    lines = [
        f"a learner's rank takes {_gib(need)} of a GPU of {_gib(card_bytes)}{beside}",
        f"  {told}, libraries {_gib(PROCESS_MB['learner'] * 2**20)}; activation_checkpointing {recomputation}",
    ]
    if config.learner.optimizer.offload:
        host_bytes = offloaded_mb(config) * 2**20
        lines.append(f"  and of the host's memory {_gib(host_bytes)} for masters and moments (learner.optimizer.offload)")
    if need <= USED_SHARE * room:
        return lines, True
    steps = [
        f"raise learner.num_ranks to {_ranks_that_fit(config, room)}" if _ranks_that_fit(config, room) else "",
        "set learner.lora" if config.learner.lora is None else "",
        "set learner.optimizer.offload" if config.learner.lora is None and not config.learner.optimizer.offload else "",
        "lower actor.gpu_memory or give the engines GPUs of their own" if shares else "",
        "lower learner.max_pack_tokens" if parts["activations"] > 0.2 * need else "",
        "raise learner.context_parallel_size" if parts["activations"] > 0.2 * need and config.learner.num_ranks > 1 else "",
    ]
    lines.append(f"  does not fit, with a tenth to spare: {', or '.join(filter(None, steps)) or 'take a smaller model'}")
    return lines, False


def _engine(config: RunConfig, *, card_bytes: float) -> tuple[list[str], bool]:
    engine = engine_card(config, card_bytes=card_bytes)
    of = f"of each of {config.actor.tensor_parallel_size} GPUs" if config.actor.tensor_parallel_size > 1 else "of a GPU"
    share = config.actor.gpu_memory * card_bytes
    images = f", beside it images {_gib(engine.images_bytes)}" if engine.images_bytes else ""
    lines = [
        f"an engine takes {_gib(share)} {of} (actor.gpu_memory {config.actor.gpu_memory:g}){images}",
        f"  weights {_gib(engine.weights_bytes)}, keys and values {_gib(max(0.0, engine.cache_bytes))}:"
        f" {engine.num_cached_tokens:,} tokens",
    ]
    if engine.num_cached_tokens >= config.longest_sample:
        return lines, True
    reason = f"a prompt and its completion have up to {config.longest_sample:,} tokens"
    lines.append(f"  does not fit: {reason}; raise actor.gpu_memory, or actor.tensor_parallel_size on more GPUs")
    return lines, False


def _rank_bytes(config: RunConfig, recomputation: Recomputation) -> float:
    return learner_mb(config, recomputation, on_card=True) * 2**20


def _ranks_that_fit(config: RunConfig, room: float) -> int:
    """The smallest number of ranks that fit; 0: none does."""
    num_sharing = config.learner.context_parallel_size
    for num_ranks in range(config.learner.num_ranks + num_sharing, _MAX_RANKS + 1, num_sharing):
        more = config.model_copy(update={"learner": config.learner.model_copy(update={"num_ranks": num_ranks})})
        if _rank_bytes(more, "full") <= USED_SHARE * room:
            return num_ranks
    return 0


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
