"""Spreadsheets: where walks begin, which actions they are made of, and the words for what they have changed. Pure."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from computerrl.common.messages import Action
from computerrl.env_server.tasks.calc import GO_TO
from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.calc_base import letter, tables
from computerrl.env_server.tasks.forge.content import COLORS, Table
from computerrl.env_server.tasks.forge.facts import Facts, same
from computerrl.env_server.tasks.forge.plan import call, key, typed
from computerrl.env_server.tasks.synthesis.changes import Change, Differing, UnsaidError, change, colour, listed, quoted
from computerrl.env_server.tasks.synthesis.start import Start

_CELL = re.compile(r"(.+)!([A-Z]{1,3})([1-9][0-9]*)(?: (.+))?")
_SHEET = re.compile(r"(.+) (merged|hidden rows|frozen at|zoom|allowed values|width [A-Z])")
_FUNCTIONS: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "average": lambda numbers: sum(numbers) / len(numbers),
    "largest value": max,
    "smallest value": min,
}
"""Name of a function in instructions -> the function."""
_FORMULAS = {"SUM": "sum", "AVERAGE": "average", "MAX": "largest value", "MIN": "smallest value"}
_FRESH_SHEET = {"merged": [], "hidden rows": [], "frozen at": "", "zoom": 100, "allowed values": []}
"""Facts of a sheet to which nothing was done."""
_FORMATS = ("number", "percentage", "currency")
_ALIGNED = {"left": "to the left", "center": "centred", "right": "to the right", "justify": "justified"}
_CHORDS = {"bold": "ctrl+b", "italic": "ctrl+i", "centred": "ctrl+e", "right": "ctrl+r"}


def start(rng: random.Random) -> Start:
    """A workbook of one or two tables."""
    level = rng.choice((1, 2))
    found = tables(rng, level)
    path = f"{content.file_stem(rng, found[0].title)}.xlsx"
    return Start(
        "workbook", {path: Book(*found).to_bytes()}, opened=(path,), save=call("calc.save"), draw=lambda rng: _draw(rng, found)
    )


def _draw(rng: random.Random, found: list[Table]) -> list[Action]:
    """One move on the first sheet, or on the one that an earlier move has made the active one."""
    data = found[0]
    column = rng.choice(data.amounts)
    cell = f"{letter(column)}{rng.randrange(2, data.last_row + 1)}"
    end = letter(len(data.headings) - 1)
    below = f"{letter(column)}{data.last_row + rng.choice((1, 2))}"
    area = rng.choice((f"A1:{end}1", f"{letter(column)}2:{letter(column)}{data.last_row}", f"A2:A{data.last_row}", cell))
    name = f"#{rng.choice(sorted(COLORS.values()))}"
    number = rng.randrange(1001, 1999)
    free = f"{letter(len(data.headings))}{rng.randrange(1, data.last_row + 1)}"
    function = rng.choice(sorted(_FORMULAS))
    moves = (
        lambda: [call("calc.set_cell", cell=cell, value=number)],
        lambda: [call("calc.set_cell", cell=free, value=rng.choice((*content.STATES, *content.CITIES)))],
        lambda: [GO_TO, typed(cell, enter=True), typed(str(number), enter=True)],
        lambda: [GO_TO, typed(cell, enter=True), key("delete")],
        lambda: [GO_TO, typed(area, enter=True), key(rng.choice(sorted(_CHORDS.values())))],
        lambda: [call("calc.set_cell", cell=below, value=f"={function}({letter(column)}2:{letter(column)}{data.last_row})")],
        lambda: [call("calc.format_range", range_str=area, bold=True)],
        lambda: [call("calc.format_range", range_str=area, background_color=name)],
        lambda: [call("calc.format_range", range_str=area, font_color=name)],
        lambda: [call("calc.format_range", range_str=area, alignment=rng.choice(("center", "right")))],
        lambda: [
            call(
                "calc.set_number_format",
                range_str=f"{letter(column)}2:{letter(column)}{data.last_row}",
                format_type=rng.choice(_FORMATS),
                decimal_places=rng.randrange(4),
            )
        ],
        lambda: [call("calc.merge_cells", range_str=f"A{data.last_row + 2}:{rng.choice('BCD')}{data.last_row + 2}")],
        lambda: [call("calc.freeze_panes", rows=rng.choice((0, 1)), columns=rng.choice((0, 1)))],
        lambda: [call("calc.hide_row_data", value=data.rows[rng.randrange(len(data.rows))][column])],
        lambda: [call("calc.rename_sheet", old_name=rng.choice(found).title, new_name=rng.choice(content.DEPARTMENTS))],
        lambda: [call("calc.switch_active_sheet", sheet_name=rng.choice((found[-1].title, rng.choice(content.DEPARTMENTS))))],
        lambda: [call("calc.set_zoom_level", zoom_percentage=rng.choice((75, 120, 150, 200)))],
        lambda: [call("calc.get_cell", cell=cell)],
        lambda: [key("ctrl+home")],
    )
    return rng.choice(moves)()


def changes(before: Facts, after: Facts) -> list[Change]:
    """The changes between two workbooks. Raises `UnsaidError`."""
    found, before = _sheet_changes(before, after)
    differing = Differing(before, after)
    differing.take(["sheets"])
    for title in set(_titles(after)) - set(_titles(before)):
        differing.take(f"{title} {name}" for name, value in _FRESH_SHEET.items() if after.get(f"{title} {name}") == value)
    found += _value_changes(differing)
    found += _look_changes(differing)
    found += _view_changes(differing)
    differing.require_none()
    return found


def _titles(facts: Facts) -> list[str]:
    titles = facts["sheets"]
    assert isinstance(titles, list)
    return titles


def _sheet_changes(before: Facts, after: Facts) -> tuple[list[Change], Facts]:
    """Changes of the list of sheets, and ``before`` with the sheets' new names."""
    old, new = _titles(before), _titles(after)
    if old == new:
        return [], before
    if len(old) == len(new):
        renamed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
        if len(renamed) == 1:
            (one, other) = renamed[0]
            moved = {_of_sheet(name, one, other): value for name, value in before.items()}
            return [change("calc.rename", old=quoted(one), new=quoted(other))], {**moved, "sheets": new}
    if new[:-1] == old:
        return [change("calc.add sheet", sheet=quoted(new[-1]))], before
    raise UnsaidError("sheets changed in several ways")


def _of_sheet(name: str, old: str, new: str) -> str:
    return new + name[len(old) :] if name.startswith((f"{old}!", f"{old} ")) else name


def _place(cells: str, sheet: str, titles: Collection[str]) -> str:
    """Cells as an instruction names them: with their sheet where there are several."""
    return cells if len(titles) == 1 else f"{cells} of the sheet {quoted(sheet)}"


def _shown(value: object) -> str:
    """A cell's content as it is typed. Raises `UnsaidError` for a text that Calc would read as something else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnsaidError("a cell's content is no text and no number")
    if isinstance(value, str):
        if not re.fullmatch(r"[A-Za-z][A-Za-z ]*", value):
            raise UnsaidError("a text that could be read as something else")
        return quoted(value)
    return f"{value:.10g}"


def _value_changes(differing: Differing) -> list[Change]:
    found = []
    before, after = differing.before, differing.after
    fonts = {str(value) for name, value in before.items() if name.endswith(" font")}
    for name in differing.names():
        match = _CELL.fullmatch(name)
        if match is None or match[4]:
            continue
        sheet, cell, formula = match[1], match[2] + match[3], f"{name} formula"
        place = _place(cell, sheet, _titles(after))
        is_formula = after.get(formula) is not None
        old, new = before.get(name), after.get(name)
        # What is said of a cell's letters comes and goes with its content.
        taken = {name, formula}
        if new is None:
            taken |= {other for other in before if other.startswith(f"{name} ") and not other.endswith(" fill")}
            found.append(change("calc.empty", cell=place))
        elif is_formula:
            found.append(_formula_change(match, after, place))
        elif formula in before:
            raise UnsaidError("a formula became a value")
        elif old is None:
            found.append(change("calc.write", cell=place, value=_shown(new)))
        else:
            found.append(change("calc.correct", cell=place, old=_shown(old), value=_shown(new)))
        if old is None and str(after.get(f"{name} font")) in fonts:
            taken.add(f"{name} font")
        differing.take(taken)
    return found


def _formula_change(match: re.Match[str], facts: Facts, place: str) -> Change:
    """The one function of the column above that gives the formula's result."""
    sheet, column, row = match[1], match[2], int(match[3])
    numbers = [(at, facts.get(f"{sheet}!{column}{at}")) for at in range(1, row)]
    plain = {at: float(value) for at, value in numbers if isinstance(value, int | float) and not isinstance(value, bool)}
    rows = sorted(plain)
    if len(rows) < 2 or rows != list(range(rows[0], rows[-1] + 1)):
        raise UnsaidError("a formula of something else than the column above it")
    result = facts[match[0]]
    names = [name for name, function in _FUNCTIONS.items() if same(function(list(plain.values())), result)]
    if len(names) != 1 or facts.get(f"{match[0]} formula") != "refers to cells":
        raise UnsaidError("a formula whose function is not clear from its result")
    return change("calc.formula", cell=place, function=names[0], cells=f"{column}{rows[0]}:{column}{rows[-1]}")


def _look_changes(differing: Differing) -> list[Change]:
    """Looks of whole rectangles."""
    cells: dict[tuple[str, str, object], set[tuple[int, int]]] = defaultdict(set)
    for name in differing.names():
        match = _CELL.fullmatch(name)
        if match is not None and match[4] and match[4] != "formula":
            cells[match[1], match[4], differing.after.get(name)].add((_number(match[2]), int(match[3])))
    found = []
    for (sheet, look, value), places in cells.items():
        area = _rectangle(places, sheet, differing.after, is_fill=look == "fill")
        found.append(_look_change(look, value, _place(area, sheet, _titles(differing.after))))
        differing.take(f"{sheet}!{_letters(column)}{row} {look}" for column, row in places)
    return found


def _look_change(look: str, value: object, place: str) -> Change:
    if look in ("bold", "italic"):
        return change(f"calc.{look}" if value else f"calc.no {look}", cells=place)
    if look in ("fill", "colour"):
        return change(f"calc.{look}", cells=place, colour=colour(str(value), COLORS)) if value else _lost(look)
    if look == "alignment":
        return change("calc.align", cells=place, side=_ALIGNED[str(value)]) if value in _ALIGNED else _lost(look)
    if look == "shown as" and isinstance(value, str) and "/" in value:
        kind, _, decimals = value.partition("/")
        return change(
            "calc.format", cells=place, format=kind, decimals="1 decimal" if decimals == "1" else f"{decimals} decimals"
        )
    return _lost(look)


def _decimals(number: str) -> str:
    return f"{number} decimal{'' if number == '1' else 's'}"


def _lost(look: str) -> Change:
    raise UnsaidError(f"no words for the fact {look!r}")


def _rectangle(places: Collection[tuple[int, int]], sheet: str, facts: Facts, *, is_fill: bool) -> str:
    """The range of these cells. Cells without content may be in it, as only fills are seen of them."""
    columns, rows = [column for column, _ in places], [row for _, row in places]
    whole = {(column, row) for column in range(min(columns), max(columns) + 1) for row in range(min(rows), max(rows) + 1)}
    missing = whole - set(places)
    if any(is_fill or f"{sheet}!{_letters(column)}{row}" in facts for column, row in missing):
        raise UnsaidError("cells that form no rectangle")
    first, last = f"{_letters(min(columns))}{min(rows)}", f"{_letters(max(columns))}{max(rows)}"
    return first if first == last else f"{first}:{last}"


def _number(letters: str) -> int:
    found = 0
    for char in letters:
        found = found * 26 + ord(char) - ord("A") + 1
    return found


def _letters(number: int) -> str:
    found = ""
    while number:
        number, rest = divmod(number - 1, 26)
        found = chr(ord("A") + rest) + found
    return found


def _view_changes(differing: Differing) -> list[Change]:
    """Changes of whole sheets."""
    found = []
    for name in differing.names():
        match = _SHEET.fullmatch(name)
        if match is None:
            continue
        old, new = differing.before.get(name), differing.after.get(name)
        sheet = "the sheet" if len(_titles(differing.after)) == 1 else f"the sheet {quoted(match[1])}"
        if match[2] == "merged" and isinstance(new, list):
            found += [change("calc.merge", cells=area, sheet=sheet) for area in _added(old, new)]
        elif match[2] == "hidden rows" and isinstance(new, list):
            found.append(change("calc.hide", rows=listed(map(str, _added(old, new))), sheet=sheet))
        elif match[2] == "zoom":
            found.append(change("calc.zoom", percent=new, sheet=sheet))
        elif match[2] == "frozen at" and new in _FROZEN:
            found.append(change("calc.freeze", what=_FROZEN[str(new)], sheet=sheet))
        else:
            continue
        differing.take([name])
    return found


_FROZEN: Mapping[str, str] = {"A2": "the first row", "B1": "the first column", "B2": "the first row and the first column"}


def _added(old: object, new: list[object]) -> list[object]:
    """What ``new`` has more than ``old``."""
    before = old if isinstance(old, list) else []
    if any(one not in new for one in before):
        raise UnsaidError("something was undone")
    return [one for one in new if one not in before]
