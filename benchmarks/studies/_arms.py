"""Studies that compare arms: each is trained with every seed, from the same cloned policy, and otherwise the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.studies import _runs
from benchmarks.studies._runs import Arm, Record
from benchmarks.studies._study import Page, Study


def compare(
    folder: Path,
    *,
    name: str,
    arms: Sequence[Arm],
    settings: Mapping[str, Any],
    num_seeds: int,
    quick: bool,
    title: str,
    question: str,
    table: Callable[[Sequence[Record]], str],
    draw: Callable[[Path, Sequence[Record]], None],
    limits: Sequence[str],
) -> None:
    """Train each of ``arms`` with each seed and write the page (`_study.Page`) of the results. ``settings``: of all runs, beyond
    desktop.yaml."""
    if quick:
        settings, num_seeds = {**settings, **_runs.QUICK}, 1
    common = {"config": yaml.safe_load(_runs.CONFIG.read_text(encoding="utf-8")), "settings": dict(settings)}
    study = Study(folder, name=name, settings={**common, "arms": {arm.name: dict(arm.settings) for arm in arms}})
    cells = []
    # Seed by seed, so that whoever breaks off has whole comparisons, and a machine that grows slower meets all arms alike.
    for seed in range(num_seeds):
        for arm in arms:
            def make(arm: Arm = arm, seed: int = seed) -> Record:
                start = settings if quick else from_cloned(study.folder, seed, settings)
                return _runs.play(study.folder, arm, seed, start)

            cells.append(study.cell(f"{arm.name}, seed {seed}", make, of=num_seeds * len(arms), show=in_words))
    page = Page(title, question, table(cells), lambda path: draw(path, cells), limits)
    study.write(page, cells, quick=quick)


def from_cloned(folder: Path, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that starts from the cloned policy of ``seed``."""
    cloning = {key: value for key, value in settings.items() if key.startswith(("tasks.", "desktop.", "actor.", "model."))}
    model, _ = _runs.cloned_model(folder, seed, cloning)
    return {**settings, "model.name": str(model), "learner.recipe.demos_per_family": 0}


def in_words(cell: Record) -> str:
    """A run in a few words, for the progress."""
    success = "–" if cell["success"] is None else f"{cell['success']:.3f}"
    return f"success {success} after {cell['num_updates']} updates, {cell['rl_env_steps']} steps"
