"""vLLM's guesses change no sample: distribution of whole answers, log-probs, and answers at temperature 0, in batches whose
requests have other temperatures and other numbers of guesses.

vLLM changes torch for the whole process it lives in: the last test starts this file again in a process of its own, with
COMPUTERRL_TEST_VLLM_DRAFTS set.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.threaded import Sampled

VARIABLE = "COMPUTERRL_TEST_VLLM_DRAFTS"
INSIDE = VARIABLE in os.environ
VOCABULARY = 5
PROMPT = np.array([1, 2, 3, 4, 1, 2, 3, 0, 1, 2], dtype=np.int32)
NUM_DRAFT_TOKENS = 3


def ask(*, most: int, temperature: float = 1.0) -> GenerationRequest:
    return GenerationRequest(PROMPT, temperature, most, frozenset())


if INSIDE:

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
            tie_word_embeddings=False,
        )
        place = tmp_path_factory.mktemp("model")
        LlamaForCausalLM(config).save_pretrained(place)
        return place

    @pytest.fixture(scope="module")
    def core(folder: Path) -> Iterator[Any]:
        from computerrl.actor.engines.vllm_engine import VLLMCore
        from computerrl.actor.engines.vllm_parts import drafts

        # One token that came before is enough for a guess: answers are short, and most guesses are wrong.
        drafts._LOOKUP["prompt_lookup_min"] = 1
        made = VLLMCore(
            folder,
            dtype="float32",
            num_live=100,
            max_tokens=64,
            seed=0,
            num_threads=1,
            gpu_memory=0.4,
            max_draft_tokens=NUM_DRAFT_TOKENS,
        )
        yield made
        made.close()

    @pytest.fixture(scope="module")
    def model(folder: Path) -> Any:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)

    def play(core: Any, requests: list[GenerationRequest]) -> tuple[list[Sampled], int]:
        """All of them, and how often a step brought an answer more than one token."""
        done: dict[int, Sampled] = {}
        waiting, num_jumps, get_output = list(enumerate(requests)), 0, core._client.get_output

        def counted() -> Any:
            nonlocal num_jumps
            found = get_output()
            num_jumps += sum(len(output.new_token_ids) > 1 for output in found.outputs)
            return found

        core._client.get_output = counted
        try:
            while len(done) < len(requests):
                while waiting and core.add(*waiting[0]):
                    waiting.pop(0)
                done.update((sampled.key, sampled) for sampled in core.step())
        finally:
            core._client.get_output = get_output
        return [done[key] for key in range(len(requests))], num_jumps

    def logprobs_of(model: Any, answer: Sampled, *, temperature: float) -> list[float]:
        ids = torch.tensor([[*PROMPT.tolist(), *answer.tokens]])
        found = (model(ids).logits[0, len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
        chosen: list[float] = found.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0].tolist()
        return chosen

    def joint(model: Any, length: int, temperature: float) -> dict[tuple[int, ...], float]:
        """Probability of every answer of ``length`` tokens."""
        answers = list(itertools.product(range(VOCABULARY), repeat=length))
        ids = torch.tensor([[*PROMPT.tolist(), *answer] for answer in answers])
        logprobs = (model(ids).logits / temperature).log_softmax(-1)
        start = len(PROMPT)
        chosen = logprobs[:, start - 1 : -1].gather(2, ids[:, start:, None])[:, :, 0].sum(1)
        return dict(zip(answers, chosen.exp().tolist(), strict=True))

    def test_guesses_leave_the_distribution_of_answers_as_it_is(core: Any, model: Any) -> None:
        number, length, temperatures = 1500, 3, (1.0, 0.6)
        # One token more than is looked at, so that guesses are not cut at the end of the answer.
        requests = [ask(most=length + 2, temperature=temperatures[place % 2]) for place in range(2 * number)]
        answers, num_jumps = play(core, requests)
        assert num_jumps > 100, "there must be guesses that are accepted"
        for turn, temperature in enumerate(temperatures):
            seen = Counter(tuple(answer.tokens[:length]) for answer in answers[turn::2])
            expected = joint(model, length, temperature)
            # Outcomes that are too rare to be compared each count as one.
            common = {outcome: number * chance for outcome, chance in expected.items() if number * chance >= 5}
            rest = number - sum(common.values())
            rare = number - sum(seen[outcome] for outcome in common)
            terms = [(seen[outcome] - wanted) ** 2 / wanted for outcome, wanted in common.items()]
            chi_square = sum(terms) + ((rare - rest) ** 2 / rest if rest >= 5 else 0.0)
            freedom = len(common)
            assert freedom > 10 and chi_square < freedom + 5 * (2 * freedom) ** 0.5

    def test_guesses_leave_the_log_probs_those_of_the_model(core: Any, model: Any) -> None:
        temperatures = [(1.0, 0.7, 0.0, 1.3)[place % 4] for place in range(100)]
        answers, num_jumps = play(core, [ask(most=20, temperature=temperature) for temperature in temperatures])
        assert num_jumps > 20
        for answer, temperature in zip(answers, temperatures, strict=True):
            assert len(answer.tokens) == len(answer.logprobs) == len(answer.policy_versions) == 20
            if temperature:
                assert answer.logprobs == pytest.approx(logprobs_of(model, answer, temperature=temperature), abs=1e-4)
            else:
                ids = torch.tensor([[*PROMPT.tolist(), *answer.tokens]])
                assert model(ids).logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist() == answer.tokens

    def test_new_weights_in_the_middle_of_guessed_answers_are_stamped_and_sampled_right(core: Any, model: Any) -> None:
        for place in range(20):
            assert core.add(place, ask(most=24))
        while sum(len(running.tokens) > 4 for running in core._running.values()) < 20:
            assert not core.step()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        generator = torch.Generator().manual_seed(1)
        changed = {name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}
        core.load(7, changed)
        done: list[Sampled] = []
        while len(done) < 20:
            done += core.step()
        for answer in done:
            assert set(answer.policy_versions) == {-1, 7} and answer.policy_versions == sorted(answer.policy_versions)
        # What begins after the change is of the new weights alone.
        model.load_state_dict(changed)
        (answer,), _ = play(core, [ask(most=16)])
        assert set(answer.policy_versions) == {7}
        assert answer.logprobs == pytest.approx(logprobs_of(model, answer, temperature=1.0), abs=1e-4)

else:

    @pytest.mark.release
    @pytest.mark.timeout(1600)
    def test_guesses_of_vllm_in_its_own_process_change_no_sample() -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        env = {**os.environ, VARIABLE: "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=False)
        assert done.returncode == 0, done.stdout[-5000:]
        assert "3 passed" in done.stdout
