"""Spreadsheets: families about whole sheets, charts and rules."""

from __future__ import annotations

import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.calc_base import NUM_ROWS, book_task, tables
from computerrl.env_server.tasks.forge.content import Table
from computerrl.env_server.tasks.forge.facts import anything
from computerrl.env_server.tasks.forge.plan import Forged, Move, call, forge_family
from computerrl.env_server.tasks.forge.scripts import wording

_KINDS = {"column": "columns", "line": "a line", "pie": "a pie", "bar": "horizontal bars"}


def _arrange_sheets(rng: random.Random, level: int) -> Forged:
    months = rng.sample(content.MONTHS, 3)
    found = [Table(month, data.headings, data.rows, data.amounts) for month in months for data in (content.table(rng, 4),)]
    new = f"{rng.choice(content.CITIES)} {rng.randrange(2021, 2026)}"
    old = months[1] if level < 3 else rng.choice(months[1:])

    def change(book: Book, name: str) -> None:
        sheet = book.sheet(old)
        sheet.title = name
        if level >= 2:
            book.raw.move_sheet(sheet, -book.raw.worksheets.index(sheet))

    def script(name: str) -> list[Move]:
        moves: list[Move] = [call("calc.rename_sheet", old_name=old, new_name=name)]
        if level >= 2:
            moves.append(call("calc.reorder_sheets", sheet_name=name, position=0))
        return moves

    more = "" if level == 1 else " and move it to the first place"
    said = wording(
        rng,
        'Rename the sheet "{old}" to "{new}"{more}.',
        'The sheet "{old}" should be called "{new}"; change its name{more}.',
        old=old,
        new=new,
        more=more,
    )
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: change(book, new),
        near=lambda book: change(book, new.replace(" ", "")),
        solution=script(new),
        near_miss=script(new.replace(" ", "")),
    )


def _series(rng: random.Random, level: int) -> Table:
    months = content.MONTHS[: {1: 4, 2: 6, 3: 9}[level]]
    values = content.numbers(rng, len(months), 40, 900)
    return Table("Visitors", ("Month", rng.choice(content.CITIES)), tuple(zip(months, values, strict=True)), (1,))


def _chart(rng: random.Random, level: int) -> Forged:
    data = _series(rng, level)
    kind = rng.choice(sorted(_KINDS))
    if level >= 2 and kind == "pie":
        kind = "line"  # a pie has no axes to name
    title = f"Visitors {data.headings[1]} {rng.randrange(2021, 2026)}"
    axes = ("Month", "Number of visitors") if level >= 2 else ()
    legend = rng.choice(("top", "bottom", "left")) if level == 3 else ""

    def draw(book: Book, last: int) -> None:
        from openpyxl.chart import BarChart, LineChart, PieChart, Reference

        sheet = book.sheet()
        chart = {"column": BarChart, "bar": BarChart, "line": LineChart, "pie": PieChart}[kind]()
        if kind == "bar":
            chart.type = "bar"
        chart.add_data(Reference(sheet, min_col=2, min_row=1, max_row=last), titles_from_data=True)
        chart.set_categories(Reference(sheet, min_col=1, min_row=2, max_row=last))
        chart.title = title
        if axes:
            chart.x_axis.title, chart.y_axis.title = axes
        if legend:
            chart.legend.position = legend[0]
        sheet.add_chart(chart, "E2")

    def script(last: int) -> list[Move]:
        names = {"x_axis_title": axes[0], "y_axis_title": axes[1]} if axes else {}
        moves: list[Move] = [call("calc.create_chart", chart_type=kind, data_range=f"A1:B{last}", title=title, **names)]
        return [*moves, call("calc.set_chart_legend_position", position=legend)] if legend else moves

    said = wording(
        rng,
        'Draw a chart of A1:B{last} with {words} and the title "{title}".',
        'Insert a {kind} chart of the range A1:B{last}; its title is "{title}".',
        last=data.last_row,
        words=_KINDS[kind],
        kind=kind,
        title=title,
    )
    if axes:
        said += f' The x axis is called "{axes[0]}", the y axis "{axes[1]}".'
    if legend:
        said += f" The legend stands at the {legend}."
    checks = {} if legend else {"chart * legend": anything}
    return book_task(
        rng,
        [data],
        said=said,
        change=lambda book: draw(book, data.last_row),
        near=lambda book: draw(book, data.last_row - 1),
        solution=script(data.last_row),
        near_miss=script(data.last_row - 1),
        checks=checks,
    )


def _allowed_values(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level])
    values = rng.sample(content.STATES, {1: 2, 2: 3, 3: 5}[level])
    data = Table(data.title, (*data.headings[:3], "State"), tuple((*row[:3], rng.choice(values)) for row in data.rows), (2,))

    def allow(book: Book, allowed: list[str]) -> None:
        from openpyxl.worksheet.datavalidation import DataValidation

        rule = DataValidation(type="list", formula1=f'"{",".join(allowed)}"')
        rule.add(f"D2:D{data.last_row}")
        book.sheet().add_data_validation(rule)

    def script(allowed: list[str]) -> list[Move]:
        return [call("calc.set_validation_list", column_name="D", values=allowed)]

    def fits(found: object) -> bool:
        """One rule with these values for at least all entries of the column and nothing beside it."""
        if not isinstance(found, list) or len(found) != 1:
            return False
        area, allowed = found[0]
        first, _, last = area.replace("D", "").partition(":")
        is_column = not any(char.isalpha() for char in first + last)
        return allowed == ",".join(values) and is_column and int(first) <= 2 and int(last or first) >= data.last_row

    said = wording(
        rng,
        "Column D may hold only {values}: give its entries a drop-down list of these, in this order.",
        "Set up a validation list for the column State (D) with the values {values}, in this order.",
        values=", ".join(values),
    )
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: allow(book, values),
        near=lambda book: allow(book, values[:-1]),
        solution=script(values),
        near_miss=script(values[:-1]),
        checks={f"{data.title} allowed values": fits},
    )


def _summary_sheet(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level])
    column = data.amounts[0]
    name = rng.choice(("Summary", "Overview", "Totals"))
    total = sum([float(value) for value in data.column(column)], 0.0)  # type: ignore[arg-type]  # amounts are numbers
    label = f"Total {data.headings[column]}"
    source = f"$'{data.title}'.C2:C{data.last_row}"

    def change(book: Book, *, cell: str) -> None:
        book.raw.create_sheet(name)
        book.put("A1", label, sheet=name)
        book.put(cell, f"=SUM('{data.title}'!C2:C{data.last_row})", result=total, sheet=name)

    def script(cell: str) -> list[Move]:
        return [
            call("calc.switch_active_sheet", sheet_name=name),
            call("calc.set_cell", cell="A1", value=label),
            call("calc.set_cell", cell=cell, value=f"=SUM({source})"),
        ]

    said = wording(
        rng,
        'Add a sheet "{name}" at the end. Its A1 says "{label}", its B1 is a formula for the sum of {heading} on {title}.',
        'On a new last sheet "{name}", write "{label}" into A1 and into B1 a formula that adds up {heading} of {title}.',
        name=name,
        label=label,
        heading=data.headings[column],
        title=data.title,
    )
    # A sheet that the office made has its own standard widths and font.
    checks = {f"{name} width *": anything, f"{name}!* font": anything}
    return book_task(
        rng,
        [data],
        said=said,
        change=lambda book: change(book, cell="B1"),
        near=lambda book: change(book, cell="B2"),
        solution=script("B1"),
        near_miss=script("B2"),
        checks=checks,
    )


FAMILIES = (
    forge_family("calc-arrange-sheets", "calc", "rename a sheet, on higher levels move it too", _arrange_sheets),
    forge_family("calc-chart", "calc", "a chart with titles and, on level 3, a place for its legend", _chart),
    forge_family("calc-allowed-values", "calc", "a drop-down list of allowed values in a column", _allowed_values),
    forge_family("calc-summary-sheet", "calc", "a new sheet with a formula over another", _summary_sheet),
)
