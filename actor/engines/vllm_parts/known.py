"""What of vLLM's Python side this project builds on. It changes between releases, so that it is looked for at the start."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from computerrl.common.errors import ConfigError, Problem

ENGINE_OPTIONS = (
    "block_size",
    "disable_log_stats",
    "distributed_executor_backend",
    "dtype",
    "enable_prefix_caching",
    "enforce_eager",
    "generation_config",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "logprobs_mode",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "skip_tokenizer_init",
    "speculative_config",
    "tensor_parallel_size",
    "use_tqdm_on_load",
)
IMAGE_OPTIONS = ("limit_mm_per_prompt", "mm_device_do_normalize", "mm_processor_cache_gb", "skip_mm_profiling")
"""Of a model that takes images."""
CLIENT_METHODS = ("abort_requests", "add_request", "collective_rpc", "get_output", "reset_encoder_cache", "shutdown")
REQUEST_FIELDS = (
    "arrival_time",
    "cache_salt",
    "data_parallel_rank",
    "lora_request",
    "mm_features",
    "pooling_params",
    "prompt_token_ids",
    "request_id",
    "sampling_params",
)
OUTPUT_FIELDS = ("finish_reason", "new_logprobs", "new_prompt_logprobs_tensors", "new_token_ids", "request_id")
IMAGE_SYMBOLS = {
    "MultiModalFeatureSpec": ("data", "identifier", "mm_hash", "mm_position", "modality"),
    "PlaceholderRange": ("is_embed", "length", "offset"),
    "MultiModalKwargsItems": ("from_hf_inputs",),
    "MultiModalFieldConfig": ("batched", "flat_from_sizes"),
}
"""Class of `vllm.multimodal.inputs` -> its fields or methods."""


def require_known_vllm(
    engine_args: Any, client: Any, request: Any, output: Any, *, multimodal: Mapping[str, Any] | None = None
) -> None:
    """Raises `ConfigError` for a vLLM that lacks what the engine builds on.

    Takes the classes `EngineArgs`, `InprocClient`, `EngineCoreRequest` and `EngineCoreOutput`; for a model that takes images also
    ``multimodal``, the names of the module `vllm.multimodal.inputs`.
    """
    options = {field.name for field in dataclasses.fields(engine_args)}
    wanted = ENGINE_OPTIONS if multimodal is None else ENGINE_OPTIONS + IMAGE_OPTIONS
    missing = [f"EngineArgs.{name}" for name in wanted if name not in options]
    missing += [f"InprocClient.{name}" for name in CLIENT_METHODS if not hasattr(client, name)]
    for kind, names in ((request, REQUEST_FIELDS), (output, OUTPUT_FIELDS)):
        missing += [f"{kind.__name__}.{name}" for name in names if name not in kind.__struct_fields__]
    if multimodal is not None:
        missing += [f"{name}.{part}" for name, parts in IMAGE_SYMBOLS.items() for part in _missing(multimodal.get(name), parts)]
    if missing:
        given = f"vllm, but the installed version has no {', '.join(missing)}"
        step = "install the version that constraints.txt names (make setup), or use actor.engine: transformers"
        raise ConfigError([Problem("actor.engine", given, step)])


def _missing(kind: Any, parts: tuple[str, ...]) -> list[str]:
    # A field without default is no attribute of its class.
    known = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return [part for part in parts if part not in known and not hasattr(kind, part)]


WITHOUT_TORCHVISION = frozenset({"idefics3"})
"""Families (`common.vision.processor.FAMILIES`) whose class vLLM can load where torchvision is not installed."""


def torchvision_problem(folder: Path) -> Problem | None:
    """What keeps vLLM from the vision-language model in ``folder``: its class needs torchvision, which is not installed."""
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if model_type in WITHOUT_TORCHVISION or importlib.util.find_spec("torchvision") is not None:
        return None
    given = f"vllm, whose class for {model_type!r} (model.name {str(folder)!r}) needs torchvision, which is not installed"
    step = (
        "use actor.engine: transformers, install the torchvision that fits this torch (vLLM's builds for GPUs bring it: "
        f"make setup DEVICE=cuda), or use a model of type {' or '.join(sorted(WITHOUT_TORCHVISION))}"
    )
    return Problem("actor.engine", given, step)
