"""Parts of the battery `gpu` that need several GPUs; over gloo, several processes of a CPU in their place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.benchmarks.gpu._engines import load_tensors
from computerrl.benchmarks.gpu._rows import Row, checked, confirmed
from computerrl.benchmarks.gpu._sizes import Sizes
from computerrl.benchmarks.learner._process import apart

_CHANGED = (".o_proj.weight", ".down_proj.weight")
"""Ends of names of weights that are other ones in updates, in all layers; the final norm's signs change too."""
_MAX_TOKENS = 256
_NORM_FACTOR = -2.0


def broadcast_part(sizes: Sizes) -> Iterator[Row]:
    """Weights to a receiver on each of the other GPUs: bytes and checksums are right on all of them; how long it takes."""
    from computerrl.benchmarks.weights.weights import broadcast_rows

    backend, count = "nccl" if sizes.is_gpu else "gloo", sizes.num_gpus - 1
    rows = broadcast_rows(num_receivers=count, rounds=sizes.update_rounds, backend=backend, model=sizes.checked_model)
    # A receiver reports a version once every checksum was right; without all reports the line above raises.
    receivers = f"{count} receiver{'s' if count > 1 else ''}"
    yield confirmed(f"broadcasts over {backend} to {receivers}: all have every version, checksums right")
    yield from rows


def split_part(sizes: Sizes) -> Iterator[Row]:
    """vLLM with a part of each matrix on each GPU: its log-probs are the learner's, before and after updates."""
    from computerrl.actor.engines.vllm_engine import make_vllm_engine
    from computerrl.common.weight_plan import PROBE_TOLERANCE, probe_difference

    # In a process of its own: vLLM starts its workers by another way where this one has used the GPU.
    folder = apart(sizes.split.folder, sizes.models)
    num_parts = _num_parts(sizes)
    changed = _changed_folder(folder, sizes.models / "changed")
    expected, expected_after = (apart(learner_probe, path, sizes.dtype, sizes.device) for path in (folder, changed))
    limit, change = PROBE_TOLERANCE[sizes.dtype], probe_difference(expected, expected_after)
    if not change > 2 * limit:
        raise RuntimeError(f"other weights change the probe by {change:.3g} alone: an update that did nothing would pass")
    what = f"vLLM in {num_parts} parts, {sizes.split.name}, {sizes.dtype}"
    engine = make_vllm_engine(
        folder,
        decode=lambda _: "",
        dtype=sizes.dtype,
        num_live=4,
        max_tokens=_MAX_TOKENS,
        seed=0,
        num_threads=None,
        gpu_memory=sizes.gpu_memory,
        tensor_parallel_size=num_parts,
        enforce_eager=True,
    )
    try:
        engine.load(0, {})
        yield checked(f"{what}: probe beside the learner's", probe_difference(expected, engine.probe()), limit=limit)
        # `load` itself compares the probe and raises.
        took_s = engine.load(1, load_tensors(changed), expected_probe=expected_after)
        yield confirmed(f"{what}: update of all weights, probe as the learner's", took_s, "s")
        took_s = engine.load(2, load_tensors(folder), expected_probe=expected)
        yield confirmed(f"{what}: update back, probe as the learner's", took_s, "s")
    finally:
        engine.close()


def _num_parts(sizes: Sizes) -> int:
    """The most parts, of as many GPUs as there are, into which the model's heads can be divided."""
    shape = sizes.split.shape
    assert shape is not None, "the heads of a random model are known"
    heads = (shape["num_attention_heads"], shape["num_key_value_heads"])
    return max(number for number in range(1, sizes.num_gpus + 1) if all(count % number == 0 for count in heads))


def _changed_folder(folder: Path, target: Path) -> Path:
    """The model of ``folder`` with other weights, so that log-probs change by far more than rounding does."""
    from safetensors.torch import save_file

    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = load_tensors(folder)
    for name, tensor in tensors.items():
        if name.endswith(_CHANGED):
            tensor.copy_(tensor.flip(0))
    tensors["model.norm.weight"] *= _NORM_FACTOR
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def learner_probe(folder: Path, dtype: str, device: str) -> np.ndarray:
    """Log-probs of the probe's tokens, by the learner's policy."""
    from computerrl.common.config import LearnerConfig, ModelConfig, RunConfig
    from computerrl.learner.model.policy import load_policy

    model = ModelConfig.model_validate({"name": str(folder), "dtype": dtype})
    policy: Any = load_policy(RunConfig(model=model, learner=LearnerConfig.model_validate({"device": device})))
    found: np.ndarray = policy.probe_logprobs()
    return found
