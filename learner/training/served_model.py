"""The trainer of a run that only evaluates a served model: it has no weights and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Step
from computerrl.common.models.folder import model_folder, vocabulary_size
from computerrl.learner.algorithms import TrainBatch, make_algorithm


class ServedModel:
    """A `learner.contracts.AnyTrainer` for `actor.engine` endpoint and agent."""

    check_screenshot = None
    skipped: frozenset[int] = frozenset()
    revision = 0

    def __init__(self, config: RunConfig) -> None:
        self.algorithm = make_algorithm(config.learner, seed=config.seed)
        folder = model_folder(config.model.name)
        # An agent's model has no tokens of ours.
        size = vocabulary_size(folder) if config.actor.engine != "agent" else 0
        if size is None:
            reason = f"config.json in {str(folder)!r} names no vocab_size"
            raise ConfigError([Problem("model.name", reason, "write the model's number of tokens there")])
        self.vocabulary_size = size

    def refine(self, batch: TrainBatch) -> NoReturn:
        _refuse()

    def update(self, batch: TrainBatch) -> NoReturn:
        _refuse()

    def sft_step(self, steps: Sequence[Step], lr: float) -> NoReturn:
        _refuse()

    def change_objective(self, lr: float) -> None:
        """There is none."""

    def set_reference(self) -> None:
        """There is none."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing: all state is the conductor's."""

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def probe_logprobs(self) -> np.ndarray:
        return np.zeros(0, np.float32)


def _refuse() -> NoReturn:
    # The configuration is refused before: see `common.config.run`.
    raise AssertionError("a served model was to be trained")
