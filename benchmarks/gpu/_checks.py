"""Checks of the battery `gpu`, each in a process of its own: attention, the gradient of a step, ranks, and the whole loop.

Nothing here is timed, so that the battery plays all of it at the same time on one GPU.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from computerrl.benchmarks.gpu._rows import Row, checked, confirmed, measured
from computerrl.benchmarks.gpu._sizes import Sizes
from computerrl.benchmarks.learner._process import SideProcess
from computerrl.benchmarks.learner._recorded_groups import load_groups
from computerrl.benchmarks.learner._sides import Setting, gradients_of, make_side
from computerrl.benchmarks.learner.learner import sampled
from computerrl.common.config import LearnerConfig, ModelConfig, RunConfig, load_config
from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.model.attention import TrieLayout
from computerrl.learner.model.attention_blocks import BlockLayout
from computerrl.learner.model.attention_varlen import VarlenLayout
from computerrl.learner.model.batching import Pack, make_packs

_HEADS, _KV_HEADS, _HEAD_SIZE = 9, 3, 64
"""Of SmolLM2-135M."""
_ATTENTION_LIMIT = 2e-2
"""Relative to the length of the float32 result: bfloat16 has 8 bits, and sums over a thousand keys. 0.0038 on an H200."""
_GRADIENT_LIMIT = 0.15
"""Of its length: 30 layers in bfloat16 give 0.12 on an H200."""
_PACK_TOKENS = 2048
"""Of the ranks' check."""
_LR = 1e-5
_LOSS_LIMIT = 1e-5
_RANKS_LIMIT = 1e-2
"""Of the way that weights went in updates: gradients of different passes are added in another order. 2e-5 on an H200."""

Fast = Callable[[Pack], TrieLayout]


def small_groups(sizes: Sizes) -> list[TrajectoryGroup]:
    """A group whose rollouts have two steps at most, or fewer where the sizes are tiny."""
    return load_groups(num_groups=1, max_rollouts=sizes.max_rollouts, max_steps=sizes.max_steps or 2)


# --- attention -----------------------------------------------------------------------------------------------------------


def attention_part(sizes: Sizes) -> Iterator[Row]:
    """The variable-length kernel and attention block by block against float32; before that, the GPU's name and memory."""
    if sizes.is_gpu:
        # Some containers hide the driver's folder, from which the head of the JSON file has its names.
        card = torch.cuda.get_device_properties(0)
        yield {"name": f"GPU: {card.name}", "value": card.total_memory / 2**30, "unit": "GiB"}
    yield from attention_checks(*_attention(sizes), device=sizes.device, dtype=getattr(torch, sizes.dtype))


def attention_speed(sizes: Sizes) -> Row:
    """Time of the kernel beside attention block by block."""
    return attention_times(*_attention(sizes), setting=Setting(sizes.dtype, device=sizes.device))


def _attention(sizes: Sizes) -> tuple[Pack, Fast]:
    steps = [step for group in small_groups(sizes) for one in group.trajectories for step in one.steps]
    pack = max(make_packs(steps, max_tokens=8192), key=lambda pack: pack.num_nodes)
    return pack, lambda pack: VarlenLayout.of(pack, device=torch.device(sizes.device), kernel=sizes.attention_kernel)


def attention_checks(pack: Pack, fast: Fast, *, device: str, dtype: torch.dtype) -> Iterator[Row]:
    """Layout ``fast`` in ``dtype`` and blocks in ``dtype``, both against blocks in float32: outputs, and gradients of inputs."""
    exact, weights = _inputs(pack, device, dtype)
    blocks = BlockLayout.of(pack, device=torch.device(device))
    expected = _outputs(blocks, exact, weights)
    for label, layout in (("varlen", fast(pack)), ("blocks", blocks)):
        pairs = zip(_outputs(layout, [tensor.to(dtype) for tensor in exact], weights), expected, strict=True)
        difference = max(float((ours.float() - right).norm() / right.norm()) for ours, right in pairs)
        yield checked(f"attention {label}, {dtype}: distance to fp32 by length", difference, limit=_ATTENTION_LIMIT)


def attention_times(pack: Pack, fast: Fast, *, setting: Setting, rounds: int = 10) -> Row:
    """Seconds of one layer there and back, by ``fast`` and by blocks."""
    dtype = getattr(torch, setting.dtype)
    exact, weights = _inputs(pack, setting.device, dtype)
    inputs = [tensor.to(dtype) for tensor in exact]
    times: list[list[float]] = []
    for layout in (fast(pack), BlockLayout.of(pack, device=torch.device(setting.device))):
        seconds = []
        for _ in range(rounds + 1):
            started = setting.now()
            _outputs(layout, inputs, weights)
            seconds.append(setting.now() - started)
        times.append(seconds[1:])
    own, peers = times
    name = f"attention there and back, one layer, {pack.num_nodes} tokens"
    peer = sorted(peers)[len(peers) // 2]
    return measured(name, own, "s", better="lower", peer="block by block", peer_value=peer)


def _inputs(pack: Pack, device: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(query, key, value in float32 without what ``dtype`` cannot hold; weights of the outputs)."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(count, pack.num_nodes, _HEAD_SIZE) for count in (_HEADS, _KV_HEADS, _KV_HEADS)]
    exact = [torch.randn(shape, generator=rng).to(dtype).float().to(device) for shape in shapes]
    return exact, torch.randn((pack.num_nodes, _HEADS, _HEAD_SIZE), generator=rng).to(device)


def _outputs(layout: TrieLayout, inputs: Sequence[torch.Tensor], weights: torch.Tensor) -> list[torch.Tensor]:
    """Outputs of attention, and the gradients of its inputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = layout.attend(*leaves, scale=_HEAD_SIZE**-0.5)
    return [out.detach(), *torch.autograd.grad((out.float() * weights).sum(), leaves)]


# --- a whole step ------------------------------------------------------------------------------------------------------------


def gradient_part(sizes: Sizes) -> Iterator[Row]:
    """Gradient of a step in the type of the battery, which runs on the kernel, against that in float32, which does not."""
    groups = small_groups(sizes)
    exact = make_side("ours", Setting("float32", device=sizes.device, model=sizes.checked_model))
    groups = sampled(groups, exact.logprobs(groups))  # type: ignore[attr-defined]
    with gradients_of(exact) as expected:
        exact.step(groups)
    side = make_side("ours", Setting(sizes.dtype, device=sizes.device, model=sizes.checked_model))
    with gradients_of(side) as found:
        side.step(groups)
    yield gradient_check(expected, found, dtype=sizes.dtype)


def gradient_check(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], *, dtype: str) -> Row:
    """``found``, computed in ``dtype``, against ``expected``."""
    length = sum(float(one.double().square().sum()) for one in expected.values()) ** 0.5
    apart = sum(float((found[name] - one).double().square().sum()) for name, one in expected.items()) ** 0.5 / length
    return checked(f"gradient of a step in {dtype}: distance to fp32 by length", apart, limit=_GRADIENT_LIMIT)


# --- ranks ---------------------------------------------------------------------------------------------------------------


def ranks_part(sizes: Sizes) -> Iterator[Row]:
    """FSDP2 over `Sizes.num_gpus` ranks beside one process: two updates in float32, how far apart losses and weights end. Then
    the same with offloaded masters, and where there are several ranks, with packs that all of them share."""
    num_ranks, model = sizes.num_gpus, sizes.checked_model
    groups = _unlike(small_groups(sizes)[0], 2 * num_ranks)
    with SideProcess("ours", Setting("float32", device=sizes.device, model=model)) as side:
        groups = sampled(groups, side.logprobs(groups))
    ways: dict[str, dict[str, Any]] = {"": {}, ", masters offloaded": {"optimizer": {"lr": _LR, "offload": True}}}
    if num_ranks > 1:
        ways[", packs shared"] = {"context_parallel_size": num_ranks}
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder) / "alone", model, sizes.device, 1)
        before, alone, losses = _updated(groups, config, as_group=False)
        if not any(losses):
            raise RuntimeError("the losses are zero: nothing was trained")
        way = sum(float((alone[name] - before[name]).square().sum()) for name in alone) ** 0.5
        for number, (told, changes) in enumerate(ways.items()):
            config = _config(Path(folder) / str(number), model, sizes.device, num_ranks, **changes)
            _, shared, shared_losses = _updated(groups, config, as_group=True)
            loss = max(abs(left - right) for left, right in zip(losses, shared_losses, strict=True))
            apart = sum(float((alone[name] - shared[name]).square().sum()) for name in alone) ** 0.5 / way
            what = f"FSDP2, {num_ranks} rank{'s' if num_ranks > 1 else ''} over {'NCCL' if sizes.is_gpu else 'gloo'}{told}"
            yield checked(f"{what}: loss beside one process, difference", loss, limit=_LOSS_LIMIT)
            yield checked(f"{what}: weights beside one process, of their way", apart, limit=_RANKS_LIMIT)


def _unlike(group: TrajectoryGroup, count: int) -> list[TrajectoryGroup]:
    """``count`` groups of other tokens: equal ones would share one pack, and leave all ranks but one without work."""

    def shifted(step: Step, number: int) -> Step:
        prompt, action = ((tokens + 101 * number) % 40_000 for tokens in (step.prompt_tokens, step.action_tokens))
        return replace(step, prompt_tokens=prompt, action_tokens=action)

    found = []
    for number in range(count):
        name = f"{group.group_id}-{number}"
        trajectories = tuple(
            replace(
                one,
                group_id=name,
                trajectory_id=f"{name}/{one.index}",
                steps=tuple(shifted(step, number) for step in one.steps),
            )
            for one in group.trajectories
        )
        found.append(replace(group, group_id=name, group_seq=number, trajectories=trajectories))
    return found


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


def _config(folder: Path, model: str, device: str, num_ranks: int, **changes: Any) -> RunConfig:
    """``changes``: other settings of the learner."""
    return RunConfig(
        name=f"gpu-{num_ranks}",
        run_dir=str(folder),
        model=ModelConfig.model_validate({"name": model, "dtype": "float32"}),
        learner=LearnerConfig.model_validate(
            {
                "device": device,
                "num_ranks": num_ranks,
                "num_minibatches": 1,
                # Two groups of `_unlike` at most: a pack for each rank.
                "max_pack_tokens": _PACK_TOKENS,
                # Behaviour log-probs are those of a policy beside this one.
                "max_logprob_gap": None,
                "optimizer": {"lr": _LR},
                **changes,
            }
        ),
    )


# --- the whole loop ----------------------------------------------------------------------------------------------------------


def loop_part(sizes: Sizes) -> Iterator[Row]:
    """Serial mode from demonstrations to the last evaluation: imitated desktops, engine and learner on the device."""
    from computerrl import PACKAGE
    from computerrl.launch.run.serial import run_serial

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "run_dir": folder,
            "model.name": sizes.checked_model,
            "model.dtype": sizes.dtype,
            "learner.device": sizes.device,
        }
        overrides = [f"{name}={value}" for name, value in changes.items()]
        config = load_config(PACKAGE / "configs" / "serial.yaml", overrides=overrides)
        RunFolder(config.folder).create(config)
        state = run_serial(config)
    took_s, wanted = time.perf_counter() - started, config.learner.recipe.max_updates
    name = f"the whole loop in one process, {sizes.checked_model}, {sizes.dtype}: demonstrations to evaluation"
    if state.phase != "done" or len(state.updates) != wanted:
        raise RuntimeError(f"the run ended in phase {state.phase!r} after {len(state.updates)} of {wanted} updates")
    yield confirmed(name, took_s, "s", reason=f"{len(state.sft_steps)} supervised steps, {wanted} updates")
