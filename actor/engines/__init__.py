"""Policy engines: which one a configuration means. Importing this imports neither torch nor vllm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.endpoint import Endpoint
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.host import choose_device, has_visible_gpu
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import context_problems

if TYPE_CHECKING:
    from computerrl.actor.engines.base import PolicyEngine

MAX_DRAFT_TOKENS = 8
"""Of the engine `transformers`, where the configuration leaves it open."""


def make_engine(
    config: RunConfig, folder: Path, *, decode: Callable[[Sequence[int]], str] | None = None, index: int = 0
) -> PolicyEngine:
    """The engine that ``config.actor`` asks for, on the model in ``folder``; ``index`` is the process's. ``decode``: of the
    model's tokenizer; None: an agent plays, which needs none.

    Takes seconds (transformers) to half a minute (vLLM's imports). Raises `ConfigError` for a model that the engine's library
    cannot load, and for one that sees less than a prompt and its answer.
    """
    if decode is None:
        from computerrl.actor.engines.endpoint_engine import AgentEngine

        return AgentEngine()
    problems = context_problems(
        config.model.name, max_prompt_tokens=config.actor.prompt.max_prompt_tokens, max_new_tokens=config.actor.max_new_tokens
    )
    if problems:
        raise ConfigError(problems)
    if config.actor.engine == "auto":
        choice = engine_here(config)
        log.get_logger().info("engine.chosen", engine=choice.engine, reason=choice.reason)
    seed = config.seed * 1000 + index
    every = config.actor.older_policy_every
    if every is None:
        return _make_one(config, folder, decode=decode, seed=seed)
    from computerrl.actor.engines.cross_policy import CrossPolicyEngine

    present, older = (_make_one(config, folder, decode=decode, seed=own) for own in (seed, seed ^ 1 << 31))
    return CrossPolicyEngine(present, older, refresh_every=every, seed=seed)


def _make_one(config: RunConfig, folder: Path, *, decode: Callable[[Sequence[int]], str], seed: int) -> PolicyEngine:
    num_live = config.actor.num_live
    if config.actor.endpoint is not None:
        from computerrl.actor.engines.endpoint_engine import EndpointEngine

        server = Endpoint(config.actor.endpoint)
        return EndpointEngine(server, model=server.find_model(), decode=decode, num_live=num_live, seed=seed)
    max_tokens = config.actor.prompt.max_prompt_tokens + config.actor.max_new_tokens
    choice = engine_here(config)
    if choice.engine == "vllm":
        from computerrl.actor.engines.vllm_engine import make_vllm_engine

        return make_vllm_engine(
            folder,
            decode=decode,
            dtype=config.model.dtype,
            num_live=num_live,
            max_tokens=max_tokens,
            seed=seed,
            num_threads=config.actor.num_threads,
            gpu_memory=config.actor.gpu_memory,
            tensor_parallel_size=config.actor.tensor_parallel_size,
            max_num_batched_tokens=config.actor.max_num_batched_tokens,
            max_draft_tokens=config.actor.max_draft_tokens or 0,
            enforce_eager=config.actor.enforce_eager,
            resumes=config.actor.on_new_weights == "resume",
        )
    if config.actor.tensor_parallel_size > 1:
        reason = f"{config.actor.tensor_parallel_size}, but the engine is {choice.text}"
        raise ConfigError([Problem("actor.tensor_parallel_size", reason, "set it to 1")])
    import torch

    from computerrl.actor.engines.transformers_engine import make_transformers_engine

    # An actor's node may lack a GPU though the learner's has one: cuda is no demand here.
    device = choose_device(
        "cpu" if config.learner.device == "cpu" else "auto",
        built_for=torch.version.cuda,
        has_cuda=torch.cuda.is_available(),
        has_gpu=has_visible_gpu(),
    )
    return make_transformers_engine(
        folder,
        decode=decode,
        dtype=config.model.dtype,
        device=device,
        num_live=num_live,
        max_tokens=max_tokens,
        seed=seed,
        num_threads=config.actor.num_threads,
        max_draft_tokens=MAX_DRAFT_TOKENS if config.actor.max_draft_tokens is None else config.actor.max_draft_tokens,
        # Cross-policy sampling has two engines.
        memo_bytes=(config.actor.memo_mb << 20) // (1 if config.actor.older_policy_every is None else 2),
        resumes=config.actor.on_new_weights == "resume",
        float32_head=config.model.head_dtype == "float32",
    )
