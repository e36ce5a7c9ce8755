"""Which families training plays how often, and with how many rollouts."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, model_validator

from computerrl.common.config.base import Section
from computerrl.common.errors import Problem

MAX_RECENT = 1024
"""Outcomes that the broker remembers of a family."""


class CurriculumConfig(Section):
    """How training groups choose their family. Read by learner, who puts it into its orders; carried out by broker."""

    name: Literal["uniform", "weighted", "success_band", "cool_down"] = "uniform"
    """uniform: families take turns. weighted: in proportion to `tasks.family_weights`. success_band: by weights too, but
    families whose recent success lies in ``band`` get most groups. cool_down: by weights, but a family whose last f groups failed
    altogether counts exp(-f) of its weight from the second on, and hardly anything from the fifth (MobileRL's failure
    curriculum, where an epoch is a group here); one success brings it back."""
    band: tuple[float, float] = (0.1, 0.9)
    """success_band: success rates from which groups learn; a family outside is always or never solved."""
    floor: float = Field(0.25, ge=0.01, le=1)
    """success_band: part of all groups that is shared out by weights alone: what a family outside the band still gets of its
    share by weight."""
    num_recent: int = Field(64, ge=1, le=MAX_RECENT)
    """Latest rollouts of a family that its success rate counts; for success_band and `tasks.rollouts`."""
    min_results: int = Field(8, ge=1)
    """With fewer rollouts than this a family counts as in the band and gets `learner.group_size` rollouts."""

    @model_validator(mode="after")
    def _fit(self) -> "CurriculumConfig":
        low, high = self.band
        if not 0 <= low < high <= 1:
            raise ValueError(f"band {low}..{high} holds no success rate; give [low, high] with 0 <= low < high <= 1")
        if self.min_results > self.num_recent:
            raise ValueError(f"min_results {self.min_results} is never reached by num_recent {self.num_recent}; raise num_recent")
        return self


class RolloutsConfig(Section):
    """How many rollouts a training group has. Read by learner, who puts it into its orders; carried out by broker.

    floor(9 / SR - 7) within the limits, for a family's recent success rate SR (DART's rule): 16 at 0.39, 8 at 0.6, 4 at 0.8.
    """

    min: int | None = Field(None, ge=2)
    """Fewest rollouts, of families that nearly always succeed; None: `learner.group_size`."""
    max: int | None = Field(None, ge=2, le=4096)
    """Most rollouts, of families that hardly succeed; None: `learner.group_size`."""


def horizon_problems(horizon: Sequence[tuple[int, int]], *, max_steps: int) -> list[Problem]:
    """What is wrong with `tasks.horizon`, given `tasks.max_steps`."""
    starts = [update for update, _ in horizon]
    problems = []
    if starts != sorted(set(starts)) or any(update < 0 for update in starts):
        step = "give [update, steps] pairs in order of updates"
        problems.append(Problem("tasks.horizon", f"updates {starts} do not rise", step))
    for update, steps in horizon:
        if not 1 <= steps <= max_steps:
            step = f"give 1 to tasks.max_steps = {max_steps}, or raise that"
            problems.append(Problem("tasks.horizon", f"{steps} actions from update {update} on", step))
    return problems


def weight_problems(weights: Mapping[str, float], *, families: Sequence[str], curriculum: str) -> list[Problem]:
    """What is wrong with `tasks.family_weights`."""
    problems = []
    for family, weight in weights.items():
        path = f"tasks.family_weights.{family}"
        if family not in families:
            problems.append(Problem(path, "is not among tasks.families", "name all families of the run there, or remove it here"))
        if weight < 0:
            problems.append(Problem(path, f"weight {weight}", "give 0 or more"))
    if weights and curriculum == "uniform":
        step = "set it to weighted, success_band or cool_down, or remove tasks.family_weights"
        problems.append(Problem("tasks.curriculum.name", "'uniform' does not look at tasks.family_weights", step))
    if families and all(weights.get(family, 1.0) == 0 for family in families):
        step = "give at least one family a weight above 0; families without one have 1"
        problems.append(Problem("tasks.family_weights", "all families have weight 0, so nothing could be played", step))
    return problems


def rollout_problems(rollouts: RolloutsConfig, *, group_size: int) -> list[Problem]:
    """What is wrong with `tasks.rollouts`, given `learner.group_size`."""
    low = group_size if rollouts.min is None else rollouts.min
    high = group_size if rollouts.max is None else rollouts.max
    if low <= group_size <= high:
        return []
    reason = f"{low} to {high} rollouts, but a family of which nothing is known has learner.group_size = {group_size}"
    return [Problem("tasks.rollouts", reason, f"set min <= {group_size} <= max, or change learner.group_size")]
