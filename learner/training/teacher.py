"""The teacher of a run: a second, frozen model in the learner, whose log-probs take the place of the reference policy's
(`learner.algorithms.distillation`). Each rank holds it whole. Trains nothing and decides nothing about the objective."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import BUILT_IN_MODELS
from computerrl.common.models.teacher import FIELD, teacher_name, teacher_problems
from computerrl.common.weight_plan import folder_digest
from computerrl.learner.model.policy import Policy, load_policy
from computerrl.learner.model_store import ensure_model


def load_teacher(config: RunConfig) -> Policy | None:
    """The teacher of ``config`` on the learner's device, in the compute dtype of the policy; None where the run has none.

    Raises `ConfigError` for a folder that is no model, and for a teacher that cannot judge the policy's tokens.
    """
    name = teacher_name(config)
    if name is None:
        return None
    if name in BUILT_IN_MODELS:
        ensure_model(name)
    if problems := teacher_problems(config):
        raise ConfigError(problems)
    model = config.model.model_copy(update={"name": name, "trainable_top_layers": 0, "vision": "frozen"})
    learner = config.learner.model_copy(update={"lora": None})
    try:
        return load_policy(config.model_copy(update={"model": model, "learner": learner}))
    except ConfigError as error:
        of_teacher = [replace(one, field=FIELD) if one.field == "model.name" else one for one in error.problems]
        raise ConfigError(of_teacher) from error


def digest_tensor(folder: Path) -> torch.Tensor:
    """[16] uint8: `folder_digest` of the teacher in ``folder``, as a checkpoint holds it."""
    return torch.tensor(list(bytes.fromhex(folder_digest(folder))), dtype=torch.uint8)


def check_teacher(folder: Path, digest: torch.Tensor) -> None:
    """Raise `ConfigError` when the model in ``folder`` is not the one of the checkpoint's ``digest``."""
    if torch.equal(digest.cpu(), digest_tensor(folder)):
        return
    reason = f"{str(folder)!r} holds another model than when the checkpoint was written"
    raise ConfigError([Problem(FIELD, reason, "put the teacher back into its folder, or start a new run")])
