"""The conductor's neighbours, as protocols: tests put ten-line fakes in their place."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from computerrl.common.clock import Clock
from computerrl.common.messages import NoGroup, RolloutOrder, Status, Step, TrajectoryGroup
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.algorithms.base import Algorithm, TrainBatch
from computerrl.learner.checkpoints.checkpoint import CheckpointStore, StagedSection
from computerrl.learner.client import WeightSink
from computerrl.learner.poison import StepCheck


class AnyTrainer(Protocol):
    """A trainer: `learner.training.trainer.Trainer`, its counterpart on several ranks, or a served model."""

    algorithm: Algorithm

    @property
    def vocabulary_size(self) -> int:
        """Tokens are below this."""
        ...

    @property
    def check_screenshot(self) -> StepCheck | None:
        """Refuses a step for its screenshot; None when the model takes no images."""
        ...

    @property
    def revision(self) -> int:
        """A number that changes whenever the result of `state_dict` may have changed."""
        ...

    @property
    def skipped(self) -> frozenset[int]:
        """Places of samples of the newest batch whose optimizer step was not done, for its gradients were not finite."""
        ...

    def refine(self, batch: TrainBatch) -> TrainBatch: ...

    def update(self, batch: TrainBatch) -> dict[str, float]: ...

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]: ...

    def change_objective(self, lr: float) -> None: ...

    def set_reference(self) -> None: ...

    def state_dict(self) -> dict[str, Any] | StagedSection:
        """A section is a copy already; of plain tensors the checkpoint makes one."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Continue from ``state``, a `state_dict` as `learner.checkpoints.checkpoint.trainer_state` reads it."""
        ...

    def trainable_tensors(self) -> dict[str, torch.Tensor]: ...

    def probe_logprobs(self) -> np.ndarray: ...


class Broker(Protocol):
    """The part of `broker.client.BrokerClient` used here."""

    def place_order(self, order: RolloutOrder) -> None:
        """Raises `OrderRefused` when the id is taken by a closed order or by one with other content."""

    def close_order(self, order_id: str) -> None: ...

    def fetch_group(self, group_seq: int) -> TrajectoryGroup | NoGroup: ...

    def fetch_images(self, names: Collection[str]) -> Mapping[str, bytes]:
        """Encoded bytes by name; images that the broker does not have are missing."""
        ...

    def report_consumption(self, group_seq: int) -> None: ...

    def announce_version(self, policy_version: int, *, group_seq: int) -> None: ...

    def status(self, *, timeout_s: float | None = None) -> Status: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """All that a conductor works with and does not make itself."""

    broker: Broker
    trainer: AnyTrainer
    weights: WeightSink
    folder: RunFolder
    checkpoints: CheckpointStore
    clock: Clock = time.monotonic
    """Seconds on any clock that only goes forward."""
