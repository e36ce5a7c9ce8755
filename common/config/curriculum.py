"""Settings of how often training plays each family, and with how many rollouts."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, model_validator

from computerrl.common.config.base import Section
from computerrl.common.errors import Problem

MAX_RECENT = 1024
"""Number of outcomes of a family that the broker remembers."""


class CurriculumConfig(Section):
    """Settings of how training groups choose their family. Read by the learner, which sends them in its orders; the broker
    carries them out."""

    name: Literal["uniform", "weighted", "success_band", "cool_down"] = "uniform"
    """Rule by which training groups choose their family. `uniform`: families take turns. `weighted`: in proportion to
    `tasks.family_weights`. `success_band`: by weight, but most groups go to families whose recent success lies in `band`.
    `cool_down`: by weight, but a family whose last f groups all failed counts exp(-f) of its weight from the second such group
    on, and hardly anything from the fifth. One success restores its weight. This is MobileRL's failure curriculum, whose epoch
    is a group here."""
    band: tuple[float, float] = (0.1, 0.9)
    """Success rates between which a family gets most groups with `success_band`. A family outside is always or never solved,
    and its groups teach little."""
    floor: float = Field(0.25, ge=0.01, le=1)
    """Share of all groups that `success_band` distributes by weight alone. A family outside the band still gets this share of
    its weight."""
    num_recent: int = Field(64, ge=1, le=MAX_RECENT)
    """Number of a family's latest rollouts from which its success rate is computed, for `success_band` and `tasks.rollouts`."""
    min_results: int = Field(8, ge=1)
    """Number of rollouts of a family from which its success rate is used. With fewer, the family counts as in the band and gets
    `learner.group_size` rollouts."""

    @model_validator(mode="after")
    def _fit(self) -> "CurriculumConfig":
        low, high = self.band
        if not 0 <= low < high <= 1:
            raise ValueError(f"band {low}..{high} contains no success rate; write [low, high] with 0 <= low < high <= 1")
        if self.min_results > self.num_recent:
            raise ValueError(f"min_results {self.min_results} is above num_recent {self.num_recent}; raise num_recent")
        return self


class RolloutsConfig(Section):
    """Limits of the number of rollouts of a training group. Read by the learner, which sends them in its orders; the broker
    carries them out.

    A group has floor(9 / SR - 7) rollouts within the limits, for a family's recent success rate SR (DART's rule): 16 at 0.39, 8
    at 0.6, 4 at 0.8.
    """

    min: int | None = Field(None, ge=2)
    """Minimum number of rollouts of a group, for families that nearly always succeed. None: `learner.group_size`."""
    max: int | None = Field(None, ge=2, le=4096)
    """Maximum number of rollouts of a group, for families that hardly ever succeed. None: `learner.group_size`."""


def horizon_problems(horizon: Sequence[tuple[int, int]], *, max_steps: int) -> list[Problem]:
    """Problems of `tasks.horizon`, given `tasks.max_steps`."""
    starts = [update for update, _ in horizon]
    problems = []
    if starts != sorted(set(starts)) or any(update < 0 for update in starts):
        step = "write [update, actions] pairs in ascending order of updates"
        problems.append(Problem("tasks.horizon", f"its updates {starts} do not ascend", step))
    for update, steps in horizon:
        if not 1 <= steps <= max_steps:
            step = f"write 1 to {max_steps} (tasks.max_steps), or raise tasks.max_steps"
            problems.append(Problem("tasks.horizon", f"{steps} actions from update {update} on", step))
    return problems


def weight_problems(weights: Mapping[str, float], *, families: Sequence[str], curriculum: str) -> list[Problem]:
    """Problems of `tasks.family_weights`."""
    problems = []
    for family, weight in weights.items():
        path = f"tasks.family_weights.{family}"
        if family not in families:
            step = "name all families of the run in tasks.families, or remove it here"
            problems.append(Problem(path, "is not among tasks.families", step))
        if weight < 0:
            problems.append(Problem(path, f"has the weight {weight}", "set 0 or more"))
    if weights and curriculum == "uniform":
        step = "set it to weighted, success_band or cool_down, or remove tasks.family_weights"
        problems.append(Problem("tasks.curriculum.name", "'uniform' does not use tasks.family_weights", step))
    if families and all(weights.get(family, 1.0) == 0 for family in families):
        step = "set at least one weight above 0; a family that is not named has the weight 1"
        problems.append(Problem("tasks.family_weights", "all families have weight 0, so no group can be played", step))
    return problems


def rollout_problems(rollouts: RolloutsConfig, *, group_size: int) -> list[Problem]:
    """Problems of `tasks.rollouts`, given `learner.group_size`."""
    low = group_size if rollouts.min is None else rollouts.min
    high = group_size if rollouts.max is None else rollouts.max
    if low <= group_size <= high:
        return []
    reason = f"{low} to {high} rollouts, but a family without results has learner.group_size = {group_size}"
    return [Problem("tasks.rollouts", reason, f"set min <= {group_size} <= max, or change learner.group_size")]
