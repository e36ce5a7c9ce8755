"""Optimizer steps: AdamW on the policy's masters with warm-up and clipping; a step whose gradients are not finite is skipped.

On several ranks every rank does the same steps; a decision about a step must be the same on all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from computerrl.common import log
from computerrl.common.config import LearnerConfig
from computerrl.common.errors import TrainingDiverged
from computerrl.learner.model.head import ValueHead
from computerrl.learner.model.ranks import Ranks
from computerrl.learner.model.trained_weights import TrainedWeights
from computerrl.learner.training.guards import SeenPass, dump, reason_not_finite

_MAX_SKIPPED_IN_A_ROW = 5
"""A single bad batch happens (overflow in bfloat16); five in a row are a run that is lost."""


class PolicyOptimizer:
    """Steps the masters of the policy, and the value head with them."""

    def __init__(
        self,
        learner: LearnerConfig,
        weights: TrainedWeights,
        value_head: ValueHead | None,
        *,
        ranks: Ranks,
        dumps: Path,
        tower_names: frozenset[str] = frozenset(),
    ) -> None:
        """``dumps``: folder for the inputs of skipped steps. ``tower_names``: the masters among them are of a vision tower."""
        self._learner = learner
        self._tower_names = tower_names
        self._settings = learner.optimizer
        self._weights = weights
        self._value_head = value_head
        self._ranks = ranks
        self._dumps = dumps
        self._lr = learner.optimizer.lr
        self._num_updates = 0
        self.num_skipped = 0
        """Steps of the run that were skipped."""
        self._num_skipped_in_a_row = 0
        self._adam = self._make_adam()

    def _make_adam(self) -> torch.optim.AdamW:
        settings, factor = self._settings, self._settings.vision_lr_factor
        of_tower: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for name, master in self._weights.masters.items():
            (of_tower if name in self._tower_names else others).append(master)
        groups = [{"params": params, "factor": of_params} for params, of_params in ((others, 1.0), (of_tower, factor)) if params]
        return torch.optim.AdamW(groups, lr=self._lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)

    @property
    def rl_lr(self) -> float:
        """Learning rate of the next RL update, with warm-up."""
        warmup = self._settings.warmup_updates
        return self._lr * min(1.0, (self._num_updates + 1) / warmup) if warmup else self._lr

    def count_update(self) -> None:
        """An RL update is done: warm-up goes on."""
        self._num_updates += 1

    def change_objective(self, lr: float) -> None:
        """Forget the first moments, which point where the last phase wanted to go; ``lr`` is that of the RL updates that follow.

        The second moments stay from phase to phase, and the warm-up happens once a run. An optimizer that begins anew makes sign
        steps: each weight moves by the learning rate however small its gradient is, which undoes what a policy has learnt.
        """
        self._lr = lr
        for state in self._adam.state.values():
            state["exp_avg"].zero_()

    def step(self, lr: float, seen: Sequence[SeenPass], *, with_values: bool = False) -> float:
        """Clip, step, and sync the compute weights; returns the gradient norm of the policy. A norm that is not finite, the value
        head's too, skips the step and dumps the passes ``seen``. ``with_values``: the value head has gradients too. Raises
        `TrainingDiverged` after several skipped steps in a row."""
        if not self._weights.has_gradients:
            return 0.0
        max_norm = self._settings.max_grad_norm
        head = self._value_head if with_values else None
        norm = self._weights.clip_gradients(max_norm)
        norms = [norm] if head is None else [norm, head.clip_gradients(max_norm, self._ranks)]
        reason = ""
        if np.isfinite(norms).all():
            self._num_skipped_in_a_row = 0
            for group in self._adam.param_groups:
                group["lr"] = lr * group["factor"]
            self._adam.step()
            self._weights.sync_compute_weights()
            if head is not None:
                head.step()
        else:
            reason = self._skip(seen)
            if head is not None:
                head.forget_gradients()
        self._weights.clear_gradients()
        if self._num_skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            # With values: a step of the algorithm, not one of imitation.
            own = f", or correct the loss of the algorithm {self._learner.algorithm.name!r}" if with_values else ""
            raise TrainingDiverged(
                f"loss or gradients were not finite in {self._num_skipped_in_a_row} optimizer steps in a row, in the last one "
                f"{reason}; lower learner.optimizer.lr, set model.dtype: float32{own}"
            )
        return norm

    def _skip(self, seen: Sequence[SeenPass]) -> str:
        """Count, dump and log a step that is not done; returns the reason."""
        self.num_skipped += 1
        self._num_skipped_in_a_row += 1
        of_values = {} if self._value_head is None else self._value_head.gradients()
        reason = reason_not_finite(seen, {**self._weights.gradients(), **of_values})
        path = None
        try:
            path = dump(self._dumps, seen, reason=reason, name=f"{self.num_skipped:06d}-{self._ranks.rank}") if seen else None
        except (OSError, SafetensorError) as error:
            # A full disk is no reason to end a run that only lost a picture of its trouble.
            log.get_logger().error("dump.failed", folder=str(self._dumps), error=str(error))
        log.get_logger().error("step.skipped", reason=reason, dump=None if path is None else str(path))
        return reason

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Masters, moments and counts by name. Tensors of weights that are sharded are this rank's shards."""
        state: dict[str, torch.Tensor] = {
            "trainer/lr": torch.tensor(self._lr, dtype=torch.float64),
            "trainer/num_updates": torch.tensor(self._num_updates),
            "trainer/num_skipped": torch.tensor([self.num_skipped, self._num_skipped_in_a_row]),
        }
        for name, master in self._weights.masters.items():
            state[f"master/{name}"] = master.detach()
            for key, value in self._adam.state.get(master, {}).items():
                state[f"optimizer/{key}/{name}"] = value
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor], *, shard: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """Continue where `state_dict` was taken. ``shard``: this rank's share of a tensor of ``state``, by name, laid out as a
        master. Raises `ValueError` for the state of another model."""
        if {key.removeprefix("master/") for key in state if key.startswith("master/")} != set(self._weights.masters):
            settings = "model.trainable_top_layers or model.vision"
            raise ValueError(f"the state's trained tensors are not this model's: another model, or another {settings}")
        self._lr = float(state["trainer/lr"])
        self._num_updates = int(state["trainer/num_updates"])
        self.num_skipped, self._num_skipped_in_a_row = state["trainer/num_skipped"].tolist()
        self._adam = self._make_adam()
        for name, master in self._weights.masters.items():
            master.copy_(shard(f"master/{name}", master))
            if f"optimizer/exp_avg/{name}" in state:
                self._adam.state[master] = {
                    "exp_avg": shard(f"optimizer/exp_avg/{name}", master),
                    "exp_avg_sq": shard(f"optimizer/exp_avg_sq/{name}", master),
                    "step": state[f"optimizer/step/{name}"].to(master.device, copy=True),
                }
        self._weights.sync_compute_weights()
