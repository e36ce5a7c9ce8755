"""`computerrl bench NAME` and `computerrl study NAME`: a benchmark measures speed, a study the effect of a choice on training.

A benchmark is a file of a folder of benchmarks/ with a docstring and `run(quick: bool, **options) -> Iterable[dict]`; its options
are those of the command line that it names. The rows are printed as a table and written as JSON, with the machine and the commit.
Each has name, value, unit, spread, target, better ("lower" or "higher"), where there is a baseline peer, peer_value, ratio, and
where it is a check state ("passed", "failed" or "not run") and reason. Rows of a generator are printed and written one by one, so
that a call that is broken off leaves what it had.

A study is a file of benchmarks/studies/ with a docstring and `run(folder: Path, *, quick: bool, num_seeds: int | None) -> None`,
or an entry of the catalogue there. It writes a folder with data, a table and a plot. Files that begin with `_` are neither.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from computerrl import PACKAGE
from computerrl.common.errors import ConfigError, Problem
from computerrl.launch.progress import Progress, tracked

if TYPE_CHECKING:
    from computerrl.benchmarks.studies._designs import Comparison

BENCHMARKS = PACKAGE / "benchmarks"
STUDIES = BENCHMARKS / "studies"
COLUMNS = ("name", "value", "unit", "spread", "target", "better", "peer", "peer_value", "ratio", "state", "reason")
Kind = Literal["benchmark", "study"]


def _files(kind: Kind) -> dict[str, Path]:
    """Name -> file of every benchmark, or of every study that has a file."""
    found = STUDIES.glob("*.py") if kind == "study" else (path for path in BENCHMARKS.glob("*/*.py") if path.parent != STUDIES)
    return {path.stem: path for path in found if not path.stem.startswith("_")}


def texts(kind: Kind) -> dict[str, str]:
    """Name -> text of every benchmark or study, by name. Files are read, not imported: many import much."""
    found = {name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for name, path in _files(kind).items()}
    if kind == "study":
        from computerrl.benchmarks.studies._catalogue import DESIGNS

        found |= {name: design.question.strip() for name, design in DESIGNS.items()}
    return dict(sorted(found.items()))


def _require(kind: Kind, name: str) -> None:
    """Raise `ConfigError` for a name of no benchmark or study."""
    found = texts(kind)
    if name not in found:
        raise ConfigError([Problem("NAME", f"there is no {kind} {name!r}", f"use one of {', '.join(found)}")])


def _print_list(kind: Kind) -> None:
    for name, text in texts(kind).items():
        print(f"{name:24} {text.partition(chr(10))[0]}")


def listed(kind: Kind) -> str:
    """Names and texts of all benchmarks or studies, as JSON."""
    return json.dumps([{"name": name, "text": text} for name, text in texts(kind).items()], indent=2)


def _module(kind: Kind, name: str) -> Any:
    return importlib.import_module(".".join(["computerrl", *_files(kind)[name].relative_to(PACKAGE).with_suffix("").parts]))


def run_study(
    name: str | None,
    *,
    folder: Path | None,
    quick: bool,
    num_seeds: int | None,
    results: Path | None = None,
    model: str | None = None,
) -> None:
    """Run ``name`` (or list all when None) into ``folder``, beginning with ``results``, a data.json that the study wrote.

    ``folder``: None: studies/NAME below the current folder, with ``quick`` studies/NAME-quick. ``model``: a model in place of the
    study's own, where the study compares arms. Raises `ConfigError` for an unknown name, for results of another study, and for a
    model where there is none to replace.
    """
    if name is None:
        _print_list("study")
        return
    from computerrl.benchmarks.studies import _catalogue

    _require("study", name)
    place = folder or Path("studies") / (f"{name}-quick" if quick else name)
    if results is not None:
        from computerrl.benchmarks.studies._study import restore

        restore(place, results, name=name)
    if model is not None:
        _catalogue.run(_with_model(name, model), place, quick=quick, num_seeds=num_seeds)
    elif name in _catalogue.DESIGNS:
        _catalogue.run(_catalogue.DESIGNS[name], place, quick=quick, num_seeds=num_seeds)
    else:
        _module("study", name).run(place, quick=quick, num_seeds=num_seeds)


def _with_model(name: str, model: str) -> Comparison:
    from computerrl.benchmarks.studies._catalogue import DESIGNS
    from computerrl.benchmarks.studies._designs import Comparison

    design = DESIGNS[name] if name in DESIGNS else getattr(_module("study", name), "STUDY", None)
    if not isinstance(design, Comparison):
        raise ConfigError([Problem("--model", f"the study {name} does not compare arms with one model", "leave it out")])
    # The runs' own folder is another one than this process is in.
    return design.with_model(str(Path(model).resolve()) if Path(model).is_dir() else model)


def run_bench(name: str | None, *, json_file: Path | None, quick: bool, options: Mapping[str, Any] | None = None) -> int:
    """Run ``name`` with ``options``, or list all benchmarks when it is None. Returns the exit code.

    It is 1 when a row's state is "failed", and when a row misses its target and the module has `GUARANTEED = True`. Raises
    `ConfigError` for an unknown name, and for an option that the benchmark does not have.
    """
    if name is None:
        _print_list("benchmark")
        if json_file is not None:
            json_file.write_text(listed("benchmark") + "\n", encoding="utf-8")
        return 0
    _require("benchmark", name)
    module, options = _module("benchmark", name), options or {}
    _require_options(name, module, options)
    about = _about(name, quick=quick) if json_file is not None else {}
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with Progress(f"bench {name}", unit="rows") as shown:
        found = module.run(quick, **options)
        for row in tracked(found, shown):
            rows.append(complete(row))
            if isinstance(found, Iterator):
                print(describe(rows[-1]), flush=True)
                _write_rows(json_file, about, rows)
    print_rows(name, rows, took_s=time.perf_counter() - started, quick=quick)
    _write_rows(json_file, about, rows)
    if json_file is not None:
        print(f"rows: {json_file}")
    misses = getattr(module, "GUARANTEED", False) and any(meets(row) is False for row in rows)
    return int(misses or any(row["state"] == "failed" for row in rows))


def _require_options(name: str, module: Any, options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that ``module`` does not name."""
    known = inspect.signature(module.run).parameters
    unknown = [option for option in options if option not in known]
    if unknown:
        reason = f"the benchmark {name} has no such option"
        raise ConfigError([Problem(f"--{option.replace('_', '-')}", reason, "leave it out") for option in unknown])


def _about(name: str, *, quick: bool) -> dict[str, Any]:
    """Head of a file of rows: where, when, of which commit and by which command they were measured."""
    from computerrl.common.clock import utc_now
    from computerrl.common.host import torch_cuda
    from computerrl.common.run_files.run_folder import versions
    from computerrl.launch.plan.machine import gpu_driver, inspect_machine, package_versions

    machine = inspect_machine().as_dict() | {"gpu_driver": gpu_driver(), "cuda": torch_cuda(), "versions": package_versions()}
    return {
        "machine": machine,
        "commit": versions()["commit"],
        "date": utc_now(),
        "command": shlex.join(["computerrl", *sys.argv[1:]]),
        "benchmark": name,
        "quick": quick,
    }


def _write_rows(json_file: Path | None, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


def complete(row: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` with all columns, the missing ones None; the ratio to the peer is computed when both values are there."""
    unknown = row.keys() - set(COLUMNS)
    assert not unknown, f"unknown columns {sorted(unknown)} in a benchmark's row"
    full = {column: row.get(column) for column in COLUMNS}
    if full["ratio"] is None and full["value"] is not None and full["peer_value"]:
        full["ratio"] = full["value"] / full["peer_value"]
    return full


def meets(row: Mapping[str, Any]) -> bool | None:
    """Whether the value reaches the target; None where value or target is missing."""
    value, target = row["value"], row["target"]
    if value is None or target is None:
        return None
    return bool(value <= target if row["better"] == "lower" else value >= target)


_LOG_WIDTH = 180
"""Width in characters of a table that is not printed to a terminal."""


def print_rows(name: str, rows: Sequence[Mapping[str, Any]], *, took_s: float, quick: bool) -> None:
    """Print the table of ``rows``."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{name}{' (quick)' if quick else ''}, {took_s:.0f} s", title_justify="left", header_style="dim", box=None
    )
    table.add_column("name")
    for title in ("value", "unit", "spread", "target", "peer", "peer value", "ratio"):
        table.add_column(title, justify="left" if title in ("unit", "peer") else "right", no_wrap=True)
    has_states = any(row["state"] for row in rows)
    if has_states:
        table.add_column("state", no_wrap=True)
    for row in rows:
        style = {True: "green", False: "red", None: ""}[meets(row)]
        target = "" if row["target"] is None else f"{'<=' if row['better'] == 'lower' else '>='} {number(row['target'])}"
        if meets(row) is False:
            target += " missed"
        value = f"[{style}]{number(row['value'])}[/]" if style else number(row["value"])
        cells = [str(row["name"]), value, row["unit"] or "", number(row["spread"]), target]
        cells += [row["peer"] or "", number(row["peer_value"]), number(row["ratio"])]
        table.add_row(*cells, *([row["state"] or ""] if has_states else []))
    Console(width=None if sys.stdout.isatty() else _LOG_WIDTH).print(table)
    for row in rows:
        if row["reason"]:
            print(f"{row['state'] or 'note'}: {row['name']}: {row['reason']}")
    if has_states:
        counts = Counter(row["state"] for row in rows)
        print(", ".join(f"{counts[state]} {state}" for state in ("passed", "failed", "not run")))


def describe(row: Mapping[str, Any]) -> str:
    """One line about a complete row, for a terminal on which the table is not there yet."""
    parts = [f"{row['name']}:"]
    if row["value"] is not None:
        parts.append(f"{number(row['value'])} {row['unit'] or ''}".rstrip())
    if row["peer_value"] is not None:
        parts.append(f"({row['peer']}: {number(row['peer_value'])})")
    if row["state"]:
        parts.append(row["state"])
    return " ".join(parts) + (f", {row['reason']}" if row["reason"] else "")


def number(value: Any) -> str:
    """A figure in a table: four digits, whole from 1,000 on, spans as `a..b`, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "..".join(map(number, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
