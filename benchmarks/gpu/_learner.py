"""Speeds of the battery `gpu`: optimizer steps of the learner beside padded transformers, and the memory plan beside the peak."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from computerrl.benchmarks.gpu._rows import Row, measured, told, unmeasured
from computerrl.benchmarks.gpu._sizes import Model, Sizes
from computerrl.benchmarks.learner._process import Facts, Measured, SideProcess
from computerrl.benchmarks.learner._recorded_groups import load_groups
from computerrl.benchmarks.learner.learner import count_tokens, sampled
from computerrl.common.messages import TrajectoryGroup

MIB = 1 << 20
_PEER = "padded transformers, 4 at a time"
_SPEED_TARGET = 2.5
"""Of the peer's speed."""


def models_part(sizes: Sizes) -> Iterator[Row]:
    """Write the random models that other parts read."""
    from computerrl.benchmarks.gpu._engines import read_vllm

    for model in {one.name: one for one in (*sizes.learner, sizes.vllm.model, sizes.transformers.model)}.values():
        model.folder(sizes.models)
    read_vllm()
    yield from ()


def learner_part(sizes: Sizes) -> Iterator[Row]:
    """Each model by ours and by the peer, one process after the other, on the same groups."""
    groups = load_groups(num_groups=sizes.num_groups, max_rollouts=sizes.max_rollouts, max_steps=sizes.max_steps)
    for model in sizes.learner:
        reason = _too_small(model.training_gib) if sizes.is_gpu else None
        if reason is not None:
            yield unmeasured(f"learner, {model.name}", "not run", reason)
            continue
        yield from _model_rows(sizes, model, groups)
    from computerrl.benchmarks.gpu._checks import attention_speed

    yield attention_speed(sizes)


def _too_small(needed_gib: int) -> str | None:
    import torch

    total_gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"it takes {needed_gib} GiB of a GPU, this one has {total_gib:.0f}" if total_gib < needed_gib else None


@dataclass(slots=True)
class _Steps:
    """Of one side: steps after the one that warms up."""

    facts: Facts
    steps: list[Measured]
    num_sampled: int

    @property
    def rates(self) -> list[float]:
        """Sampled tokens per second."""
        return [self.num_sampled / one.times.whole_s for one in self.steps]

    @property
    def tera_flops(self) -> float:
        """10^12 operations a second, 6 of each parameter for a token that was computed."""
        return statistics.median(
            6e-12 * self.facts.num_parameters * one.times.num_trained / one.times.whole_s for one in self.steps
        )

    @property
    def peak_mib(self) -> float:
        return max(one.total_bytes for one in self.steps) / MIB


def _model_rows(sizes: Sizes, model: Model, groups: Sequence[TrajectoryGroup]) -> Iterator[Row]:
    from computerrl.benchmarks.learner._sides import Setting

    name = model.name if model.shape is None else str(model.folder(sizes.models))
    setting = Setting(sizes.dtype, device=sizes.device, model=name)
    with SideProcess("ours", setting) as side:
        groups = sampled(groups, side.logprobs(groups))
        ours = _played(side, groups, sizes.learner_steps)
    peer, reason = None, None
    try:
        with SideProcess("padded", setting) as side:
            peer = _played(side, groups, sizes.learner_steps)
    except RuntimeError as error:
        # Ours was measured; the peer may take more memory than there is.
        reason = f"without its peer: {told(error)}"
    yield from _rows(f"{model.name}, {sizes.dtype}", ours, peer, reason)


def _played(side: SideProcess, groups: Sequence[TrajectoryGroup], num_steps: int) -> _Steps:
    steps = [side.step(groups) for _ in range(1 + num_steps)]
    return _Steps(side.facts(), steps[1:], count_tokens(groups))


def _rows(label: str, ours: _Steps, peer: _Steps | None, reason: str | None) -> Iterator[Row]:
    def beside(figure: Callable[[_Steps], float]) -> Row:
        return {} if peer is None else {"peer": _PEER, "peer_value": figure(peer)}

    rate = beside(lambda side: statistics.median(side.rates))
    target = _SPEED_TARGET * rate["peer_value"] if rate else None
    name = f"learner, sampled tokens/s, {label}"
    yield measured(name, ours.rates, "tokens/s", better="higher", target=target, reason=reason, **rate)
    name = f"learner, on computed tokens, {label}"
    yield measured(name, [ours.tera_flops], "TFLOP/s", better="higher", **beside(lambda side: side.tera_flops))
    peak = beside(lambda side: side.peak_mib)
    yield measured(f"learner, memory peak, {label}", [ours.peak_mib], "MiB", better="lower", **peak)
    planned = [(ours.facts.planned_bytes or 0) / MIB]
    found = {"peer": "measured peak", "peer_value": ours.peak_mib}
    yield measured(f"learner, memory plan, {label}", planned, "MiB", better="lower", **found)
