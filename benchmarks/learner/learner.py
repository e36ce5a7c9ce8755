"""Optimizer steps of the learner: speed, memory and gradients beside padded transformers and TRL's GRPOTrainer.

SmolLM2-135M on two cores, the same batch for all, sampled by it on real desktops (`_recorded_groups.py`), the same loss
(`_sides.py`), in each round a process for each side, one after the other; a value is the median of its rounds, each after
one step to warm up. Before anything is timed, the gradients in float32 are compared.

Both configurations are measured, in bfloat16 where the processor has instructions for it: all layers trained, and the top 12 of
30, as the quickstart does. Where it has none, bfloat16 is some seven times slower than float32 for all sides, and is measured on
a few steps. Tokens per second are tokens of samples, prompt and action, whatever a side computes for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from computerrl.benchmarks.learner._process import Measured, SideProcess, apart
from computerrl.benchmarks.learner._recorded_groups import load_groups, with_logprobs
from computerrl.common.host import fast_dtype
from computerrl.common.messages import TrajectoryGroup

if TYPE_CHECKING:
    from computerrl.benchmarks.learner._sides import Setting

MIB = 1 << 20
TOP_LAYERS = 12
_DRIFT = 0.1
"""Standard deviation of log pi_t - log pi_b of a token, as after a few updates; some tokens are clipped."""

_PEERS = {
    "padded": "padded transformers, 4 at a time",
    "padded-1": "transformers, one by one",
    "trl": "TRL GRPOTrainer",
    "recomputing": "ours, activation_checkpointing full",
}


@dataclass(frozen=True, slots=True)
class _Comparison:
    label: str
    dtype: str
    top_layers: int | None
    num_rounds: int
    peers: tuple[str, ...] = ("padded", "trl")


_LABELS = {"bfloat16": "bf16", "float32": "fp32"}


def _comparisons(fast: str) -> list[_Comparison]:
    """All of them in the type that this machine computes fast, float32 where it is another one."""
    label = _LABELS[fast]
    found = [
        _Comparison(f"{label}, all layers", fast, None, 2, ("padded", "padded-1", "trl", "recomputing")),
        _Comparison(f"{label}, top {TOP_LAYERS} layers", fast, TOP_LAYERS, 1),
    ]
    return found if fast == "float32" else [*found, _Comparison("fp32, all layers", "float32", None, 1)]


_RECOMPUTED = (
    ("recomputed", {"correction": "decoupled", "proximal": "recomputed", "num_minibatches": 2}),
    ("log-linear", {"correction": "decoupled", "proximal": "loglinear", "num_minibatches": 2}),
)


@dataclass(slots=True)
class _Rounds:
    """Of one side in one comparison."""

    steps: list[Measured] = field(default_factory=list)

    def rates(self, num_tokens: int) -> list[float]:
        return [num_tokens / one.times.whole_s for one in self.steps]

    @property
    def peak_mib(self) -> float:
        return max(one.peak_bytes for one in self.steps) / MIB


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    from computerrl.benchmarks.learner._sides import Setting, missing_trl

    absent, fast = missing_trl(), fast_dtype("cpu")
    small = load_groups(num_groups=1, max_rollouts=2, max_steps=1)
    few = load_groups(num_groups=1, max_rollouts=2, max_steps=2)
    if quick:
        return [
            *apart(gradient_rows, small, False),
            *_compared(_Comparison(f"{_LABELS[fast]}, all layers", fast, None, 1), few, small, absent),
        ]
    groups = load_groups(num_groups=2)
    rows: list[dict[str, Any]] = apart(gradient_rows, small, absent is None)
    if fast == "float32":
        comparison = _Comparison("bf16 without instructions for it, four steps", "bfloat16", None, 1)
        rows += _compared(comparison, few, small, absent)
    for comparison in _comparisons(fast):
        rows += _compared(comparison, groups, small, absent)
    for label, options in _RECOMPUTED:
        rows += _recomputation(label, options, groups, small, Setting(fast))
    return rows


# --- gradients -----------------------------------------------------------------------------------------------------------


def gradient_rows(groups: Sequence[TrajectoryGroup], trl: bool) -> list[dict[str, Any]]:
    """Relative difference of the gradient, all layers together, in float32. Raises `AssertionError` when it is not rounding."""
    from computerrl.benchmarks.learner._sides import Setting, gradients_of, make_side

    setting = Setting("float32")
    ours = make_side("ours", setting)
    groups = sampled(groups, ours.logprobs(groups))  # type: ignore[attr-defined]
    with gradients_of(ours) as found:
        ours.step(groups)
    rows = []
    for name in ("padded", "trl") if trl else ("padded",):
        peer = make_side(name, setting)
        with gradients_of(peer) as expected:
            peer.step(groups)
        assert found.keys() == expected.keys(), "other parameters have gradients"
        square = sum(float((found[key] - expected[key]).double().square().sum()) for key in expected)
        difference = (square / sum(float(one.double().square().sum()) for one in expected.values())) ** 0.5
        assert difference < 1e-3, f"gradients of ours and {name} differ by {difference:.2g} of their length"
        what = "gradient, fp32: distance by length"
        rows.append(_row(what, difference, "", "lower", target=1e-4, peer=_PEERS[name]))
    return rows


# --- speed and memory ------------------------------------------------------------------------------------------------------


def _compared(
    comparison: _Comparison,
    groups: Sequence[TrajectoryGroup],
    small: Sequence[TrajectoryGroup],
    absent: str | None,
) -> list[dict[str, Any]]:
    from computerrl.benchmarks.learner._sides import Setting

    setting = Setting(comparison.dtype, comparison.top_layers)
    peers = [peer for peer in comparison.peers if peer != "trl" or absent is None]
    names = ["ours", *peers]
    num_tokens = count_tokens(groups)
    with SideProcess("ours", setting) as side:
        groups = sampled(groups, side.logprobs(groups))
    rounds = {name: _Rounds() for name in names}
    for number in range(comparison.num_rounds):
        for name in names:
            # One at a time: in float32 two of them do not fit into 24 GB.
            with SideProcess(name, setting) as side:
                side.step(small)
                measured = side.step(groups)
            rounds[name].steps.append(measured)
            seconds, mib = measured.times.whole_s, measured.peak_bytes / MIB
            print(f"{comparison.label}, round {number + 1}: {name} {seconds:.0f} s, {mib:,.0f} MiB", flush=True)
    rows = [row for peer in peers for row in _beside(comparison.label, rounds["ours"], rounds[peer], peer, num_tokens)]
    if "trl" in comparison.peers and absent is not None:
        rows.append(_row(f"trained tokens per second, {comparison.label}", None, "tokens/s", "higher", peer=f"TRL: {absent}"))
    return rows + _own_rows(comparison.label, rounds["ours"], num_tokens)


def _beside(label: str, ours: _Rounds, theirs: _Rounds, peer: str, num_tokens: int) -> list[dict[str, Any]]:
    rates, peer_rate = ours.rates(num_tokens), statistics.median(theirs.rates(num_tokens))
    times = {"padded": 2.5, "trl": 2.0}.get(peer)
    return [
        _row(
            f"trained tokens per second, {label}",
            statistics.median(rates),
            "tokens/s",
            "higher",
            spread=max(rates) - min(rates),
            target=times * peer_rate if times else None,
            peer=_PEERS[peer],
            peer_value=peer_rate,
        ),
        _row(
            f"peak memory of a step, {label}",
            ours.peak_mib,
            "MiB",
            "lower",
            target=0.5 * theirs.peak_mib if peer == "padded" else None,
            peer=_PEERS[peer],
            peer_value=theirs.peak_mib,
        ),
    ]


def _own_rows(label: str, ours: _Rounds, num_tokens: int) -> list[dict[str, Any]]:
    outside, optimizer = [], []
    for one in ours.steps:
        times = one.times
        outside.append(1.0 - (times.forward_s + times.backward_s + times.recomputed_s) / times.whole_s)
        optimizer.append(times.optimizer_s / times.whole_s)
    computed = ours.steps[0].times.num_trained / num_tokens
    return [
        _row(
            f"share of a step outside forward and backward, {label}",
            statistics.median(outside),
            "",
            "lower",
            spread=max(outside) - min(outside),
            target=0.05,
        ),
        _row(f"  of which AdamW, {label}", statistics.median(optimizer), "", "lower"),
        _row(f"tokens computed of those sampled, {label}", computed, "", "lower"),
    ]


def _recomputation(
    label: str,
    options: dict[str, Any],
    groups: Sequence[TrajectoryGroup],
    small: Sequence[TrajectoryGroup],
    setting: Setting,
) -> list[dict[str, Any]]:
    """Time of the proximal policy's own forward passes; the first minibatch needs none."""
    with SideProcess("ours", setting, options=options) as side:
        groups = sampled(groups, side.logprobs(groups))
        side.step(small)
        times = [side.step(groups).times for _ in range(2)]
    shares = [one.recomputed_s / one.whole_s for one in times]
    rows = [
        _row(
            f"proximal policy {label}, share of a step of 2 minibatches",
            statistics.median(shares),
            "",
            "lower",
            spread=max(shares) - min(shares),
            target=0.35 if label == "recomputed" else 0.01,
        )
    ]
    if label == "recomputed":
        # Per token a forward pass costs the same in all minibatches; with ever more of them, all but none are recomputed.
        limits = []
        for one in times:
            all_s = one.recomputed_s / one.num_recomputed * one.num_trained
            limits.append(all_s / (one.whole_s - one.recomputed_s + all_s))
        rows.append(
            _row(f"proximal policy {label}, with ever more minibatches", statistics.median(limits), "", "lower", target=0.35)
        )
    return rows


def sampled(groups: Sequence[TrajectoryGroup], logprobs: Sequence[np.ndarray]) -> list[TrajectoryGroup]:
    """Groups as a slightly different policy sampled them."""
    rng = np.random.default_rng(0)
    return with_logprobs(groups, [(given + rng.normal(0.0, _DRIFT, len(given))).astype(np.float32) for given in logprobs])


def count_tokens(groups: Sequence[TrajectoryGroup]) -> int:
    steps = [step for group in groups for one in group.trajectories for step in one.steps]
    return sum(len(step.prompt_tokens) + len(step.action_tokens) for step in steps)


def _row(name: str, value: float | None, unit: str, better: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": better, **more}


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
