"""The interface of learner algorithms: their inputs, their outputs, and their options. `Algorithm` is all that one needs; each
other protocol is a part of the trainer's work that an algorithm may take over.

This module and the algorithms' own modules import torch only inside `Algorithm.loss`, so that a configuration is checked in
milliseconds.

Shape legend: S computed steps, M action tokens of the steps at hand, step after step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from pydantic import ValidationError

from computerrl.common.config.base import Section
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.common.plugins import option_problems
from computerrl.learner.objective.ages import PolicyAges

if TYPE_CHECKING:
    import torch

    from computerrl.common.config import RunConfig

T = TypeVar("T")
StepKey = tuple[str, int]
"""Identity of a step: the id of its trajectory, and its place in the trajectory as the broker delivered it, from 0. An algorithm
may copy steps, so the address of an object identifies nothing."""
LeftOut = Literal["no_signal", "not_chosen", "too_sure"]
"""Reasons for which an algorithm leaves a step out: see `learner.accounts.ledger.Outcome`."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The steps of one update, made by `Algorithm.prepare` and read by the trainer and `Algorithm.loss`.

    Only steps that can change the weights are in ``samples``. The others are already accounted for in ``token_weight_S`` (they
    keep their place in baselines and denominators) and in ``metrics``.
    """

    samples: tuple[Step, ...]
    """[S] the steps to train on."""
    trajectory_S: np.ndarray
    """int; trajectory of each step, an index into ``trajectory_ids``."""
    group_S: np.ndarray
    """int; group of each step. Steps of one group share prompts, so they are packed together and never split over minibatches."""
    reward_S: np.ndarray
    """float32; reward of each step, for `Refines.refine`."""
    advantage_S: np.ndarray
    """float32; advantage of all tokens of the step, unless ``token_advantages`` gives one for each token."""
    token_weight_S: np.ndarray
    """float32; weight of each token of the step: loss = - sum over tokens of weight * term."""
    ages: PolicyAges
    """Ages for the weights being trained, as `Algorithm.prepare` was given them."""
    replayed_S: np.ndarray
    """bool; True for steps out of the algorithm's memory, which were trained before and are not bound by `learner.max_age`."""
    step_S: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """int; place of the step in its trajectory as the broker delivered it, from 0. See `step_keys`."""
    trajectory_ids: tuple[str, ...] = ()
    """Ids of all trajectories that the batch was made of."""
    not_chosen: frozenset[str] = frozenset()
    """Ids of trajectories that came and that the algorithm left out as a whole."""
    left_out: Mapping[StepKey, LeftOut] = field(default_factory=dict)
    """Steps of the other trajectories that came and that the algorithm left out, each with the reason. A step within the age
    bound that is neither here nor in ``samples`` counts as `not_chosen`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures that are known before any forward pass."""
    token_advantages: tuple[np.ndarray, ...] | None = None
    """[S] float32 arrays: advantage of each action token."""
    value_targets: tuple[np.ndarray, ...] | None = None
    """[S] float32 arrays: value target of each action token, NaN for tokens without one; made by `Refines.refine`."""
    drift_penalties: tuple[np.ndarray, ...] | None = None
    """[S] float32 arrays: weight of abs(log pi_t - log pi_p) of each token beside its advantage, for KL-Cov."""
    start_logprobs: tuple[np.ndarray, ...] | None = None
    """[S] float32 arrays: log-prob of each action token under the weights at the start of the update, after a first look."""
    hints: tuple[np.ndarray, ...] | None = None
    """[S] int32 arrays: tokens that are shown before the prompt of each step, for `FirstLook.hinted_logprobs`."""
    left_out_nll: float = 0.0
    """Sum of -log pi_b over the action tokens that are not computed: an estimate of their share of the entropy."""
    left_out_tokens: int = 0
    """Number of these tokens."""
    demonstrated: tuple[Step, ...] = ()
    """Steps of demonstrations that the update imitates beside the algorithm's loss; the conductor puts them in."""
    demonstration_weight: float = 0.0
    """Weight of the mean negative log-likelihood per token of ``demonstrated``."""

    def __post_init__(self) -> None:
        num_samples = len(self.samples)
        for name, kinds in _PER_STEP.items():
            values = getattr(self, name)
            if not isinstance(values, np.ndarray) or values.shape != (num_samples,) or values.dtype.kind not in kinds:
                raise ValueError(
                    f"{name} of a TrainBatch of {num_samples} samples is {_described(values)}: give an array of one number "
                    f"for each sample, dtype {kinds[0]}"
                )
        lengths = [len(step.action_tokens) for step in self.samples]
        for name in PER_TOKEN:
            arrays = getattr(self, name)
            if arrays is not None and [len(array) for array in arrays] != lengths:
                raise ValueError(f"{name} of a TrainBatch does not hold one number for each action token of each sample")
        if num_samples and not 0 <= int(np.min(self.trajectory_S)) <= int(np.max(self.trajectory_S)) < len(self.trajectory_ids):
            raise ValueError(f"trajectory_S of a TrainBatch points beyond its {len(self.trajectory_ids)} trajectory_ids")

    @property
    def step_keys(self) -> list[StepKey]:
        """[S] identities of ``samples``. A key that is there twice is trained twice."""
        both = zip(self.trajectory_S.tolist(), self.step_S.tolist(), strict=True)
        return [(self.trajectory_ids[trajectory], place) for trajectory, place in both]

    def subset(self, members: np.ndarray, *, reason: LeftOut = "not_chosen") -> TrainBatch:
        """The batch of the steps ``members`` [int] only. The weights of the others leave the objective; they are not spread over
        these. ``reason``: for which the others are left out. Raises `ValueError` for a mask."""
        if members.dtype.kind not in _INTEGERS:
            raise ValueError(f"subset takes places of steps, not {members.dtype}: give np.flatnonzero(mask)")

        def some(values: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(values[i] for i in members)

        keys, stays = self.step_keys, set(members.tolist())
        kept = {keys[i] for i in stays}
        gone = [key for i, key in enumerate(keys) if i not in stays and key not in kept and not self.replayed_S[i]]
        per_token: dict[str, Any] = {name: some(arrays) for name in PER_TOKEN if (arrays := getattr(self, name)) is not None}
        return replace(
            self,
            samples=some(self.samples),
            trajectory_S=self.trajectory_S[members],
            group_S=self.group_S[members],
            reward_S=self.reward_S[members],
            advantage_S=self.advantage_S[members],
            token_weight_S=self.token_weight_S[members],
            replayed_S=self.replayed_S[members],
            step_S=self.step_S[members],
            hints=None if self.hints is None else some(self.hints),
            left_out={**self.left_out, **dict.fromkeys(gone, reason)},
            **per_token,
        )


_INTEGERS, _NUMBERS = "iu", "fiu"
_PER_STEP = {
    "trajectory_S": _INTEGERS,
    "group_S": _INTEGERS,
    "step_S": _INTEGERS,
    "replayed_S": "b",
    "reward_S": _NUMBERS,
    "advantage_S": _NUMBERS,
    "token_weight_S": _NUMBERS,
}
"""Fields of a `TrainBatch` with a number for each sample -> numpy's kinds of their dtypes."""
PER_TOKEN = ("token_advantages", "value_targets", "drift_penalties", "start_logprobs")
"""Fields of a `TrainBatch` with an array for each sample."""


def _described(values: object) -> str:
    return f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else type(values).__name__


@dataclass(frozen=True, slots=True)
class LossBatch:
    """The tokens of one forward pass, as tensors; all of its steps are whole."""

    step_M: torch.Tensor
    """int64, 0, 0, 0, 1, 1, ...: step of the pass that a token belongs to."""
    advantage_M: torch.Tensor
    token_weight_M: torch.Tensor
    behavior_logprobs_M: torch.Tensor
    age_M: torch.Tensor
    """float32; age of each token in updates (`PolicyAges.of`), 0 where that is negative."""
    is_replayed_M: torch.Tensor
    """bool; see `TrainBatch.replayed_S`."""
    is_present_M: torch.Tensor | None = None
    """bool; sampled by the weights at the start of the update. Tokens of discarded weights may have age 0 as well."""
    value_target_M: torch.Tensor | None = None
    """float32, NaN where there is none."""
    drift_penalty_M: torch.Tensor | None = None
    """float32; see `TrainBatch.drift_penalties`."""
    start_logprobs_M: torch.Tensor | None = None
    """float32; see `TrainBatch.start_logprobs`."""


@dataclass(frozen=True, slots=True)
class PolicyOutputs:
    """The trainer's outputs for the tokens of a `LossBatch`."""

    logprobs_M: torch.Tensor
    """Log-probs under the weights being trained, with the graph."""
    entropy_M: torch.Tensor
    proximal_logprobs_M: torch.Tensor | None
    """Log-probs under the weights at the start of the update; given when `needs` has `proximal_logprobs`."""
    reference_logprobs_M: torch.Tensor | None
    """Log-probs under the reference policy; given when `needs` has `reference_logprobs`."""
    values_M: torch.Tensor | None = None
    """Value of the state before each token, with the graph of the value head alone; for an algorithm that `LearnsValues`."""


@dataclass(frozen=True, slots=True)
class LossResult:
    """``loss`` to minimise, and metrics as (sum, count) so that passes add up. A count may stay a tensor: reading its value would
    make the host wait for the device."""

    loss: torch.Tensor
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]]
    log_weights_M: torch.Tensor | None = None
    """log w = log pi_p - log pi_b without cap and without gradient; the trainer computes the effective sample size from it."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Outputs of the weights at the start of an update for each step of a batch: [S] float32 arrays, one number a token."""

    logprobs: tuple[np.ndarray, ...]
    entropy: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...] | None
    """Values of the states before the tokens, for an algorithm that `LearnsValues`."""
    score_norms_T: np.ndarray | None = None
    """[len(trajectory_ids)] float64, norm of the gradient of the log-probability of the action tokens of each trajectory's
    samples; NaN for a trajectory without samples. For an algorithm that `WantsScores`."""
    hinted_logprobs: tuple[np.ndarray, ...] | None = None
    """Log-probs of the same tokens after `TrainBatch.hints`, where the batch has any."""


Need = Literal["proximal_logprobs", "reference_logprobs"]
"""Log-probs from extra forward passes."""


@runtime_checkable
class Algorithm(Protocol):
    """Made from the learner's configuration; raises `ConfigError` for options it does not know or cannot take."""

    needs: frozenset[Need]
    """Log-probs that the trainer has to compute for `loss`."""
    temperature: float
    """Sampling temperature of the training rollouts; rollouts are ordered with it, and log-probs are computed at it."""

    def prepare(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> TrainBatch:
        """Advantages, masks and weights of ``groups``; pure. ``ages``: how old each token of ``groups`` is; the versions in
        `Step.policy_versions` alone do not tell that after a restart."""
        ...

    def loss(self, outputs: PolicyOutputs, batch: LossBatch) -> LossResult:
        """The objective on one pass; pure tensors."""
        ...


@runtime_checkable
class Refines(Protocol):
    """An algorithm that decides after a first look: one more forward pass, without a graph, over all samples of a batch."""

    wants_look: bool
    """False: `refine` is not called and the pass is saved."""

    def refine(self, batch: TrainBatch, look: FirstLook) -> TrainBatch:
        """``batch`` with other advantages, targets or fewer samples; pure."""
        ...


@runtime_checkable
class WantsScores(Protocol):
    """An algorithm that `Refines` and whose look has the norms of the trajectories' gradients. They cost a forward and a backward
    pass over each trajectory."""

    wants_scores: bool
    """False: the passes are saved."""


@runtime_checkable
class LearnsValues(Protocol):
    """An algorithm with a value function: a linear layer on the last hidden state (`learner.model.head`), trained beside
    the policy by the terms of the loss that depend on `PolicyOutputs.values_M`."""

    value_lr: float
    """Learning rate of the layer."""


@runtime_checkable
class SamplesDynamically(Protocol):
    """An algorithm whose batch is whole only with enough groups that teach something; other groups that came between join it."""

    def teaches(self, group: TrajectoryGroup) -> bool:
        """Does ``group`` count towards a whole batch?"""
        ...


@runtime_checkable
class WantsGuidance(Protocol):
    """An algorithm whose training episodes are played beside the families' demonstrators."""

    num_patches: int
    """Number of actions that differ from the demonstrator's and are replaced by it; the next one ends the episode. `Step.matched`
    tells which actions were the demonstrator's."""


@runtime_checkable
class WantsTargets(Protocol):
    """An algorithm that computes rewards from the element at which the families' demonstrators would point, `Step.target`."""

    wants_targets: bool
    """False: the demonstrators are not asked."""


@runtime_checkable
class ScalesLearningRate(Protocol):
    """An algorithm that trains in shorter steps on batches with fewer effective samples."""

    def lr_factor(self, effective_sample_share: float) -> float:
        """Factor of the learning rate of an optimizer step. ``effective_sample_share``: (sum w)^2 / (n sum w^2) of its n
        trajectories (`learner.training.guards.EffectiveSamples`), 1 on policy."""
        ...


@runtime_checkable
class ChecksConfig(Protocol):
    """An algorithm that does not fit every model and every prompt."""

    def config_problems(self, config: RunConfig) -> Sequence[Problem]:
        """What of the run's ``config`` does not fit the algorithm. Called before anything is started."""
        ...


@runtime_checkable
class Draws(Protocol):
    """An algorithm that draws at random. Its draws follow from the run's seed and `PolicyAges.position`, so that runs with other
    seeds draw otherwise and a resumed run draws the same."""

    seed: int
    """Seed of the run; `make_algorithm` sets it."""


OptionsT = TypeVar("OptionsT", bound=Section)


def parse_options(model: type[OptionsT], options: Mapping[str, Any]) -> OptionsT:
    """Check an algorithm's ``options`` against its ``model``. Raises one `ConfigError` with every problem."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        problems = option_problems(error, field="learner.algorithm.options", valid=model.model_fields)
        raise ConfigError(problems) from None
