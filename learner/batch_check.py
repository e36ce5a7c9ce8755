"""A last look at a batch before it is trained on: what it says of its steps is held against what came. Pure.

An algorithm of another package may copy, cut or rewrite steps. The age bound and the ledger rest on the identities that its
batch names, so a batch that names wrong ones is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.errors import ConfigError, Problem
from common.messages import Step, TrajectoryGroup
from learner.algorithms import StepKey, TrainBatch
from learner.step_table import holds_the_same

_NEXT_STEP = "let its prepare() make the batch with StepTable.of(..., came=groups), or correct its step_S and replayed_S"


def check_batch(batch: TrainBatch, groups: Iterable[TrajectoryGroup], *, position: int, age_bound: float) -> None:
    """Raises `ConfigError` when a step of ``batch`` is not the one of ``groups`` that it is named as, when it is older than
    ``age_bound``, or when it came with the batch and is called replayed.

    ``groups``: those of the batch, as the algorithm was given them; ``position``: of the version being trained.
    """
    came = {one.trajectory_id: one.steps for group in groups for one in group.trajectories}
    for key, step, replayed in zip(batch.step_keys, batch.samples, batch.replayed_S.tolist(), strict=True):
        fault = _fault(key, step, came.get(key[0]), replayed=replayed, position=position, age_bound=age_bound)
        if fault:
            reason = f"its batch names step {key[1]} of {key[0]}, {fault}"
            raise ConfigError([Problem("learner.algorithm.name", reason, _NEXT_STEP)])


def _fault(
    key: StepKey, step: Step, came: tuple[Step, ...] | None, *, replayed: bool, position: int, age_bound: float
) -> str:
    """What is wrong with ``step``, named as ``key``; empty when nothing is."""
    if came is None:
        return "" if replayed else "a trajectory that did not come with it and is not called replayed"
    if replayed:
        return "which came with it, and calls it replayed"
    place = key[1]
    if not 0 <= place < len(came):
        return f"which has {len(came)} steps"
    if not holds_the_same(step, came[place]):
        others = [i for i, other in enumerate(came) if holds_the_same(step, other)]
        if others:
            return f"and holds what came as step {others[0]}"
    age = position - came[place].min_policy_version
    return f"which is {age} versions old; learner.max_age allows {age_bound}" if age > age_bound else ""
