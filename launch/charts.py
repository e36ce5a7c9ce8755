"""Line charts as inline SVG text: pure functions, no library, coloured by the page's CSS variables (light and dark).

Draws only what it is given; smoothing and scaling choices are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

LABEL_HEIGHT, AXIS_HEIGHT, RIGHT = 18, 22, 10
CHARACTER_WIDTH = 6.2
"""Mean width of a character at the charts' font size, for deciding what fits."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or dots."""

    label: str
    points: Sequence[Point]
    style: str
    """CSS class, e.g. `s1`."""
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
    y_low: float = 0.0
    y_high: float | None = None
    """None: as high as the points go."""
    percent: bool = False
    bands: Sequence[Band] = ()
    area: Sequence[tuple[float, float, float]] = field(default_factory=tuple)
    """(x, low, high): a shaded span, such as minimum to maximum."""
    width: int = 520
    height: int = 220


def nice_step(span: float, num_steps: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts ``span`` into about ``num_steps``."""
    if span <= 0:
        return 1.0
    raw = span / num_steps
    magnitude = 10.0 ** floor(log10(raw))
    return next(factor * magnitude for factor in (1.0, 2.0, 5.0, 10.0) if factor * magnitude >= raw * 0.999)


def ticks(low: float, high: float, num_steps: int) -> list[float]:
    """Round values from ``low`` to ``high``."""
    step = nice_step(high - low, num_steps)
    first = ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, floor(high / step + 1e-9) + 1)]


def smooth(points: Sequence[Point], *, weight: float = 0.35) -> list[Point]:
    """Exponential moving average that starts at the mean of the first three values."""
    smoothed: list[Point] = []
    head = [y for _, y in points[:3]]
    value = sum(head) / len(head) if head else 0.0
    for x, y in points:
        value += weight * (y - value)
        smoothed.append((x, value))
    return smoothed


def render(chart: Chart) -> str:
    """The chart as an ``<svg>`` element; its title is read to those who cannot see it."""
    high = chart.y_high if chart.y_high is not None else _highest(chart)
    if high <= chart.y_low:
        high = chart.y_low + 1.0
    y_ticks = ticks(chart.y_low, high, 2 if chart.height < 150 else 4)
    labels = [_label(value, percent=chart.percent) for value in y_ticks]
    left = 10 + int(CHARACTER_WIDTH * max(map(len, labels), default=1)) + 4
    place = _Place(chart, high, left)
    parts = [f'<svg viewBox="0 0 {chart.width} {chart.height}" role="img" aria-label="{escape(chart.title)}">']
    parts += [_band(band, place) for band in chart.bands if band.end > band.start]
    for value, label in zip(y_ticks, labels, strict=True):
        y = place.y(value)
        parts.append(f'<line class="grid" x1="{left}" x2="{chart.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts += _x_axis(chart, place)
    if chart.area:
        outline = [(x, top) for x, _, top in chart.area] + [(x, bottom) for x, bottom, _ in reversed(chart.area)]
        parts.append(f'<polygon class="area" points="{place.points(outline)}"/>')
    parts += [_series(series, place) for series in chart.series if series.points]
    return "".join([*parts, "</svg>"])


class _Place:
    """From values to picture units."""

    def __init__(self, chart: Chart, high: float, left: int) -> None:
        self.left, self.right = left, chart.width - RIGHT
        self.top, self.bottom = LABEL_HEIGHT if chart.bands else 8, chart.height - AXIS_HEIGHT
        self._low, self._high, self._x_end = chart.y_low, high, chart.x_end or 1.0

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * min(1.0, max(0.0, value / self._x_end))

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self.bottom - (self.bottom - self.top) * min(1.0, max(0.0, share))

    def points(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def _highest(chart: Chart) -> float:
    values = [y for series in chart.series for _, y in series.points] + [top for _, _, top in chart.area]
    return max(values, default=1.0) * 1.05


def _label(value: float, *, percent: bool) -> str:
    if percent:
        return f"{value * 100:.0f}%"
    if abs(value) >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _band(band: Band, place: _Place) -> str:
    start, end = place.x(band.start), place.x(band.end)
    text = ""
    if len(band.label) * CHARACTER_WIDTH < end - start:
        text = f'<text class="band-label" x="{(start + end) / 2:.1f}" y="12" text-anchor="middle">{escape(band.label)}</text>'
    return (
        f'<rect class="band {band.style}" x="{start:.1f}" y="{place.top}" width="{end - start:.1f}" '
        f'height="{place.bottom - place.top}"><title>{escape(band.label)}</title></rect>{text}'
    )


def _x_axis(chart: Chart, place: _Place) -> list[str]:
    values = ticks(0.0, chart.x_end, 4 if chart.width < 400 else 7)
    parts = []
    for value in values:
        is_last = value is values[-1]
        text = f"{value:g} {chart.x_label}" if is_last and chart.x_label else f"{value:g}"
        x = place.x(value)
        fits = x + len(text) * CHARACTER_WIDTH / 2 < chart.width
        anchor, x = ("middle", x) if fits else ("end", chart.width - 2.0)
        parts.append(f'<text x="{x:.1f}" y="{place.bottom + 16}" text-anchor="{anchor}">{text}</text>')
    return [f'<line class="axis" x1="{place.left}" x2="{place.right}" y1="{place.bottom}" y2="{place.bottom}"/>', *parts]


def _series(series: Series, place: _Place) -> str:
    if series.dots:
        dots = (f'<circle cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="2"/>' for x, y in series.points)
        return f'<g class="dots {series.style}"><title>{escape(series.label)}</title>{"".join(dots)}</g>'
    dash = ' stroke-dasharray="5 4"' if series.dashed else ""
    points = place.points(series.points)
    if len(series.points) == 1:
        x, y = series.points[0]
        return f'<circle class="mark {series.style}" cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="3"/>'
    return f'<polyline class="line {series.style}"{dash} points="{points}"><title>{escape(series.label)}</title></polyline>'
