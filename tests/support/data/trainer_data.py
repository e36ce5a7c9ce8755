"""Steps and groups for the learner's tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from computerrl.common.messages import Step, StepTiming, TaskRef, Trajectory, TrajectoryGroup

NEEDED_OPTIONS = {"distillation": {"teacher": "tiny-random"}}
"""Algorithm -> options without which it cannot be made."""


def make_mixture(folder: Path, *, num_experts: int = 8) -> Path:
    """``folder`` with a random Qwen3-MoE: three layers, two of the experts for each token, the tokenizer of `tiny-random`. Its
    heads have 32 numbers, which vLLM wants on CPUs."""
    import torch
    import transformers

    from computerrl.learner.model_store import ensure_model

    base = ensure_model("tiny-random")
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(
        vocab_size=transformers.AutoConfig.from_pretrained(base).vocab_size,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=num_experts,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(folder)
    for file in base.iterdir():
        if file.is_file() and not (folder / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


def make_step(
    prompt: Sequence[int],
    action: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    version: int | Sequence[int] = 0,
    format_ok: bool = True,
) -> Step:
    """A step; behaviour log-probs of None are -1.0 each."""
    versions = [version] * len(action) if isinstance(version, int) else list(version)
    return Step(
        prompt_tokens=np.array(prompt, dtype=np.int32),
        action_tokens=np.array(action, dtype=np.int32),
        behavior_logprobs=np.array([-1.0] * len(action) if logprobs is None else logprobs, dtype=np.float32),
        policy_versions=np.array(versions, dtype=np.int32),
        action_text="click(1)",
        format_ok=format_ok,
        action_error="",
        screenshot=None,
        settled_by="quiet",
        timing=StepTiming(0.0, 0.0, 0.0),
    )


def make_group(episodes: Sequence[tuple[bool, Sequence[Step]]], *, group_seq: int = 0) -> TrajectoryGroup:
    """A group of (success, steps) episodes."""
    task = TaskRef("family", group_seq, "training")
    trajectories = tuple(
        Trajectory(
            trajectory_id=f"rl-1/{group_seq}/{index}",
            group_id=f"rl-1/{group_seq}",
            index=index,
            order_id="rl-1",
            kind="training",
            task=task,
            instruction="do it",
            steps=tuple(steps),
            reward=float(success),
            success=success,
            end_reason="task_finished",
            final_screenshot=None,
            actor="actor-0:test",
            shown_by="",
            started_at=0.0,
            duration_s=1.0,
            reset_s=0.1,
            wait_s=0.0,
        )
        for index, (success, steps) in enumerate(episodes)
    )
    return TrajectoryGroup(group_seq, f"rl-1/{group_seq}", "rl-1", "training", task, trajectories)


def random_groups(
    *, num_groups: int = 3, size: int = 4, seed: int = 0, version: int = 0, vocabulary: int = 1000
) -> list[TrajectoryGroup]:
    """Groups of one to three steps per episode with shared prompts, mixed success and random behaviour log-probs."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        header = rng.integers(3, vocabulary, 12).tolist()
        episodes = []
        for i in range(size):
            steps = []
            prompt = list(header)
            for _ in range(int(rng.integers(1, 4))):
                action = rng.integers(3, vocabulary, int(rng.integers(2, 7))).tolist()
                steps.append(make_step(prompt, action, logprobs=(-rng.random(len(action)) * 3).tolist(), version=version))
                prompt = [*prompt, *action]
            episodes.append((i % 2 == 0, steps))
        groups.append(make_group(episodes, group_seq=g))
    return groups
