"""Real vLLM behind an actor: cost of the way through our engine, cost of a weight update, agreement of engine and learner.

SmolLM2-135M. 16 episodes ask as actors do: each from its own thread, a step after the answer to the one before, prompts that
share their beginning with the step before. The peer is vLLM alone in the same process, given prompts of the same kind all at
once; both by turns, every round with new ones. Updates replace all tensors while the episodes play; the peer is the same
replacement in an engine without requests (vLLM's own reload). The gap is that of the log-probs of sampled tokens, by vLLM and by
the learner's policy, in both types; a processor without bfloat16 computes that one slowly, but not otherwise.

A model of two narrow layers takes next to no time for itself, so what it takes is the way through Python: the same for ours and
for vLLM alone, at 16, 64 and 256 episodes. On a GPU that way is what keeps an engine from the card's speed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.benchmarks.engines._load import Answers, Load
from computerrl.benchmarks.learner._process import apart
from computerrl.common.host import fast_dtype
from computerrl.common.messages import Step, StepTiming

MODEL = "smollm2-135m"
NUM_EPISODES = 16
LOAD = Load(num_steps=3, num_prompt_tokens=280, num_new_per_step=15, num_action_tokens=16)
MAX_TOKENS = 512
UPDATE_EVERY_S = 30.0
CROWDS = (16, 64, 256)
"""Episodes at a time of the narrow model."""
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 2048,  # probabilities of many tokens take time of their own
    "tie_word_embeddings": True,
}
_OTHER = {"float32": "bfloat16", "bfloat16": "float32"}


@dataclass(frozen=True, slots=True)
class Served:
    """Measurements of the engine's process."""

    ours_s: list[float]
    alone_s: list[float]
    stalls_s: list[float]
    """While 16 episodes play: longest time in which none of them got a token, less the time that a token takes otherwise."""
    reloads_s: list[float]
    """While nothing does."""
    steps: Answers
    """Before any update."""


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    from computerrl.learner.model_store import ensure_model

    folder = ensure_model(MODEL)
    os.environ["OMP_NUM_THREADS"] = "1"  # vLLM plans with the value at the start of its process.
    fast = fast_dtype()
    served = apart(serve, folder, fast, 1 if quick else 5, 2 if quick else 6)
    rows = [*_speed_rows(served), _gap_row(folder, fast, served), *_way_rows(fast, quick=quick)]
    if not quick:
        other = _OTHER[fast]
        rows.append(_gap_row(folder, other, apart(serve, folder, other, 1, 0)))
    return rows


def _speed_rows(served: Served) -> list[dict[str, Any]]:
    num_tokens = LOAD.num_tokens(NUM_EPISODES)
    ours, alone = ([num_tokens / took_s for took_s in seconds] for seconds in (served.ours_s, served.alone_s))
    peer, reload_s = statistics.median(alone), statistics.median(served.reloads_s)
    stall_s = statistics.median(served.stalls_s)
    return [
        {
            "name": f"action tokens/s, {NUM_EPISODES} episodes",
            "value": statistics.median(ours),
            "unit": "tokens/s",
            "spread": max(ours) - min(ours),
            "target": 0.95 * peer,
            "better": "higher",
            "peer": "vLLM alone, all prompts at once",
            "peer_value": peer,
        },
        {
            "name": "stall of an update of all weights",
            "value": stall_s,
            "unit": "s",
            "spread": max(served.stalls_s) - min(served.stalls_s),
            "target": 1.2 * reload_s,
            "better": "lower",
            "peer": "vLLM's reload, nothing playing",
            "peer_value": reload_s,
        },
        {
            "name": f"  share of rollout time at one update in {UPDATE_EVERY_S:.0f} s",
            "value": stall_s / UPDATE_EVERY_S,
            "unit": "",
            "target": 0.05,
            "better": "lower",
        },
    ]


def _way_rows(dtype: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        apart(make_narrow, folder, dtype)
        for num_episodes in CROWDS[:2] if quick else CROWDS:
            served = apart(serve, folder, dtype, 3 if quick else 9, 0, num_episodes)
            num_tokens = LOAD.num_tokens(num_episodes)
            ours, alone = ([1e6 * took_s / num_tokens for took_s in seconds] for seconds in (served.ours_s, served.alone_s))
            peer = statistics.median(alone)
            yield {
                "name": f"a token of a model that takes no time, {num_episodes} episodes",
                "value": statistics.median(ours),
                "unit": "us",
                "spread": max(ours) - min(ours),
                "target": peer / 0.95,
                "better": "lower",
                "peer": "vLLM alone, all prompts at once",
                "peer_value": peer,
            }


def _gap_row(folder: Path, dtype: str, served: Served) -> dict[str, Any]:
    theirs = apart(learner_logprobs, folder, dtype, [(prompt, action) for prompt, action, _ in served.steps])
    gaps = np.abs(np.concatenate([said for _, _, said in served.steps]) - np.concatenate(theirs))
    return {
        "name": f"log-prob gap of engine and learner, {dtype}, mean (maximum {gaps.max():.4f} of {len(gaps)} tokens)",
        "value": float(gaps.mean()),
        "unit": "nats",
        "better": "lower",
        "target": 0.02 if dtype == "bfloat16" else 0.001,
    }


# --- the learner's process -----------------------------------------------------------------------------------------------


def learner_logprobs(
    folder: Path,
    dtype: str,
    steps: Sequence[tuple[np.ndarray, np.ndarray]],
    head_dtype: str = "model",
    device: str = "auto",
) -> list[np.ndarray]:
    """[A] of each action, by the learner's policy. ``head_dtype``: see `ModelConfig`."""
    from computerrl.common.config import LearnerConfig, ModelConfig, RunConfig
    from computerrl.learner.model.policy import load_policy

    model = ModelConfig.model_validate({"name": str(folder), "dtype": dtype, "head_dtype": head_dtype})
    policy = load_policy(RunConfig(model=model, learner=LearnerConfig.model_validate({"device": device})))
    return logprobs_of(policy, [sample_of(prompt, action) for prompt, action in steps])


def logprobs_of(policy: Any, samples: Sequence[Step]) -> list[np.ndarray]:
    """[A] of each sample's action, by the learner's ``policy``."""
    import torch

    found: dict[int, np.ndarray] = {}
    with torch.inference_mode():
        for pack in policy.packs(samples, max_tokens=4096):
            logprobs_U = policy.forward(pack, temperature=1.0).logprobs_U.cpu().numpy()
            ends = np.cumsum([len(samples[i].action_tokens) for i in pack.samples_S])
            parts = np.split(logprobs_U[pack.token_pair_M], ends[:-1])
            found |= dict(zip(pack.samples_S.tolist(), parts, strict=True))
    return [found[i] for i in range(len(samples))]


def sample_of(prompt: np.ndarray, action: np.ndarray) -> Step:
    """A step that has these tokens."""
    return Step(
        prompt_tokens=prompt,
        action_tokens=action,
        behavior_logprobs=np.zeros(len(action), np.float32),
        policy_versions=np.zeros(len(action), np.int32),
        action_text="",
        format_ok=True,
        action_error="",
        screenshot=None,
        settled_by="quiet",
        timing=StepTiming(0.0, 0.0, 0.0),
    )


# --- the engine's process ------------------------------------------------------------------------------------------------


def make_narrow(folder: Path, dtype: str) -> None:
    """Write the narrow model."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**NARROW))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def serve(folder: Path, dtype: str, num_rounds: int, num_updates: int, num_episodes: int = NUM_EPISODES) -> Served:
    """Play rounds and updates with vLLM, which changes torch for the whole process it lives in."""
    import torch
    from safetensors.torch import load_file

    from computerrl.actor.engines.threaded import ThreadedEngine
    from computerrl.actor.engines.vllm_engine import VLLMCore

    core = VLLMCore(folder, dtype=dtype, num_live=num_episodes, max_tokens=MAX_TOKENS, seed=0, num_threads=1, gpu_memory=0.4)
    engine = ThreadedEngine(core, decode=lambda _: "", name="vllm-engine", dtype=dtype)
    engine.load(0, {})
    # As the adapter does on the engine's thread, for the rounds that vLLM plays alone on this one.
    torch._dynamo.config.disable = core._on_cpu
    ours_s, alone_s = [], []
    steps: Answers = []
    # The engine's thread leaves its core alone without requests. The first round of each warms up.
    for number in range(num_rounds + 1):
        alone_s.append(_timed(lambda: _play_alone(core, LOAD.prompts(number, num_episodes, core.vocabulary))))  # noqa: B023
        prompts = LOAD.prompts(100 + number, num_episodes, core.vocabulary)
        ours_s.append(_timed(lambda: steps.extend(LOAD.play(engine, prompts))))  # noqa: B023
    stalls_s, reloads_s = [], []
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    probe = engine.probe()
    for number in range(num_updates):
        reloads_s.append(_timed(lambda: core.load(number, tensors)))  # noqa: B023
        with _token_times(core) as times:
            playing = threading.Thread(target=LOAD.play, args=(engine, LOAD.prompts(200 + number, NUM_EPISODES)))
            playing.start()
            while len(times) < LOAD.num_action_tokens // 2:
                time.sleep(0.01)
            before = len(times)
            engine.load(1 + number, tensors, expected_probe=probe)
            after = len(times)
            playing.join()
        waits = np.diff(times)
        stalls_s.append(float(waits[before - 1 : after].max() - np.median(waits)))
    engine.close()
    return Served(ours_s[1:], alone_s[1:], stalls_s, reloads_s, steps[: LOAD.num_steps * 4])


@contextlib.contextmanager
def _token_times(core: Any) -> Iterator[list[float]]:
    """When each step of ``core`` was done; every episode under way gets a token in each, also in the one with the probe."""
    times: list[float] = []
    advance = core._advance

    def noted() -> None:
        advance()
        times.append(time.perf_counter())

    core._advance = noted
    try:
        yield times
    finally:
        core._advance = advance


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _play_alone(core: Any, prompts: Sequence[Sequence[np.ndarray]]) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=1.0,
        max_tokens=LOAD.num_action_tokens,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    llm = core._llm
    for step in range(LOAD.num_steps):
        for number, each in enumerate(prompts):
            llm.add_request(f"alone-{number}-{step}", {"prompt_token_ids": each[step].tolist()}, params)
    while llm.has_unfinished_requests():
        llm.step()
