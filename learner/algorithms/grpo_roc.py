"""GRPO-RoC: resample on correct (rStar2-Agent, arXiv 2508.20722, section 3.2). Twice as many rollouts are sampled as trained on.

Half of a group is kept: failures at random, so that kinds of failure stay diverse, and the cleanest successes. A success is the
less clean the more of its actions were refused by the desktop (half, when it had no well-formed action) and the more of its steps
were badly formed. At least ``min_each`` failures and successes are kept where there are so many. Clip 0.2 and 0.28, no KL.

Ours: a refused action is the paper's tool error. Failures are drawn (the release keeps the first ones), seeded by the run's seed
and the number of the update. Failures and successes are halved in proportion. Advantages are over steps, as in `grpo`. Set
``learner.group_size`` to twice the number of rollouts to train on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from computerrl.common.messages import Trajectory, TrajectoryGroup
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions
from computerrl.learner.algorithms.step_table import Chosen
from computerrl.learner.objective.ages import PolicyAges

_NO_CALL_PENALTY = 0.5


class GRPORoCOptions(GRPOOptions):
    """`learner.algorithm.options` of grpo_roc."""

    eps_high: float = Field(0.28, gt=0)
    kept_share: float = Field(0.5, gt=0, le=1)
    """Share of a group's rollouts that is kept."""
    min_each: int = Field(2, ge=0)
    """Least number of failures, and of successes, to keep."""


class GRPORoC(GRPO):
    """See the module's docstring."""

    options_model = GRPORoCOptions
    options: GRPORoCOptions

    def choose(self, groups: Sequence[TrajectoryGroup], *, ages: PolicyAges) -> Chosen:
        """The groups with the rollouts that are kept."""
        rng = self.generator(ages)
        return Chosen([replace(group, trajectories=self._kept(group.trajectories, rng)) for group in groups])

    def _kept(self, trajectories: Sequence[Trajectory], rng: np.random.Generator) -> tuple[Trajectory, ...]:
        shuffled = rng.permutation(len(trajectories)).tolist()
        failures = [i for i in shuffled if not trajectories[i].success]
        successes = sorted((i for i in shuffled if trajectories[i].success), key=lambda i: untidiness(trajectories[i]))
        num_failures, num_successes = self._numbers(len(failures), len(successes))
        return tuple(trajectories[i] for i in sorted((*failures[:num_failures], *successes[:num_successes])))

    def _numbers(self, num_failures: int, num_successes: int) -> tuple[int, int]:
        """(failures, successes) to keep; in sum the share asked for, rounded up."""
        total = int(np.ceil(self.options.kept_share * (num_failures + num_successes)))
        kept = round(total * num_failures / (num_failures + num_successes)) if num_failures else 0
        kept = max(kept, min(self.options.min_each, num_failures))
        successes = max(total - kept, min(self.options.min_each, num_successes))
        return min(max(total - successes, min(self.options.min_each, num_failures)), num_failures), min(successes, num_successes)


def untidiness(trajectory: Trajectory) -> float:
    """0 (clean) to 2: share of the well-formed actions that the desktop refused (1/2 when there was none), plus the share of
    steps that were badly formed."""
    steps = trajectory.steps
    called = [step for step in steps if step.format_ok]
    errors = np.mean([bool(step.action_error) for step in called]) if called else _NO_CALL_PENALTY
    return float(errors + (np.mean([not step.format_ok for step in steps]) if steps else 0.0))
