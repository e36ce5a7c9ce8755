"""Presentations: shapes that are to be moved, groups, and contents in any order."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pptx
import pytest
from lxml import etree
from PIL import Image
from pptx.util import Emu, Inches

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.slide_shapes import placed_shapes

Edit = Callable[[Any], Any]
A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"


def _png(color: str = "red") -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(data, "PNG")
    data.seek(0)
    return data


def _deck(place: Path, *edits: Edit, title: str = "Product Comparison") -> str:
    """Three slides, each with a title, a picture and a table in its upper left part."""
    deck = pptx.Presentation()
    for number in range(3):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = title if number == 1 else f"Slide {number}"
        slide.shapes.title.left, slide.shapes.title.top = Inches(0.5), Inches(0.2)
        slide.shapes.title.width, slide.shapes.title.height = Inches(8), Inches(0.5)
        slide.shapes.add_picture(_png(), Inches(1), Inches(3), Inches(1), Inches(1))
        slide.shapes.add_table(1, 1, Inches(1), Inches(1), Inches(2), Inches(1))
    for edit in edits:
        edit(deck)
    deck.save(str(place))
    return str(place)


def _move(slide: int, shape: int, *, left: float | None = None, top: float | None = None) -> Edit:
    def edit(deck: Any) -> None:
        one = deck.slides[slide].shapes[shape]
        if left is not None:
            one.left = Inches(left)
        if top is not None:
            one.top = Inches(top)

    return edit


TITLE, PICTURE, TABLE = range(3)
MOVES: dict[str, tuple[Edit, list[Edit]]] = {
    # option -> the right move, and others
    "title_bottom_position": (
        _move(1, TITLE, top=6),
        [_move(1, TITLE, top=1), _move(0, TITLE, top=6), _move(1, PICTURE, top=6), _move(1, TITLE, left=4)],
    ),
    "table_bottom_position": (
        _move(2, TABLE, top=6),
        [_move(2, TABLE, top=2), _move(1, TABLE, top=6), _move(2, TITLE, top=6), _move(2, TABLE, left=5)],
    ),
    "right_position": (
        lambda deck: [_move(1, shape, left=6)(deck) for shape in (PICTURE, TABLE)],
        [_move(1, PICTURE, left=6), _move(1, TITLE, left=6), lambda deck: [_move(1, one, left=2)(deck) for one in (1, 2)]],
    ),
    "top_position": (
        _move(1, PICTURE, top=0.5),
        [_move(1, PICTURE, top=2.5), _move(0, PICTURE, top=0.5), _move(1, TABLE, top=0.1), _move(1, PICTURE, top=6)],
    ),
}


@pytest.mark.parametrize("option", MOVES)
def test_compare_pptx_files_expected_file_is_the_untouched_one(option: str, tmp_path: Path) -> None:
    right, others = MOVES[option]
    untouched = _deck(tmp_path / "untouched.pptx")
    options = {"examine_shape": False, f"examine_{option}": True}
    assert metric("compare_pptx_files")(_deck(tmp_path / "right.pptx", right), untouched, **options) == 1.0
    assert metric("compare_pptx_files")(untouched, untouched, **options) == 0.0
    found = [metric("compare_pptx_files")(_deck(tmp_path / "other.pptx", other), untouched, **options) for other in others]
    assert found == [0.0] * len(others)


@pytest.mark.parametrize("option", MOVES)
def test_compare_pptx_files_nothing_to_move_pays_nothing(option: str, tmp_path: Path) -> None:
    def empty(deck: Any) -> None:
        for slide in deck.slides:
            for shape in list(slide.shapes):
                shape._element.getparent().remove(shape._element)

    deck = _deck(tmp_path / "empty.pptx", empty)
    assert metric("compare_pptx_files")(deck, deck, examine_shape=False, **{f"examine_{option}": True}) == 0.0


def test_compare_pptx_files_any_title_where_the_published_one_is_missing(tmp_path: Path) -> None:
    options = {"examine_shape": False, "examine_title_bottom_position": True}
    untouched = _deck(tmp_path / "untouched.pptx", title="Overview")
    down, up = (_deck(tmp_path / f"{top}.pptx", _move(1, TITLE, top=top), title="Overview") for top in (6, 0))
    both = _deck(tmp_path / "both.pptx", _move(1, TITLE, top=6), _move(0, TITLE, top=1), title="Overview")
    assert [metric("compare_pptx_files")(found, untouched, **options) for found in (down, up, both, untouched)] == [1.0, 0, 0, 0]


def test_compare_pptx_files_rounding_is_no_move(tmp_path: Path) -> None:
    def low(deck: Any) -> None:
        deck.slides[1].shapes[TITLE].top = Inches(6)

    def rounded(deck: Any) -> None:
        low(deck)
        deck.slides[1].shapes[TITLE].top += Emu(300)

    options = {"examine_shape": False, "examine_title_bottom_position": True}
    assert metric("compare_pptx_files")(_deck(tmp_path / "a.pptx", rounded), _deck(tmp_path / "b.pptx", low), **options) == 0.0


# --- groups ----------------------------------------------------------------------------------------------------------


def _group(deck: Any) -> Any:
    shapes = deck.slides[0].shapes
    box = shapes.add_textbox(Inches(2), Inches(2), Inches(2), Inches(1))
    box.text_frame.text = "in a group"
    return shapes.add_group_shape([box])


def _saved_again(deck: Any) -> None:
    """The same as an application writes it: the children's coordinates are the slide's."""
    group = _group(deck)
    box, transform = group.shapes[0], group._element.grpSpPr.find(f"{A}xfrm")
    box.left, box.top, box.width, box.height = Inches(5), Inches(2), Inches(4), Inches(2)
    for name, numbers in (("off", (5, 2)), ("ext", (4, 2)), ("chOff", (5, 2)), ("chExt", (4, 2))):
        node = transform.find(f"{A}{name}")
        for key, number in zip(sorted(node.attrib), numbers, strict=True):
            node.set(key, str(Inches(number)))


GROUPS: dict[str, Edit] = {
    "moved": lambda deck: setattr(_group(deck), "left", Inches(5)),
    "wider": lambda deck: setattr(_group(deck), "width", Inches(4)),
    "turned": lambda deck: _group(deck)._element.grpSpPr.find(f"{A}xfrm").set("rot", "5400000"),
    "mirrored": lambda deck: _group(deck)._element.grpSpPr.find(f"{A}xfrm").set("flipH", "1"),
    "taken apart": lambda deck: deck.slides[0].shapes.add_textbox(2, 2, 2, 1),
    "in another": lambda deck: setattr(deck.slides[0].shapes.add_group_shape([_group(deck)]), "left", Inches(5)),
}


@pytest.mark.parametrize("edit", GROUPS)
def test_compare_pptx_files_group_transform_counts(edit: str, tmp_path: Path) -> None:
    gold, other = _deck(tmp_path / "gold.pptx", _group), _deck(tmp_path / "other.pptx", GROUPS[edit])
    assert metric("compare_pptx_files")(other, gold) == 0.0
    assert metric("compare_pptx_files")(gold, gold) == 1.0


def test_compare_pptx_files_other_coordinates_same_place(tmp_path: Path) -> None:
    def scaled(deck: Any) -> None:
        group = _group(deck)
        group.left, group.top, group.width, group.height = Inches(5), Inches(2), Inches(4), Inches(2)

    gold, again = _deck(tmp_path / "gold.pptx", scaled), _deck(tmp_path / "again.pptx", _saved_again)
    assert metric("compare_pptx_files")(again, gold) == 1.0


def test_placed_shapes_nested_groups_compose(tmp_path: Path) -> None:
    deck = pptx.Presentation()
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    inner = shapes.add_group_shape([shapes.add_textbox(1000, 2000, 500, 500), shapes.add_textbox(2000, 2000, 500, 500)])
    outer = shapes.add_group_shape([inner])
    outer.left, outer.top, outer.width, outer.height = Emu(10_000), Emu(0), Emu(3000), Emu(1000)
    boxes = [placed.box for placed in placed_shapes(shapes)]
    # The outer group is twice as wide and as high as its children's frame of 1500 x 500.
    assert boxes == [(10_000, 0, 3000, 1000), (10_000, 0, 3000, 1000), (10_000, 0, 1000, 1000), (12_000, 0, 1000, 1000)]


# --- contents --------------------------------------------------------------------------------------------------------


def _boxes(*texts: str) -> Edit:
    def edit(deck: Any) -> None:
        for text in texts:
            deck.slides[0].shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = text

    return edit


def _number(shown: str) -> Edit:
    def edit(deck: Any) -> None:
        frame = deck.slides[0].shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame
        field = etree.SubElement(frame.paragraphs[0]._p, f"{A}fld", id="{1}", type="slidenum")
        etree.SubElement(field, f"{A}t").text = shown

    return edit


SAME: list[tuple[Edit, Edit]] = [
    (_boxes("one", "two"), _boxes("two", "one")),
    (_boxes("one"), _boxes("one", "", "  ")),
    (_boxes("one two"), _boxes("one\ntwo")),
    (_boxes("one"), _boxes(" one ")),
    (_number("1"), _number("<number>")),
    (_boxes("x"), lambda deck: (_boxes("x")(deck), deck.slides[0].shapes.add_group_shape([deck.slides[0].shapes[3]]))),
]
OTHER: list[tuple[Edit, Edit]] = [
    (_boxes("one", "two"), _boxes("one")),
    (_boxes("one", "one"), _boxes("one")),
    (_boxes("one"), _boxes("oone")),
    (_boxes("a b"), _boxes("ab")),
    (_boxes(), lambda deck: deck.slides[0].shapes.add_picture(_png(), 0, 0)),
    (_boxes(), lambda deck: deck.slides[0].shapes.add_table(1, 2, 0, 0, 9, 9)),
    (_boxes(), lambda deck: setattr(deck.slides[0].shapes[TABLE].table.cell(0, 0), "text", "cell")),
    (_boxes("one"), lambda deck: setattr(deck.slides[1].shapes[TITLE], "text", "one")),
]


def test_simple_pptx_compare_contents_in_any_order(tmp_path: Path) -> None:
    for pairs, same in ((SAME, 1.0), (OTHER, 0.0)):
        for one, other in pairs:
            found, gold = _deck(tmp_path / "a.pptx", one), _deck(tmp_path / "b.pptx", other)
            assert metric("simple_pptx_compare")(found, gold) == same
            assert metric("simple_pptx_compare")(gold, found) == same


def test_check_image_stretch_and_center_half_an_inch(tmp_path: Path) -> None:
    def stretched(margin: float) -> Edit:
        def edit(deck: Any) -> None:
            picture = deck.slides[0].shapes[PICTURE]
            picture.left, picture.top = Inches(margin / 2), Inches(margin / 2)
            picture.width, picture.height = deck.slide_width - Inches(margin), deck.slide_height - Inches(margin)

        return edit

    untouched = _deck(tmp_path / "untouched.pptx")
    for margin, same in ((0, 1.0), (0.45, 1.0), (0.55, 0.0)):
        assert metric("check_image_stretch_and_center")(_deck(tmp_path / "a.pptx", stretched(margin)), untouched) == same
