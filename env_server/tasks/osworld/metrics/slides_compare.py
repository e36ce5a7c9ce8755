"""`compare_pptx_files`: two presentations shape by shape, each aspect switched on or off by an option."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from computerrl.env_server.tasks.osworld.metrics.slide_shapes import Placed, placed_shapes
from computerrl.env_server.tasks.osworld.metrics.slides import A, open_presentation

_TOLERANCE = 0.005
"""Positions and sizes may differ by this share of the value: applications round when they save."""


@dataclass(frozen=True, slots=True)
class Aspects:
    """What is compared; names and defaults are the format's (``examine_`` in front)."""

    number_of_slides: bool = True
    shape: bool = True
    """Position and size of every shape."""
    text: bool = True
    indent: bool = True
    font_name: bool = True
    font_size: bool = True
    font_bold: bool = True
    font_italic: bool = True
    color_rgb: bool = True
    font_underline: bool = True
    strike_through: bool = True
    alignment: bool = True
    title_bottom_position: bool = False
    """The title lies further down than in the expected file, which is the untouched one; also `_MOVES`."""
    table_bottom_position: bool = False
    right_position: bool = False
    top_position: bool = False
    shape_for_shift_size: bool = False
    """Position and size of every shape but one, whatever `shape` says; see `_MOVES_BY_ITSELF`."""
    image_size: bool = False
    """Size of pictures, position and size of all other shapes."""
    modify_height: bool = False
    """Height of shapes without text and of freeforms, position and size of all other shapes."""
    bullets: bool = True
    background_color: bool = True
    note: bool = True


def compare_pptx_files(result: str, expected: str, **options: Any) -> float:
    """Both presentations are the same in every aspect that the options leave switched on; see `Aspects`.

    ``approximately_tolerance``: share by which positions and sizes may differ. Options that begin with ``_`` are remarks.
    """
    tolerance = float(options.pop("approximately_tolerance", _TOLERANCE))
    options = {name: value for name, value in options.items() if name != "enable_debug" and not name.startswith("_")}
    known = {f"examine_{field.name}": field.name for field in fields(Aspects)}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadRule(f"compare_pptx_files has no option {', '.join(unknown)}")
    aspects = Aspects(**{known[name]: bool(value) for name, value in options.items()})
    found, wanted = open_presentation(result), open_presentation(expected)
    if aspects.number_of_slides and len(found.slides) != len(wanted.slides):
        return 0.0
    size = (int(wanted.slide_width), int(wanted.slide_height))
    pairs = list(zip(found.slides, wanted.slides, strict=False))
    places = _Places(aspects, tolerance, size)
    if not all(_same_slide(one, other, aspects, places) for one, other in pairs):
        return 0.0
    moves = [move for move in _MOVES if getattr(aspects, move.aspect)]
    return float(all(_is_moved(pairs, move, places) for move in moves))


def _same_slide(found: Any, wanted: Any, aspects: Aspects, places: _Places) -> bool:
    if aspects.background_color and background_of(found) != background_of(wanted):
        return False
    if aspects.note and _note(found) != _note(wanted):
        return False
    ours, theirs = list(placed_shapes(found.shapes)), list(placed_shapes(wanted.shapes))
    if len(ours) != len(theirs):
        return False
    return all(_same_shape(one, other, aspects, places) for one, other in zip(ours, theirs, strict=True))


def background_of(slide: Any) -> str | None:
    """The slide's own background as text; None where it has the master's."""
    fill = slide.background.fill
    try:
        return f"{fill.type}:{fill.fore_color.rgb}"
    except (AttributeError, TypeError):
        return None if fill.type in (None, 5) else str(fill.type)


def _note(slide: Any) -> str:
    return slide.notes_slide.notes_text_frame.text.strip() if slide.has_notes_slide and slide.notes_slide.notes_text_frame else ""


# --- shapes ----------------------------------------------------------------------------------------------------------


def _same_shape(found: Placed, wanted: Placed, aspects: Aspects, places: _Places) -> bool:
    if not places.allow(found, wanted) or _has_table(found.shape) != _has_table(wanted.shape):
        return False
    ours, theirs = list(_paragraphs(found.shape)), list(_paragraphs(wanted.shape))
    if len(ours) != len(theirs):
        return not (aspects.text or aspects.bullets)
    return all(_same_paragraph(one, other, aspects) for one, other in zip(ours, theirs, strict=True))


def _has_table(shape: Any) -> bool:
    return bool(getattr(shape, "has_table", False))


def _text(shape: Any) -> str | None:
    """The text of a shape that can have one; pictures, tables and groups cannot."""
    return str(shape.text_frame.text) if shape.has_text_frame else None


def _is_picture(shape: Any) -> bool:
    return "PICTURE" in str(shape.shape_type)


_MOVES_BY_ITSELF = "Elaborate on what you want to discuss."
"""Text of the box that `shape_for_shift_size` leaves out: it grows with its text when the file is saved."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where shapes may lie."""

    aspects: Aspects
    tolerance: float
    size: tuple[int, int]
    """Width and height of a slide."""

    def allow(self, found: Placed, wanted: Placed) -> bool:
        """Does the shape lie where the aspects want it? Shapes that are to be moved are looked at by `_is_moved`."""
        aspects, text = self.aspects, _text(wanted.shape)
        same_text = text is not None and text == _text(found.shape)
        whole = (
            aspects.shape
            or (aspects.shape_for_shift_size and not (same_text and text == _MOVES_BY_ITSELF))
            or (aspects.image_size and not _is_picture(wanted.shape))
            or (aspects.modify_height and not _has_height_only(wanted.shape))
            or (aspects.title_bottom_position and not same_text)
            or (aspects.table_bottom_position and not _has_table(wanted.shape))
        )
        close = self.close(found, wanted)
        if whole and not (all(close) and found.turns == wanted.turns):
            return False
        return (close[2] or not aspects.image_size) and (close[3] or not (aspects.image_size or aspects.modify_height))

    def close(self, found: Placed, wanted: Placed) -> list[bool]:
        """Are left, top, width and height as expected? Near zero a share of the value would allow nothing, and a thousandth of
        the slide cannot be seen."""
        limits = (*self.size, *self.size)
        return [
            abs(one - other) <= max(self.tolerance * abs(other), 0.001 * limit)
            for one, other, limit in zip(found.box, wanted.box, limits, strict=True)
        ]


def _has_height_only(shape: Any) -> bool:
    return not shape.has_text_frame or "FREEFORM" in str(shape.shape_type)


# --- shapes that are to be moved -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Move:
    """An aspect whose expected file is the untouched one: a shape has to lie further in one direction, up to a limit at least."""

    aspect: str
    axis: int
    """0: left, 1: top."""
    limit: int
    """EMU; a negative one is for moves up."""
    named: Callable[[int, Placed], bool]
    """Is this shape (with the number of its slide, from 1) the one that the published evaluation looks at?"""
    kind: Callable[[Placed], bool]
    """Would it be one in a presentation that has none of these?"""


def _is_title(placed: Placed) -> bool:
    return placed.shape.is_placeholder and "TITLE" in str(placed.shape.placeholder_format.type)


def _is_table(placed: Placed) -> bool:
    return _has_table(placed.shape)


_MOVES = (
    _Move("title_bottom_position", 1, 3_600_000, lambda number, one: _text(one.shape) == "Product Comparison", _is_title),
    _Move("table_bottom_position", 1, 3_600_000, lambda number, one: number == 3 and _is_table(one), _is_table),
    _Move(
        "right_position",
        0,
        4_320_000,
        lambda number, one: number == 2 and not one.shape.has_text_frame,
        lambda one: not one.shape.has_text_frame,
    ),
    _Move(
        "top_position",
        1,
        -1_980_000,
        lambda number, one: number == 2 and _is_picture(one.shape),
        lambda one: _is_picture(one.shape),
    ),
)
"""Published meaning of the four aspects."""


def _is_moved(slides: Sequence[tuple[Any, Any]], move: _Move, places: _Places) -> bool:
    """Are the shapes in question moved? At least one has to be: a file in which nothing was moved pays nothing."""
    pairs = [
        (number, one, other)
        for number, (found, untouched) in enumerate(slides, start=1)
        for one, other in zip(placed_shapes(found.shapes), placed_shapes(untouched.shapes), strict=True)
        if not other.turns
    ]
    named = [(one, other) for number, one, other in pairs if move.named(number, other)]
    if named:
        return all(_moved(one, other, move, places) for one, other in named)
    of_kind = [(one, other) for _, one, other in pairs if move.kind(other)]
    moved = [_moved(one, other, move, places) for one, other in of_kind]
    still = [places.close(one, other)[move.axis] for one, other in of_kind]
    return any(moved) and all(one or other for one, other in zip(moved, still, strict=True))


def _moved(found: Placed, untouched: Placed, move: _Move, places: _Places) -> bool:
    here, there = found.box[move.axis], untouched.box[move.axis]
    if places.close(found, untouched)[move.axis]:
        return False
    return here < there and here <= -move.limit if move.limit < 0 else here > there and here >= move.limit


# --- texts -----------------------------------------------------------------------------------------------------------


def _paragraphs(shape: Any) -> Iterator[Any]:
    if getattr(shape, "has_table", False):
        from pptx.table import _Cell

        # The library's list of rows searches for each row from the first one on.
        for row in shape.table._tbl.tr_lst:
            for cell in row.tc_lst:
                yield from _Cell(cell, shape.table).text_frame.paragraphs
    elif shape.has_text_frame:
        yield from shape.text_frame.paragraphs


def _same_paragraph(found: Any, wanted: Any, aspects: Aspects) -> bool:
    if aspects.text and found.text.strip() != wanted.text.strip():
        return False
    if aspects.alignment and _alignment(found) != _alignment(wanted):
        return False
    if aspects.indent and found.level != wanted.level:
        return False
    if aspects.bullets and wanted.text.strip() and _bullet(found) != _bullet(wanted):
        return False
    return _same_letters(found, wanted, aspects)


def _alignment(paragraph: Any) -> str:
    # No alignment means left in every master that applications write.
    return "LEFT" if paragraph.alignment is None else str(paragraph.alignment).split(" ")[0]


def _bullet(paragraph: Any) -> str:
    properties = paragraph._p.pPr
    if properties is None:
        return ""
    for name in ("buChar", "buAutoNum", "buBlip"):
        node = properties.find(f"{A}{name}")
        if node is not None:
            return f"{name}:{node.get('char') or node.get('type') or ''}"
    return ""


def _same_letters(found: Any, wanted: Any, aspects: Aspects) -> bool:
    """Letter by letter, so that it does not matter how a paragraph is cut into runs."""
    checks = [index for index, name in enumerate(_LETTER_ASPECTS) if getattr(aspects, name)]
    ours, theirs = _stretches(found, checks), _stretches(wanted, checks)
    if sum(length for _, length in ours) != sum(length for _, length in theirs):
        return not aspects.text
    return ours == theirs


_LETTER_ASPECTS = ("font_name", "font_size", "font_bold", "font_italic", "color_rgb", "font_underline", "strike_through")


def _stretches(paragraph: Any, checks: Sequence[int]) -> list[tuple[tuple[Any, ...], int]]:
    """Looks and number of letters of each stretch of letters that look alike, by the aspects with these numbers."""
    stretches: list[tuple[tuple[Any, ...], int]] = []
    for run in paragraph.runs:
        font = run.font
        strike = run._r.rPr.get("strike", "noStrike") if run._r.rPr is not None else "noStrike"
        facts = (
            font.name,
            font.size,
            bool(font.bold),
            bool(font.italic),
            colour_of(font),
            str(font.underline) if font.underline else "",
            "" if strike == "noStrike" else strike,
        )
        look, length = tuple(facts[index] for index in checks), len(run.text.strip())
        if stretches and stretches[-1][0] == look:
            stretches[-1] = (look, stretches[-1][1] + length)
        elif length:
            stretches.append((look, length))
    return stretches


def colour_of(font: Any) -> str | None:
    """A run's own colour; theme colours by name."""
    try:
        colour = font.color
        if colour.type is None:
            return None
        return str(colour.rgb) if "RGB" in str(colour.type) else str(colour.theme_color)
    except AttributeError:
        return None
