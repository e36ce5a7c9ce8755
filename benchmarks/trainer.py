"""Trained tokens per second: packed tries with frozen lower layers against padded plain transformers, on the same steps.

Both sides run the forward and backward pass of one update on SmolLM2-135M with the top 12 layers trained, bfloat16, one
thread. The peer is what plain use looks like: padded batches in the order of the steps, `requires_grad` off for the lower
layers, logits at every position. Steps are made like the quickstart's: groups of 8 rollouts of one task, prompts of 60 to
130 tokens, actions of 5 to 15. Peer and ours alternate; a value is the median of its rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_THREADS = 1
PEER_BATCH_SIZES = (8, 16)
"""The faster of the two counts."""
MAX_PACK_TOKENS = 1024

_SCENARIOS = (("early in RL (half of the actions alike)", 0.5), ("late in RL (nine of ten alike)", 0.9))
"""(label, how often a rollout does what most do)"""

_WORDS = ("Submit", "Cancel", "Reset", "Apply", "Open", "Close", "Next", "Back", "Search", "Login", "Report", "Budget", "Draft")


@dataclass(frozen=True)
class BenchStep:
    """What the trainer needs of a step."""

    prompt_tokens: np.ndarray
    action_tokens: np.ndarray


def make_steps(
    encode: Callable[[str], list[int]], *, num_groups: int, same_action: float, seed: int = 0
) -> tuple[list[BenchStep], list[int]]:
    """Steps and their groups; ``same_action`` is how often a rollout does what most do (a policy gains certainty)."""
    rng = random.Random(seed)
    steps: list[BenchStep] = []
    groups: list[int] = []
    for group in range(num_groups):
        word = rng.choice(_WORDS)
        rows = [
            f"{i + 1} {rng.choice(['push-button', 'entry', 'check-box'])} {rng.choice(_WORDS)}" for i in range(rng.randint(6, 14))
        ]
        usual = [
            f' type("{word.lower()} {rng.randint(10, 99)}")',
            f" click({rng.randint(1, 6)})",
            f' files.rename("{word}", "x{group}")',
        ]
        for _ in range(8):
            shown, past = list(rows), ""
            for number in range(rng.randint(2, 4)):
                prompt = f'Task: Enter "{word}" and press Submit.\nApp: chromium\n' + "\n".join(shown) + f"{past}\nAction:"
                text = usual[number % 3] if rng.random() < same_action else f' type("{rng.choice(_WORDS)} {rng.randint(10, 99)}")'
                steps.append(BenchStep(np.array(encode(prompt)), np.array(encode(text + "\n"))))
                groups.append(group)
                past += f"\nDone:{text}"
                shown[number] += " focused"
    return steps, groups


def _packed_round(policy: Any, steps: Sequence[BenchStep], groups: Sequence[int]) -> float:
    from learner.batching import make_packs

    started = time.perf_counter()
    for pack in make_packs(steps, max_tokens=MAX_PACK_TOKENS, groups=groups):
        outputs = policy.forward(pack, temperature=1.0)
        outputs.logprobs_U.mean().backward()
    seconds = time.perf_counter() - started
    for master in policy.masters.values():
        master.grad = None
    return seconds


def _padded_round(model: Any, steps: Sequence[BenchStep], batch_size: int) -> float:
    import torch

    started = time.perf_counter()
    for first in range(0, len(steps), batch_size):
        batch = steps[first : first + batch_size]
        whole = [[*step.prompt_tokens.tolist(), *step.action_tokens.tolist()] for step in batch]
        width = max(map(len, whole))
        tokens = torch.tensor([row + [2] * (width - len(row)) for row in whole])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in whole])
        action = torch.tensor(
            [[len(s.prompt_tokens) <= i < len(row) for i in range(1, width)] for s, row in zip(batch, whole, strict=True)]
        )
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
        (logprobs * action).sum().backward()
    seconds = time.perf_counter() - started
    model.zero_grad(set_to_none=True)
    return seconds


def _models() -> tuple[Any, Any, Any]:
    """(policy, plain model, tokenizer), the same parameters trained in both."""
    import torch
    import transformers

    from common.config import LearnerConfig, RunConfig
    from learner.model_store import ensure_model
    from learner.policy import load_policy

    config = RunConfig(learner=LearnerConfig(device="cpu", num_threads=NUM_THREADS))
    policy = load_policy(config)
    folder = ensure_model(config.model.name)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_(name in policy.trained)
    return policy, plain, transformers.AutoTokenizer.from_pretrained(folder)


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows for `computerrl bench trainer`."""
    import torch

    from learner.batching import make_packs, padded_tokens

    threads = torch.get_num_threads()
    policy, plain, tokenizer = _models()
    rows: list[dict[str, Any]] = []
    for label, same_action in _SCENARIOS[: 1 if quick else None]:
        steps, groups = make_steps(
            lambda text: tokenizer(text)["input_ids"], num_groups=1 if quick else 6, same_action=same_action
        )
        num_tokens = sum(len(step.prompt_tokens) + len(step.action_tokens) for step in steps)
        ours: list[float] = []
        peers: dict[int, list[float]] = {size: [] for size in PEER_BATCH_SIZES}
        for _ in range(1 if quick else 3):
            ours.append(num_tokens / _packed_round(policy, steps, groups))
            for size, rates in peers.items():
                rates.append(num_tokens / _padded_round(plain, steps, size))
        peer = max(statistics.median(rates) for rates in peers.values())
        value = statistics.median(ours)
        packs = make_packs(steps, max_tokens=MAX_PACK_TOKENS, groups=groups)
        rows.append(
            {
                "name": f"trained tokens per second, {label}",
                "value": value,
                "unit": "tokens/s",
                "spread": max(ours) - min(ours),
                "target": 2.0 * peer,
                "better": "higher",
                "peer": "padded plain transformers (sdpa)",
                "peer_value": peer,
                "ratio": value / peer,
            }
        )
        computed = sum(pack.num_nodes for pack in packs)
        rows.append(
            {
                "name": f"tokens computed of those sampled, {label}",
                "value": computed / num_tokens,
                "unit": "fraction",
                "spread": 0.0,
                "target": None,
                "better": "lower",
                "peer": "padded batches of 16",
                "peer_value": padded_tokens(steps, batch_size=16) / num_tokens,
                "ratio": computed / padded_tokens(steps, batch_size=16),
            }
        )
    torch.set_num_threads(threads)
    return rows
