"""Guesses change how many passes a completion takes, and nothing else: tokens and log-probs are those of the model alone."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.threaded import Sampled
from computerrl.actor.engines.transformers_engine import TransformersCore

VOCABULARY = 5
PROMPT = np.array([1, 2, 3, 4, 1, 2], dtype=np.int32)


class CountedCore(TransformersCore):
    """Counts passes and the tokens guessed in them."""

    num_passes = 0
    num_guessed = 0

    def _sample(self, logits_RV: torch.Tensor, batch: Any) -> None:
        self.num_passes += 1
        self.num_guessed += sum(len(running.draft) for running in batch)
        super()._sample(logits_RV, batch)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def make_core(model: LlamaForCausalLM, *, max_draft_tokens: int, fused: bool = True) -> CountedCore:
    # A copy: the decoder of any model sets attention up its own way.
    return CountedCore(copy.deepcopy(model), num_live=4, max_tokens=32, seed=0, max_draft_tokens=max_draft_tokens, fused=fused)


def play(core: TransformersCore, requests: list[GenerationRequest]) -> list[Sampled]:
    """All of them, four at a time, in the order of the requests."""
    done: dict[int, Sampled] = {}
    waiting = list(enumerate(requests))
    while len(done) < len(requests):
        while waiting and core.add(*waiting[0]):
            waiting.pop(0)
        done.update((sampled.key, sampled) for sampled in core.step())
    return [done[key] for key in range(len(requests))]


def ask(
    *, most: int, temperature: float = 1.0, stop: frozenset[int] = frozenset(), prompt: np.ndarray = PROMPT
) -> GenerationRequest:
    return GenerationRequest(prompt, temperature, most, stop)


def joint(model: LlamaForCausalLM, length: int, temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of every completion of ``length`` tokens."""
    completions = list(itertools.product(range(VOCABULARY), repeat=length))
    ids = torch.tensor([[*PROMPT.tolist(), *completion] for completion in completions])
    with torch.inference_mode():
        logprobs = (model(ids).logits / temperature).log_softmax(-1)
    start = len(PROMPT)
    chosen = logprobs[:, start - 1 : -1].gather(2, ids[:, start:, None])[:, :, 0].sum(1)
    return dict(zip(completions, chosen.exp().tolist(), strict=True))


def expected_logprobs(model: LlamaForCausalLM, completion: Sampled) -> list[float]:
    """Of a completion of `PROMPT` by the model alone."""
    ids = torch.tensor([[*PROMPT.tolist(), *completion.tokens]])
    with torch.inference_mode():
        logprobs = model(ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.release), 0.6])
@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.release)])
def test_guesses_leave_the_distribution_of_completions_as_it_is(model: LlamaForCausalLM, temperature: float, fused: bool) -> None:
    core = make_core(model, max_draft_tokens=8, fused=fused)
    number, length = 3000, 3
    completions = play(core, [ask(most=length, temperature=temperature) for _ in range(number)])
    assert core.num_guessed > number / 2, "there must be guesses to be wrong"
    seen = Counter(tuple(completion.tokens) for completion in completions)
    chi_square = sum(
        (seen[outcome] - number * chance) ** 2 / (number * chance)
        for outcome, chance in joint(model, length, temperature).items()
    )
    freedom = VOCABULARY**length - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_guesses_leave_the_logprobs_those_of_the_model(model: LlamaForCausalLM) -> None:
    core = make_core(model, max_draft_tokens=8)
    for completion in play(core, [ask(most=6) for _ in range(200)]):
        assert completion.logprobs == pytest.approx(expected_logprobs(model, completion), abs=1e-4)
    assert core.num_guessed > 0


def test_guesses_at_temperature_zero_give_the_same_tokens_in_fewer_passes(model: LlamaForCausalLM) -> None:
    prompts = [np.random.default_rng(seed % 5).integers(0, VOCABULARY, 8).astype(np.int32) for seed in range(100)]
    requests = [ask(most=10, temperature=0.0, prompt=prompt) for prompt in prompts]
    with_guesses, without = make_core(model, max_draft_tokens=8), make_core(model, max_draft_tokens=0)
    answers = [[completion.tokens for completion in play(core, requests)] for core in (with_guesses, without)]
    assert answers[0] == answers[1]
    assert without.num_guessed == 0
    assert with_guesses.num_passes < 0.5 * without.num_passes


def test_guesses_never_lead_past_a_stop_token_or_the_longest_answer(model: LlamaForCausalLM) -> None:
    core = make_core(model, max_draft_tokens=8)
    requests = [ask(most=most, stop=frozenset({3})) for most in (1, 2, 5, 9) for _ in range(100)]
    for request, completion in zip(requests, play(core, requests), strict=True):
        assert 1 <= len(completion.tokens) <= request.max_new_tokens
        assert 3 not in completion.tokens[:-1]
        assert completion.stopped == (completion.tokens[-1] == 3)
        assert completion.stopped or len(completion.tokens) == request.max_new_tokens
    assert core.num_guessed > 0


def test_guesses_learned_under_older_weights_leave_the_logprobs_those_of_the_present_ones(model: LlamaForCausalLM) -> None:
    core, changed = make_core(model, max_draft_tokens=8), copy.deepcopy(model)
    play(core, [ask(most=6) for _ in range(50)])
    changed.model.norm.weight.mul_(3.0)
    core.load(3, {"model.norm.weight": changed.model.norm.weight})
    core.num_guessed = 0
    for completion in play(core, [ask(most=6) for _ in range(50)]):
        assert set(completion.policy_versions) == {3}
        assert completion.logprobs == pytest.approx(expected_logprobs(changed, completion), abs=1e-4)
    assert core.num_guessed > 0
