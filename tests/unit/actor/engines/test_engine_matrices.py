"""Matrices in half precision: products are those of the rounded weights, and no weight is damaged by more than rounding."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from structlog.testing import capture_logs
from transformers import LlamaConfig, LlamaForCausalLM

from computerrl.actor.engines import matrices
from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.matrices import Matrix, can_halve, half_loss
from computerrl.actor.engines.threaded import Sampled
from computerrl.actor.engines.transformers_engine import TransformersCore
from computerrl.common.weight_plan import PROBE_TOKENS

pytestmark = pytest.mark.usefixtures("_fbgemm")


@pytest.fixture
def _fbgemm() -> None:
    assert can_halve(torch.zeros(1)), "these tests are for processors with fbgemm"


def weights(*shape: int, scale: float = 0.1, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 33, 130])
@pytest.mark.parametrize("shapes", [[(48, 32)], [(7, 24), (8, 24), (9, 24)], [(64, 8)], [(1, 3)]])
@pytest.mark.parametrize("half", [True, False])
def test_products_are_those_of_the_rounded_weights(
    monkeypatch: pytest.MonkeyPatch, half: bool, shapes: list[tuple[int, int]], num_rows: int
) -> None:
    monkeypatch.setattr(matrices, "BLOCK_ROWS", 20)
    parts = [weights(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    given = copy.deepcopy(parts)
    matrix = Matrix("a matrix", parts, half=half)
    for round_ in range(2):
        assert matrix.is_half == half
        assert all(torch.equal(part, other) for part, other in zip(parts, given, strict=True)), "the weights themselves stay"
        rounded = torch.cat(parts).half().float() if half else torch.cat(parts)
        x, other = weights(num_rows, shapes[0][1], scale=1.0, seed=7), weights(num_rows, len(rounded), scale=1.0, seed=8)
        before = x.clone(), other.clone()
        expected = F.linear(x, rounded)
        for found, wanted in (
            (matrix(x), expected),
            (matrix(x, "swish"), F.silu(expected)),
            (matrix.combine(x, other, "add"), expected + other),
            (matrix.combine(x, other, "mul"), expected * other),
        ):
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
        assert torch.equal(x, before[0]) and torch.equal(other, before[1])
        for part in parts:
            part.mul_(-1.5 - round_)
        given = copy.deepcopy(parts)
        matrix.refresh()


BAD = [1e5, -1e5, 65_520.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("value", BAD)
def test_matrix_with_a_value_beyond_half_precision_stays_in_float32_and_returns_when_it_fits(value: float) -> None:
    weight = weights(24, 16)
    sound = weight[3, 5].item()
    matrix = Matrix("layers.0.down", [weight], half=True)
    weight[3, 5] = value
    with capture_logs() as logs:
        matrix.refresh()
        matrix.refresh()
    assert not matrix.is_half
    assert [(entry["event"], entry["matrix"]) for entry in logs] == [("engine.matrix_kept_float32", "layers.0.down")], "once"
    assert torch.equal(weight[3, 5], torch.tensor(value)) or math.isnan(value)
    x = weights(4, 16, scale=1.0, seed=1)
    torch.testing.assert_close(matrix(x), F.linear(x, weight), equal_nan=True)
    weight[3, 5] = sound
    matrix.refresh()
    assert matrix.is_half


FACTORS = [
    (1.0, 1.0, True),
    (2.0**-10, 1.0, True),
    (2.0**-18, 1.0, False),
    (1.0, 2.0**-18, False),
    (2.0**-25, 1.0, False),
    (0.0, 1.0, True),
    (1.0, 0.0, True),
    (5e4, 1.0, True),
    (1e7, 1.0, False),
    (1.0, 1e7, False),
]


@pytest.mark.parametrize(("rows", "columns", "fits"), FACTORS)
def test_rows_or_columns_that_rounding_would_damage_keep_a_matrix_in_float32(rows: float, columns: float, fits: bool) -> None:
    weight = weights(32, 64)
    weight[5] *= rows
    weight[:, 9] *= columns
    assert (half_loss(weight) == "") == fits
    if fits:
        rounded = weight.half().float()
        for dim in (0, 1):
            lost = (rounded - weight).norm(dim=dim)
            assert bool((lost <= 2.0**-10 * weight.norm(dim=dim)).all())


def test_zeros_that_other_weights_stand_beside_fit() -> None:
    assert half_loss(torch.zeros(8, 8)) == ""
    assert half_loss(F.pad(weights(8, 8), (0, 8, 8, 0))) == ""


def tiny_model(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def rounded_model(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same with every matrix, the output's too but not the embeddings, rounded to half precision."""
    other = copy.deepcopy(model)
    other.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
    for module in other.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.copy_(module.weight.half().float())
    return other


@pytest.mark.parametrize("tied", [True, False])
def test_engine_in_half_precision_records_the_logprobs_of_the_rounded_weights(tied: bool) -> None:
    model = tiny_model(tied=tied)
    core = TransformersCore(
        copy.deepcopy(model), num_live=4, max_tokens=40, seed=0, max_draft_tokens=4, memo_bytes=1 << 16, half=True
    )
    changes: list[dict[str, float]] = [
        {},
        {"lm_head.weight": 0.01},
        {"model.layers.1.self_attn.k_proj.weight": 0.1, "model.norm.weight": 0.2},
    ]
    for version, change in enumerate(changes):
        for name, strength in change.items():
            parameter = model.get_parameter(name)
            parameter.add_(weights(*parameter.shape, scale=strength, seed=version))
        core.load(version, {name: model.get_parameter(name).clone() for name in change})
        reference = rounded_model(model)
        prompts = [np.random.default_rng(seed).integers(0, 1000, 12).astype(np.int32) for seed in range(6)]
        for key, prompt in enumerate(prompts):
            assert core.add(key, GenerationRequest(prompt, 1.0, 10, frozenset()))
            (one,) = _until_finished(core)
            ids = torch.tensor([[*prompt.tolist(), *one.tokens]])
            logprobs = reference(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]
            assert one.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        ids = torch.tensor([list(PROBE_TOKENS)])
        expected = reference(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert core.probe(np.array(PROBE_TOKENS)) == pytest.approx(expected.numpy(), abs=1e-4)


def _until_finished(core: TransformersCore) -> list[Sampled]:
    while True:
        if finished := list(core.step()):
            return finished
