"""Packs hold every sample once, share what can be shared, and compute exactly what padded plain transformers do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.config import ModelConfig, RunConfig
from computerrl.learner.model import batching
from computerrl.learner.model.batching import Pack, make_packs, padded_tokens
from computerrl.learner.model.policy import Policy, load_policy
from tests.support.data.tensors import assert_near
from tests.support.tiers import one_in


@dataclass(frozen=True)
class Sample:
    prompt_tokens: np.ndarray
    action_tokens: np.ndarray


def sample(prompt: list[int], action: list[int]) -> Sample:
    return Sample(np.array(prompt, dtype=np.int32), np.array(action, dtype=np.int32))


def path_of(pack: Pack, node: int) -> list[int]:
    """Tokens from the root to ``node``, found the slow way."""
    return [int(pack.tokens_N[k]) for k in range(node + 1) if k <= node < pack.end_N[k]]


token_lists = st.lists(st.integers(3, 6), min_size=1, max_size=7)
sample_lists = st.lists(st.builds(sample, token_lists, token_lists), min_size=1, max_size=12)


@given(samples=sample_lists, max_tokens=st.integers(6, 40), block_tokens=st.integers(2, 12))
def test_packs_any_samples_hold_each_once_with_its_own_context(samples: list[Sample], max_tokens: int, block_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "BLOCK_TOKENS", block_tokens)
        packs = make_packs(samples, max_tokens=max_tokens)
    assert sorted(int(i) for pack in packs for i in pack.samples_S) == list(range(len(samples)))
    for pack in packs:
        assert pack.num_nodes <= max_tokens or len(pack.samples_S) == 1
        token = 0
        for index in pack.samples_S:
            whole = [*samples[index].prompt_tokens.tolist(), *samples[index].action_tokens.tolist()]
            for position in range(len(samples[index].prompt_tokens), len(whole)):
                pair = int(pack.token_pair_M[token])
                node = int(pack.logit_nodes_Q[pack.pair_node_U[pair]])
                assert path_of(pack, node) == whole[:position]
                assert pack.pair_token_U[pair] == whole[position]
                assert pack.depth_N[node] == position - 1
                token += 1
        assert token == len(pack.token_pair_M)
        paths = [tuple(path_of(pack, node)) for node in range(pack.num_nodes)]
        assert len(set(paths)) == len(paths)


@given(samples=sample_lists, block_tokens=st.integers(2, 12))
def test_blocks_any_trie_cover_nodes_in_order_with_all_ancestors(samples: list[Sample], block_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "BLOCK_TOKENS", block_tokens)
        (pack,) = make_packs(samples, max_tokens=10_000)
    position = 0
    for block in pack.blocks:
        assert block.start == position
        position = block.stop
        keys = {*block.chain.tolist(), *range(block.start, block.stop)}
        for node in range(block.start, block.stop):
            ancestors = {k for k in range(node + 1) if k <= node < pack.end_N[k]}
            assert ancestors <= keys
            assert set(block.chain.tolist()) <= ancestors
    assert position == pack.num_nodes


def test_packs_equal_samples_cost_one() -> None:
    (pack,) = make_packs([sample([5, 6, 7], [8, 9])] * 8, max_tokens=64)
    assert pack.num_nodes == 4
    assert len(pack.pair_token_U) == 2
    assert pack.num_sample_tokens == 40


def test_packs_groups_that_fit_are_not_cut() -> None:
    samples = [sample([group + 3] * 10 + [i + 3], [4, 5]) for i in range(4) for group in range(3)]
    packs = make_packs(samples, max_tokens=20, groups=[i % 3 for i in range(12)])
    assert sorted({int(i) % 3 for i in pack.samples_S} for pack in packs) == [{0}, {1}, {2}]


def test_packs_empty_action_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        make_packs([sample([3], [])], max_tokens=8)


def test_padded_tokens_counts_longest_of_each_batch() -> None:
    samples = [sample([1] * 3, [1]), sample([1] * 5, [1]), sample([1], [1])]
    assert padded_tokens(samples, batch_size=2) == 2 * 6 + 2


# --- against plain transformers ----------------------------------------------------------------------------------------


def branching_samples() -> list[Sample]:
    """Two groups with shared prompts, repeated actions, a prompt that continues another, and very different lengths."""
    rng = np.random.default_rng(7)
    samples = []
    for _ in range(2):
        header = rng.integers(3, 1000, 20).tolist()
        for _ in range(2):
            screen = header + rng.integers(3, 1000, int(rng.integers(5, 40))).tolist()
            actions = [rng.integers(3, 1000, int(rng.integers(1, 9))).tolist() for _ in range(3)]
            samples += [sample(screen, action) for action in (*actions, actions[0], actions[0] + [2])]
        samples.append(sample([*header, 11, 12], [13]))
    return samples


def policy_of(name: str, **model: object) -> Policy:
    return load_policy(RunConfig(model=ModelConfig(name=name, dtype="float32", **model)))  # type: ignore[arg-type]


def plain_model(name: str, trained: set[str]) -> torch.nn.Module:
    import transformers

    from computerrl.learner.model_store import ensure_model

    model = transformers.AutoModelForCausalLM.from_pretrained(
        ensure_model(name), dtype=torch.float32, attn_implementation="eager"
    )
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in trained)
    return model


def padded_logprobs(model: torch.nn.Module, samples: list[Sample], temperature: float) -> list[torch.Tensor]:
    """Per sample [A] log-probs, one right-padded batch, logits everywhere: the plain way."""
    whole = [[*s.prompt_tokens.tolist(), *s.action_tokens.tolist()] for s in samples]
    width = max(map(len, whole))
    tokens = torch.tensor([row + [2] * (width - len(row)) for row in whole])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in whole])
    logits = model(input_ids=tokens, attention_mask=mask).logits.float() / temperature
    logprobs = torch.log_softmax(logits[:, :-1], dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
    return [
        logprobs[i, len(s.prompt_tokens) - 1 : len(s.prompt_tokens) + len(s.action_tokens) - 1] for i, s in enumerate(samples)
    ]


@pytest.mark.parametrize(
    ("name", "top_layers", "max_tokens", "block_tokens", "temperature"),
    [
        *one_in(
            3,
            [
                ("tiny-random", 2, 90, 24, 0.7),
                ("tiny-random", 2, 4096, 192, 1.0),
                ("tiny-random", None, 90, 24, 0.7),
                ("tiny-random", None, 4096, 192, 1.0),
            ],
        ),
        pytest.param("smollm2-135m", 2, 4096, 48, 0.7, marks=pytest.mark.release),
    ],
)
def test_packed_forward_and_gradients_equal_padded_transformers(
    monkeypatch: pytest.MonkeyPatch, name: str, top_layers: int | None, max_tokens: int, block_tokens: int, temperature: float
) -> None:
    monkeypatch.setattr(batching, "BLOCK_TOKENS", block_tokens)
    samples = branching_samples()
    policy = policy_of(name, trainable_top_layers=top_layers)
    model = plain_model(name, set(policy.weights.compute))
    expected = padded_logprobs(model, samples, temperature)
    weights = [torch.linspace(-1, 1, len(row)) + i / 5 for i, row in enumerate(expected)]
    num_tokens = sum(map(len, expected))
    torch.stack([(row * w).sum() for row, w in zip(expected, weights, strict=True)]).sum().div(num_tokens).backward()
    for pack in make_packs(samples, max_tokens=max_tokens):
        tensors = policy.tensors(pack)
        outputs = policy.forward(pack, temperature=temperature, tensors=tensors, hidden=policy.frozen_hidden(pack, tensors))
        tokens_M = outputs.logprobs_U[torch.from_numpy(pack.token_pair_M)]
        want_M = torch.cat([expected[i] for i in pack.samples_S])
        weight_M = torch.cat([weights[i] for i in pack.samples_S])
        torch.testing.assert_close(tokens_M, want_M, atol=1e-5, rtol=1e-5)
        ((tokens_M * weight_M).sum() / num_tokens).backward()
    gradients = {key: p.grad for key, p in model.named_parameters() if p.requires_grad}
    assert set(gradients) == set(policy.weights.masters)
    for key, gradient in gradients.items():
        assert_near(policy.weights.masters[key].grad, gradient, part=3e-5)


def test_packed_entropy_equals_padded_transformers() -> None:
    samples = branching_samples()
    policy = policy_of("tiny-random")
    (pack,) = make_packs(samples, max_tokens=4096)
    with torch.no_grad():
        entropy_Q = policy.forward(pack, temperature=1.3).entropy_Q
        logits = plain_model("tiny-random", set())(input_ids=torch.tensor(path_of(pack, int(pack.logit_nodes_Q[3])))[None]).logits
    distribution = torch.distributions.Categorical(logits=logits[0, -1] / 1.3)
    assert entropy_Q[3].item() == pytest.approx(distribution.entropy().item(), abs=1e-4)
