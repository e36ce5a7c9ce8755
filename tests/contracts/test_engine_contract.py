"""What every policy engine must do, asserted against each: transformers (fused and plain) and vLLM.

They serve what a learner trained and exported, so that exports are tried with all of them. vLLM changes torch for the whole
process it lives in, so its turn runs in a process of its own: the last test starts this file again with
COMPUTERRL_TEST_ENGINE=vllm, on the real model (vLLM's kernels do not take the tiny one's head size). vllm-async is the same with
the asynchronous scheduling that vLLM has on GPUs, so that a step is under way whenever weights come, and reads most prompts over
several steps. vllm-split has a third of each matrix in each of three processes (tensor parallelism). vllm-drafts guesses tokens
(speculative decoding). Names that end in experts
are engines of a small mixture of experts.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.engines.cross_policy import CrossPolicyEngine
from computerrl.actor.engines.threaded import ThreadedEngine
from computerrl.actor.prompts.builder import FolderTokenizer
from computerrl.common.errors import EngineFailed, WeightError
from computerrl.common.host import fast_dtype
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.learner.checkpoints.export import export_model
from tests.support.data.trainer_data import make_mixture
from tests.unit.learner.checkpoints.test_export_folder import make_run

VARIABLE = "COMPUTERRL_TEST_ENGINE"
MAX_TOKENS = 160
DEADLINE_S = 300
"""For any answer: vLLM takes a tenth of a second for a token where this process has two cores, and ten times as long where other
tests use them."""
NUM_LIVE = 3
ENGINES = [os.environ[VARIABLE]] if VARIABLE in os.environ else ["transformers", "transformers-plain", "transformers-experts"]


class Subject:
    """An engine, and an independent model that holds what the engine should hold."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        has_experts = name.endswith("experts")
        self.dtype = fast_dtype() if name.startswith("vllm") and not has_experts else "float32"
        model = "smollm2-135m" if name.startswith("vllm") else "tiny-random"
        if has_experts:
            model = str(make_mixture(tmp_path / "experts"))
        run, trainer = make_run(tmp_path, model=model, dtype=self.dtype, lr=1e-3)
        self.trained_probe = trainer.probe_logprobs()
        folder = export_model(run, tmp_path / "exported")
        # Different numerics in bf16 (see PROBE_TOLERANCE), small ones of matrices in half precision, none to speak of in float32.
        self.tolerance = 0.15 if self.dtype == "bfloat16" else 1e-3 if name == "transformers" else 2e-4
        self.long = 40 if name.startswith("vllm") else 120
        """Tokens of an answer in whose middle weights can be loaded: the faster the engine, the more."""
        tokenizer = FolderTokenizer(folder)
        self.make_engine = functools.partial(make, name, folder, tokenizer, self.dtype)
        self.engine = self.make_engine()
        from computerrl.actor.engines.transformers_engine import load_model

        self.model: Any = load_model(folder, dtype=self.dtype, device="cpu")
        self.first = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        """Weights of the exported folder."""

    def expected(self, tokens: np.ndarray, *, start: int = 1, temperature: float = 1.0) -> np.ndarray:
        """Log-probs of tokens[start:] by the independent model."""
        ids = torch.as_tensor(tokens, dtype=torch.long)[None]
        with torch.inference_mode():
            logprobs = (self.model(ids).logits[0].float() / temperature).log_softmax(-1)
        return logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()

    def change(self, seed: int, *, top_only: bool = True) -> dict[str, torch.Tensor]:
        """New values for the top layer and the final norm (or for everything), put into the independent model too."""
        generator = torch.Generator().manual_seed(seed)
        last = self.model.config.num_hidden_layers - 1
        # Enough to be seen, not so much that a deep model turns rounding into noise of its own.
        strength = 0.5 if top_only else 0.1
        changed = {}
        for name, parameter in self.model.named_parameters():
            if top_only and not (f"layers.{last}." in name or name == "model.norm.weight"):
                continue
            noise = torch.randn(parameter.shape, generator=generator) * parameter.float().std().clamp(min=0.01) * strength
            changed[name] = (parameter.float() + noise).to(parameter.dtype)
            parameter.data.copy_(changed[name])
        return changed


def make(name: str, folder: Path, tokenizer: FolderTokenizer, dtype: str) -> ThreadedEngine:
    if name.startswith("vllm"):
        from computerrl.actor.engines.vllm_engine import make_vllm_engine

        if name == "vllm-async":
            schedule_asynchronously()
        return make_vllm_engine(
            folder,
            decode=tokenizer.decode,
            dtype=dtype,
            num_live=NUM_LIVE,
            max_tokens=MAX_TOKENS,
            seed=0,
            num_threads=1,
            max_num_batched_tokens=32 if name == "vllm-async" else None,
            tensor_parallel_size=3 if name == "vllm-split" else 1,
            max_draft_tokens=4 if name == "vllm-drafts" else 0,
        )
    from computerrl.actor.engines.transformers_engine import make_transformers_engine

    return make_transformers_engine(
        folder,
        decode=tokenizer.decode,
        dtype=dtype,
        device="cpu",
        num_live=NUM_LIVE,
        max_tokens=MAX_TOKENS,
        seed=0,
        num_threads=None,
        max_draft_tokens=8,
        memo_bytes=8 << 20,
        fused=name == "transformers",
    )


def schedule_asynchronously() -> None:
    """vLLM switches asynchronous scheduling off on CPUs, after everything else; switch it on again after that."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    configure = platform.check_and_update_config.__func__

    def asynchronous(cls: type, config: Any) -> None:
        configure(cls, config)
        config.scheduler_config.async_scheduling = True

    platform.check_and_update_config = classmethod(asynchronous)


@pytest.fixture(scope="module", params=ENGINES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    made = Subject(request.param, tmp_path_factory.mktemp("run"))
    yield made
    made.engine.close()


def prompt(seed: int, length: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(100, 5000, length).astype(np.int32)


def ask(
    tokens: np.ndarray, *, temperature: float = 1.0, most: int = 8, stop: frozenset[int] = frozenset(), may_be_older: bool = False
) -> GenerationRequest:
    return GenerationRequest(tokens, temperature, most, stop, may_be_older)


def test_engine_of_an_export_has_the_probe_of_the_model_and_of_the_learner(subject: Subject) -> None:
    for expected in (subject.expected(np.array(PROBE_TOKENS)), subject.trained_probe):
        difference = np.abs(subject.engine.probe() - expected)
        assert len(difference) == len(PROBE_TOKENS) - 1 and difference.mean() < subject.tolerance


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_engine_logprobs_are_those_of_the_sampling_distribution(subject: Subject, temperature: float) -> None:
    requests = [ask(prompt(seed, 20 + 7 * seed), temperature=temperature, most=12) for seed in range(6)]
    for request, future in zip(requests, [subject.engine.submit(request) for request in requests], strict=True):
        completion = future.result(DEADLINE_S)
        assert len(completion.tokens) == len(completion.logprobs) == len(completion.policy_versions) == 12
        assert completion.finish == "length"
        whole = np.concatenate([request.prompt_tokens, completion.tokens])
        expected = subject.expected(whole, start=len(request.prompt_tokens), temperature=temperature)
        assert np.abs(completion.logprobs - expected).mean() < subject.tolerance / temperature


def test_engine_at_temperature_zero_takes_the_likeliest_token(subject: Subject) -> None:
    tokens = prompt(50)
    first = subject.engine.submit(ask(tokens, temperature=0.0)).result(DEADLINE_S)
    again = subject.engine.submit(ask(tokens, temperature=0.0)).result(DEADLINE_S)
    assert (first.tokens == again.tokens).all()
    ids = torch.as_tensor(tokens, dtype=torch.long)[None]
    with torch.inference_mode():
        logits = subject.model(ids).logits[0, -1].float()
    assert logits.max() - logits[int(first.tokens[0])] < 8 * subject.tolerance


def test_engine_with_equal_prompts_samples_differently_with_the_same_distribution(subject: Subject) -> None:
    tokens = prompt(60)
    futures = [subject.engine.submit(ask(tokens, most=6)) for _ in range(8)]
    completions = [future.result(DEADLINE_S) for future in futures]
    assert len({tuple(completion.tokens.tolist()) for completion in completions}) > 1
    for completion in completions:
        expected = subject.expected(np.concatenate([tokens, completion.tokens]), start=len(tokens))
        assert np.abs(completion.logprobs - expected).mean() < subject.tolerance


def test_engine_with_prefixes_in_common_gives_the_same_answers_as_without(subject: Subject) -> None:
    base = prompt(70, 60)
    prompts = [np.concatenate([base[:length], prompt(71 + length, 10)]) for length in (60, 45, 33, 60)]
    for tokens in prompts:
        completion = subject.engine.submit(ask(tokens)).result(DEADLINE_S)
        expected = subject.expected(np.concatenate([tokens, completion.tokens]), start=len(tokens))
        assert np.abs(completion.logprobs - expected).mean() < subject.tolerance


def test_engine_stops_after_a_stop_token_and_keeps_it(subject: Subject) -> None:
    tokens = prompt(80)
    free = subject.engine.submit(ask(tokens, temperature=0.0)).result(DEADLINE_S)
    stop = int(free.tokens[2])
    first = free.tokens.tolist().index(stop)
    stopped = subject.engine.submit(ask(tokens, temperature=0.0, stop=frozenset({stop, 1}))).result(DEADLINE_S)
    assert stopped.finish == "stop" and stopped.tokens.tolist() == free.tokens.tolist()[: first + 1]


def test_engine_with_too_long_request_fails_it_and_serves_on(subject: Subject) -> None:
    with pytest.raises(EngineFailed):
        subject.engine.submit(ask(prompt(1, MAX_TOKENS))).result(DEADLINE_S)
    assert subject.engine.submit(ask(prompt(1), most=1)).result(DEADLINE_S).finish == "length"


def test_engine_after_a_load_computes_with_the_new_weights_only(subject: Subject) -> None:
    tokens = prompt(90)
    subject.engine.submit(ask(tokens)).result(DEADLINE_S)
    for version, top_only in ((10, True), (11, False), (12, True)):
        before = subject.engine.probe()
        assert subject.engine.load(version, subject.change(version, top_only=top_only)) > 0
        assert subject.engine.policy_version == version
        assert np.abs(subject.engine.probe() - before).mean() > 2 * subject.tolerance, "the update must change something"
        assert np.abs(subject.engine.probe() - subject.expected(np.array(PROBE_TOKENS))).mean() < subject.tolerance
        # The same prompt again: nothing of what older weights left in a cache may be used.
        completion = subject.engine.submit(ask(tokens)).result(DEADLINE_S)
        expected = subject.expected(np.concatenate([tokens, completion.tokens]), start=len(tokens))
        assert np.abs(completion.logprobs - expected).mean() < subject.tolerance
        assert set(completion.policy_versions.tolist()) == {version}


def test_engine_loading_in_the_middle_of_a_completion_marks_each_token(subject: Subject) -> None:
    subject.engine.load(20, {})
    future = subject.engine.submit(ask(prompt(95, 20), most=subject.long))
    short = subject.engine.submit(ask(prompt(96), most=1))
    short.result(DEADLINE_S)
    subject.engine.load(21, {})
    versions = future.result(DEADLINE_S).policy_versions.tolist()
    assert versions == sorted(versions) and set(versions) == {20, 21}


def test_engine_resuming_after_a_load_gives_the_new_tokens_the_logprobs_of_the_new_weights_alone(subject: Subject) -> None:
    subject.engine.load(22, {})
    subject.engine._resumes = True
    try:
        tokens, changed = prompt(99, 20), subject.change(23, top_only=False)
        future = subject.engine.submit(ask(tokens, most=subject.long))
        subject.engine.submit(ask(prompt(96), most=1)).result(DEADLINE_S)
        subject.engine.load(23, changed)
        completion = future.result(DEADLINE_S)
    finally:
        subject.engine._resumes = False
    versions = completion.policy_versions
    assert len(versions) == subject.long and set(versions.tolist()) == {22, 23}
    expected = subject.expected(np.concatenate([tokens, completion.tokens]), start=len(tokens))
    new = versions == 23
    # Going on with keys and values of older weights would give other ones.
    assert np.abs(completion.logprobs - expected)[new].mean() < subject.tolerance


def test_engine_given_unknown_or_misshapen_tensors_refuses_and_changes_nothing(subject: Subject) -> None:
    before, version = subject.engine.probe(), subject.engine.policy_version
    good = "model.norm.weight"
    for tensors in (
        {good: torch.zeros(subject.model.config.hidden_size), "model.layers.999.mlp.up_proj.weight": torch.zeros(2, 2)},
        {good: torch.zeros(3)},
    ):
        with pytest.raises(WeightError):
            subject.engine.load(99, tensors)
    assert subject.engine.policy_version == version
    assert np.abs(subject.engine.probe() - before).max() < 1e-3


def test_engine_whose_new_weights_do_not_prove_right_says_nothing_with_them(subject: Subject) -> None:
    subject.engine.load(30, {}, expected_probe=subject.engine.probe())
    before = subject.expected(np.array(PROBE_TOKENS))
    changed = subject.change(31, top_only=False)
    future = subject.engine.submit(ask(prompt(97, 20), most=subject.long))
    with pytest.raises(WeightError, match="policy version 31"):
        subject.engine.load(31, changed, expected_probe=before)
    with pytest.raises(EngineFailed, match="policy version 31"):
        future.result(DEADLINE_S)
    assert subject.engine.policy_version == -1
    with pytest.raises(EngineFailed):
        subject.engine.submit(ask(prompt(98))).result(DEADLINE_S)
    subject.engine.load(31, changed, expected_probe=subject.expected(np.array(PROBE_TOKENS)))
    completion = subject.engine.submit(ask(prompt(98))).result(DEADLINE_S)
    assert set(completion.policy_versions.tolist()) == {31}


def test_engine_loading_in_the_middle_of_completions_gives_each_token_the_logprob_of_its_version(subject: Subject) -> None:
    norm = subject.model.model.norm.weight
    # Keys and values do not depend on the final norm: an independent model computes what each version says, whenever it came.
    values = [(norm * (1.0 - 0.3 * i)).detach().clone() for i in range(3)]
    subject.engine.load(60, {"model.norm.weight": values[0]})
    asked = [ask(prompt(300 + i, 20), most=subject.long) for i in range(2)]
    futures = [subject.engine.submit(one) for one in asked]
    for i in (1, 2):
        subject.engine.submit(ask(prompt(96), most=2)).result(DEADLINE_S)
        subject.engine.load(60 + i, {"model.norm.weight": values[i]})
    found = set()
    for request, future in zip(asked, futures, strict=True):
        completion = future.result(DEADLINE_S)
        whole = np.concatenate([request.prompt_tokens, completion.tokens])
        for i, value in enumerate(values):
            norm.data.copy_(value)
            of_version = completion.policy_versions == 60 + i
            gaps = np.abs(completion.logprobs - subject.expected(whole, start=len(request.prompt_tokens)))[of_version]
            found |= {60 + i} if len(gaps) else set()
            # The largest gap, not the mean: a single token of another version would be hidden in that.
            assert len(gaps) == 0 or gaps.max() < max(10 * subject.tolerance, 0.05)
    assert found == {60, 61, 62}
    # The rounding of the tests that follow should not be that of weights changed once more.
    norm.data.copy_(values[0])
    subject.engine.load(63, {"model.norm.weight": values[0]})


def test_engine_loading_while_prompts_are_read_gives_answers_of_the_new_version_its_logprobs_alone(subject: Subject) -> None:
    before = {name: parameter.detach().clone() for name, parameter in subject.model.named_parameters()}
    # Weights that the tests before have changed often turn rounding into noise of their own, in bfloat16 more than the tolerance.
    for name, parameter in subject.model.named_parameters():
        parameter.data.copy_(subject.first[name])
    subject.engine.load(65, subject.first)
    tokens = [prompt(310 + i, 90) for i in range(NUM_LIVE)]
    changed = subject.change(66, top_only=False)
    futures = [subject.engine.submit(ask(one, most=8)) for one in tokens]
    subject.engine.load(66, changed)
    for one, completion in zip(tokens, [future.result(DEADLINE_S) for future in futures], strict=True):
        if completion.policy_versions[0] == 66:
            expected = subject.expected(np.concatenate([one, completion.tokens]), start=len(one))
            assert np.abs(completion.logprobs - expected).mean() < max(subject.tolerance, 0.01)
    for name, parameter in subject.model.named_parameters():
        parameter.data.copy_(before[name])
    subject.engine.load(67, before)


def test_two_engines_in_one_process_sample_at_the_same_time_each_with_its_own_weights(subject: Subject) -> None:
    older = subject.make_engine()
    try:
        older.load(50, subject.change(50, top_only=False))
        engine = CrossPolicyEngine(subject.engine, older, refresh_every=3, seed=0)
        before = older.probe()
        subject.engine.load(51, subject.change(51, top_only=False))
        tokens = [prompt(200 + i) for i in range(12)]
        asked = [engine.submit(ask(one, most=16, may_be_older=True)) for one in tokens]
        answers = [future.result(DEADLINE_S) for future in asked]
        assert {version for answer in answers for version in answer.policy_versions.tolist()} == {50, 51}
        # Of all answers together: rounding to bfloat16 alone takes single short ones beyond the tolerance.
        gaps = [
            np.abs(answer.logprobs - subject.expected(np.concatenate([one, answer.tokens]), start=len(one)))
            for one, answer in zip(tokens, answers, strict=True)
            if answer.policy_versions[0] == 51
        ]
        assert np.concatenate(gaps).mean() < subject.tolerance
        assert np.abs(older.probe() - before).max() < 1e-3, "its weights stayed"
    finally:
        older.close()


if VARIABLE not in os.environ:

    @pytest.mark.release
    @pytest.mark.timeout(2000)
    @pytest.mark.parametrize("engine", ["vllm", "vllm-async", "vllm-split", "vllm-drafts", "vllm-experts"])
    def test_vllm_engine_in_its_own_process_passes_the_same_suite(engine: str) -> None:
        inner = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
        # vLLM has one engine with guesses in a process; a configuration that needs two is refused.
        inner += ["-k", "not two_engines"] if engine == "vllm-drafts" else []
        env = {**os.environ, VARIABLE: engine, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(inner, env=env, capture_output=True, text=True, timeout=1900)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
