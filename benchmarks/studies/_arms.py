"""Studies that compare arms: each is trained with every seed, from the same cloned policy, and otherwise the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from computerrl.benchmarks.studies import _runs
from computerrl.benchmarks.studies._runs import Arm, Play, Record
from computerrl.benchmarks.studies._study import Page, Study


@dataclass(frozen=True, slots=True)
class Comparison:
    """A study of training runs."""

    name: str
    title: str
    question: str
    """See `_study.Page`."""
    arms: Sequence[Arm]
    num_seeds: int
    table: Callable[[Sequence[Record]], str]
    """Results -> Markdown."""
    draw: Callable[[Path, Sequence[Record]], None]
    """Writes the plot of the results."""
    limits: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of all runs, beyond desktop.yaml."""
    quick: Mapping[str, Any] = field(default_factory=lambda: _runs.QUICK)
    """Settings of the quick form, over ``settings``."""
    quick_arms: Sequence[str] = ()
    """Names of those that the quick form has; none: all."""
    own_cloning: bool = False
    """Each arm clones demonstrations of its own, where they differ."""
    how: Play = _runs.train

    def run(self, folder: Path, *, quick: bool, num_seeds: int | None) -> None:
        """Train each arm with each seed and write the page."""
        arms = [arm for arm in self.arms if not quick or arm.name in (self.quick_arms or [arm.name])]
        settings = {**self.settings, **(self.quick if quick else {})}
        seeds = range(num_seeds or (1 if quick else self.num_seeds))
        common = yaml.safe_load(_runs.CONFIG.read_text(encoding="utf-8"))
        made_of = {"config": common, "settings": settings, "arms": {arm.name: dict(arm.settings) for arm in arms}}
        study = Study(folder, name=self.name, settings=made_of)
        cells = []
        # Seed by seed, so that whoever breaks off has whole comparisons, and a machine that grows slower meets all arms alike.
        for seed in seeds:
            for arm in arms:

                def make(arm: Arm = arm, seed: int = seed) -> Record:
                    if quick:
                        return _runs.play(study.folder, arm, seed, settings, how=self.how)
                    return self._from_cloned(study.folder, arm, seed, settings)

                cells.append(study.cell(f"{arm.name}, seed {seed}", make, of=len(seeds) * len(arms), show=in_words))
            # After each seed, so that whoever breaks off has a page of what is there.
            page = Page(self.title, self.question, self.table(cells), lambda path: self.draw(path, cells), self.limits)
            study.write(page, cells, quick=quick)

    def _from_cloned(self, folder: Path, arm: Arm, seed: int, settings: Mapping[str, Any]) -> Record:
        """RL of ``arm`` from the cloned policy of ``seed``, which is made if it is not there yet."""
        name = _runs.run_name(f"cloned-{arm.name}" if self.own_cloning else "cloned", seed)
        model, cloned = _runs.cloned_model(folder, name, seed, {**settings, **(arm.settings if self.own_cloning else {})})
        start = {**settings, "model.name": str(model), "learner.recipe.demos_per_family": 0}
        shown = {"success_cloned": cloned.get("mean"), "demonstration_steps": cloned.get("demonstration_steps")}
        return {**_runs.play(folder, arm, seed, start, how=self.how), **shown}


def in_words(cell: Record) -> str:
    """A run in a few words, for the progress."""
    success = "–" if cell["success"] is None else f"{cell['success']:.3f}"
    return f"success {success} after {cell['num_updates']} updates, {cell['rl_env_steps']} steps"
