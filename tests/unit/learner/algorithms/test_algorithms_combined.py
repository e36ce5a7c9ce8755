"""Every combination of objective, correction, proximal policy, dual clip and KL against slow formulas; and what must not decide a
number: how a batch is cut into passes, in which order, and the seed of Python's hashes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from computerrl.common.config import load_config
from computerrl.learner.algorithms import Algorithm, LossBatch, PolicyOutputs, make_algorithm
from tests.unit.learner.algorithms.test_algorithms_oracles import (
    FOLDER,
    Formula,
    Source,
    Token,
    Weight,
    as_pass,
    dppo_tv,
    dual_clipped,
    far_apart,
    geometric,
    gmpo,
    gradient_of,
    gspo_token,
    icepop,
    interpolated,
    k2_with_its_weight,
    kl_with_its_gradient,
    limited,
    low_var_kl,
    make,
    no_kl,
    ours,
    ppo_clip,
    random_tokens,
    sapo,
    slow_loss,
    truncated,
    unclipped,
    unweighted,
)

ROOT = Path(__file__).resolve().parents[4]


def k1_with_the_gradient(beta: float) -> Formula:
    """k1 = -d as a value, the gradient of the KL."""
    of_k3 = kl_with_its_gradient(beta)

    def term(i: int, tokens: list[Token]) -> torch.Tensor:
        value = of_k3(i, tokens)
        return value - value.detach() - beta * limited(tokens[i].reference - tokens[i].now.item())

    return term


def cispo_of_old(i: int, tokens: list[Token]) -> torch.Tensor:
    """CISPO, arXiv 2506.13585, equations 4 and 5, with the ratio to pi_p."""
    token = tokens[i]
    return min(math.exp(limited(token.now.item() - token.old)), 1.3) * token.advantage * token.now


OBJECTIVES: dict[str, Formula] = {
    "clipped": ppo_clip(0.2, 0.3),
    "gspo": gspo_token(0.2, 0.3),
    "cispo": cispo_of_old,
    "dppo_tv": dppo_tv(0.2),
    "plain": unclipped(),
    "gmpo": gmpo(0.2, 0.3),
    "sapo": sapo(1.0, 1.05),
}
CLIPPED = ("clipped", "gspo")
CORRECTIONS: dict[str, tuple[Weight, dict[str, Any]]] = {
    "decoupled": (truncated(5.0), {}),
    "tis": (truncated(1.5), {"correction_cap": 1.5}),
    "icepop": (icepop(0.5, 2.0), {}),
    "geometric": (geometric(0.8, 1.2, 5.0), {"geometric_range": (0.8, 1.2)}),
    "none": (unweighted, {}),
}
KLS = {
    "": no_kl,
    "k1": k1_with_the_gradient(0.1),
    "k2": k2_with_its_weight(0.1),
    "k3": kl_with_its_gradient(0.1),
    "low_var": low_var_kl(0.1),
}
COMBINED = [
    (*both, dual_clip, kl)
    for (*both, dual_clip), kl in zip(
        [
            (objective, correction, proximal, dual_clip)
            for objective, correction, proximal, dual_clip in itertools.product(
                OBJECTIVES, CORRECTIONS, ("recomputed", "loglinear"), (None, 3.0)
            )
            if not (correction == "none" and proximal == "loglinear") and not (dual_clip and objective not in CLIPPED)
        ],
        itertools.cycle(KLS),
        strict=False,
    )
]


def with_proximal(tokens: list[Token], correction: str, proximal: str) -> list[Token]:
    """Tokens whose ``old`` is the log pi_p that the options mean."""
    if correction == "none":
        return [dataclasses.replace(token, old=token.sampled) for token in tokens]
    return [dataclasses.replace(token, old=interpolated(token)) for token in tokens] if proximal == "loglinear" else tokens


@pytest.mark.parametrize(("objective", "correction", "proximal", "dual_clip", "kl"), COMBINED)
def test_loss_and_gradient_of_every_combination_are_those_of_the_formulas(
    objective: str, correction: str, proximal: str, dual_clip: float | None, kl: str
) -> None:
    weight, options = CORRECTIONS[correction]
    term = OBJECTIVES[objective] if dual_clip is None else dual_clipped(OBJECTIVES[objective], dual_clip)
    options = {"objective": objective, "correction": correction, **options}
    options |= {"eps_high": 0.3} if objective in (*CLIPPED, "gmpo", "cispo") else {}
    options |= {"proximal": proximal} if correction != "none" else {}
    options |= {"dual_clip": dual_clip} if dual_clip else {}
    options |= {"kl_beta": 0.1, "kl_estimator": kl} if kl else {}
    for tokens in (random_tokens(21), random_tokens(22, spread=1.5), far_apart(30.0, -30.0, -1.0)):
        meant = with_proximal(tokens, correction, proximal)
        expected = slow_loss(meant, Source(term, weight, KLS[kl]))
        loss, gradient = ours(make(**options), tokens)
        assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
        wanted = gradient_of(expected, meant)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-8, atol=1e-9 * max(1e-3, np.abs(wanted).max()))


# --- passes --------------------------------------------------------------------------------------------------------------


def loss_of(algorithm: Algorithm, outputs: PolicyOutputs, batch: LossBatch, chosen: torch.Tensor) -> torch.Tensor:
    """The loss of a pass of the tokens ``chosen`` [m]."""

    def part(value: Any) -> Any:
        return None if value is None else value[chosen]

    def parts(of: Any) -> dict[str, Any]:
        return {item.name: part(getattr(of, item.name)) for item in dataclasses.fields(of)}

    _, step_m = torch.unique_consecutive(batch.step_M[chosen], return_inverse=True)
    return algorithm.loss(PolicyOutputs(**parts(outputs)), LossBatch(**{**parts(batch), "step_M": step_m})).loss


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), data=st.data())
def test_gradient_is_the_same_for_any_split_into_passes_in_any_order(
    name: str, seed: int, lengths: list[int], data: st.DataObject
) -> None:
    algorithm = make_algorithm(load_config(FOLDER / f"{name}.yaml").learner)
    outputs, batch = as_pass(random_tokens(seed, lengths=tuple(lengths)), with_values=hasattr(algorithm, "value_lr"))
    if "reference_logprobs" not in algorithm.needs:
        outputs = dataclasses.replace(outputs, reference_logprobs_M=None)
    (whole,) = torch.autograd.grad(algorithm.loss(outputs, batch).loss, [outputs.logprobs_M])
    order = data.draw(st.permutations(range(len(lengths))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=3)))
    total = torch.zeros(())
    for start, end in itertools.pairwise([0, *cuts, len(lengths)]):
        if start < end:
            chosen = torch.cat([torch.nonzero(batch.step_M == step)[:, 0] for step in order[start:end]])
            total = total + loss_of(algorithm, outputs, batch, chosen)
    (summed,) = torch.autograd.grad(total, [outputs.logprobs_M])
    torch.testing.assert_close(summed, whole, rtol=1e-12, atol=1e-14)


# --- hashes --------------------------------------------------------------------------------------------------------------

BOOKS = """
import hashlib
from computerrl.common.config import AlgorithmConfig, LearnerConfig
from computerrl.learner.algorithms import ALGORITHMS, PolicyAges, make_algorithm
from tests.support.data.trainer_data import NEEDED_OPTIONS, random_groups
found = hashlib.sha256()
for name in ALGORITHMS:
    config = AlgorithmConfig(name=name, options=NEEDED_OPTIONS.get(name, {}))
    algorithm = make_algorithm(LearnerConfig(algorithm=config), seed=3)
    for version in range(3):
        groups = random_groups(num_groups=9, size=8)[3 * version : 3 * version + 3]
        batch = algorithm.prepare(groups, ages=PolicyAges(version))
        getattr(algorithm, "remember", lambda groups: None)(groups)
        numbers = [part.tolist() for part in (batch.advantage_S, batch.token_weight_S)]
        found.update(repr((batch.step_keys, numbers, list(batch.left_out.items()))).encode())
print(found.hexdigest())
"""


def test_no_batch_depends_on_the_seed_of_hashes() -> None:
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", BOOKS]
        found.add(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120).stdout)
    assert len(found) == 1 and math.log2(int(found.pop(), 16)) > 200
