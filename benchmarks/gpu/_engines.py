"""Speeds of the battery `gpu`: episodes through our engines, vLLM alone beside them, updates of all weights, log-prob gaps.

vLLM and our engine on it have a process each, one after the other: both want most of the GPU, and both are started as a run
starts them, with nothing compiled before. vLLM alone gets the same prompts all at once, step by step, from `LLM.generate`.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from computerrl.actor.engines.vllm_engine import make_vllm_engine, prepare_environment
from computerrl.benchmarks.engines._load import Answers
from computerrl.benchmarks.engines.rollout import learner_logprobs
from computerrl.benchmarks.gpu._rows import GAP_GOALS, Row, gap_row, measured
from computerrl.benchmarks.gpu._sizes import EngineSizes, Sizes
from computerrl.benchmarks.learner._process import apart

_ALONE_FILE = "vllm-alone.json"
"""In `Sizes.models`: figures of vLLM alone, which our engine's rows name as their peers."""
_TARGET = 0.95
"""Of the speed of vLLM alone."""
_CACHE_BYTES = 256 << 20
"""Of vLLM on a CPU."""


def read_vllm() -> None:
    """Import vLLM where it is installed: whichever is started first would wait for the disk."""
    if find_spec("vllm") is not None:
        prepare_environment(None)
        from vllm import LLM

        del LLM


def _prompts(one: EngineSizes, number: int, num_episodes: int) -> list[list[np.ndarray]]:
    vocabulary = 40_000 if one.model.shape is None else int(one.model.shape["vocab_size"])
    return one.load.prompts(1000 * num_episodes + number, num_episodes, min(40_000, vocabulary))


def _rates(one: EngineSizes, num_episodes: int, play: Callable[[list[list[np.ndarray]]], object]) -> list[float]:
    """Action tokens per second of each round but the first."""
    rates = []
    for number in range(one.rounds + 1):
        prompts = _prompts(one, number, num_episodes)
        started = time.perf_counter()
        play(prompts)
        rates.append(one.load.num_tokens(num_episodes) / (time.perf_counter() - started))
    return rates[1:]


# --- vLLM alone --------------------------------------------------------------------------------------------------------------


def vllm_alone_part(sizes: Sizes) -> Iterator[Row]:
    """Start of vLLM's `LLM`, and speed of its `generate`."""
    one, started = sizes.vllm, time.perf_counter()
    llm = _llm_alone(sizes)
    start_s = time.perf_counter() - started
    yield measured(f"vLLM alone, start, {one.model.name}", [start_s], "s", better="lower")
    found = {"start_s": start_s}
    for num_episodes in one.episodes:
        rates = _rates(one, num_episodes, lambda prompts: _generate(llm, one, prompts))
        found[str(num_episodes)] = statistics.median(rates)
        yield measured(f"vLLM alone, tokens/s, {one.model.name}, {num_episodes} episodes", rates, "tokens/s", better="higher")
    (sizes.models / _ALONE_FILE).write_text(json.dumps(found), encoding="utf-8")


def _llm_alone(sizes: Sizes) -> Any:
    """A `vllm.LLM` with the limits of ours and its own defaults otherwise."""
    one = sizes.vllm
    _compile_anew(sizes, "alone")
    prepare_environment(None)
    if sizes.is_gpu:
        # By default vLLM has its engine in a process of its own, beside the one that asks.
        del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
    from vllm import LLM

    options: dict[str, Any] = {"gpu_memory_utilization": sizes.gpu_memory, "enforce_eager": one.is_eager}
    if not sizes.is_gpu:
        options = {"enforce_eager": True, "kv_cache_memory_bytes": _CACHE_BYTES}
    return LLM(
        model=str(one.model.folder(sizes.models)),
        skip_tokenizer_init=True,
        dtype=sizes.dtype,
        max_model_len=one.load.max_tokens,
        max_num_seqs=max(one.episodes),
        disable_log_stats=True,
        **options,
    )


def _generate(llm: Any, one: EngineSizes, prompts: Sequence[Sequence[np.ndarray]]) -> None:
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=one.load.num_action_tokens, ignore_eos=True, logprobs=0, detokenize=False)
    for step in range(one.load.num_steps):
        llm.generate([{"prompt_token_ids": each[step].tolist()} for each in prompts], params, use_tqdm=False)


def _compile_anew(sizes: Sizes, name: str) -> None:
    """Keep vLLM from what it compiled before, so that both start alike."""
    os.environ["VLLM_CACHE_ROOT"] = str(sizes.models / f"vllm-cache-{name}")
    if not sizes.is_gpu:
        # For each thread of its own: ranks of log-probs are a compiled function, which takes a C++ compiler's 16 s.
        torch._dynamo.config.disable = True


# --- ours --------------------------------------------------------------------------------------------------------------------


def vllm_part(sizes: Sizes) -> Iterator[Row]:
    """Our engine on vLLM: start, speed, updates of all weights, gap to the learner."""
    one, file = sizes.vllm, sizes.models / _ALONE_FILE
    alone = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    folder = one.model.folder(sizes.models)
    _compile_anew(sizes, "ours")

    def make() -> Any:
        return make_vllm_engine(
            folder,
            decode=lambda _: "",
            dtype=sizes.dtype,
            num_live=max(one.episodes),
            max_tokens=one.load.max_tokens,
            seed=0,
            num_threads=None,
            gpu_memory=sizes.gpu_memory,
            enforce_eager=one.is_eager,
        )

    yield from _engine_rows("vLLM", make, sizes, one, folder, alone)


def transformers_part(sizes: Sizes) -> Iterator[Row]:
    """The same of our engine on transformers, which has no peer here."""
    from computerrl.actor.engines.transformers_engine import make_transformers_engine

    one = sizes.transformers
    folder = one.model.folder(sizes.models)

    def make() -> Any:
        return make_transformers_engine(
            folder,
            decode=lambda _: "",
            dtype=sizes.dtype,
            device=sizes.device,
            num_live=max(one.episodes),
            max_tokens=one.load.max_tokens,
            seed=0,
            num_threads=None,
            max_draft_tokens=0,
        )

    yield from _engine_rows("transformers", make, sizes, one, folder, {})


def _engine_rows(
    name: str, make: Callable[[], Any], sizes: Sizes, one: EngineSizes, folder: Path, alone: Mapping[str, float]
) -> Iterator[Row]:
    """``alone``: figures of vLLM alone, none where it was not measured."""

    def peer(key: str) -> Row:
        return {"peer": "vLLM alone", "peer_value": alone[key]} if key in alone else {}

    label, started = f"{name} engine, {one.model.name}, {sizes.dtype}", time.perf_counter()
    engine = make()
    try:
        engine.load(0, {})
        yield measured(f"{label}: start", [time.perf_counter() - started], "s", better="lower", **peer("start_s"))
        for number in one.episodes:
            rates = _rates(one, number, lambda prompts: one.load.play(engine, prompts))
            beside = peer(str(number))
            target = {"target": _TARGET * beside["peer_value"]} if beside else {}
            yield measured(f"{label}: tokens/s, {number} episodes", rates, "tokens/s", better="higher", **target, **beside)
        answers = one.load.play(engine, _prompts(one, one.rounds + 1, one.gap_episodes))
        yield from update_rows(engine, folder, label, sizes)
    finally:
        engine.close()
    yield from gap_rows(answers, folder, label, sizes)


# --- updates and gaps --------------------------------------------------------------------------------------------------------


def update_rows(engine: Any, folder: Path, label: str, sizes: Sizes) -> Iterator[Row]:
    """Seconds in which all weights are replaced, the comparison of the probe included, by where the new ones lie."""
    host = load_tensors(folder)
    places: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"host memory": lambda tensor: tensor}
    if sizes.is_gpu:
        places |= {"pinned memory": lambda tensor: tensor.pin_memory(), "the GPU's own": lambda tensor: tensor.to(sizes.device)}
    size = f"{sum(tensor.nbytes for tensor in host.values()) / 2**30:.2g} GiB"
    probe, version = engine.probe(), 0
    for where, move in places.items():
        tensors, seconds = {name: move(tensor) for name, tensor in host.items()}, []
        for _ in range(sizes.update_rounds + 1):
            version += 1
            started = time.perf_counter()
            engine.load(version, tensors, expected_probe=probe)
            seconds.append(time.perf_counter() - started)
        yield measured(f"{label}: update of {size} from {where}, probe included", seconds[1:], "s", better="lower")


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of the model in ``folder``, read into memory."""
    from safetensors.torch import load_file

    found = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    return {name: tensor.clone() for name, tensor in found.items()}


def gap_rows(answers: Answers, folder: Path, label: str, sizes: Sizes) -> Iterator[Row]:
    """Distance of the engine's log-probs of ``answers`` to the learner's, with its output layer in either type."""
    said = np.concatenate([logprobs for *_, logprobs in answers])
    steps = [(prompt, action) for prompt, action, _ in answers]
    for head_dtype in ("model",) if sizes.dtype == "float32" else ("model", "float32"):
        scored = apart(learner_logprobs, folder, sizes.dtype, steps, head_dtype, sizes.device)
        head = sizes.dtype if head_dtype == "model" else head_dtype
        name = f"{label}: log-prob gap to the learner with its output layer in {head}"
        yield gap_row(name, np.abs(said - np.concatenate(scored)), goal=GAP_GOALS[sizes.dtype])


# --- pictures ----------------------------------------------------------------------------------------------------------------


def pictures_part(sizes: Sizes) -> Iterator[Row]:
    """vLLM after images beside the learner, on random weights."""
    from computerrl.benchmarks.engines._images import image_rows

    folder = sizes.models / "pictures"
    folder.mkdir()
    yield from image_rows(sizes.screens, folder, device=sizes.device, dtype=sizes.dtype, rounds=sizes.image_rounds)
