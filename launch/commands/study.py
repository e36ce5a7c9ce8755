"""`computerrl study NAME`: runs one file of benchmarks/studies/, which writes a folder with data, a table and a plot.

A study is a module `benchmarks/studies/<name>.py` with a docstring and `run(folder: Path, *, quick: bool, num_seeds: int | None)
-> None`. Where a benchmark asks how fast something is, a study asks what it does to training.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from computerrl import PACKAGE
from computerrl.common.errors import ConfigError, Problem

FOLDER = PACKAGE / "benchmarks" / "studies"


def study_names() -> list[str]:
    """All there are."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def run_study(name: str | None, *, folder: Path | None, quick: bool, num_seeds: int | None, results: Path | None = None) -> None:
    """Run ``name`` (or list all when None) into ``folder`` (None: studies/NAME below the current one, with ``quick``
    studies/NAME-quick), beginning with ``results``, a data.json of it.

    Raises `ConfigError` for an unknown name, and for results of something else.
    """
    names = study_names()
    if name is None:
        for known in names:
            doc = ast.get_docstring(ast.parse((FOLDER / f"{known}.py").read_text(encoding="utf-8"))) or ""
            print(f"{known:24} {doc.splitlines()[0] if doc else ''}")
        return
    if name not in names:
        raise ConfigError([Problem("NAME", f"no study {name!r}", f"use one of {', '.join(names)}")])
    place = folder or Path("studies") / (f"{name}-quick" if quick else name)
    if results is not None:
        importlib.import_module("computerrl.benchmarks.studies._study").restore(place, results, name=name)
    importlib.import_module(f"computerrl.benchmarks.studies.{name}").run(place, quick=quick, num_seeds=num_seeds)
