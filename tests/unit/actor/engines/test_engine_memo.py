"""Distributions computed before are used again, exactly: tokens and log-probs are those of the present weights alone."""

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
from computerrl.actor.engines.memo import Memo, context_key, longer_key
from computerrl.actor.engines.threaded import Sampled
from computerrl.actor.engines.transformers_engine import TransformersCore, TransformersEngine
from tests.support.tiers import one_in

VOCABULARY = 5
ROW_BYTES = 4 * VOCABULARY
PLENTY = 10_000 * ROW_BYTES
PROMPT = np.array([1, 2, 3, 4, 1, 2], dtype=np.int32)
LONG_PROMPTS = [np.random.default_rng(seed).integers(0, VOCABULARY, 12).astype(np.int32) for seed in range(6)]


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


def make_core(
    model: LlamaForCausalLM, *, memo_bytes: int = PLENTY, max_draft_tokens: int = 0, fused: bool = True, seed: int = 0
) -> TransformersCore:
    # A copy: the decoder of any model sets attention up its own way.
    return TransformersCore(
        copy.deepcopy(model),
        num_live=4,
        max_tokens=40,
        seed=seed,
        max_draft_tokens=max_draft_tokens,
        memo_bytes=memo_bytes,
        fused=fused,
    )


def play(core: TransformersCore, requests: list[GenerationRequest], *, after_step: Any = lambda: None) -> list[Sampled]:
    """Completions in the order of the requests, up to four at a time."""
    done: dict[int, Sampled] = {}
    waiting = list(enumerate(requests))
    while len(done) < len(requests):
        while waiting and core.add(*waiting[0]):
            waiting.pop(0)
        done.update((sampled.key, sampled) for sampled in core.step())
        after_step()
    return [done[key] for key in range(len(requests))]


def ask(
    prompt: np.ndarray = PROMPT, *, most: int = 6, temperature: float = 1.0, stop: frozenset[int] = frozenset()
) -> GenerationRequest:
    return GenerationRequest(prompt, temperature, most, stop)


def expected_logprobs(model: LlamaForCausalLM, request: GenerationRequest, tokens: list[int]) -> np.ndarray:
    """Log-probs of ``tokens`` as an answer to the request, by the model alone."""
    ids = torch.tensor([[*request.prompt_tokens.tolist(), *tokens]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(request.prompt_tokens) - 1 : -1]
    logprobs = (logits / (request.temperature or 1.0)).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def joint(model: LlamaForCausalLM, request: GenerationRequest) -> dict[tuple[int, ...], float]:
    """Probability of every whole answer to the request, stop tokens obeyed."""
    found = {}
    for tokens in itertools.product(range(VOCABULARY), repeat=request.max_new_tokens):
        end = next((place + 1 for place, token in enumerate(tokens) if token in request.stop_tokens), len(tokens))
        answer = tokens[:end]
        if answer not in found:
            found[answer] = float(np.exp(expected_logprobs(model, request, list(answer)).sum()))
    return found


def assert_distributed(seen: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> None:
    """Chi-square, rare outcomes pooled."""
    number = sum(seen.values())
    common = {outcome: chance for outcome, chance in chances.items() if number * chance >= 5}
    cells = [(seen[outcome], number * chance) for outcome, chance in common.items()]
    cells.append((number - sum(count for count, _ in cells), number * (1 - sum(common.values())) + 1e-9))
    chi_square = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1)
    freedom = len(cells) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("temperature", "fused", "memo_bytes", "max_draft_tokens"),
    one_in(
        10,
        [
            (temperature, fused, memo_bytes, max_draft_tokens)
            for temperature, fused in ((0.6, True), (1.0, True), (1.0, False))
            for memo_bytes in (PLENTY, 0, 3 * ROW_BYTES)
            for max_draft_tokens in (8, 0)
        ],
    ),
)
def test_answers_with_a_memo_are_distributed_as_the_model_says(
    model: LlamaForCausalLM, temperature: float, fused: bool, memo_bytes: int, max_draft_tokens: int
) -> None:
    request = ask(most=4, temperature=temperature, stop=frozenset({3}))
    core = make_core(model, memo_bytes=memo_bytes, max_draft_tokens=max_draft_tokens, fused=fused)
    completions = play(core, [request] * 1000)
    assert_distributed(Counter(tuple(one.tokens) for one in completions), joint(model, request))
    if memo_bytes == PLENTY:
        assert core.counters.requests_without_pass.total > 700, "the memo must have answered most"
    if memo_bytes == 0:
        assert core.counters.requests_without_pass.total == 0


@pytest.mark.parametrize(
    ("temperature", "max_draft_tokens", "memo_bytes"),
    one_in(7, itertools.product((2.0, 1.0, 0.0, 0.5), (8, 0), (7 * ROW_BYTES, PLENTY, ROW_BYTES))),
)
def test_logprobs_with_a_memo_are_those_of_the_present_weights(
    model: LlamaForCausalLM, temperature: float, max_draft_tokens: int, memo_bytes: int
) -> None:
    core, weights = make_core(model, memo_bytes=memo_bytes, max_draft_tokens=max_draft_tokens), copy.deepcopy(model)
    rng = np.random.default_rng(0)
    for version in range(1, 4):
        weights.model.norm.weight.mul_(1.5)
        weights.model.layers[0].mlp.up_proj.weight.add_(0.3)
        names = ("model.norm.weight", "model.layers.0.mlp.up_proj.weight")
        core.load(version, {name: weights.get_parameter(name).clone() for name in names})
        requests = [
            ask(
                LONG_PROMPTS[rng.integers(6)][: rng.integers(1, 13)],
                most=int(rng.integers(1, 9)),
                temperature=temperature,
                stop=frozenset({int(rng.integers(VOCABULARY))}),
            )
            for _ in range(60)
        ]
        for request, one in zip(requests, play(core, requests), strict=True):
            assert set(one.policy_versions) == {version}
            assert one.logprobs == pytest.approx(expected_logprobs(weights, request, one.tokens), abs=1e-4)
            assert 1 <= len(one.tokens) <= request.max_new_tokens
            assert not request.stop_tokens & set(one.tokens[:-1])
            assert one.stopped == bool(one.tokens[-1] in request.stop_tokens)
            assert one.stopped or len(one.tokens) == request.max_new_tokens


def test_greedy_answers_are_the_same_with_and_without_a_memo(model: LlamaForCausalLM) -> None:
    requests = [ask(prompt, temperature=0.0, most=10) for prompt in LONG_PROMPTS * 4]
    answers = [
        [one.tokens for one in play(make_core(model, memo_bytes=memo_bytes, max_draft_tokens=drafts), requests)]
        for memo_bytes in (0, 5 * ROW_BYTES, PLENTY)
        for drafts in (0, 8)
    ]
    assert all(one == answers[0] for one in answers[1:])


def test_request_whose_contexts_are_all_known_needs_no_pass_and_no_row(model: LlamaForCausalLM) -> None:
    core = make_core(model)
    request = ask(temperature=0.0)
    first = play(core, [request])[0]
    passes = core.counters.passes.total
    again = play(core, [request] * 20)
    assert core.counters.passes.total == passes
    assert all(one.tokens == first.tokens and one.logprobs == pytest.approx(first.logprobs, abs=1e-6) for one in again)
    assert core.counters.requests_without_pass.total == 20
    assert core.step() == [], "nothing to do, and no pass made for it"


def test_answer_from_the_memo_does_not_wait_for_the_pass_of_others(model: LlamaForCausalLM) -> None:
    core = make_core(model)
    request = ask(temperature=0.0)
    play(core, [request])
    assert core.add(1, ask(LONG_PROMPTS[0])) and core.add(2, request)
    passes = core.counters.passes.total
    assert [one.key for one in core.step()] == [2]
    assert core.counters.passes.total == passes


def test_later_steps_whose_prompts_contain_the_answers_find_them_in_the_memo(model: LlamaForCausalLM) -> None:
    core = make_core(model)
    whole = play(core, [ask(temperature=0.0, most=8)])[0]
    passes = core.counters.passes.total
    grown = np.concatenate([PROMPT, np.asarray(whole.tokens[:3], dtype=np.int32)])
    rest = play(core, [ask(grown, temperature=0.0, most=5)])[0]
    assert rest.tokens == whole.tokens[3:] and core.counters.passes.total == passes


@pytest.mark.parametrize("max_draft_tokens", [0, 8])
def test_weights_that_change_under_an_answer_leave_nothing_wrong_in_the_memo(
    model: LlamaForCausalLM, max_draft_tokens: int
) -> None:
    core, weights = make_core(model, max_draft_tokens=max_draft_tokens), copy.deepcopy(model)
    core.load(0, {})
    version = 0

    def update() -> None:
        nonlocal version
        version += 1
        weights.model.layers[0].mlp.up_proj.weight.add_(0.2)
        core.load(version, {"model.layers.0.mlp.up_proj.weight": weights.model.layers[0].mlp.up_proj.weight.clone()})

    for _ in range(5):
        # Answers that a load finds half-way go on with keys of older weights.
        under_way = play(core, [ask(prompt, most=8) for prompt in LONG_PROMPTS], after_step=update)
        assert all(one.policy_versions == sorted(one.policy_versions) for one in under_way)
        assert any(len(set(one.policy_versions)) > 1 for one in under_way)
        # Nothing that they have left behind may answer a request that begins now.
        requests = [ask(prompt, most=8) for prompt in LONG_PROMPTS * 5]
        for request, one in zip(requests, play(core, requests), strict=True):
            assert set(one.policy_versions) == {version}
            assert one.logprobs == pytest.approx(expected_logprobs(weights, request, one.tokens), abs=1e-4)


@pytest.mark.parametrize("prompt", [PROMPT, pytest.param(LONG_PROMPTS[0], id="with keys stored under the older weights")])
def test_request_answered_in_part_by_older_weights_goes_on_with_the_present_ones(
    model: LlamaForCausalLM, prompt: np.ndarray
) -> None:
    core, weights = make_core(model), copy.deepcopy(model)
    core.load(0, {})
    play(core, [ask(prompt, temperature=0.0, most=3)])
    request = ask(prompt, temperature=0.0, most=8)
    # Three tokens from the memo, the rest needs passes.
    assert core.add(0, request)
    weights.model.layers[0].mlp.up_proj.weight.add_(0.5)
    core.load(1, {"model.layers.0.mlp.up_proj.weight": weights.model.layers[0].mlp.up_proj.weight.clone()})
    finished: list[Sampled] = []
    while not finished:
        finished = list(core.step())
    (one,) = finished
    assert one.policy_versions == [0] * 3 + [1] * 5
    old, new = (expected_logprobs(those, request, one.tokens) for those in (model, weights))
    assert one.logprobs == pytest.approx([*old[:3], *new[3:]], abs=1e-4)


def test_abort_gives_what_was_sampled_whole_answers_of_the_memo_among_it(model: LlamaForCausalLM) -> None:
    core = make_core(model)
    play(core, [ask(temperature=0.0, most=4)])
    for key, most in enumerate((4, 7)):
        assert core.add(key, ask(temperature=0.0, most=most))
    whole, part = core.abort()
    assert (whole.key, len(whole.tokens), part.key, len(part.tokens)) == (0, 4, 1, 4)
    assert whole.tokens == part.tokens and core.step() == []
    request = ask(temperature=0.0, most=7)
    one = play(core, [request])[0]
    assert one.logprobs == pytest.approx(expected_logprobs(model, request, one.tokens), abs=1e-4)


@pytest.mark.parametrize("resumes", [True, False])
def test_engine_whose_weights_change_under_many_answers_records_each_token_as_sampled(
    model: LlamaForCausalLM, resumes: bool
) -> None:
    versions = [copy.deepcopy(model)]
    engine = TransformersEngine(make_core(model, max_draft_tokens=4), decode=lambda _: "", dtype="float32", resumes=resumes)
    try:
        engine.load(0, {})
        requests, futures = [ask(LONG_PROMPTS[number % 3], most=8) for number in range(60)], []
        for number, request in enumerate(requests):
            futures.append(engine.submit(request))
            if number % 12 == 5:
                versions.append(copy.deepcopy(versions[-1]))
                changed = versions[-1].model.layers[0].mlp.up_proj.weight
                changed.add_(0.3)
                engine.load(len(versions) - 1, {"model.layers.0.mlp.up_proj.weight": changed.clone()})
        for request, future in zip(requests, futures, strict=True):
            one = future.result(120)
            by_version = [expected_logprobs(weights, request, one.tokens.tolist()) for weights in versions]
            whole = len(set(one.policy_versions.tolist())) == 1
            for place, (version, logprob) in enumerate(zip(one.policy_versions, one.logprobs, strict=True)):
                # Without resuming, later tokens rest on keys and values of older weights.
                if whole or resumes:
                    assert logprob == pytest.approx(by_version[version][place], abs=1e-4)
        before = engine.metrics()
        for _ in range(3):
            engine.submit(ask(temperature=0.0)).result(120)
        after = engine.metrics()
        assert after["engine/answers_total"] == before["engine/answers_total"] + 3 == 63
        assert after["engine/answers_without_pass_total"] >= before["engine/answers_without_pass_total"] + 2
        assert after["engine/computed_tokens_total"] >= after["engine/passes_total"] > 0
        assert after["engine/memo_bytes"] > 0 and after["engine/memo_bytes"] % ROW_BYTES == 0
    finally:
        engine.close()


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_memo_keeps_the_rows_used_last_within_its_bytes(num_rows: int) -> None:
    memo = Memo(max_bytes=num_rows * ROW_BYTES + ROW_BYTES // 2, vocabulary=VOCABULARY)
    rng, recent = np.random.default_rng(0), []
    rows = torch.randn(20, VOCABULARY)
    for number in rng.integers(0, 20, 500).tolist():
        key = context_key(np.array([number]))
        found = memo.find(key)
        assert (found is not None) == (number in recent)
        if found is None:
            memo.put(key, rows[number])
        else:
            assert torch.equal(found, rows[number])
        recent = [*(other for other in recent if other != number), number][-num_rows:]
        assert memo.num_bytes == len(recent) * ROW_BYTES <= num_rows * ROW_BYTES
    memo.forget()
    assert memo.num_bytes == 0 and all(memo.find(context_key(np.array([number]))) is None for number in range(20))


def test_memo_without_room_for_a_row_keeps_nothing() -> None:
    memo = Memo(max_bytes=ROW_BYTES - 1, vocabulary=VOCABULARY)
    memo.put(b"", torch.zeros(VOCABULARY))
    assert memo.find(b"") is None and memo.num_bytes == 0


def test_key_is_the_same_however_the_tokens_came_and_another_for_other_tokens() -> None:
    tokens = [0, 1, 255, 256, 49_151, 2**30]
    keys = set()
    for length in range(len(tokens) + 1):
        for split in range(length + 1):
            key = context_key(np.array(tokens[:split], dtype=np.int64), tokens[split:length])
            assert key == context_key(np.array(tokens[:length], dtype=np.int32))
            if split < length:
                assert key == longer_key(context_key(np.array(tokens[:split]), tokens[split : length - 1]), tokens[length - 1])
        keys.add(context_key(np.array(tokens[:length])))
    assert len(keys) == len(tokens) + 1
