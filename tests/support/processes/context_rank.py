"""A rank that shares packs with others (`learner.model.parallel`): outputs and gradients of packs, written to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from computerrl.common.config import RunConfig
from computerrl.learner.model import batching
from computerrl.learner.model.batching import Pack, make_packs
from computerrl.learner.model.policy import Policy, load_policy
from computerrl.learner.model.ranks import RankGroup
from computerrl.learner.model.sharding import load_sharded_policy
from tests.support.data.tensors import LiveBytes
from tests.support.data.trainer_data import make_step
from tests.unit.learner.model.test_batching_packs import branching_samples

TEMPERATURE = 0.7
BLOCK_TOKENS = 24
"""Several blocks in each pack, of which slices cut some."""


def packs() -> dict[str, Pack]:
    """Branching samples in one pack; one sample whose prompt and whose action is cut; packs of fewer nodes than ranks."""
    rng = np.random.default_rng(3)
    prompt, action, long = (rng.integers(3, 1000, count).tolist() for count in (37, 30, 900))
    samples: dict[str, Sequence[Any]] = {
        "branching": branching_samples(),
        "prompt and action": [make_step(prompt, action)],
        "long prompt": [make_step(long, [5]), make_step(long, [6, 7])],
        "three nodes": [make_step([5, 6], [7, 8])],
        "one node": [make_step([5], [6])],
    }
    before, batching.BLOCK_TOKENS = batching.BLOCK_TOKENS, BLOCK_TOKENS
    try:
        return {name: make_packs(of_pack, max_tokens=4096)[0] for name, of_pack in samples.items()}
    finally:
        batching.BLOCK_TOKENS = before


def outputs_of(policy: Policy) -> dict[str, torch.Tensor]:
    """Log-probs, entropies, states and gradients of each pack, with the output of frozen layers computed before and not; and the
    peak of the bytes that a pass makes."""
    found: dict[str, torch.Tensor] = {}
    for name, pack in packs().items():
        for keeps_hidden in (True, False):
            tensors = policy.tensors(pack)
            hidden = policy.frozen_hidden(pack, tensors) if keeps_hidden else None
            live = LiveBytes([])
            with live:
                outputs = policy.forward(pack, temperature=TEMPERATURE, tensors=tensors, hidden=hidden)
                logprobs_M = outputs.logprobs_U.index_select(0, tensors.token_pair_M)
                (logprobs_M * torch.linspace(-1, 1, len(logprobs_M))).sum().backward()
            key = f"{name}/{'hidden' if keeps_hidden else 'whole'}"
            found |= {
                f"{key}/logprobs": outputs.logprobs_U.detach().clone(),
                f"{key}/entropy": outputs.entropy_Q.clone(),
                f"{key}/states": outputs.states_QE.clone(),
                f"{key}/peak": torch.tensor(live.peak),
            }
            for weight, gradient in ((weight, one.grad) for weight, one in policy.weights.masters.items()):
                assert gradient is not None
                found[f"{key}/grad/{weight}"] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
            policy.weights.clear_gradients()
    return found


def alone(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """`outputs_of` one process."""
    return outputs_of(load_policy(RunConfig.model_validate(config)))


def run_rank(rank: int, port: int, configs: list[dict[str, Any]], folder: str) -> None:
    """Write `outputs_of` this rank for each of ``configs``, which differ in the model alone."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    learner = RunConfig.model_validate(configs[0]).learner
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    ranks = RankGroup(
        store,
        rank=rank,
        num_ranks=learner.num_ranks,
        device=torch.device("cpu"),
        timeout_s=300.0,
        context_size=learner.context_parallel_size,
    )
    for number, config in enumerate(configs):
        found = outputs_of(load_sharded_policy(RunConfig.model_validate(config), ranks))
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, Path(folder) / f"{number}-{rank}.safetensors")
    ranks.wait_for_all()
    ranks.close()
