"""Spreadsheets: families that change what cells hold."""

from __future__ import annotations

import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.books import Book, Value
from computerrl.env_server.tasks.forge.calc_base import NUM_ROWS, book_task, letter, tables
from computerrl.env_server.tasks.forge.content import Table
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import click_cell, into_cell, listed, wording


def _set(cell: str, value: Value) -> Move:
    return call("calc.set_cell", cell=cell, value=value)


def _column_total(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level, content.product_table(rng, NUM_ROWS[level]) if level == 3 else None)
    data = found[0]
    columns = data.amounts if level == 3 else (rng.choice(data.amounts),)
    function, word = rng.choice((("SUM", "sum"), ("AVERAGE", "average")))
    row = data.last_row + (1 if level == 1 else 2)

    def result(column: int, last: int) -> float:
        values = [float(value) for value in data.column(column)[: last - 1]]  # type: ignore[arg-type]  # amounts are numbers
        return sum(values) / (len(values) if function == "AVERAGE" else 1)

    def fill(book: Book, last: int) -> None:
        for column in columns:
            name = letter(column)
            book.put(f"{name}{row}", f"={function}({name}2:{name}{last})", result=result(column, last))

    def script(last: int) -> list[Move]:
        return [_set(f"{letter(column)}{row}", f"={function}({letter(column)}2:{letter(column)}{last})") for column in columns]

    def by_hand() -> list[Move]:
        return [
            move
            for column in columns
            for name in (letter(column),)
            for move in into_cell(f"{name}{row}", f"={function}({name}2:{name}{data.last_row})")
        ]

    full = data.last_row
    short = next(last for last in range(full - 1, 1, -1) if all(result(c, last) != result(c, full) for c in columns))
    places = listed([f"{letter(column)}{row}" for column in columns])
    names = listed([data.headings[column] for column in columns])
    said = wording(
        rng,
        "Put a formula for the {word} of {names} into {places}.",
        "{places} should show the {word} of all entries of {names}; use a formula.",
        "Calculate the {word} of the column {names} with a formula in {places}.",
        word=word,
        names=names,
        places=places,
    )
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: fill(book, data.last_row),
        near=lambda book: fill(book, short),
        solution=script(data.last_row),
        near_miss=script(short),
        by_hand=by_hand(),
    )


def _correct_value(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    data, column = found[0], rng.choice(found[0].amounts)
    chosen = sorted(rng.sample(range(len(data.rows)), {1: 1, 2: 1, 3: 2}[level]))
    news = content.numbers(rng, len(chosen), 1001, 1999)
    names = [str(data.rows[index][0 if data.title != "Expenses" else 2]) for index in chosen]
    cells = [f"{letter(column)}{index + 2}" for index in chosen]
    changes = listed([f"{name} to {new}" for name, new in zip(names, news, strict=True)])
    said = wording(
        rng,
        "Correct a mistake in the column {heading}: set {changes}.",
        "The column {heading} is out of date. Change the value of {changes}.",
        "In the column {heading}, change {changes}.",
        heading=data.headings[column],
        changes=changes,
    )

    def script(values: list[int]) -> list[Move]:
        moves: list[Move] = []
        for index, value in zip(chosen, values, strict=True):
            moves += [click_cell(_shown(data.rows[index][column])), typed(str(value), enter=True)]
        return moves

    def fill(book: Book, values: list[int]) -> None:
        for cell, value in zip(cells, values, strict=True):
            book.put(cell, value)

    wrong = [*news[:-1], news[-1] + 1]
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: fill(book, news),
        near=lambda book: fill(book, wrong),
        solution=script(news),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _add_entry(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, NUM_ROWS[level] + 1)
    new, data = data.rows[-1], Table(data.title, data.headings, data.rows[:-1], data.amounts)
    row = data.last_row + 1
    entries = [f"{heading} {_shown(value)}" for heading, value in zip(data.headings, new, strict=True)]
    said = wording(
        rng,
        "Add a row at the end of the table: {entry}.",
        "A new entry is missing below the last one: {entry}. Add it.",
        "Append this entry right below the table: {entry}.",
        entry=", ".join(entries),
    )

    def fill(book: Book, at: int) -> None:
        for column, value in enumerate(new):
            book.put(f"{letter(column)}{at}", value)

    def script(num_down: int) -> list[Move]:
        moves: list[Move] = [key("ctrl+home"), key("ctrl+down"), *[key("down")] * num_down]
        for value in new:
            moves += [typed(_shown(value)), key("tab")]
        return moves

    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: fill(book, row),
        near=lambda book: fill(book, row + 1),
        solution=script(1),
        near_miss=script(2),
        save=(SAVE_BY_KEYS,),
    )


def _fill_gap(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level, content.product_table(rng, NUM_ROWS[level]))
    data, column = found[0], found[0].amounts[0]
    *gaps, other = rng.sample(range(len(data.rows)), min(level, 2) + 1)
    gaps.sort()
    values = content.numbers(rng, len(gaps), 1001, 1999)

    def begin(book: Book) -> None:
        for index in gaps:
            book.sheet()[f"{letter(column)}{index + 2}"] = None

    def fill(book: Book, rows: list[int]) -> None:
        for index, value in zip(rows, values, strict=True):
            book.put(f"{letter(column)}{index + 2}", value)

    def script(rows: list[int]) -> list[Move]:
        moves: list[Move] = []
        for index, value in zip(rows, values, strict=True):
            moves += [click_cell(str(data.rows[index][0])), key("right"), key("right"), typed(str(value), enter=True)]
        return moves

    entries = listed([f"{value} for {data.rows[index][0]}" for index, value in zip(gaps, values, strict=True)])
    said = wording(
        rng,
        "The column {heading} has empty cells. Fill in {entries}.",
        "Some values of {heading} have arrived: {entries}. Enter them.",
        heading=data.headings[column],
        entries=entries,
    )
    wrong = [*gaps[:-1], other]
    return book_task(
        rng,
        found,
        said=said,
        begin=begin,
        change=lambda book: fill(book, gaps),
        near=lambda book: fill(book, wrong),
        solution=script(gaps),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _sort_list(rng: random.Random, level: int) -> Forged:
    names = content.people(rng, NUM_ROWS[level])
    is_ascending = rng.random() < 0.5
    if names == sorted(names, reverse=not is_ascending):
        names.reverse()
    data = Table("Guests", ("Name",), tuple((name,) for name in names), ())
    said = wording(
        rng,
        "Sort the names {way}; the heading stays where it is.",
        "Put the list of guests into alphabetical order, {way}, below its heading.",
        "The guests should be sorted {way}.",
        way="from A to Z" if is_ascending else "from Z to A",
    )

    def fill(book: Book, *, ascending: bool) -> None:
        for row, name in enumerate(sorted(names, reverse=not ascending), start=2):
            book.put(f"A{row}", name)

    def script(*, ascending: bool) -> list[Move]:
        return [call("calc.sort_column", column_name="A", ascending=ascending)]

    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: fill(book, ascending=is_ascending),
        near=lambda book: fill(book, ascending=not is_ascending),
        solution=script(ascending=is_ascending),
        near_miss=script(ascending=not is_ascending),
    )


def _compute_column(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, {1: 2, 2: 3, 3: 5}[level])
    heading, sign, word = ("Revenue", "*", "times") if data.title == "Sales" else ("Left", "-", "minus")
    rows = range(2, data.last_row + 1)

    def result(row: int, operator: str) -> float:
        first, second = float(data.rows[row - 2][2]), float(data.rows[row - 2][3])  # type: ignore[arg-type]
        return {"*": first * second, "-": first - second, "+": first + second}[operator]

    def fill(book: Book, operator: str) -> None:
        book.put("E1", heading)
        for row in rows:
            book.put(f"E{row}", f"=C{row}{operator}D{row}", result=result(row, operator))

    def script(operator: str) -> list[Move]:
        return [_set("E1", heading), *(_set(f"E{row}", f"=C{row}{operator}D{row}") for row in rows)]

    # Enter leads to the cell below.
    by_hand = [*into_cell("E1", heading), *(typed(f"=C{row}{sign}D{row}", enter=True) for row in rows)]
    said = wording(
        rng,
        "Write the heading {heading} into E1 and fill E2 to E{last} with formulas: {first} {word} {second} of the same row.",
        "Add a column E with the heading {heading}; every row holds a formula for {first} {word} {second}.",
        heading=heading,
        last=data.last_row,
        first=data.headings[2],
        second=data.headings[3],
        word=word,
    )
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        change=lambda book: fill(book, sign),
        near=lambda book: fill(book, "+"),
        solution=script(sign),
        near_miss=script("+"),
        by_hand=by_hand,
    )


def _clear_entry(rng: random.Random, level: int) -> Forged:
    found = tables(rng, level)
    data, column = found[0], rng.choice(found[0].amounts)
    index, other = rng.sample(range(len(data.rows)), 2)

    def clear(book: Book, row: int) -> None:
        book.sheet()[f"{letter(column)}{row + 2}"] = None

    def script(row: int) -> list[Move]:
        return [click_cell(_shown(data.rows[row][column])), key("delete")]

    said = wording(
        rng,
        "The {heading} value {value} is not confirmed: empty its cell, and only that.",
        "Remove the value {value} from the column {heading}; leave the cell empty.",
        heading=data.headings[column],
        value=_shown(data.rows[index][column]),
    )
    return book_task(
        rng,
        found,
        said=said,
        change=lambda book: clear(book, index),
        near=lambda book: clear(book, other),
        solution=script(index),
        near_miss=script(other),
        save=(SAVE_BY_KEYS,),
    )


def _transpose(rng: random.Random, level: int) -> Forged:
    data = content.product_table(rng, {1: 2, 2: 3, 3: 4}[level])
    row = data.last_row + 2
    block = [data.headings, *data.rows]

    def fill(book: Book, at: int) -> None:
        for down in range(len(data.headings)):
            for across, values in enumerate(block):
                book.put(f"{letter(across)}{at + down}", values[down])
                book.sheet().column_dimensions[letter(across)].width = 15

    def script(at: int) -> list[Move]:
        return [call("calc.transpose_range", source_range=f"A1:D{data.last_row}", target_cell=f"A{at}")]

    def begin(book: Book) -> None:
        book.sheet().column_dimensions["E"].width = 15

    said = wording(
        rng,
        "Copy the table A1:D{last} with rows and columns exchanged, so that the copy begins in A{row}.",
        "Below the table, from A{row} on, put A1:D{last} transposed.",
        last=data.last_row,
        row=row,
    )
    return book_task(
        rng,
        tables(rng, level, data),
        said=said,
        begin=begin,
        change=lambda book: fill(book, row),
        near=lambda book: fill(book, row + 1),
        solution=script(row),
        near_miss=script(row + 1),
    )


FAMILIES = (
    forge_family("calc-column-total", "calc", "a formula for a column's sum or average", _column_total),
    forge_family("calc-correct-value", "calc", "type another number over a cell that is named by its row", _correct_value),
    forge_family("calc-add-entry", "calc", "type a new row below a table", _add_entry),
    forge_family("calc-fill-gap", "calc", "type values into empty cells that are named by their row", _fill_gap),
    forge_family("calc-sort-list", "calc", "sort a list of names either way", _sort_list),
    forge_family("calc-compute-column", "calc", "a column of formulas with its heading", _compute_column),
    forge_family("calc-clear-entry", "calc", "empty one cell with the keyboard", _clear_entry),
    forge_family("calc-transpose", "calc", "a table's copy with rows and columns exchanged", _transpose),
)
