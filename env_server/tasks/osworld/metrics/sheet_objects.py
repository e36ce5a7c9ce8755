"""Charts and pivot tables of a sheet, in a form that `compare_table` can compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.matching import BadRule

# --- charts ----------------------------------------------------------------------------------------------------------


def charts(sheet: Any, props: Sequence[str]) -> list[tuple[Any, ...]]:
    """Every chart: the ranges of its series and the wanted properties, in an order of their own."""
    unknown = [name for name in props if name not in _CHART]
    if unknown:
        raise BadRule(f"unknown properties of a chart: {', '.join(unknown)}")
    found = ((_series(chart, sheet.title), *(_CHART[name](chart) for name in props)) for chart in sheet._charts)
    return sorted(found, key=repr)


def _series(chart: Any, title: str) -> tuple[tuple[str, ...], ...]:
    """Ranges of values and categories; the chart's own sheet may be named in them or not."""
    pairs = ((_reference(_values(one)), _reference(_categories(one))) for one in chart.series)
    return tuple(sorted(tuple(text.removeprefix(f"{title}!") for text in pair) for pair in pairs))


def _values(series: Any) -> Any:
    return series.val if getattr(series, "val", None) is not None else getattr(series, "yVal", None)


def _categories(series: Any) -> Any:
    return series.cat if getattr(series, "cat", None) is not None else getattr(series, "xVal", None)


def _reference(source: Any) -> str:
    """The range without ``$`` and quotes; literal values as text."""
    for kind in ("numRef", "strRef", "multiLvlStrRef"):
        reference = getattr(source, kind, None) if source is not None else None
        if reference is not None:
            return str(reference.f).replace("$", "").replace("'", "")
    return ""


def _title(holder: Any) -> str | None:
    title = getattr(holder, "title", None)
    rich = title.tx.rich if title is not None and title.tx is not None else None
    if rich is None:
        return None
    return "".join(run.t for paragraph in rich.p for run in (paragraph.r or []))


_CHART: Mapping[str, Callable[[Any], Any]] = {
    "type": lambda chart: chart.tagname,
    "title": _title,
    "xtitle": lambda chart: _title(getattr(chart, "x_axis", None)),
    "ytitle": lambda chart: _title(getattr(chart, "y_axis", None)),
    "legend": lambda chart: chart.legend.position if chart.legend is not None else None,
    "direction": lambda chart: getattr(chart, "barDir", None),
    "grouping": lambda chart: getattr(chart, "grouping", None),
    # The chart of a chart sheet has no cell, and a pie has no axis.
    "anchor": lambda chart: (chart.anchor._from.col, chart.anchor._from.row) if hasattr(chart.anchor, "_from") else None,
    "width": lambda chart: chart.anchor.to.col - chart.anchor._from.col if hasattr(chart.anchor, "to") else None,
    "height": lambda chart: chart.anchor.to.row - chart.anchor._from.row if hasattr(chart.anchor, "to") else None,
    "xdir": lambda chart: chart.x_axis.scaling.orientation if hasattr(chart, "x_axis") else None,
}


# --- pivot tables ----------------------------------------------------------------------------------------------------


def pivots(sheet: Any, props: Sequence[str]) -> list[tuple[Any, ...]]:
    """Every pivot table: the range it reads, and the wanted ones of ``col_fields row_fields data_fields filter col_filter
    row_filter name location``."""
    found = []
    for table in sheet._pivots:
        names = [field.name for field in table.cache.cacheFields]
        facts: dict[str, Any] = {
            "name": table.name,
            "location": table.location.ref,
            "row_fields": _fields(table.rowFields, names),
            "col_fields": _fields(table.colFields, names),
            "data_fields": [(names[field.fld], field.subtotal, field.showDataAs) for field in table.dataFields or ()],
            "filter": ([names[field.fld] for field in table.pageFields or ()], _hidden(table, range(len(names)), names)),
            "row_filter": _hidden(table, [field.x for field in table.rowFields or ()], names),
            "col_filter": _hidden(table, [field.x for field in table.colFields or ()], names),
        }
        unknown = [name for name in props if name not in facts]
        if unknown:
            raise BadRule(f"unknown properties of a pivot table: {', '.join(unknown)}")
        source = table.cache.cacheSource.worksheetSource
        found.append(((source.sheet, source.ref) if source is not None else None, *(facts[name] for name in props)))
    return sorted(found, key=repr)


def _fields(fields: Any, names: Sequence[str]) -> list[str]:
    # -2 stands for the data fields themselves, laid out along this axis.
    return [names[field.x] if field.x >= 0 else "" for field in fields or ()]


def _hidden(table: Any, fields: Iterable[int], names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Field -> numbers of its entries that are hidden, where any are."""
    found = []
    for index in fields:
        items = table.pivotFields[index].items if 0 <= index < len(table.pivotFields) else ()
        hidden = tuple(item.x for item in items or () if item.h and item.x is not None)
        if hidden:
            found.append((names[index], hidden))
    return found
