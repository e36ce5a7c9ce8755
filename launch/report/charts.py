"""Charts as SVG: plain values in, markup out that needs neither a script nor a library. Pure; knows neither runs nor pages.

A chart fills the width of its place: positions along x are percentages, so that letters and lines keep their size on a telephone
and on paper. Colours are the page's CSS variables (`s1`, `b-rl`, ...), so that one chart fits light and dark. Every text is
escaped here. A page's style sheet needs `.chart` (room for the labels around the plot) and `.chart .hit:hover`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isfinite, log10
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from markupsafe import Markup

Point = tuple[float, float]
Figure = Markup
"""An `<svg>` element."""

PAGE_FOLDER = Path(__file__).parents[1] / "web" / "page"
MAX_POINTS = 400
"""Maximum number of points in a line: more than a screen tells apart. Extremes are kept."""
MAX_HITS = 100
"""Maximum number of places along x that show their values under the pointer."""
SMALLEST, GREATEST = 1e-9, 1e15
"""Range of what an axis shows: a run that diverges records numbers that no picture can hold."""
_LETTER = 0.022
"""Width of a letter as a share of the plot on the narrowest screens."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or dots."""

    label: str
    points: Sequence[Point]
    style: str
    """CSS variable of the colour without the dashes, e.g. `s1`."""
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
    """Upper end of the y axis; None: as high as the points go. Every chart begins at 0."""
    percent: bool = False
    bands: Sequence[Band] = ()
    area: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded span, such as minimum to maximum."""
    height: int = 200
    """Height of the plot in pixels."""


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
    """``chart`` as SVG: bands, grid, area, lines, dots, and the values at each x under the pointer."""
    series = [Series(one.label, _finite(one.points), one.style, one.dots, one.dashed) for one in chart.series]
    area = [(x, _within(low), _within(high)) for x, low, high in chart.area if isfinite(x + low + high)]
    highest = max([y for one in series for _, y in one.points] + [high for _, _, high in area], default=0.0)
    y_ticks = ticks(chart.y_high or highest)
    width = max([chart.x_end, *(x for one in series for x, _ in one.points)])
    width = width if width >= SMALLEST else 1.0
    frame = _Frame(width, y_ticks[-1], chart.height)
    text = _percent if chart.percent else _plain
    parts = [
        *(_band(band, frame) for band in chart.bands if band.end > band.start),
        *_y_axis(y_ticks, frame, text),
        *(_label(frame.x(value), chart.height + 14, _plain(value)) for value in ticks(width) if value <= width),
        _label("100%", chart.height + 28, chart.x_label, anchor="end"),
        _lines(series, area, frame),
        *(_dot(point, one.style, frame) for one in series if one.dots or len(one.points) == 1 for point in one.points),
        *_hits(series, chart, frame, text=text),
    ]
    return _svg(chart.title, chart.height, parts)


def bars(
    title: str, values: Sequence[tuple[str, float]], *, style: str = "s1", limit: str | None = None, height: int = 200
) -> Figure:
    """One bar for each (label, value); ``limit``: the label after which a line is drawn."""
    values = [(label, _within(value)) for label, value in values if isfinite(value)]
    y_ticks = ticks(max((value for _, value in values), default=0.0))
    frame = _Frame(float(len(values) or 1), y_ticks[-1], height)
    every = -(-len(values) // 12) or 1
    parts = _y_axis(y_ticks, frame, _plain)
    for index, (label, value) in enumerate(values):
        shape = f'x="{frame.x(index + 0.1)}" y="{frame.y(value)}" width="{frame.x(0.8)}" height="{height - frame.y(value):g}"'
        parts.append(f'<rect {shape} fill="var(--{style})"><title>{escape(label)}: {_plain(value)}</title></rect>')
        if index % every == 0:
            parts.append(_label(frame.x(index + 0.5), height + 14, label))
        if label == limit:
            x = frame.x(index + 1)
            parts.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{height}" stroke="var(--bad)" {_DASHED} stroke-width="2"/>')
    return _svg(title, height, parts)


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]]) -> Figure:
    """(label, value, low, high) in shares, from top to bottom; each label stands above its interval."""
    row_height = 34
    height = row_height * max(1, len(rows))
    frame = _Frame(1.0, 1.0, height)
    parts = []
    for value in ticks(1.0):
        parts.append(_line(frame.x(value), frame.x(value), 0, height, "grid"))
        parts.append(_label(frame.x(value), height + 14, _percent(value)))
    for index, (label, value, low, high) in enumerate(rows):
        top = index * row_height
        said = f"{_percent(value)}, between {_percent(low)} and {_percent(high)}"
        parts += [
            f'<text class="name" x="0" y="{top + 12}">{escape(label)}</text>',
            f'<rect x="{frame.x(low)}" width="{frame.x(high - low)}" y="{top + 23}" height="2" fill="var(--s1)"/>',
            f'<circle cx="{frame.x(value)}" cy="{top + 24}" r="4.5" fill="var(--s1)"/>',
            f'<rect class="hit" y="{top}" width="100%" height="{row_height}"><title>{escape(f"{label}: {said}")}</title></rect>',
        ]
    return _svg(title, height, parts, kind="chart wide")


def ticks(high: float) -> list[float]:
    """Round values from 0 to at least ``high``, 3 to 7 of them; 0 to 1 for nothing."""
    high = _within(high) if high >= SMALLEST else 1.0
    magnitude = 10.0 ** floor(log10(high / 4))
    step = next((size * magnitude for size in _STEPS if high / (size * magnitude) <= 5), 10 * magnitude)
    count = 1
    while count * step < high * (1 - 1e-9):
        count += 1
    return [float(f"{index * step:.6g}") for index in range(count + 1)]


def thinned(points: Sequence[Point], *, most: int = MAX_POINTS) -> list[Point]:
    """At most ``most`` of ``points``, in order: the lowest and the highest of each stretch, the first and the last."""
    if len(points) <= most:
        return list(points)
    num_stretches = (most - 2) // 2
    kept = {0, len(points) - 1}
    for index in range(num_stretches):
        stretch = range(index * len(points) // num_stretches, (index + 1) * len(points) // num_stretches)
        kept |= {min(stretch, key=lambda place: points[place][1]), max(stretch, key=lambda place: points[place][1])}
    return [points[place] for place in sorted(kept)]


# --- parts -----------------------------------------------------------------------------------------------------------

_DASHED = 'stroke-dasharray="6 4"'


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie: x in percent of the width, y in pixels from the top."""

    width: float
    top: float
    height: int

    def x(self, value: float) -> str:
        return f"{100 * value / self.width:.5g}%"

    def y(self, value: float) -> float:
        return float(f"{self.height * (1 - value / self.top):.5g}")


def _svg(title: str, height: int, parts: Iterable[str], *, kind: str = "chart") -> Figure:
    shape = f'width="100%" height="{height}" role="img" aria-label={quoteattr(title)}'
    return Markup(f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" {shape}>{"".join(parts)}</svg>')


def _finite(points: Sequence[Point]) -> list[Point]:
    return thinned([(x, _within(y)) for x, y in points if isfinite(x) and isfinite(y)])


def _within(value: float) -> float:
    return max(-GREATEST, min(GREATEST, value))


def _y_axis(values: Sequence[float], frame: _Frame, text: Callable[[float], str]) -> list[str]:
    parts = []
    for value in values:
        y = frame.y(value)
        parts.append(_line("0", "100%", y, y, "grid" if value else "line"))
        parts.append(_label("0", y + 4, text(value), anchor="end", shift=-6))
    return parts


def _line(x1: str, x2: str, y1: float, y2: float, style: str) -> str:
    return f'<line x1="{x1}" x2="{x2}" y1="{y1:g}" y2="{y2:g}" stroke="var(--{style})"/>'


def _label(x: str, y: float, text: str, *, anchor: str = "middle", shift: int = 0) -> str:
    moved = f' dx="{shift}"' if shift else ""
    return f'<text x="{x}" y="{y:g}"{moved} text-anchor="{anchor}">{escape(text)}</text>'


def _band(band: Band, frame: _Frame) -> str:
    """A coloured stretch with its name above the plot; where there is no room for the name, the colour has to do."""
    share = (band.end - band.start) / frame.width
    shape = f'x="{frame.x(band.start)}" width="{frame.x(band.end - band.start)}" height="{frame.height}"'
    drawn = f'<rect {shape} fill="var(--{band.style})"/>'
    if band.label and share >= _LETTER * (len(band.label) + 1):
        drawn += _label(frame.x((band.start + band.end) / 2), -5, band.label)
    return drawn


def _lines(series: Sequence[Series], area: Sequence[tuple[float, float, float]], frame: _Frame) -> str:
    """What is connected, in an inner picture that is stretched to the width: 1000 units wide, `frame.height` high."""
    parts = []
    if area:
        there = [_place((x, high), frame) for x, _, high in area]
        back = [_place((x, low), frame) for x, low, _ in reversed(area)]
        parts.append(f'<polygon points="{" ".join((*there, *back))}" fill="var(--area)"/>')
    for one in series:
        if one.dots or len(one.points) < 2:
            continue
        places = " ".join(_place(point, frame) for point in one.points)
        dash = f" {_DASHED}" if one.dashed else ""
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="var(--{one.style})" stroke-width="2" stroke-linejoin="round"'
            f'{dash} vector-effect="non-scaling-stroke"/>'
        )
    inner = f'width="100%" height="{frame.height}" viewBox="0 0 1000 {frame.height}" preserveAspectRatio="none"'
    return f"<svg {inner}>{''.join(parts)}</svg>" if parts else ""


def _place(point: Point, frame: _Frame) -> str:
    x, y = point
    return f"{1000 * x / frame.width:.5g},{frame.y(y):.5g}"


def _dot(point: Point, style: str, frame: _Frame) -> str:
    return f'<circle cx="{frame.x(point[0])}" cy="{frame.y(point[1])}" r="2.8" fill="var(--{style})"/>'


def _hits(series: Sequence[Series], chart: Chart, frame: _Frame, *, text: Callable[[float], str]) -> list[str]:
    """Invisible strips across the plot: under the pointer, each shows the values nearest to it, and the phase."""
    places = sorted({x for one in series for x, _ in one.points if 0 <= x <= frame.width})
    places = places[:: -(-len(places) // MAX_HITS) or 1]
    edges = [0.0, *((left + right) / 2 for left, right in pairwise(places)), frame.width]
    strips = []
    for x, start, end in zip(places, edges, edges[1:], strict=False):
        said: dict[str, str] = {}
        for one in series:
            if near := _nearest(one.points, x, within=(start, end)):
                said[one.label] = text(near[1])
        phase = [band.label for band in chart.bands if band.label and band.start <= x < band.end]
        lines = [f"{_plain(x)} {chart.x_label}", *phase, *(f"{label}: {value}" for label, value in said.items())]
        shape = f'x="{frame.x(start)}" width="{frame.x(end - start)}" height="{frame.height}"'
        strips.append(f'<rect class="hit" {shape}><title>{escape(chr(10).join(lines))}</title></rect>')
    return strips


def _nearest(points: Sequence[Point], x: float, *, within: tuple[float, float]) -> Point | None:
    place = bisect(points, (x, 0.0))
    around = [point for point in points[max(0, place - 1) : place + 2] if within[0] <= point[0] <= within[1]]
    return min(around, key=lambda point: abs(point[0] - x), default=None)


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _plain(value: float) -> str:
    """Three digits; thousands with a k, so that a label fits beside the plot."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.3g}k" if abs(value) < 1e6 else f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
