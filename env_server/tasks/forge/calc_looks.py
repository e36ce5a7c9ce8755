"""Spreadsheets: families that change how cells look."""

from __future__ import annotations

import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.calc_base import NUM_ROWS, book_task, letter, tables
from computerrl.env_server.tasks.forge.content import COLORS, Table
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key
from computerrl.env_server.tasks.forge.scripts import click_cell, wording


def _format_headings(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    last = letter(len(found[0].headings) - 1)
    name = rng.choice(sorted(COLORS))
    wish = wording(
        rng,
        "bold on a background of {name} ({code})",
        "bold, with a {name} background ({code})",
        name=name,
        code=f"#{COLORS[name]}",
    )
    if level >= 2:
        wish += ", centred" if level == 2 else ", centred and in white letters (#FFFFFF)"
    align, color = "center" if level >= 2 else None, "FFFFFF" if level == 3 else None

    def paint(book: Book, end: str) -> None:
        book.paint(f"A1:{end}1", bold=True, fill=COLORS[name], align=align, color=color)

    def script(end: str) -> list[Move]:
        looks = {"background_color": f"#{COLORS[name]}", "font_color": color and f"#{color}", "bold": True, "alignment": align}
        return [call("calc.format_range", range_str=f"A1:{end}1", **looks)]

    said = wording(rng, "Make the headings in row 1 {wish}.", "Row 1 holds the headings. They should be {wish}.", wish=wish)
    short = letter(len(found[0].headings) - 2)
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: paint(book, last),
        near=lambda book: paint(book, short),
        solution=script(last),
        near_miss=script(short),
    )


def _highlight_entry(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level])
    index, other = rng.sample(range(len(data.rows)), 2)
    name = rng.choice(sorted(COLORS))
    last = letter(len(data.headings) - 1)

    def cells(row: int) -> str:
        return f"A{row + 2}:{last}{row + 2}"

    def script(row: int) -> list[Move]:
        return [call("calc.highlight_range", range_str=cells(row), color=int(COLORS[name], 16))]

    said = wording(
        rng,
        "Highlight the row of {item} from column A to {last} in {name} (0x{code}).",
        "Give the cells A to {last} of the entry {item} a {name} background (0x{code}).",
        "Mark the entry {item} by filling its cells, columns A to {last}, with {name} (0x{code}).",
        item=data.rows[index][0],
        last=last,
        name=name,
        code=COLORS[name],
    )
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: book.paint(cells(index), fill=COLORS[name]),
        near=lambda book: book.paint(cells(other), fill=COLORS[name]),
        solution=script(index),
        near_miss=script(other),
    )


_NUMBERS = {
    "number": ("numbers with {places} decimal places", "0.{zeros}"),
    "currency": ("currency with {places} decimal places", "[$$-409]#,##0.{zeros}"),
    "percentage": ("percentages with {places} decimal places", "0.{zeros}%"),
}


def _number_format(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    data, column = found[0], rng.choice(found[0].amounts)
    kind, places = rng.choice(sorted(_NUMBERS)), rng.choice((1, 2, 3))
    if kind == "currency":
        places = 2
    words, code = _NUMBERS[kind]

    def cells(last: int) -> str:
        return f"{letter(column)}2:{letter(column)}{last}"

    def script(last: int) -> list[Move]:
        return [call("calc.set_number_format", range_str=cells(last), format_type=kind, decimal_places=places)]

    said = wording(
        rng,
        "Show the values of {heading} (rows 2 to {last}) as {words}.",
        "Format the entries of the column {heading}, rows 2 to {last}, as {words}.",
        heading=data.headings[column],
        last=data.last_row,
        words=words.format(places=places),
    )
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: book.paint(cells(data.last_row), number=code.format(zeros="0" * places)),
        near=lambda book: book.paint(cells(data.last_row - 1), number=code.format(zeros="0" * places)),
        solution=script(data.last_row),
        near_miss=script(data.last_row - 1),
    )


def _bold_entry(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    data = found[0]
    column = 2 if data.title == "Expenses" else 0
    *chosen, other = rng.sample(range(len(data.rows)), level + 1)
    chosen.sort()
    chord, look = rng.choice((("ctrl+b", "bold"), ("ctrl+i", "italic")))

    def paint(book: Book, rows: list[int]) -> None:
        from openpyxl.styles import Font

        for row in rows:
            cell = book.sheet()[f"{letter(column)}{row + 2}"]
            cell.font = Font(name=cell.font.name, size=cell.font.size, bold=look == "bold", italic=look == "italic")

    def script(rows: list[int]) -> list[Move]:
        return [move for row in rows for move in (click_cell(str(data.rows[row][column])), key(chord))]

    names = ", ".join(str(data.rows[row][column]) for row in chosen)
    said = wording(
        rng,
        "Make {names} {look} in the column {heading}, only there.",
        "In the column {heading}, set in {look}: {names}.",
        names=names,
        look=look,
        heading=data.headings[column],
    )
    wrong = [*chosen[:-1], other]
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: paint(book, chosen),
        near=lambda book: paint(book, wrong),
        solution=script(chosen),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _merge_title(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level])
    last = letter(len(data.headings) - 1)
    title = f"{data.title} {rng.choice(content.CITIES)} {rng.randrange(2021, 2026)}"
    row = data.last_row + 3

    def begin(book: Book) -> None:
        book.put(f"A{row}", title)

    def script(end: str) -> list[Move]:
        moves = [call("calc.merge_cells", range_str=f"A{row}:{end}{row}")]
        if level >= 2:
            moves.append(call("calc.format_range", range_str=f"A{row}", bold=True if level == 3 else None, alignment="center"))
        return [*moves]

    def change(book: Book, end: str) -> None:
        book.sheet().merge_cells(f"A{row}:{end}{row}")
        if level >= 2:
            book.paint(f"A{row}", align="center", bold=level == 3 or None)

    looks = {1: "", 2: " and centre its text", 3: ", centre its text and make it bold"}[level]
    said = wording(
        rng,
        "Merge the cells A{row} to {last}{row}{looks}.",
        'The line "{title}" in A{row} should span the columns A to {last}: merge them{looks}.',
        row=row,
        last=last,
        title=title,
        looks=looks,
    )
    short = letter(len(data.headings) - 2)
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        begin=begin,
        change=lambda book: change(book, last),
        near=lambda book: change(book, short),
        solution=script(last),
        near_miss=script(short),
    )


def _freeze(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    rows, columns = {1: (1, 0), 2: rng.choice(((2, 0), (1, 1))), 3: rng.choice(((1, 2), (2, 1)))}[level]

    def freeze(book: Book, down: int, across: int) -> None:
        book.sheet().freeze_panes = f"{letter(across)}{down + 1}"

    def script(down: int, across: int) -> list[Move]:
        return [call("calc.freeze_panes", rows=down, columns=across)]

    what = {1: "row", 2: "rows"}[rows] if rows == 1 else "2 rows"
    also = "" if not columns else f" and the first {'column' if columns == 1 else f'{columns} columns'}"
    said = wording(
        rng,
        "Freeze the first {what}{also}, so that scrolling keeps them in sight.",
        "Keep the first {what}{also} visible while scrolling.",
        what=what,
        also=also,
    )
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: freeze(book, rows, columns),
        near=lambda book: freeze(book, rows + 1, columns),
        solution=script(rows, columns),
        near_miss=script(rows + 1, columns),
    )


def _hide_rows(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level])
    count = {1: 1, 2: 2, 3: 4}[level]
    *hidden, kept = rng.sample(range(len(data.rows)), count + 1)
    mark, other = rng.sample(("N/A", "void", "unknown", "cancelled"), 2)
    rows = [list(row) for row in data.rows]
    for index in hidden:
        rows[index][1] = mark
    rows[kept][1] = other
    data = Table(data.title, data.headings, tuple(map(tuple, rows)), data.amounts)

    def hide(book: Book, value: str) -> None:
        for index, row in enumerate(data.rows):
            if row[1] == value:
                book.sheet().row_dimensions[index + 2].hidden = True

    def script(value: str) -> list[Move]:
        return [call("calc.hide_row_data", value=value)]

    said = wording(
        rng,
        'Hide all rows that contain "{mark}"; do not delete them.',
        'Rows with the entry "{mark}" should not be visible any more: hide them.',
        mark=mark,
    )
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: hide(book, mark),
        near=lambda book: hide(book, other),
        solution=script(mark),
        near_miss=script(other),
    )


FAMILIES = (
    forge_family("calc-format-headings", "calc", "bold, coloured, centred headings", _format_headings),
    forge_family("calc-highlight-entry", "calc", "fill the cells of the named entry with a colour", _highlight_entry),
    forge_family("calc-number-format", "calc", "currency, percentages or decimal places of a column", _number_format),
    forge_family("calc-emphasise-entry", "calc", "bold or italic cells with the keyboard", _bold_entry),
    forge_family("calc-merge-title", "calc", "merge a line's cells, centred and bold on higher levels", _merge_title),
    forge_family("calc-freeze", "calc", "keep rows and columns in sight", _freeze),
    forge_family("calc-hide-rows", "calc", "hide the rows that contain a word", _hide_rows),
)
