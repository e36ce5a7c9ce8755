"""Designs of studies: the data that a comparison of arms, or a study of one policy, consists of.

`_arms` and `_policies` run them. This module imports nothing heavy, so that `computerrl study` lists `_catalogue` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from computerrl.benchmarks.studies._statistics import Column, Record

QUICK: Mapping[str, Any] = {
    "model.name": "tiny-random",
    "model.trainable_top_layers": None,
    "model.dtype": "float32",
    "desktop.num_desktops": 2,
    "tasks.families": ["web-click-button", "calc-set-cell"],
    "tasks.max_steps": 3,
    "actor.num_episodes": 2,
    "learner.group_size": 2,
    "learner.groups_per_batch": 2,
    "learner.recipe.max_updates": 3,
    "learner.recipe.eval_episodes_per_family": 1,
    "learner.recipe.max_rl_env_steps": None,
    "actor.engine": "transformers",
}
"""Settings of a quick form: an untrained tiny model for a few updates shows that everything works, and learns nothing."""
WIDER: Mapping[str, Any] = {"desktop.num_desktops": 8, "actor.num_episodes": 8}
"""Twice the desktops: a sixth more steps per second where generation waits for memory (see `scale`)."""

Play = Callable[[Path, str, Mapping[str, Any]], Path]
"""(folder of the study, name of the run, settings) -> folder of the finished run: `_runs.train`, or one that disturbs it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A name, and the settings that differ from those that all runs have in common."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Curves:
    """A panel of a plot: a learning curve for each arm, the mean over seeds with its standard error."""

    x: str
    y: str
    """Fields of an update; `_plots.LABELS` has their names."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel of a plot: a group of bars for each field of the results, with a bar for each arm."""

    fields: Sequence[str]
    label: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A study that trains each arm with every seed, from the same cloned policy, and otherwise alike."""

    name: str
    title: str
    question: str
    """See `_study.Page`."""
    arms: Sequence[Arm]
    num_seeds: int
    limits: Sequence[str]
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Columns of the table, which has a line for each arm."""
    note: str = ""
    """Text below the table."""
    has_families: bool = False
    """A second table has the success on each family."""
    panels: Sequence[Curves | Bars] = ()
    """The plot, from left to right."""
    table: Callable[[Sequence[Record]], str] | None = None
    """Results -> Markdown, instead of ``columns``."""
    draw: Callable[[Path, Sequence[Record]], None] | None = None
    """Writes the plot of the results, instead of ``panels``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all runs, beyond desktop.yaml."""
    quick: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    """Settings of the quick form, over ``settings``."""
    quick_arms: Sequence[str] = ()
    """Names of the arms of the quick form; none: all."""
    has_own_cloning: bool = False
    """Each arm clones demonstrations of its own; otherwise all arms of a seed begin with one cloned policy."""
    how: Play | None = None
    """None: `_runs.train`."""

    def with_model(self, name: str) -> Comparison:
        """The same study of another model: the name of a built-in one, or a folder."""
        return replace(self, settings={**self.settings, "model.name": name}, quick={**self.quick, "model.name": name})


@dataclass(frozen=True, slots=True)
class Generalist:
    """A study of one policy on many families: untouched, after cloning, after RL."""

    name: str
    title: str
    question: str
    """See `_study.Page`."""
    limits: Sequence[str]
    families: Sequence[str]
    """Families that the policy is trained on; a name that ends in `*` stands for all that begin so."""
    unseen: Sequence[str] = ()
    """Families that the policy is only evaluated on."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all runs, beyond desktop.yaml."""
    quick: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    """Settings of the quick form, over ``settings``."""
    num_episodes: int = 10
    """Number of held-out instances of each family in each evaluation, the same ones each time; they are played greedily."""
    shifts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """More evaluations of the cloned and the trained policy, under settings that it was not trained with: name -> settings."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published success: system -> family -> success; more columns of the table of families."""
    published_note: str = ""
    """Source of the published figures, and how their measurement differs."""
