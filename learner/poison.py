"""Trajectories that must never be trained on: those that no policy of this run can have sampled. Pure.

The broker checks what it can without a model (lengths, log-probs that are not finite). The learner checks everything again: a
token outside the vocabulary would read another tensor's memory or end the process, and a version that does not exist yet would
pass every bound on its age.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from computerrl.common.messages import OrderKind, Step, Trajectory

Poison = Literal[
    "empty",
    "wrong_length",
    "not_finite",
    "impossible_logprob",
    "outside_vocabulary",
    "future_version",
    "picture_missing",
    "picture_mismatch",
]
"""`empty`: a step has no prompt or no action. `wrong_length`: tokens, log-probs and versions of an action differ in number.
`not_finite`: a log-prob is no number.
`impossible_logprob`: one is above 0, or so low that no engine samples such a token (below `MIN_LOGPROB`).
`outside_vocabulary`: the model has no such token. `future_version`: the learner never published that policy version.
`picture_missing`: the screenshot that a prompt shows is not there or not readable. `picture_mismatch`: it is not the one image
that the prompt has room for."""

POISONS: tuple[Poison, ...] = get_args(Poison)

MIN_LOGPROB = -50.0
"""e^-50 is 2e-22: with a hundred thousand tokens to choose from, not drawn once in the life of a cluster."""

MAX_LOGPROB = 0.01
"""Above 0 by what rounding in bfloat16 makes of a token that is certain."""

StepCheck = Callable[[Step], Poison | None]
"""Returns the reason for which a step must not be trained on; reads its screenshot (`learner.model.images`)."""


def poison_of(
    trajectory: Trajectory, *, policy_version: int, vocabulary_size: int, check_screenshot: StepCheck | None = None
) -> Poison | None:
    """The reason for which ``trajectory`` must not be trained on; None when it may. ``policy_version``: the newest there is.

    ``check_screenshot``: for a model that takes images.
    """
    for step in trajectory.steps:
        found = _poison_of_step(step, trajectory.kind, policy_version=policy_version, vocabulary_size=vocabulary_size)
        if found is None and check_screenshot is not None:
            found = check_screenshot(step)
        if found is not None:
            return found
    return None


def _poison_of_step(step: Step, kind: OrderKind, *, policy_version: int, vocabulary_size: int) -> Poison | None:
    if not step.prompt_tokens.size or not step.action_tokens.size:
        # An agent with a model of its own has no tokens of ours; nothing is trained on an evaluation.
        return None if kind == "evaluation" and not step.num_bytes else "empty"
    num_tokens, num_logprobs = len(step.action_tokens), len(step.behavior_logprobs)
    # Some servers send text alone; nothing is trained on an evaluation.
    possible = (num_tokens, 0) if kind == "evaluation" else (num_tokens,)
    if kind != "demonstration" and (len(step.policy_versions) != num_tokens or num_logprobs not in possible):
        return "wrong_length"
    if not np.isfinite(step.behavior_logprobs).all():
        return "not_finite"
    if step.behavior_logprobs.size and not (
        step.behavior_logprobs.min() >= MIN_LOGPROB and step.behavior_logprobs.max() <= MAX_LOGPROB
    ):
        return "impossible_logprob"
    for tokens in (step.prompt_tokens, step.action_tokens):
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocabulary_size):
            return "outside_vocabulary"
    if step.policy_versions.size and not (step.policy_versions.min() >= 0 and step.policy_versions.max() <= policy_version):
        return "future_version"
    return None
