"""`computerrl compare`: runs on one page. Reads their folders; the figures are those of their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import PRIVATE, RunFolder, write_atomically
from computerrl.launch.plan.run_names import read_resolved
from computerrl.launch.progress import Tell, tell_nobody, tracked
from computerrl.launch.report.charts import Chart, Figure, Series, figure, smooth
from computerrl.launch.report.report_data import ActiveTime
from computerrl.launch.report.run_charts import curve_of
from computerrl.launch.report.write import last_moment, page_environment, read_attempts, report_of
from computerrl.launch.watch.run_state import RunState

STYLES = ("s1", "s2", "s3", "s4", "s5", "s6")
"""CSS variables; more runs than this cannot be told apart."""
_CURVES = (
    ("success", "Success of training batches", "Mean over families, smoothed; dashed: evaluations.", True),
    ("entropy", "Entropy of the policy", "Nats per action token in training.", False),
    ("policy_age_mean", "Policy age", "Mean over the steps of an update, in versions.", False),
    ("env_steps_per_s", "Environment steps per second", "Actions carried out on all desktops.", False),
    ("trained_tokens_per_s", "Trained tokens per second", "While an update is computed.", False),
)
_ROWS = (
    ("success before", ("success_before", "mean"), "percent"),
    ("success after cloning", ("success_after_bc", "mean"), "percent"),
    ("success after RL", ("success_after_rl", "mean"), "percent"),
    ("wall time", ("wall_s",), "duration"),
    ("updates", ("num_updates",), "figure"),
    ("Entropulse rounds", ("num_entropulse_phases",), "figure"),
    ("environment steps", ("env_steps",), "figure"),
    ("environment steps per second", ("env_steps_per_s",), "figure"),
    ("desktop step, median (s)", ("step_p50_s",), "figure"),
    ("trained tokens per second", ("trained_tokens_per_s",), "figure"),
    ("actor idle", ("actor_idle_fraction",), "percent"),
    ("greatest policy age trained (versions)", ("max_policy_age_trained",), "figure"),
    ("trajectories lost", ("num_trajectories_lost",), "figure"),
    ("commit", ("commit",), "text"),
)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run's part."""

    name: str
    style: str
    report: dict[str, Any]
    state: RunState
    active: ActiveTime
    config: dict[str, Any]


def write_comparison(folders: Sequence[Path], *, out: Path, tell: Tell = tell_nobody) -> str:
    """Write the page; gives what to tell the person. ``tell`` receives the number of runs that were read and of all. Raises
    `ConfigError`, `ResumeError`."""
    if len(folders) > len(STYLES):
        raise ConfigError([Problem("RUN", f"{len(folders)} runs", f"give at most {len(STYLES)}")])
    again = [folder for place, folder in enumerate(folders) if any(folder.samefile(other) for other in folders[:place])]
    if again:
        raise ConfigError([Problem("RUN", f"{again[0]} is given twice", "give different runs")])
    pairs = list(zip(folders, STYLES, strict=False))
    runs = [_read(folder, style) for folder, style in tracked(pairs, tell, total=len(pairs))]
    page = (
        page_environment()
        .get_template("compare.html.j2")
        .render(
            runs=runs,
            rows=[(title, kind, [_value(run.report, path) for run in runs]) for title, path, kind in _ROWS],
            families=family_rows(runs),
            charts=comparison_charts(runs),
            settings=different_settings(runs),
        )
    )
    write_atomically(out, page.encode(), mode=PRIVATE)
    return f"{out}: {', '.join(run.name for run in runs)}"


def _read(folder: Path, style: str) -> ComparedRun:
    run = RunFolder(folder)
    state = RunState().take_all(read_json_lines(run.metrics_path))
    active = ActiveTime(read_attempts(run.logs), last_record=last_moment(state))
    return ComparedRun(folder.resolve().name, style, report_of(folder), state, active, read_resolved(folder))


def comparison_charts(runs: Sequence[ComparedRun]) -> list[tuple[str, str, Figure]]:
    """(title, caption, figure), each run a line."""
    end = max((run.active.total_s for run in runs), default=0.0) / 60
    charts = []
    for key, title, caption, is_share in _CURVES:
        series = [Series(run.name, smooth(curve_of(run.state, run.active, key)), run.style) for run in runs]
        if key == "success":
            series += [Series(f"{run.name}, evaluated", _evaluations(run), run.style, dashed=True) for run in runs]
        if any(one.points for one in series):
            charts.append((title, caption, figure(Chart(title, series, end, y_high=1.0 if is_share else None, percent=is_share))))
    return charts


def _evaluations(run: ComparedRun) -> list[tuple[float, float]]:
    return [
        (run.active.at(record["time"]) / 60, float(record["success"]))
        for record in run.state.evaluations
        if record.get("time") is not None and record.get("success") is not None
    ]


def family_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, list[float | None]]]:
    """(family, evaluated success after RL, or the latest there is, of each run)."""
    tables = []
    for run in runs:
        latest = [run.report[name] for name in ("success_after_rl", "success_after_bc", "success_before") if run.report[name]]
        tables.append(latest[0]["families"] if latest else {})
    names = sorted({name for table in tables for name in table})
    return [(name, [table[name]["success"] if name in table else None for table in tables]) for name in names]


def different_settings(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """(field, its value in each run) of fields that are not the same in all."""
    flat = [_flat(run.config) for run in runs]
    names = sorted({name for tree in flat for name in tree} - {"name", "run_dir"})
    rows = [(name, [_text(tree.get(name)) for tree in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _value(report: dict[str, Any], path: Sequence[str]) -> Any:
    value: Any = report
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
