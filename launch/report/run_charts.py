"""The charts of a run: its records in, figures out. Pure; the report and the dashboard show the same ones."""

from __future__ import annotations

from collections.abc import Sequence

from computerrl.launch.report.charts import Band, Chart, Figure, Point, Series, figure, smooth
from computerrl.launch.report.report_data import ActiveTime
from computerrl.launch.watch.run_state import RunState, phase_title

_BAND_STYLES = {"eval": "b-eval", "demonstrations": "b-bc", "bc": "b-bc", "rl": "b-rl", "sft": "b-sft"}


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
            start_s = active.at(float(record.get("time") or 0.0))
            bands.append(Band(start_s / 60, end_s / 60, phase_title(name), style))
    return bands


def curve_of(state: RunState, active: ActiveTime, key: str) -> list[Point]:
    """(minutes, value) of ``key`` over the updates."""
    return [
        (active.at(record["time"]) / 60, float(record[key]))
        for record in state.updates
        if record.get("time") is not None and record.get(key) is not None
    ]


def main_charts(state: RunState, active: ActiveTime, bands: Sequence[Band]) -> list[tuple[str, str, Figure]]:
    """(title, what is seen, figure)."""
    end = active.total_s / 60
    success = curve_of(state, active, "success")
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
    speeds = [point for point in curve_of(state, active, "trained_tokens_per_s") if point[1] > 0]
    charts = [
        (
            "Success",
            "Mean over families. Dots: training batches; line: smoothed; dashed: evaluations (unseen seeds).",
            Chart(
                "Success over time",
                [
                    Series("training batch", success, "s1", dots=True),
                    Series("training, smoothed", smooth(success), "s1"),
                    Series("evaluation", evaluations, "s2", dashed=True),
                    Series("evaluation", evaluations, "s2", dots=True),
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
            Chart("Entropy over time", [Series("entropy", curve_of(state, active, "entropy"), "s1")], end, bands=bands),
        ),
        (
            "Policy age",
            "Versions between sampling and training of each step. Line: mean; shade: minimum to maximum.",
            Chart(
                "Policy age over time",
                [Series("mean age", curve_of(state, active, "policy_age_mean"), "s1")],
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
                [Series("env steps/s", curve_of(state, active, "env_steps_per_s"), "s1")],
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


def family_charts(
    state: RunState, active: ActiveTime, bands: Sequence[Band], families: Sequence[str]
) -> list[tuple[str, Figure]]:
    """(family, figure): training success and evaluations of each family."""
    charts = []
    quiet = [Band(band.start, band.end, "", band.style) for band in bands]
    for family in families:
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
            Series("evaluation", evaluations, "s2", dashed=True),
            Series("evaluation", evaluations, "s2", dots=True),
        ]
        chart = Chart(f"Success in {family}", series, active.total_s / 60, y_high=1.0, percent=True, bands=quiet, height=110)
        charts.append((family, figure(chart)))
    return charts


def more_charts(state: RunState, active: ActiveTime, bands: Sequence[Band]) -> list[tuple[str, Figure]]:
    """(title, figure) of what only someone who debugs training wants."""
    quiet = [Band(band.start, band.end, "", band.style) for band in bands]
    charts = []
    for key, title in (("kl", "KL to the reference"), ("clip_fraction", "Clipped tokens"), ("grad_norm", "Gradient norm")):
        points = curve_of(state, active, key)
        if points:
            high = max(0.01, max(y for _, y in points) * 1.05)
            chart = Chart(title, [Series(key, points, "s1")], active.total_s / 60, y_high=high, bands=quiet, height=110)
            charts.append((title, figure(chart)))
    return charts
