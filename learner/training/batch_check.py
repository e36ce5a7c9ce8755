"""The call of an algorithm's `prepare`, and the checks of its batch before an update trains on it.

An algorithm of another package may copy trajectories and steps, choose among them, and give a step another prompt. The age bound
and the ledger rely on the batch, so the batch is compared with the groups that came, and a wrong batch is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.learner.algorithms.base import LeftOut, StepKey, TrainBatch
from computerrl.learner.algorithms.contract import blaming, returned
from computerrl.learner.algorithms.step_table import acts_the_same
from computerrl.learner.objective.ages import PolicyAges

if TYPE_CHECKING:
    from computerrl.learner.contracts import AnyTrainer

_HINT = "make the batch with StepTable.of(..., came=groups), or correct its step_S and replayed_S"


def make_batch(trainer: AnyTrainer, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges, age_bound: float) -> TrainBatch:
    """The batch that the algorithm of ``trainer`` makes of ``groups``. Raises `ConfigError` when the algorithm fails or its batch
    is wrong."""
    algorithm = trainer.algorithm
    _write_protect(groups)
    check = partial(check_batch, groups=groups, ages=ages, age_bound=age_bound, vocabulary_size=trainer.vocabulary_size)
    with blaming(algorithm, "prepare"):
        prepared = returned(algorithm.prepare(list(groups), ages=ages), TrainBatch)
        check(prepared)
    batch = trainer.refine(prepared)
    with blaming(algorithm, "refine"):
        check(batch)
    return batch


def _write_protect(groups: Iterable[TrajectoryGroup]) -> None:
    """Make the arrays of ``groups`` read-only: an algorithm that changed them would change what its batch is held against."""
    for step in (step for group in groups for one in group.trajectories for step in one.steps):
        for array in (step.prompt_tokens, step.action_tokens, step.behavior_logprobs, step.policy_versions):
            array.setflags(write=False)


def check_batch(
    batch: TrainBatch, groups: Iterable[TrajectoryGroup], *, ages: PolicyAges, age_bound: float, vocabulary_size: int
) -> None:
    """Raise `ValueError` when ``batch`` trains on numbers that are not finite, leaves steps out for an unknown reason, or names a
    step that is another one of ``groups``, is there twice, is older than ``age_bound``, or came with the batch and is called
    replayed.

    ``groups`` and ``ages``: those of the batch, as the algorithm was given them.
    """
    if batch.ages != ages:
        raise ValueError(f"the ages of its batch are {batch.ages}, and it was given {ages}")
    for name in ("advantage_S", "token_weight_S"):
        if not np.isfinite(getattr(batch, name)).all():
            raise ValueError(f"{name} of its batch has numbers that are not finite")
    for name, value in batch.metrics.items():
        if not isinstance(value, int | float | np.number):
            raise ValueError(f"metric {name!r} of its batch is {value!r:.50}, no number")
    reasons = get_args(LeftOut)
    unknown = sorted(set(map(str, batch.left_out.values())) - set(reasons))
    if unknown:
        raise ValueError(f"its batch leaves steps out for {', '.join(unknown)}; the reasons are {', '.join(reasons)}")
    came = {one.trajectory_id: one.steps for group in groups for one in group.trajectories}
    seen: set[StepKey] = set()
    for key, step, replayed in zip(batch.step_keys, batch.samples, batch.replayed_S.tolist(), strict=True):
        fault = _fault(key, step, came.get(key[0]), replayed=replayed, ages=ages, age_bound=age_bound)
        if not fault and not replayed and key in seen:
            fault = "twice: give it a larger token_weight_S"
        if not fault and not _is_prompt(step.prompt_tokens, vocabulary_size):
            fault = f"with a prompt that is empty or has tokens outside 0..{vocabulary_size - 1}"
        if fault:
            raise ValueError(f"its batch names step {key[1]} of {key[0]}, {fault}; {_HINT}")
        seen.add(key)


def _is_prompt(tokens: np.ndarray, vocabulary_size: int) -> bool:
    return bool(tokens.size) and int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary_size


def _fault(key: StepKey, step: Step, came: Sequence[Step] | None, *, replayed: bool, ages: PolicyAges, age_bound: float) -> str:
    """The fault of ``step``, named as ``key``, in words; empty when there is none."""
    if came is None:
        return "" if replayed else "a trajectory that did not come with it and is not called replayed"
    if replayed:
        return "which came with it, and calls it replayed"
    place = key[1]
    if not 0 <= place < len(came):
        return f"which has {len(came)} steps"
    if not acts_the_same(step, came[place]):
        others = [i for i, other in enumerate(came) if acts_the_same(step, other)]
        return f"and holds what came as step {others[0]}" if others else "and holds another action than came"
    age = ages.oldest(came[place])
    return f"which is {age} updates old; learner.max_age allows {age_bound}" if age > age_bound else ""
