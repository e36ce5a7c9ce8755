"""Runs studies that compare arms: each arm is trained with every seed, from the same cloned policy, and otherwise alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from computerrl.benchmarks.studies import _plots, _runs
from computerrl.benchmarks.studies._designs import Arm, Comparison
from computerrl.benchmarks.studies._statistics import Record, by_arm, markdown, with_error
from computerrl.benchmarks.studies._study import Page, Study


def run(design: Comparison, folder: Path, *, quick: bool, num_seeds: int | None) -> None:
    """Train each arm with each seed into ``folder`` and write the page. ``num_seeds``: None: as many as the design has."""
    arms = [arm for arm in design.arms if not quick or arm.name in (design.quick_arms or [arm.name])]
    settings = {**design.settings, **(design.quick if quick else {})}
    seeds = range(num_seeds or (1 if quick else design.num_seeds))
    common = yaml.safe_load(_runs.CONFIG.read_text(encoding="utf-8"))
    made_of = {"config": common, "settings": settings, "arms": {arm.name: dict(arm.settings) for arm in arms}}
    study = Study(folder, name=design.name, settings=made_of)
    train = partial(_played if quick else _from_cloned, design, study.folder, settings)
    cells: list[Record] = []
    # Seed by seed: a study that is broken off has whole comparisons, and a machine that grows slower meets all arms alike.
    for seed in seeds:
        for arm in arms:
            make = partial(train, arm, seed)
            cells.append(study.cell(f"{arm.name}, seed {seed}", make, of=len(seeds) * len(arms), show=in_words))
        # After each seed, so that a study that is broken off has a page of its results.
        page = Page(design.title, design.question, table(design, cells), partial(_draw, design, cells), design.limits)
        study.write(page, cells, quick=quick, is_last=seed == seeds[-1])


def _played(design: Comparison, folder: Path, settings: Mapping[str, Any], arm: Arm, seed: int) -> Record:
    return _runs.play(folder, arm, seed, settings, how=design.how or _runs.train)


def _from_cloned(design: Comparison, folder: Path, settings: Mapping[str, Any], arm: Arm, seed: int) -> Record:
    """RL of ``arm`` from the cloned policy of ``seed``, which is made if it is not there yet."""
    name = _runs.run_name(f"cloned-{arm.name}" if design.has_own_cloning else "cloned", seed)
    model, cloned = _runs.cloned_model(folder, name, seed, {**settings, **(arm.settings if design.has_own_cloning else {})})
    start = {**settings, "model.name": str(model), "learner.recipe.demos_per_family": 0}
    shown = {"success_cloned": cloned.get("mean"), "demonstration_steps": cloned.get("demonstration_steps")}
    return {**_played(design, folder, start, arm, seed), **shown}


def table(design: Comparison, cells: Sequence[Record]) -> str:
    """The results in Markdown: a line for each arm, unless the design has a table of its own."""
    if design.table is not None:
        return design.table(cells)
    names = [arm.name for arm in design.arms]
    parts = [by_arm(names, cells, design.columns)]
    if design.has_families:
        families = sorted({name for cell in cells for name in cell["families"]})
        rows = [
            [name, *(with_error([cell["families"].get(name) for cell in cells if cell["arm"] == arm], ".2f") for arm in names)]
            for name in families
        ]
        parts.append(markdown(["family, success after RL", *names], rows))
    return "\n".join([*parts, f"{design.note}\n"])


def _draw(design: Comparison, cells: Sequence[Record], path: Path) -> None:
    if design.draw is not None:
        design.draw(path, cells)
    else:
        _plots.draw(path, cells, [arm.name for arm in design.arms], design.panels)


def in_words(cell: Record) -> str:
    """A run in a few words, for the progress."""
    success = "–" if cell["success"] is None else f"{cell['success']:.3f}"
    return f"success {success} after {cell['num_updates']} updates, {cell['rl_env_steps']} steps"
