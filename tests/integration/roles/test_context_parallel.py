"""Ranks that share packs, as real processes over gloo: each has the log-probs, entropies and states of one process, and their
gradients add up to its own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from computerrl.learner.client import serve_store
from tests.support.forked import PRELOAD
from tests.support.processes.context_rank import alone, packs, run_rank

RELATIVE = 1e-5
"""Of a tensor's largest number, by float32's rounding: sums of keys' gradients, and of ranks' gradients, in another order."""
SMALLEST = 1e-6
"""A gradient that is 0 but for rounding is no measure of rounding."""
MODELS: list[dict[str, Any]] = [
    {"top_layers": None, "again": "none", "dtype": "float32", "part": RELATIVE},
    {"top_layers": 1, "again": "full", "dtype": "float32", "part": RELATIVE},
    # Eight bits, and sums over 900 keys.
    {"top_layers": None, "again": "none", "dtype": "bfloat16", "part": 0.1},
]
"""All layers trained; the lower ones frozen and the uppermost computed again; in 16 bits, as on GPUs. ``part``: of a tensor's
largest number, by which another may differ."""


def configured(case: dict[str, Any], *, num_ranks: int) -> dict[str, Any]:
    return {
        "model": {"name": "tiny-random", "dtype": case["dtype"], "trainable_top_layers": case["top_layers"]},
        "learner": {
            "device": "cpu",
            "activation_checkpointing": case["again"],
            "num_ranks": num_ranks,
            "context_parallel_size": num_ranks,
        },
    }


def run_ranks(num_ranks: int, folder: Path) -> list[list[dict[str, torch.Tensor]]]:
    """For each of `MODELS` what each rank has."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store, address = serve_store("127.0.0.1")
    port, configs = int(address.rpartition(":")[2]), [configured(case, num_ranks=num_ranks) for case in MODELS]
    processes = [
        context.Process(target=run_rank, args=(rank, port, configs, str(folder)), daemon=True) for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * num_ranks
    del store
    return [[load_file(folder / f"{number}-{rank}.safetensors") for rank in range(num_ranks)] for number in range(len(MODELS))]


def activation_bytes(found: dict[str, torch.Tensor]) -> int:
    """Of a pass over the long prompt, without what a pass over one node takes."""
    return int(found["long prompt/whole/peak"] - found["one node/whole/peak"])


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_share_a_pack_compute_what_one_process_does(num_ranks: int, tmp_path: Path) -> None:
    assert min(pack.num_nodes for pack in packs().values()) < num_ranks
    for case, of_ranks in zip(MODELS, run_ranks(num_ranks, tmp_path), strict=True):
        expected = alone(configured(case, num_ranks=1))
        for found in of_ranks:
            assert found.keys() == expected.keys()
            for name, tensor in expected.items():
                if not name.endswith("/peak"):
                    differs = float((found[name] - tensor).abs().max() / tensor.abs().max().clamp_min(SMALLEST))
                    assert differs <= case["part"], f"{name}: {differs:.2g}"
        most = max(activation_bytes(found) for found in of_ranks)
        assert most < 1.5 * activation_bytes(expected) / num_ranks, "a rank keeps what belongs to the slices of others"
