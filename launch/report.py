"""`report.json` and a self-contained `report.html` of a run, finished or not.

Reads the run folder only. Numbers come from `launch.report_data`, figures from `launch.charts`, the page from `report.html.j2`;
here they are put together. The page refers to nothing outside itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from common.messages import Status
from common.metrics import read_json_lines
from common.run_folder import RunFolder, write_atomically
from launch import charts as drawing
from launch.charts import Band, Chart, Figure, Point, Series, figure, smooth
from launch.film_strips import Strip, make_strips
from launch.machine import inspect_machine
from launch.report_data import EVALUATIONS, ActiveTime, Attempt, figures
from launch.run_names import REPORT_FILE, read_resolved
from launch.run_state import Record, RunState
from launch.waste_view import length_chart, waste_rows

if TYPE_CHECKING:
    import jinja2

ATTEMPT_FILE = "attempt.json"
STATUS_FILE = "status.json"
PAGE_FILE = "report.html"

_BAND_STYLES = {"eval": "b-eval", "demonstrations": "b-bc", "bc": "b-bc", "rl": "b-rl", "sft": "b-sft"}


def write_attempt(log_folder: Path, attempt: Attempt) -> None:
    """Record one life of the supervisor, at its start and at its end."""
    write_atomically(log_folder / ATTEMPT_FILE, json.dumps(asdict(attempt), indent=2).encode())


def write_status(folder: Path, status: Status) -> None:
    """Keep the broker's last word: its counters are gone with it."""
    write_atomically(folder / STATUS_FILE, json.dumps(msgspec.to_builtins(status), indent=2).encode())


def write_report(folder: Path) -> Path:
    """Write both files into ``folder``; gives the page's path."""
    run = RunFolder(folder)
    state = RunState().take_all(read_json_lines(run.metrics_path))
    episodes = latest_of_each(read_json_lines(run.episodes_path))
    attempts = read_attempts(run.logs)
    active = ActiveTime(attempts, last_record=last_moment(state))
    config = read_resolved(folder)
    status = _read_status(folder)
    numbers = figures(state, episodes=episodes, active=active, driver=config["desktop"]["driver"], final_status=status)
    outcome = attempts[-1] if attempts else Attempt(0.0, None)
    report = {
        "name": folder.name,
        "finished": outcome.outcome == "finished",
        "outcome": outcome.outcome or "killed",
        "reason": outcome.reason,
        **numbers,
        "restarts": _restarts(attempts),
        "num_attempts": len(attempts),
        "machine": inspect_machine().as_dict(),
        "versions": _read_json(folder / "versions.json"),
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    report["commit"] = report["versions"].get("commit", "unknown")
    write_atomically(folder / REPORT_FILE, json.dumps(report, indent=2).encode())
    strips = make_strips(episodes, trajectories=run.trajectories)
    page = render_page(report, state=state, active=active, strips=strips, config_text=run.resolved_config.read_text())
    write_atomically(folder / PAGE_FILE, page.encode())
    return folder / PAGE_FILE


def latest_of_each(episodes: Sequence[Record]) -> list[Record]:
    """One record per trajectory: a learner that fell back to a checkpoint may have written some twice."""
    return list({episode.get("trajectory_id", index): episode for index, episode in enumerate(episodes)}.values())


def read_attempts(logs: Path) -> list[Attempt]:
    """All attempts, oldest first."""
    numbered = [folder for folder in logs.iterdir() if folder.name.isdigit()] if logs.is_dir() else []
    found = []
    for folder in sorted(numbered, key=lambda folder: int(folder.name)):
        tree = _read_json(folder / ATTEMPT_FILE)
        if "started" in tree:
            found.append(Attempt(**tree))
    return found


def last_moment(state: RunState) -> float:
    """Unix seconds of the newest record, 0 when there is none."""
    records = (*state.phases[-1:], *state.updates[-1:], *state.evaluations[-1:], *state.sft_steps[-1:])
    return max((float(record.get("time") or 0.0) for record in records), default=0.0)


# --- the page --------------------------------------------------------------------------------------------------------


def render_page(report: dict[str, Any], *, state: RunState, active: ActiveTime, strips: Sequence[Strip], config_text: str) -> str:
    """The whole page as text."""
    bands = phase_bands(state, active)
    return page_environment().get_template("report.html.j2").render(
        report=report,
        evaluations=[(title, report[name]) for name, title in _TITLES.items()],
        families=_families(report, state),
        charts=main_charts(state, active, bands),
        family_charts=family_charts(state, active, bands, report),
        more_charts=more_charts(state, active, bands),
        waste=waste_rows(report["waste"], report["drops"]),
        length_chart=length_chart(report["waste"]),
        phases=_phase_bar(bands),
        strips=strips,
        config_text=config_text,
    )


def page_environment() -> jinja2.Environment:
    """Where the pages' templates are, and what they can call."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=_percent, duration=_duration, figure=_figure, as_json=drawing.as_json)
    environment.globals.update(chart_library=drawing.library, chart_script=drawing.drawing_script)
    return environment


_TITLES = {"success_before": "before", "success_after_bc": "after cloning", "success_after_rl": "after RL"}


def phase_bands(state: RunState, active: ActiveTime) -> list[Band]:
    """Phases on the time axis, in minutes."""
    bands = []
    if state.phases:
        bands.append(Band(0.0, active.at(float(state.phases[0].get("time") or 0.0)) / 60, "start-up", "b-start"))
    for index, record in enumerate(state.phases):
        name = str(record.get("phase", ""))
        following = state.phases[index + 1].get("time") if index + 1 < len(state.phases) else None
        end_s = active.at(following) if following is not None else active.total_s
        style = next((style for start, style in _BAND_STYLES.items() if name.startswith(start)), "")
        if style:
            bands.append(Band(active.at(float(record.get("time") or 0.0)) / 60, end_s / 60, name, style))
    return bands


def _curve(state: RunState, active: ActiveTime, key: str) -> list[Point]:
    return [
        (active.at(record["time"]) / 60, float(record[key]))
        for record in state.updates
        if record.get("time") is not None and record.get(key) is not None
    ]


def main_charts(state: RunState, active: ActiveTime, bands: Sequence[Band]) -> list[tuple[str, str, Figure]]:
    """(title, what is seen, figure)."""
    end = active.total_s / 60
    success = _curve(state, active, "success")
    evaluations = [
        (active.at(record["time"]) / 60, float(record["success"]))
        for record in state.evaluations
        if record.get("time") is not None and record.get("success") is not None
    ]
    ages = [
        (active.at(record["time"]) / 60, float(record["policy_age_min"]), float(record["policy_age_max"]))
        for record in state.updates
        if record.get("policy_age_min") is not None and record.get("policy_age_max") is not None
    ]
    # An update whose groups were each of one mind has nothing to train on: no speed either.
    speeds = [point for point in _curve(state, active, "trained_tokens_per_s") if point[1] > 0]
    charts = [
        (
            "Success",
            "Mean over families. Dots: training batches; line: smoothed; dashed: held-out evaluations (unseen seeds).",
            Chart(
                "Success over time",
                [
                    Series("training batch", success, "s1", dots=True),
                    Series("training, smoothed", smooth(success), "s1"),
                    Series("held-out evaluation", evaluations, "s2", dashed=True),
                    Series("held-out evaluation", evaluations, "s2", dots=True),
                ],
                end,
                y_high=1.0,
                percent=True,
                bands=bands,
            ),
        ),
        (
            "Entropy of the policy",
            "Nats per action token in training. When it collapses, Entropulse trains on the run's own successes (SFT).",
            Chart("Entropy over time", [Series("entropy", _curve(state, active, "entropy"), "s1")], end, bands=bands),
        ),
        (
            "Policy age",
            "Versions between sampling and training of each step. Line: mean; shade: minimum to maximum.",
            Chart(
                "Policy age over time",
                [Series("mean age", _curve(state, active, "policy_age_mean"), "s1")],
                end,
                bands=bands,
                area=ages,
            ),
        ),
        (
            "Environment steps per second",
            "Actions carried out on all desktops.",
            Chart(
                "Environment steps per second",
                [Series("env steps/s", _curve(state, active, "env_steps_per_s"), "s1")],
                end,
                bands=bands,
            ),
        ),
        (
            "Trained tokens per second",
            "While an update is computed.",
            Chart("Trained tokens per second", [Series("tokens/s", speeds, "s1")], end, bands=bands),
        ),
    ]
    return [(title, caption, figure(chart)) for title, caption, chart in charts if any(series.points for series in chart.series)]


def family_charts(state: RunState, active: ActiveTime, bands: Sequence[Band], report: dict[str, Any]) -> list[tuple[str, Figure]]:
    """(family, figure): training success and held-out evaluations of each family."""
    charts = []
    quiet = [Band(band.start, band.end, "", band.style) for band in bands]
    for family in _families(report, state):
        curve = [
            (active.at(record["time"]) / 60, float(value))
            for record in state.updates
            if record.get("time") is not None and (value := (record.get("success_by_family") or {}).get(family)) is not None
        ]
        evaluations = [
            (active.at(record["time"]) / 60, item["successes"] / item["episodes"])
            for record in state.evaluations
            if (item := record.get("families", {}).get(family)) and item["episodes"]
        ]
        series = [
            Series("training batch", curve, "s1", dots=True),
            Series("training, smoothed", smooth(curve), "s1"),
            Series("held-out evaluation", evaluations, "s2", dashed=True),
            Series("held-out evaluation", evaluations, "s2", dots=True),
        ]
        chart = Chart(
            f"Success in {family}", series, active.total_s / 60, y_high=1.0, percent=True, bands=quiet, height=170
        )
        charts.append((family, figure(chart)))
    return charts


def more_charts(state: RunState, active: ActiveTime, bands: Sequence[Band]) -> list[tuple[str, Figure]]:
    """(title, figure) of what only someone who debugs training wants."""
    quiet = [Band(band.start, band.end, "", band.style) for band in bands]
    charts = []
    for key, title in (("kl", "KL to the reference"), ("clip_fraction", "Clipped tokens"), ("grad_norm", "Gradient norm")):
        points = _curve(state, active, key)
        if points:
            high = max(0.01, max(y for _, y in points) * 1.05)
            chart = Chart(
                title, [Series(key, points, "s1")], active.total_s / 60, y_high=high, bands=quiet, height=170
            )
            charts.append((title, figure(chart)))
    return charts


def _families(report: dict[str, Any], state: RunState) -> list[str]:
    names: dict[str, None] = {}
    for name in EVALUATIONS:
        names.update(dict.fromkeys((report[name] or {}).get("families", {})))
    for record in state.updates:
        names.update(dict.fromkeys(record.get("success_by_family") or {}))
    return list(names)


def _phase_bar(bands: Sequence[Band]) -> list[dict[str, Any]]:
    total = sum(band.end - band.start for band in bands)
    return [
        {
            "name": band.label,
            "style": band.style,
            "share": (band.end - band.start) / total,
            "seconds": (band.end - band.start) * 60,
        }
        for band in bands
        if total > 0 and band.end > band.start
    ]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f}%"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def _restarts(attempts: Sequence[Attempt]) -> dict[str, int]:
    total: dict[str, int] = {}
    for attempt in attempts:
        for name, count in attempt.num_restarts.items():
            if count:
                total[name] = total.get(name, 0) + count
    return total


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _read_status(folder: Path) -> Status | None:
    try:
        # By the json of Python, which knows NaN: a metric may be that in a run that diverged.
        return msgspec.convert(json.loads((folder / STATUS_FILE).read_bytes()), Status)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None  # There is none, or another version wrote it.
