"""Policy engine on transformers: continuous batching for small models and small batches, on CPU or CUDA.

Scheduling in one line: every step takes one new token of each running request and the uncached part of newly admitted
prompts through the model in one pass. A prompt that shares a prefix with one being prefilled now waits one step and
copies it. Runs on the engine thread of `threaded.ThreadedEngine` only.

Speculative sampling, exact: a pass also computes a guess of the next tokens (`drafts`), a token is sampled after every one of
them, and those up to and including the first that differs from the guess are the completion's. Each was sampled from the
model's own distribution after exactly the tokens before it, so the guess decides nothing but the number of passes (speculative
sampling with a draft that is certain of itself: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

Distributions that the present weights have computed are kept (`memo`). A request samples from them as long as its context is
known; the tokens that it gets this way are new tokens of its next pass, if it needs one at all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.actor.engines.base import NO_VERSION, GenerationRequest, RequestImage
from computerrl.actor.engines.decoders import Decoder, HFDecoder
from computerrl.actor.engines.drafts import Drafts
from computerrl.actor.engines.images import EngineImages
from computerrl.actor.engines.kv_cache import MIN_SHARED_TOKENS, KVCache, common_prefix
from computerrl.actor.engines.llama import LlamaDecoder, LlamaModel
from computerrl.actor.engines.memo import Memo, context_key, longer_key
from computerrl.actor.engines.passes import PassMaker, RunningRequest
from computerrl.actor.engines.threaded import Sampled, ThreadedEngine
from computerrl.common.errors import EngineFailed
from computerrl.common.metrics import Rate
from computerrl.common.models.folder import has_vision_tower
from computerrl.common.models.loading import load_whole, refusing_model
from computerrl.common.vision.probe import num_probe_tokens
from computerrl.common.vision.processor import ImageProcessor, load_processor

MAX_PREFILL_TOKENS = 256
"""Maximum number of prompt tokens of a step beyond the first prompt, so that long prompts do not hold up running requests."""

MAX_DRAFTED_TOKENS = 64
"""Maximum number of guessed tokens in a pass, shared among the running requests. Beyond it a pass costs time by the token, and
guesses cost as much as they save."""

MIN_SHARE = 3
"""Minimum number of guessed tokens per request. With fewer, no request guesses: attention over many single tokens is one call,
over guesses one call for each request."""


class TokenSampler:
    """Draws a token from each row of logits, at the temperature of its request."""

    def __init__(self, *, seed: int, device: str) -> None:
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._device = device

    def draw(self, logits_RV: torch.Tensor, temperatures: Sequence[float]) -> list[tuple[int, float]]:
        """A token and its log-prob for each row; temperature 0 takes the most likely token, with its log-prob at 1."""
        if any(temperature not in (0.0, 1.0) for temperature in temperatures):
            divisors = [temperature or 1.0 for temperature in temperatures]
            logits_RV = logits_RV / torch.tensor(divisors, device=self._device)[:, None]
        tokens_R = sample(logits_RV, self._generator)
        if not all(temperatures):
            greedy = torch.tensor([temperature == 0.0 for temperature in temperatures], device=self._device)
            tokens_R = torch.where(greedy, logits_RV.argmax(-1), tokens_R)
        logprobs_R = logits_RV.gather(1, tokens_R[:, None])[:, 0] - logits_RV.logsumexp(-1)
        return list(zip(tokens_R.tolist(), logprobs_R.tolist(), strict=True))


class EngineCounters:
    """Meters of an engine's work, written by its thread, read by any."""

    def __init__(self) -> None:
        self.passes = Rate()
        self.tokens = Rate()
        """Computed tokens, guesses included."""
        self.requests = Rate()
        """Finished requests."""
        self.requests_without_pass = Rate()
        """Finished requests whose completion came from the memo alone."""


class TransformersCore:
    """An `EngineCore`; see `make_transformers_engine` for the thread around it."""

    def __init__(
        self,
        model: Any,
        *,
        num_live: int,
        max_tokens: int,
        seed: int,
        max_draft_tokens: int,
        memo_bytes: int = 0,
        fused: bool = True,
        half: bool = False,
        float32_head: bool = False,
        processor: ImageProcessor | None = None,
    ) -> None:
        """``model``: a `LlamaModel`, or a model of transformers. ``processor``: of one that takes images. ``fused``: use
        `LlamaDecoder` where a model of transformers has its shape. ``half`` and ``float32_head``: see `LlamaDecoder`."""
        llama = model if isinstance(model, LlamaModel) else LlamaModel.of(model) if fused else None
        if llama is not None:
            num_layers, num_heads, num_kv_heads, head_dim = llama.num_layers, llama.num_heads, llama.num_kv_heads, llama.head_dim
            embedding, head = llama.embedding, llama.head
        else:
            config = model.config.get_text_config()
            num_layers, num_heads, num_kv_heads = (
                config.num_hidden_layers,
                config.num_attention_heads,
                config.num_key_value_heads,
            )
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
            embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        device = str(embedding.device)
        self.vocabulary = len(embedding)
        self._num_live = num_live
        self._cache = KVCache(
            num_layers=num_layers,
            # One row more than requests, for the probe.
            num_live=num_live + 1,
            max_tokens=max_tokens,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=embedding.dtype,
            device=device,
        )
        self._images = None if processor is None else EngineImages(model, processor)
        has_rope_grid = self._images is not None and self._images.has_rope_grid
        self._passes = PassMaker(self._cache, group=num_heads // num_kv_heads, device=device, has_rope_grid=has_rope_grid)
        self._decoder: Decoder = (
            HFDecoder(model, self._cache, float32_head=float32_head)
            if llama is None
            else LlamaDecoder(llama, self._cache, half=half, float32_head=float32_head)
        )
        self._memo = Memo(max_bytes=memo_bytes, vocabulary=len(head))
        self.counters = EngineCounters()
        self._sampler = TokenSampler(seed=seed, device=device)
        self._drafts = Drafts()
        self._max_draft_tokens = max_draft_tokens
        self._version = NO_VERSION
        self._running: dict[int, RunningRequest] = {}
        """Running requests by row of the cache."""
        self._prefilling: list[RunningRequest] = []
        """Admitted requests of which nothing is computed yet."""
        self._finished: list[Sampled] = []
        """Requests that finished, at their admission from the memo or in the last pass."""

    @property
    def memo_bytes(self) -> int:
        """Memory that the memo uses now."""
        return self._memo.num_bytes

    @torch.inference_mode()
    def add(self, key: int, request: GenerationRequest) -> bool:
        prompt = request.prompt_tokens
        if len(prompt) == 0 or len(prompt) + request.max_new_tokens > self._cache.max_tokens:
            raise EngineFailed(
                f"prompt of {len(prompt)} tokens and {request.max_new_tokens} new ones do not fit {self._cache.max_tokens}"
            )
        if len(self._running) == self._num_live:
            return False
        images = None
        if request.images:
            if self._images is None:
                raise EngineFailed("the model takes no images")
            prompt, images = self._images.of(request)
            request = replace(request, prompt_tokens=prompt)
        running = RunningRequest(key, request, context_key(prompt), images=images)
        if self._walk(running):
            return True
        known = np.asarray([*prompt.tolist(), *running.tokens], dtype=np.int32)
        # The last token is always computed: its output is the next distribution to sample from.
        stored, shared = self._cache.best_stored(known[:-1])
        # A request that has sampled is never refused: sampling it anew would favour completions that the memo has whole.
        if not running.tokens and not self._has_room(known, shared):
            return False
        running.row = next(row for row in range(self._num_live) if row not in self._running)
        if stored >= 0:
            self._cache.restore(stored, live=running.row, num_tokens=shared)
        running.num_cached = shared
        self._running[running.row] = running
        self._prefilling.append(running)
        return True

    def _has_room(self, prompt: np.ndarray, shared: int) -> bool:
        """Whether the next pass takes a prompt of which ``shared`` tokens are stored."""
        for other in self._prefilling:
            if common_prefix(other.request.prompt_tokens, prompt[:-1]) >= max(shared, MIN_SHARED_TOKENS) + MIN_SHARED_TOKENS:
                return False
        waiting = sum(other.num_known - other.num_cached for other in self._prefilling)
        return not self._prefilling or waiting + len(prompt) - shared <= MAX_PREFILL_TOKENS

    @torch.inference_mode()
    def step(self) -> Sequence[Sampled]:
        if self._finished or not self._running:
            finished, self._finished = self._finished, []
            return finished
        fresh, self._prefilling = self._prefilling, []
        for running in self._running.values():
            running.draft = self._draft(running)
        in_order = [self._running[row] for row in sorted(self._running)]
        singles = [running for running in in_order if running.is_single]
        several = [running for running in in_order if not running.is_single]
        batch = self._passes.of_requests(singles, several)
        logits_RV = self._decoder.forward(batch)
        self.counters.passes.add()
        self.counters.tokens.add(len(batch.tokens_N))
        for running in fresh:
            self._cache.store(running.request.prompt_tokens, live=running.row)
        self._sample(logits_RV, [*singles, *several])
        finished, self._finished = self._finished, []
        return finished

    def _draft(self, running: RunningRequest) -> list[int]:
        request = running.request
        share = MAX_DRAFTED_TOKENS // len(self._running)
        if share < MIN_SHARE:
            return []
        # The last token allowed is sampled after the draft, so a draft is shorter than the rest of the completion.
        limit = min(self._max_draft_tokens, share, request.max_new_tokens - len(running.tokens) - 1)
        return self._drafts.propose(request.prompt_tokens, running.tokens, limit=limit, stop_tokens=request.stop_tokens)

    def _sample(self, logits_RV: torch.Tensor, batch: Sequence[RunningRequest]) -> None:
        """Sample before and after every token of a draft; keep the tokens up to the first that differs from the draft."""
        self._remember(logits_RV, batch)
        temperatures = [running.request.temperature for running in batch for _ in range(1 + len(running.draft))]
        sampled = iter(self._sampler.draw(logits_RV, temperatures))
        for running in batch:
            ends = self._take(running, list(itertools.islice(sampled, 1 + len(running.draft))))
            running.num_cached = running.num_known - 1
            if ends or self._walk(running):
                del self._running[running.row]

    def _remember(self, logits_RV: torch.Tensor, batch: Sequence[RunningRequest]) -> None:
        """Keep the distributions of a pass, including those after guessed tokens."""
        row = 0
        for running in batch:
            context = running.context
            for token in (None, *running.draft):
                if token is not None:
                    context = longer_key(context, token)
                if not running.is_mixed:
                    self._memo.put(context, logits_RV[row])
                row += 1

    def _walk(self, running: RunningRequest) -> bool:
        """Sample while the memo has the distribution. Returns whether the completion is finished."""
        while (logits_V := self._memo.find(running.context)) is not None:
            if self._take(running, self._sampler.draw(logits_V[None], [running.request.temperature])):
                return True
        return False

    def _take(self, running: RunningRequest, sampled: Iterable[tuple[int, float]]) -> bool:
        """Add tokens up to the first that differs from the draft. Returns whether the completion is finished."""
        draft = iter(running.draft)
        for token, logprob in sampled:
            running.tokens.append(token)
            running.logprobs.append(logprob)
            running.versions.append(self._version)
            stopped = token in running.request.stop_tokens
            if stopped or len(running.tokens) == running.request.max_new_tokens:
                self._finish(running, stopped)
                return True
            running.context = longer_key(running.context, token)
            if token != next(draft, None):
                break
        return False

    def _finish(self, running: RunningRequest, stopped: bool) -> None:
        self.counters.requests.add()
        if running.row < 0:
            self.counters.requests_without_pass.add()
        else:
            self._drafts.learn(running.request.prompt_tokens, running.tokens)
        self._finished.append(Sampled(running.key, running.tokens, running.logprobs, running.versions, stopped))

    @torch.inference_mode()
    def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._decoder.update(tensors)
        self._version = version
        self._cache.forget_stored()
        self._memo.forget()
        if self._images is not None:
            self._images.forget_changed(tensors)
        for running in self._running.values():
            running.is_mixed = True
        for running in self._prefilling:
            # Nothing is computed yet: start from the beginning instead of a prefix of the old weights.
            running.num_cached, running.is_mixed = 0, False
            if self._images is not None and running.images is not None:
                running.images = self._images.again(running.request, running.images)

    @torch.inference_mode()
    def probe(self, tokens: np.ndarray, images: tuple[RequestImage, ...] = ()) -> np.ndarray:
        shown = None
        if images:
            assert self._images is not None, "only a model with a tower is probed with an image"
            tokens, shown = self._images.of(GenerationRequest(tokens, 1.0, 1, frozenset(), images=images))
        batch = self._passes.of_sequence(tokens, row=self._num_live, images=shown)
        logits = self._decoder.forward(batch)
        targets = batch.tokens_N[-len(logits) :, None]
        return (logits.gather(1, targets)[:, 0] - logits.logsumexp(-1)).float().cpu().numpy()

    def abort(self) -> Sequence[Sampled]:
        running = list(self._running.values())
        self._running.clear()
        self._prefilling = []
        finished, self._finished = self._finished, []
        found = [Sampled(one.key, one.tokens, one.logprobs, one.versions, False) for one in running]
        return sorted([*finished, *found], key=lambda one: one.key)

    def close(self) -> None:
        self.abort()


def sample(logits_RV: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One token per row from softmax(logits), by inverting the cumulative distribution.

    Ten times faster than torch.multinomial on a CPU (0.6 against 7 ms for 8 rows of 49,152).
    """
    cumulative = logits_RV.softmax(-1).cumsum(-1)
    drawn = torch.rand(len(logits_RV), 1, generator=generator, device=logits_RV.device) * cumulative[:, -1:]
    # The product may round up to the total itself; that draw belongs to the last token that has any probability.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, drawn, right=True), last)[:, 0]


def load_model(folder: Path, *, dtype: str, device: str) -> Any:
    """The causal language model in ``folder``, for inference. Raises `ConfigError` for one that transformers cannot load."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    kind = AutoModelForImageTextToText if has_vision_tower(folder) else AutoModelForCausalLM
    with refusing_model("transformers", folder):
        model = load_whole(kind.from_pretrained, folder, dtype=getattr(torch, dtype))
    return model.to(device).eval().requires_grad_(False)


class TransformersEngine(ThreadedEngine):
    """A `PolicyEngine` on transformers: `TransformersCore` on a thread."""

    def __init__(
        self,
        core: TransformersCore,
        *,
        decode: Callable[[Sequence[int]], str],
        dtype: str,
        resumes: bool = False,
        processor: ImageProcessor | None = None,
    ) -> None:
        name = "transformers-engine"
        super().__init__(core, decode=decode, name=name, dtype=dtype, resumes=resumes, processor=processor)
        self._counted = core

    def metrics(self) -> dict[str, float]:
        counters = self._counted.counters
        passes_per_s, requests_per_s = counters.passes.per_s, counters.requests.per_s
        return super().metrics() | {
            "engine/passes_total": counters.passes.total,
            "engine/computed_tokens_total": counters.tokens.total,
            "engine/answers_total": counters.requests.total,
            "engine/answers_without_pass_total": counters.requests_without_pass.total,
            "engine/passes_per_s": passes_per_s,
            "engine/tokens_per_pass": counters.tokens.per_s / passes_per_s if passes_per_s else 0.0,
            "engine/memo_fraction": counters.requests_without_pass.per_s / requests_per_s if requests_per_s else 0.0,
            "engine/memo_bytes": float(self._counted.memo_bytes),
        }


def make_transformers_engine(
    folder: Path,
    *,
    decode: Callable[[Sequence[int]], str],
    dtype: str,
    device: str,
    num_live: int,
    max_tokens: int,
    seed: int,
    num_threads: int | None,
    max_draft_tokens: int,
    memo_bytes: int = 0,
    fused: bool = True,
    half: bool = True,
    resumes: bool = False,
    float32_head: bool = False,
) -> TransformersEngine:
    """The engine for the model in ``folder``. ``num_threads`` is set for the whole process. ``memo_bytes``: memory for
    distributions that were computed before, on a CPU; GPUs compute them as fast as they copy them. ``half``: matrices in half
    precision where the weights are float32 on a CPU. ``float32_head``: see `LlamaDecoder`."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    with refusing_model("transformers", folder):
        takes_images = has_vision_tower(folder)
        llama = LlamaModel.read(folder, dtype=getattr(torch, dtype), device=device) if fused and not takes_images else None
    model = load_model(folder, dtype=dtype, device=device) if llama is None else llama
    processor = load_processor(folder) if takes_images else None
    core = TransformersCore(
        model,
        num_live=num_live,
        max_tokens=max(max_tokens, num_probe_tokens(processor)),
        seed=seed,
        max_draft_tokens=max_draft_tokens,
        memo_bytes=memo_bytes if device == "cpu" else 0,
        fused=fused,
        half=half,
        float32_head=float32_head,
        processor=processor,
    )
    return TransformersEngine(core, decode=decode, dtype=dtype, resumes=resumes, processor=processor)
