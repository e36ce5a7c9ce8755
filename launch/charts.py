"""Charts as Plotly figures: plain dicts, drawn in the page by `page/charts.js`. Pure; knows neither runs nor pages.

Colours are the page's: a trace says in `meta`, a band in `name`, which of its CSS variables is meant, so that one figure fits
light and dark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.metrics import json_ready

Point = tuple[float, float]
Figure = dict[str, Any]

MIN_LABELLED = 0.12
"""Share of the x axis that a band needs for its name."""
PAGE_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or dots."""

    label: str
    points: Sequence[Point]
    style: str
    """CSS variable of its colour without the dashes, e.g. `s1`."""
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the x axis: one phase."""

    start: float
    end: float
    label: str
    style: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything one chart shows."""

    title: str
    series: Sequence[Series]
    x_end: float
    x_label: str = "minutes"
    y_high: float | None = None
    """None: as high as the points go. Every chart begins at 0."""
    percent: bool = False
    bands: Sequence[Band] = ()
    area: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded span, such as minimum to maximum."""
    height: int = 240


def smooth(points: Sequence[Point], *, weight: float = 0.35) -> list[Point]:
    """Exponential moving average that starts at the mean of the first three values."""
    smoothed: list[Point] = []
    head = [y for _, y in points[:3]]
    value = sum(head) / len(head) if head else 0.0
    for x, y in points:
        value += weight * (y - value)
        smoothed.append((x, value))
    return smoothed


def figure(chart: Chart) -> Figure:
    """``chart`` for `Plotly.react`."""
    top = {} if chart.y_high is None else {"range": [0, chart.y_high * 1.02]}
    return {
        "data": [*_area(chart.area), *(_trace(series) for series in chart.series if series.points)],
        "layout": {
            **_layout(chart.title, chart.height),
            "xaxis": {"range": [0, chart.x_end or 1.0], "title": {"text": chart.x_label}},
            "yaxis": {"rangemode": "tozero", "tickformat": ".0%" if chart.percent else "", **top},
            "shapes": [_shape(band, whole=chart.x_end) for band in chart.bands if band.end > band.start],
        },
    }


def bars(
    title: str, values: Sequence[tuple[str, float]], *, style: str = "s1", limit: str | None = None, height: int = 240
) -> Figure:
    """One bar for each (label, value); ``limit``: the label after which a line is drawn."""
    labels = [label for label, _ in values]
    shapes = []
    if limit in labels:
        place = labels.index(limit) + 0.5
        shapes = [{"type": "line", "name": "bad", "x0": place, "x1": place, "yref": "paper", "y0": 0, "y1": 1}]
    trace = {"type": "bar", "x": labels, "y": [value for _, value in values], "meta": style, "name": title}
    axes = {"xaxis": {"type": "category"}, "yaxis": {"rangemode": "tozero"}}
    return {"data": [trace], "layout": {**_layout(title, height), **axes, "shapes": shapes}}


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]]) -> Figure:
    """(label, value, low, high) in shares, from top to bottom."""
    labels, values, lows, highs = zip(*rows[::-1], strict=True) if rows else ((), (), (), ())
    above = [high - value for value, high in zip(values, highs, strict=True)]
    below = [value - low for value, low in zip(values, lows, strict=True)]
    trace = {
        "type": "scatter", "mode": "markers", "meta": "s1", "name": title, "y": labels, "x": values,
        "error_x": {"type": "data", "symmetric": False, "array": above, "arrayminus": below},
    }  # fmt: skip
    axes = {"xaxis": {"range": [0, 1], "tickformat": ".0%"}, "yaxis": {"type": "category", "automargin": True}}
    return {"data": [trace], "layout": {**_layout(title, 60 + 24 * len(rows)), **axes}}


def _layout(title: str, height: int) -> Figure:
    return {
        "meta": title, "height": height, "margin": {"l": 44, "r": 12, "t": 14, "b": 36}, "showlegend": False,
        "hovermode": "x unified", "autosize": True,
    }  # fmt: skip


def _trace(series: Series) -> Figure:
    x, y = zip(*series.points, strict=True)
    trace: Figure = {"type": "scatter", "x": _short(x), "y": _short(y), "name": series.label, "meta": series.style}
    if series.dots or len(series.points) == 1:
        return {**trace, "mode": "markers", "marker": {"size": 5}}
    return {**trace, "mode": "lines", "line": {"width": 2, **({"dash": "dash"} if series.dashed else {})}}


def _area(span: Sequence[tuple[float, float, float]]) -> list[Figure]:
    if not span:
        return []
    x, low, high = (_short(values) for values in zip(*span, strict=True))
    edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "meta": "s1"}
    return [{**edge, "y": low, "name": "least"}, {**edge, "y": high, "name": "greatest", "fill": "tonexty"}]


def _shape(band: Band, *, whole: float) -> Figure:
    # Where there is no room for its name, the colour has to do.
    text = band.label if band.end - band.start >= MIN_LABELLED * whole else ""
    return {
        "type": "rect", "name": band.style, "x0": band.start, "x1": band.end, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
        "line": {"width": 0}, "label": {"text": text, "textposition": "top center", "font": {"size": 9}},
    }  # fmt: skip


def _short(values: Sequence[float]) -> list[float]:
    """Five digits are more than a screen shows."""
    return [float(f"{value:.5g}") for value in values]


@cache
def library() -> str:
    """Plotly's JavaScript, out of its Python package."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None, "plotly is a declared dependency"
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def drawing_script() -> str:
    """What draws figures in a page."""
    return (PAGE_FOLDER / "charts.js").read_text(encoding="utf-8")


def as_json(drawn: Figure) -> str:
    """For a ``<script type="application/json">``: nothing in it ends that."""
    return json.dumps(json_ready(drawn), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
