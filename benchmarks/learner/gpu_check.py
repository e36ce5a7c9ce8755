"""GPUs: the flash attention of packs, FSDP2 and weight updates over NCCL, and the learner's benchmark, on CUDA.

Six parts. The variable-length kernel beside attention block by block: outputs and gradients of one layer against float32, and
time. The gradient of a whole step in bfloat16, which runs on the kernel, against the one in float32, which does not. The trainer
over all GPUs of this machine (with one GPU over a group of one) beside one process: losses and weights after updates. Weight
updates over NCCL as `weights` measures them over gloo, with a GPU for each receiver (NCCL lets no two processes share one, so a
machine with a single GPU cannot). vLLM after images beside the learner, on random weights of Qwen2.5-VL-3B's size. Then what
`learner` measures on the CPU. Differences that are no rounding end it with an error.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from computerrl.benchmarks.engines._images import QWEN_3B, image_rows
from computerrl.benchmarks.learner._recorded_groups import load_groups
from computerrl.benchmarks.learner.learner import measure, sampled
from computerrl.benchmarks.weights._tensors import model_tensors
from computerrl.benchmarks.weights.weights import broadcast_rows
from computerrl.common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model.attention import TrieLayout
from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import Pack, make_packs

_HEADS, _KV_HEADS, _HEAD_SIZE = 9, 3, 64
"""Of SmolLM2-135M."""
_ROUNDS = 10
_ATTENTION_LIMIT = 2e-2
"""Relative to the length of the float32 result: bfloat16 has 8 bits, and sums over a thousand keys."""
_GRADIENT_LIMIT = 0.15
"""Of its length: 30 layers in bfloat16 give 0.11 on an H200."""
_RANKS_LIMIT = 1e-2
"""Of the way that weights went in updates: gradients of different passes are added in another order."""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6. Raises `ConfigError` without a GPU."""
    if not torch.cuda.is_available():
        step = "run it on a machine with an NVIDIA GPU and torch's CUDA build (make setup installs that one where a GPU is)"
        raise ConfigError([Problem("NAME", "torch sees no GPU, and this benchmark checks nothing else", step)])
    from computerrl.benchmarks.learner._sides import MODEL

    print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    groups = load_groups(num_groups=1 if quick else 2, max_steps=2)
    rows = attention_rows(_one_pack(groups), device="cuda", fast=lambda pack: VarlenLayout.of(pack, device=torch.device("cuda")))
    gradient, groups = gradient_rows(groups, device="cuda", dtype="bfloat16")
    rows += gradient
    rows += ranks_rows(groups, model=MODEL, device="cuda", num_ranks=torch.cuda.device_count())
    rows += weight_rows(num_gpus=torch.cuda.device_count(), rounds=3 if quick else 15)
    with tempfile.TemporaryDirectory() as folder:
        rows += image_rows(QWEN_3B, Path(folder), device="cuda", dtype="bfloat16", rounds=2 if quick else 5)
    return rows + measure(quick, device="cuda")


def weight_rows(*, num_gpus: int, rounds: int) -> list[dict[str, Any]]:
    """Weight updates over NCCL; none where there is but one GPU."""
    if num_gpus < 2:
        print("weight updates over NCCL: not checked, they need a second GPU", flush=True)
        return []
    tensors = {name: tensor.cuda() for name, tensor in model_tensors().items()}
    return broadcast_rows(tensors, num_receivers=num_gpus - 1, rounds=rounds, backend="nccl")


# --- attention -----------------------------------------------------------------------------------------------------------


def attention_rows(
    pack: Pack, *, device: str, fast: Callable[[Pack], TrieLayout], dtype: torch.dtype = torch.bfloat16
) -> list[Any]:
    """Layout ``fast`` in ``dtype`` and blocks in ``dtype``, both against blocks in float32."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(count, pack.num_nodes, _HEAD_SIZE) for count in (_HEADS, _KV_HEADS, _KV_HEADS)]
    exact = [torch.randn(shape, generator=rng).to(dtype).float().to(device) for shape in shapes]
    weights = torch.randn((pack.num_nodes, _HEADS, _HEAD_SIZE), generator=rng).to(device)
    blocks = BlockLayout.of(pack, device=torch.device(device))
    expected = _outputs(blocks, exact, weights)
    rows, times = [], {}
    for label, layout in (("varlen", fast(pack)), ("blocks", blocks)):
        inputs = [tensor.to(dtype) for tensor in exact]
        pairs = zip(_outputs(layout, inputs, weights), expected, strict=True)
        difference = max(float((ours.float() - right).norm() / right.norm()) for ours, right in pairs)
        assert difference < _ATTENTION_LIMIT, f"attention {label}: outputs or gradients are {difference:.2g} of their length off"
        rows.append(_row(f"attention {label}, {dtype}: distance to fp32 by length", difference, "", target=_ATTENTION_LIMIT))
        times[label] = [_seconds(lambda: _outputs(layout, inputs, weights), device) for _ in range(_ROUNDS)]  # noqa: B023
    own, peer = times["varlen"], statistics.median(times["blocks"])
    name = f"attention there and back, one layer, {pack.num_nodes} tokens"
    more = {"spread": max(own) - min(own), "peer": "block by block", "peer_value": peer}
    return [*rows, _row(name, statistics.median(own), "s", **more)]


def _outputs(layout: TrieLayout, inputs: Sequence[torch.Tensor], weights: torch.Tensor) -> list[torch.Tensor]:
    """Outputs of attention, and the gradients of its inputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = layout.attend(*leaves, scale=_HEAD_SIZE**-0.5)
    return [out.detach(), *torch.autograd.grad((out.float() * weights).sum(), leaves)]


def _seconds(work: Callable[[], Any], device: str) -> float:
    from computerrl.benchmarks.learner._sides import Setting

    setting = Setting("bfloat16", device=device)
    started = setting.now()
    work()
    return setting.now() - started


# --- a whole step ------------------------------------------------------------------------------------------------------------


def gradient_rows(
    groups: Sequence[TrajectoryGroup], *, device: str, dtype: str
) -> tuple[list[dict[str, Any]], list[TrajectoryGroup]]:
    """Gradient of a step in ``dtype`` by that in float32; and ``groups`` as the model in float32 might have sampled them."""
    from computerrl.benchmarks.learner._sides import Setting, gradients_of, make_side

    exact = make_side("ours", Setting("float32", device=device))
    groups = sampled(groups, exact.logprobs(groups))  # type: ignore[attr-defined]
    with gradients_of(exact) as expected:
        exact.step(groups)
    side = make_side("ours", Setting(dtype, device=device))
    with gradients_of(side) as found:
        side.step(groups)
    length = sum(float(one.double().square().sum()) for one in expected.values()) ** 0.5
    apart = sum(float((found[name] - one).double().square().sum()) for name, one in expected.items()) ** 0.5 / length
    assert apart < _GRADIENT_LIMIT, f"the gradient in {dtype} is {apart:.2g} of its length off"
    return [_row(f"gradient of a step in {dtype}: distance to fp32 by length", apart, "", target=_GRADIENT_LIMIT)], groups


# --- ranks ---------------------------------------------------------------------------------------------------------------


def ranks_rows(groups: Sequence[TrajectoryGroup], *, model: str, device: str, num_ranks: int) -> list[dict[str, Any]]:
    """Two updates in float32 by one process and over ``num_ranks``: how far apart their losses and weights end."""
    with tempfile.TemporaryDirectory() as folder:
        (before, alone, losses), (_, shared, shared_losses) = (
            _updated(groups, _config(Path(folder) / str(number), model, device, number), as_group=as_group)
            for number, as_group in ((1, False), (num_ranks, True))
        )
    loss = max(abs(left - right) for left, right in zip(losses, shared_losses, strict=True))
    way = sum(float((alone[name] - before[name]).square().sum()) for name in alone) ** 0.5
    apart = sum(float((alone[name] - shared[name]).square().sum()) for name in alone) ** 0.5 / way
    assert apart < _RANKS_LIMIT, f"weights of {num_ranks} ranks and of one process are {apart:.2g} of their way apart"
    backend = "NCCL" if device == "cuda" else "gloo"
    return [
        _row(f"FSDP2, {num_ranks} over {backend}: loss beside one process, difference", loss, "", target=1e-5),
        _row(f"FSDP2, {num_ranks} over {backend}: weights beside one process, of their way", apart, "", target=_RANKS_LIMIT),
    ]


def _updated(
    groups: Sequence[TrajectoryGroup], config: RunConfig, *, as_group: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[float]]:
    """(weights before, weights after, losses) of two updates."""
    from computerrl.learner.training import rank_processes

    RunFolder(config.folder).create(config)
    with (
        _group_of_one() if as_group and config.learner.num_ranks == 1 else contextlib.nullcontext(),
        rank_processes.open_trainer(config, config_path=RunFolder(config.folder).resolved_config) as (trainer, _),
    ):
        before = {name: tensor.float().cpu().clone() for name, tensor in trainer.trainable_tensors().items()}
        losses = [trainer.update(trainer.algorithm.prepare(groups, ages=PolicyAges(1)))["loss"] for _ in range(2)]
        after = {name: tensor.float().cpu().clone() for name, tensor in trainer.trainable_tensors().items()}
    return before, after, losses


@contextlib.contextmanager
def _group_of_one() -> Iterator[None]:
    """As torchrun would start a single process."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _config(folder: Path, model: str, device: str, num_ranks: int) -> RunConfig:
    return RunConfig(
        name=f"gpu-check-{num_ranks}",
        run_dir=str(folder),
        model=ModelConfig.model_validate({"name": model, "dtype": "float32"}),
        learner=LearnerConfig.model_validate(
            {
                "device": device,
                "num_ranks": num_ranks,
                "num_minibatches": 1,
                "max_pack_tokens": 4096,
                # Behaviour log-probs are those of a policy beside this one.
                "max_logprob_gap": None,
                "optimizer": OptimizerConfig(lr=1e-5).model_dump(),
            }
        ),
    )


def _one_pack(groups: Sequence[TrajectoryGroup]) -> Pack:
    steps = [step for group in groups for one in group.trajectories for step in one.steps]
    return max(make_packs(steps, max_tokens=8192), key=lambda pack: pack.num_nodes)


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": "lower", **more}
