"""GRPO: prepare against the definition, loss against slow numpy in float64, the on-policy limit, staleness and options."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.common.config import AlgorithmConfig, LearnerConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.learner.algorithms import ALGORITHMS, LossBatch, PolicyAges, PolicyOutputs, TrainBatch, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from tests.support.data.trainer_data import NEEDED_OPTIONS, make_group, make_step, random_groups

CONFIGS = Path(__file__).resolve().parents[4] / "configs"


def grpo(*, max_age: int = 4, **options: Any) -> GRPO:
    return GRPO(options, LearnerConfig(max_age=max_age, num_minibatches=2))


def random_pass(seed: int, *, num_tokens: int = 30) -> tuple[PolicyOutputs, LossBatch]:
    rng = np.random.default_rng(seed)
    behavior = -rng.random(num_tokens) * 3
    proximal = behavior + rng.normal(0, 0.7, num_tokens)
    current = proximal + rng.normal(0, 0.3, num_tokens)
    as_tensor = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    batch = LossBatch(
        step_M=torch.arange(num_tokens) // 3,
        advantage_M=as_tensor(np.repeat(rng.normal(size=num_tokens // 3), 3)),
        token_weight_M=as_tensor(rng.random(num_tokens) / num_tokens),
        behavior_logprobs_M=as_tensor(behavior),
        age_M=as_tensor(rng.integers(0, 4, num_tokens)),
        is_replayed_M=torch.zeros(num_tokens, dtype=torch.bool),
    )
    outputs = PolicyOutputs(
        logprobs_M=as_tensor(current).requires_grad_(),
        entropy_M=as_tensor(rng.random(num_tokens)),
        proximal_logprobs_M=as_tensor(proximal),
        reference_logprobs_M=as_tensor(current + rng.normal(0, 0.5, num_tokens)),
    )
    return outputs, batch


def _gmpo(log_ratio: float, own: list[float], advantage: float, current: float, options: dict[str, Any]) -> float:
    low, high = -options["eps_low"], options["eps_high"]
    kept = [min(value, max(low, min(high, value))) if advantage > 0 else max(value, max(low, min(high, value))) for value in own]
    return math.exp(float(np.mean(kept))) * advantage


def _sapo(log_ratio: float, own: list[float], advantage: float, current: float, options: dict[str, Any]) -> float:
    tau = options["gate_temperatures"][0 if advantage > 0 else 1]
    return 4 / tau / (1 + math.exp(-tau * (math.exp(log_ratio) - 1))) * advantage


def _vespo(log_ratio: float, own: list[float], advantage: float, current: float, options: dict[str, Any]) -> float:
    power, rate = options["positive_kernel" if advantage >= 0 else "negative_kernel"]
    weight = math.exp(sum(own))
    return weight**power * math.exp(rate * (1 - weight)) * advantage * current


def _topr(log_ratio: float, own: list[float], advantage: float, current: float, options: dict[str, Any]) -> float:
    return (1.0 if advantage > 0 else min(math.exp(sum(own)), 1.0)) * advantage * current


SOFT = {
    "plain": lambda log_ratio, own, advantage, current, options: math.exp(log_ratio) * advantage,
    "gmpo": _gmpo,
    "sapo": _sapo,
    "vespo": _vespo,
    "topr": _topr,
}
"""Objectives without a clip of the term: (log ratio of the token, those of its step, A, log pi_t, options) -> term."""


def slow_loss(outputs: PolicyOutputs, batch: LossBatch, options: dict[str, Any]) -> float:
    """Straight from the formulas, one token at a time."""
    current = outputs.logprobs_M.tolist()
    behavior = batch.behavior_logprobs_M.tolist()
    step, age, advantages = batch.step_M.tolist(), batch.age_M.tolist(), batch.advantage_M.tolist()
    num_tokens = len(current)
    proximal = outputs.proximal_logprobs_M.tolist()  # type: ignore[union-attr]
    correction = options.get("correction", "decoupled")
    if options.get("proximal") == "loglinear":
        proximal = [b + a / (a + 1) * (c - b) for a, b, c in zip(age, behavior, current, strict=True)]
    elif correction == "none":
        proximal = behavior

    def mean_of_step(values: list[float], number: int) -> float:
        return float(np.mean([value for value, owner in zip(values, step, strict=True) if owner == number]))

    log_weights = [p - b for p, b in zip(proximal, behavior, strict=True)]
    log_ratios = [c - p for c, p in zip(current, proximal, strict=True)]
    low, high = options.get("eps_low", 0.2), options.get("eps_high", 0.2)
    total = 0.0
    for i in range(num_tokens):
        weight, advantage = math.exp(log_weights[i]), advantages[i]
        if correction == "icepop":
            first, last = options.get("icepop_range", (0.5, 2.0))
            weight = weight if first <= weight <= last else 0.0
        elif correction == "none":
            weight = 1.0
        else:
            first, last = options.get("geometric_range", (0.99, 1.01))
            drifted = not first <= math.exp(mean_of_step(log_weights, step[i])) <= last
            weight = 0.0 if correction == "geometric" and drifted else min(weight, options.get("correction_cap", 5.0))
        objective = options.get("objective", "clipped")
        ratio = math.exp(mean_of_step(log_ratios, step[i]) if objective == "gspo" else log_ratios[i])
        if objective == "cispo":
            surrogate = min(ratio, 1 + high) * advantage * current[i]
        elif objective == "dppo_tv":
            moved = math.exp(current[i]) - math.exp(behavior[i])
            limit = options.get("tv_limit", 0.2)
            away = moved > limit if advantage > 0 else -moved > limit
            surrogate = 0.0 if away else ratio * advantage
        elif objective in SOFT:
            own = [value for value, owner in zip(log_ratios, step, strict=True) if owner == step[i]]
            surrogate = SOFT[objective](log_ratios[i], own, advantage, current[i], options)
        else:
            surrogate = min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
        difference = outputs.reference_logprobs_M[i].item() - current[i]  # type: ignore[index]
        k3 = min(math.exp(difference) - difference - 1, 10.0)
        kl = {"k1": -difference, "k2": difference**2 / 2, "k3": k3, "low_var": k3}[options.get("kl_estimator", "k3")]
        total += batch.token_weight_M[i].item() * (weight * surrogate - options.get("kl_beta", 0.0) * kl)
    return -total


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eps_low": 0.1, "eps_high": 0.4, "correction_cap": 1.2},
        {"correction": "tis", "correction_cap": 2.0},
        {"correction": "icepop"},
        {"correction": "none"},
        {"correction": "geometric", "geometric_range": (0.7, 1.4)},
        {"proximal": "loglinear"},
        {"kl_beta": 0.3},
        {"kl_beta": 0.3, "kl_estimator": "k1"},
        {"kl_beta": 0.3, "kl_estimator": "k2"},
        {"objective": "gspo", "eps_low": 0.05, "eps_high": 0.1},
        {"objective": "gspo", "correction": "none", "eps_low": 0.1},
        {"objective": "cispo"},
        {"objective": "dppo_tv"},
        {"objective": "dppo_tv", "proximal": "loglinear"},
    ],
)
def test_loss_random_tokens_equals_slow_numpy(options: dict[str, Any]) -> None:
    for seed in range(5):
        outputs, batch = random_pass(seed)
        if not options.get("kl_beta"):
            expected = slow_loss(outputs, batch, {**options, "kl_beta": 0.0})
            outputs = PolicyOutputs(outputs.logprobs_M, outputs.entropy_M, outputs.proximal_logprobs_M, None)
        else:
            expected = slow_loss(outputs, batch, options)
        assert grpo(**options).loss(outputs, batch).loss.item() == pytest.approx(expected, rel=1e-9)


OWN_FORMULAS = {"digirl", "vtrace", "distillation"}
"""Which have other terms than GRPO's: against slow numpy in test_algorithms_values.py, as the values of all that learn some, and
in test_teacher.py."""
CONFIGURED = [path for path in sorted((CONFIGS / "algorithms").glob("*.yaml")) if path.stem not in OWN_FORMULAS]


@pytest.mark.parametrize("path", CONFIGURED, ids=lambda path: path.stem)
def test_loss_as_configured_equals_slow_numpy(path: Path) -> None:
    algorithm = make_algorithm(load_config(path).learner)
    assert isinstance(algorithm, GRPO)
    options = algorithm.options.model_dump()
    for seed in range(5):
        outputs, batch = random_pass(seed)
        # A value head without error adds nothing.
        values_M = torch.zeros_like(batch.age_M)
        outputs = dataclasses.replace(outputs, values_M=values_M)
        batch = dataclasses.replace(batch, value_target_M=values_M)
        if "reference_logprobs" not in algorithm.needs:
            expected = slow_loss(outputs, batch, {**options, "kl_beta": 0.0})
            outputs = dataclasses.replace(outputs, reference_logprobs_M=None)
        else:
            expected = slow_loss(outputs, batch, options)
        assert algorithm.loss(outputs, batch).loss.item() == pytest.approx(expected, rel=1e-9)


def test_loss_golden_values_stay() -> None:
    outputs, batch = random_pass(0)
    varied: tuple[dict[str, Any], ...] = ({}, {"correction": "none"}, {"kl_beta": 3e-4})
    found = [grpo(eps_high=0.28, **options).loss(outputs, batch).loss.item() for options in varied]
    assert found == pytest.approx(GOLDEN, rel=1e-9)


GOLDEN = [-0.08346792964100955, 0.023899876133982416, -0.08345192046915079]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"proximal": "loglinear"},
        {"correction": "tis", "correction_cap": 1.0},
        {"correction": "geometric"},
        {"objective": "gspo"},
        {"objective": "cispo"},
        {"objective": "dppo_tv"},
    ],
)
def test_loss_on_policy_has_unit_ratios_and_plain_grpo_gradient(options: dict[str, Any]) -> None:
    outputs, batch = random_pass(1)
    logprobs = batch.behavior_logprobs_M.clone().requires_grad_()
    batch = dataclasses.replace(batch, age_M=torch.zeros_like(batch.age_M))
    on_policy = PolicyOutputs(logprobs, outputs.entropy_M, logprobs.detach(), None)
    result = grpo(**options).loss(on_policy, batch)
    result.loss.backward()
    num_tokens = len(batch.age_M)
    assert result.metrics["importance_weight"][0].item() / num_tokens == pytest.approx(1.0, abs=1e-12)
    assert result.metrics["ratio"][0].item() / num_tokens == pytest.approx(1.0, abs=1e-12)
    assert result.metrics["clip_fraction"][0].item() == 0
    # Plain GRPO on policy is the policy gradient: d loss / d log pi = - weight * A.
    torch.testing.assert_close(logprobs.grad, -batch.token_weight_M * batch.advantage_M, rtol=1e-12, atol=0)


# --- prepare -----------------------------------------------------------------------------------------------------------


def test_prepare_advantage_is_step_reward_against_all_steps_of_the_group() -> None:
    group = make_group(
        [
            (True, [make_step([5], [6, 7]), make_step([5, 6], [8], format_ok=False)]),
            (False, [make_step([5], [9]), make_step([5, 9], [9]), make_step([5, 9, 9], [4, 4])]),
        ]
    )
    batch = grpo(advantage_delta=1e-4).prepare([group], ages=PolicyAges(0))
    rewards = np.array([1.0, 0, 0, 0, 0])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    np.testing.assert_allclose(batch.advantage_S, expected, rtol=1e-6)
    np.testing.assert_allclose(batch.token_weight_S, 1 / (np.array([2, 1, 1, 1, 2]) * 5), rtol=1e-6)


def test_prepare_groups_of_other_sizes_each_have_their_own_baseline_and_count_alike() -> None:
    pair = make_group([(True, [make_step([5], [6])]), (False, [make_step([5], [7])])])
    four = make_group([(index == 0, [make_step([5], [index])]) for index in range(4)])
    both = grpo(advantage_delta=0.1).prepare([pair, four], ages=PolicyAges(0))
    for number, size in enumerate((2, 4)):
        members = both.group_S == number
        rewards = np.array([1.0] + [0.0] * (size - 1))
        np.testing.assert_allclose(both.advantage_S[members], (rewards - rewards.mean()) / (rewards.std() + 0.1), rtol=1e-6)
        np.testing.assert_allclose(both.token_weight_S[members], 1 / (2 * size), rtol=1e-6)
    assert both.metrics["num_trajectories"] == 6


def test_prepare_step_beyond_max_age_is_left_out_but_keeps_its_place() -> None:
    def groups(old_version: int) -> list[Any]:
        return [
            make_group(
                [
                    (True, [make_step([5], [6, 7], version=10), make_step([5, 6], [8, 8], version=[10, old_version])]),
                    (False, [make_step([5], [9], version=9)]),
                ]
            )
        ]

    kept, masked = (grpo(max_age=3).prepare(groups(version), ages=PolicyAges(10)) for version in (7, 6))
    assert (len(kept.samples), len(masked.samples)) == (3, 2)
    np.testing.assert_array_equal(masked.advantage_S, kept.advantage_S[[0, 2]])
    np.testing.assert_array_equal(masked.token_weight_S, kept.token_weight_S[[0, 2]])
    assert masked.metrics["num_steps_too_old"] == 1
    assert (masked.metrics["policy_age_min"], masked.metrics["policy_age_max"]) == (0, 1)
    assert kept.metrics["policy_age_max"] == 3


def test_prepare_random_ages_never_trains_beyond_the_bound() -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        groups = random_groups(seed=seed, version=int(rng.integers(0, 12)))
        batch = grpo(max_age=5).prepare(groups, ages=PolicyAges(12))
        assert all(12 - step.min_policy_version <= 5 for step in batch.samples)
        assert batch.metrics["policy_age_max"] <= 5


def test_prepare_group_without_signal_is_counted_and_not_computed() -> None:
    steps = [make_step([5], [6, 7], logprobs=[-0.5, -0.25])]
    flat = make_group([(True, steps), (True, steps)], group_seq=0)
    mixed = make_group([(True, steps), (False, steps)], group_seq=1)
    batch = grpo().prepare([flat, mixed], ages=PolicyAges(0))
    assert batch.metrics["num_groups_without_signal"] == 1
    assert set(batch.group_S.tolist()) == {1}
    assert batch.left_out_nll == pytest.approx(1.5)
    assert batch.left_out_tokens == 4
    # The left-out group still counts in the mean over groups: 2 groups, 2 steps of 2 tokens each.
    np.testing.assert_allclose(batch.token_weight_S, 1 / (2 * 2 * 2))
    assert len(grpo(kl_beta=0.1).prepare([flat, mixed], ages=PolicyAges(0)).samples) == 4


def test_prepare_damaged_step_is_counted_and_not_computed() -> None:
    damaged = [
        make_step([5], [6, 7], logprobs=[-1.0]),
        make_step([5], [6, 7], logprobs=[-1.0, math.nan]),
        make_step([5], [6, 7], version=[1]),
        make_step([5], []),
    ]
    group = make_group([(True, [make_step([5], [6])]), (False, damaged)])
    batch = grpo().prepare([group], ages=PolicyAges(0))
    assert batch.metrics["num_steps_malformed"] == 4
    assert len(batch.samples) == 1
    assert np.isfinite(batch.token_weight_S).all()


def test_prepare_nothing_gives_an_empty_batch() -> None:
    batch = grpo().prepare([], ages=PolicyAges(3))
    assert isinstance(batch, TrainBatch)
    assert batch.samples == ()
    assert all(math.isfinite(value) for value in batch.metrics.values())


# --- options and registry ----------------------------------------------------------------------------------------------


def test_options_unknown_and_wrong_are_all_reported() -> None:
    learner = LearnerConfig(algorithm=AlgorithmConfig(options={"eps_hihg": 0.3, "eps_low": 2, "icepop_range": [1, 2]}))
    with pytest.raises(ConfigError) as caught:
        make_algorithm(learner)
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"learner.algorithm.options.eps_hihg", "learner.algorithm.options.eps_low"}
    assert "eps_high" in str(caught.value)


@pytest.mark.parametrize("options", [{"aggregation": "constant"}, {"icepop_range": [2.0, 0.5]}, {"geometric_range": [1.0, 1.0]}])
def test_options_impossible_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        grpo(**options)


def test_needs_extra_passes_only_where_the_options_use_them() -> None:
    assert grpo().needs == {"proximal_logprobs"}
    assert grpo(correction="none").needs == frozenset()
    assert grpo(proximal="loglinear", kl_beta=1e-3).needs == {"reference_logprobs"}


def test_registry_every_name_makes_an_algorithm() -> None:
    for name in ALGORITHMS:
        made = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name, options=NEEDED_OPTIONS.get(name, {}))))
        assert made.temperature > 0


def test_registry_third_party_path_is_imported() -> None:
    config = AlgorithmConfig(name="computerrl.learner.algorithms.grpo:GRPO", options={"kl_beta": 0.1})
    made = make_algorithm(LearnerConfig(algorithm=config))
    assert isinstance(made, GRPO)
    assert made.options.kl_beta == 0.1


def test_registry_takes_entry_points_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from computerrl.learner.algorithms.grpo import GRPO\nclass Halved(GRPO):\n    def rewards(self, table):\n"
    (tmp_path / "their_rl.py").write_text(f"{code}        return super().rewards(table) / 2\n")
    info = tmp_path / "their_rl-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rl\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[computerrl.algorithms]\nhalved = their_rl:Halved\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name="halved")))
    batch = made.prepare([make_group([(True, [make_step([5], [6])]), (False, [make_step([5], [7])])])], ages=PolicyAges(0))
    assert batch.reward_S.tolist() == [0.5, 0.0]
    outputs, tokens = random_pass(0)
    assert math.isfinite(made.loss(outputs, tokens).loss.item())


@pytest.mark.parametrize("options", [{"eps_high": 0.3}, {"objective": "gspo"}, {"objective": "cispo"}])
def test_options_of_a_clip_with_nothing_to_clip_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one minibatch"):
        GRPO(options, LearnerConfig(num_minibatches=1))
    for unclipped in ({"correction": "none"}, {"proximal": "loglinear"}):
        GRPO({**options, **unclipped}, LearnerConfig(num_minibatches=1))
    GRPO(options, LearnerConfig(num_minibatches=2))


@pytest.mark.parametrize("name", ["gpro", "no_such_module_here:Thing", "computerrl.learner.algorithms.grpo:Nothing"])
def test_registry_unknown_name_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"learner\.algorithm\.name"):
        make_algorithm(LearnerConfig(algorithm=AlgorithmConfig(name=name)))


def test_import_of_options_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from computerrl.common.config import LearnerConfig;"
        "from computerrl.learner.algorithms import make_algorithm;"
        "make_algorithm(LearnerConfig()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
