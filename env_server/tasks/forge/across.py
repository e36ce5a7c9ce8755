"""Tasks that take something from one application to another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.calc_base import NUM_ROWS
from computerrl.env_server.tasks.forge.content import Table
from computerrl.env_server.tasks.forge.decks import Deck
from computerrl.env_server.tasks.forge.impress_base import copied, slides
from computerrl.env_server.tasks.forge.papers import Paper, Par, par
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import wording
from computerrl.env_server.tasks.forge.writer_base import report


def _notes_to_sheet(rng: random.Random, level: int) -> Forged:
    count = {1: 3, 2: 5, 3: 8}[level]
    products = rng.sample(content.PRODUCTS, count)
    values = dict(zip(products, content.numbers(rng, count, 11, 990), strict=True))
    noted = list(products)
    if level > 1:
        rng.shuffle(noted)
    notes = "".join(f"{product}: {values[product]}\n" for product in noted)
    table = Table("Stocktaking", ("Product", "Counted"), tuple((product,) for product in products), (1,))
    path = f"{content.file_stem(rng, 'stock')}.xlsx"

    def made(found: Mapping[str, int]) -> bytes:
        book = Book(table)
        for row, product in enumerate(products, start=2):
            if product in found:
                book.put(f"B{row}", found[product])
        return book.to_bytes()

    def script(found: Mapping[str, int]) -> list[Move]:
        entries = [typed(str(found[product]), enter=True) for product in products]
        return [key("ctrl+home"), key("right"), key("down"), *entries, SAVE_BY_KEYS]

    said = wording(
        rng,
        "The counts in notes.txt belong into the column Counted of {path}: fill it in, each beside its product, and save it.",
        "Copy the numbers from notes.txt into column B of {path}, in the row of the same product. Save the workbook.",
        path=path,
    )
    first, second = products[:2]
    wrong = {**values, first: values[second], second: values[first]}
    return Forged(
        said,
        {"notes.txt": notes.encode(), path: made({})},
        wanted=lambda: {path: made(values)},
        nearly=lambda: {path: made(wrong)},
        solution=script(values),
        near_miss=script(wrong),
        opened=("notes.txt", path),
    )


def _sheet_to_letter(rng: random.Random, level: int) -> Forged:
    table = content.product_table(rng, NUM_ROWS[level])
    column = rng.choice(table.amounts)
    index, wrong = rng.sample(range(len(table.rows)), 2)
    mark = rng.choice(("[NUMBER]", "[AMOUNT]", "[VALUE]")).strip("[]")
    pars = report(rng, level)
    place = rng.randrange(1, len(pars) + 1)
    line = f"{table.headings[column]} of {table.rows[index][0]}: {mark}"
    pars.insert(place, par(line))
    letter_path, sheet_path = f"{content.file_stem(rng, 'letter')}.docx", f"{content.file_stem(rng, table.title)}.xlsx"

    def made(text: str) -> bytes:
        found: list[Par] = list(pars)
        found[place] = par(line.replace(mark, text))
        return Paper(found).to_bytes()

    def script(row: int) -> list[Move]:
        return [
            call("writer.find_and_replace", pattern=mark, replacement=str(table.rows[row][column])),
            call("writer.save"),
        ]

    said = wording(
        rng,
        'The letter {letter_path} has a gap "{mark}". Replace it by the right number from {sheet_path} and save the letter.',
        'Look up the number that is missing in {letter_path} ("{mark}") in {sheet_path}, put it in and save the letter.',
        letter_path=letter_path,
        sheet_path=sheet_path,
        mark=mark,
    )
    return Forged(
        said,
        {sheet_path: Book(table).to_bytes(), letter_path: made(mark)},
        wanted=lambda: {letter_path: made(str(table.rows[index][column]))},
        nearly=lambda: {letter_path: made(str(table.rows[wrong][column]))},
        solution=script(index),
        near_miss=script(wrong),
        opened=(sheet_path, letter_path),
    )


def _rename_by_list(rng: random.Random, level: int) -> Forged:
    count = {1: 2, 2: 3, 3: 4}[level]
    numbers = content.numbers(rng, count + 2, 1000, 9999)
    olds = [f"scan{number}.txt" for number in numbers]
    news = [f"{company.lower()}-{rng.randrange(2021, 2026)}.txt" for company in rng.sample(content.COMPANIES, count)]
    files = {old: f"{content.sentence(rng)}\n".encode() for old in olds}
    table = Table("Names", ("File", "New name"), tuple(zip(olds, news, strict=False)), ())
    sheet_path = "names.xlsx"

    def renamed(targets: Sequence[str]) -> dict[str, bytes | None]:
        pairs = list(zip(olds, targets, strict=False))
        return {**{new: files[old] for old, new in pairs}, **{old: None for old, _ in pairs}}

    def script(targets: Sequence[str]) -> list[Move]:
        return [call("files.rename", path=old, new_name=new) for old, new in zip(olds, targets, strict=False)]

    said = wording(
        rng,
        "Rename the files as the list in names.xlsx says: from the name in column A to the one in column B.",
        "names.xlsx lists files (column A) and what they should be called (column B). Rename them.",
        "Give the {count} files that column A of names.xlsx lists the names of column B.",
        "The {count} files listed in names.xlsx need new names, given beside the old ones. Other files keep theirs.",
        count=count,
    )
    wrong = [news[1], news[0], *news[2:]]
    return Forged(
        said,
        {**files, sheet_path: Book(table).to_bytes()},
        wanted=lambda: renamed(news),
        nearly=lambda: renamed(wrong),
        solution=script(news),
        near_miss=script(wrong),
        opened=(".", sheet_path),
        is_listing_exact=True,
    )


def _sheet_to_slide(rng: random.Random, level: int) -> Forged:
    table = content.product_table(rng, NUM_ROWS[level])
    column = table.amounts[0]
    best = max(range(len(table.rows)), key=lambda index: float(table.rows[index][column]))  # type: ignore[arg-type]
    wrong = (best + 1) % len(table.rows)
    found = slides(rng, level)
    index = rng.randrange(len(found))
    deck_path, sheet_path = f"{content.file_stem(rng, 'slides')}.pptx", f"{content.file_stem(rng, table.title)}.xlsx"
    size = found[index].boxes[2].size

    def text(row: int) -> str:
        return f"Best: {table.rows[row][0]}"

    def made(row: int | None) -> bytes:
        deck = Deck(copied(found))
        if row is not None:
            deck.slides[index].change(2, lines=(text(row),))
        return deck.to_bytes()

    def script(row: int) -> list[Move]:
        write = call("impress.write_text", content=text(row), page_index=index + 1, box_index=2, size=size)
        return [write, call("impress.save")]

    said = wording(
        rng,
        'On slide {number} of {deck}, replace "{old}" by "Best: " and the name with the largest {heading} in {sheet}. '
        "Keep {size:g} points and save the presentation.",
        'Slide {number} of {deck} says "{old}". Let it say "Best: " and what has the largest {heading} in {sheet}, '
        "in {size:g} points. Save the presentation.",
        number=index + 1,
        deck=deck_path,
        sheet=sheet_path,
        old=found[index].boxes[2].lines[0],
        heading=table.headings[column],
        size=size,
    )
    return Forged(
        said,
        {sheet_path: Book(table).to_bytes(), deck_path: made(None)},
        wanted=lambda: {deck_path: made(best)},
        nearly=lambda: {deck_path: made(wrong)},
        solution=script(best),
        near_miss=script(wrong),
        opened=(sheet_path, deck_path),
    )


FAMILIES = (
    forge_family("across-notes-to-sheet", "calc", "numbers of a text file into a sheet", _notes_to_sheet),
    forge_family("across-sheet-to-letter", "writer", "a number of a sheet into a letter's gap", _sheet_to_letter),
    forge_family("across-rename-by-list", "calc", "rename files after a list in a sheet", _rename_by_list),
    forge_family("across-sheet-to-slide", "impress", "the name with the largest number of a sheet onto a slide", _sheet_to_slide),
)
