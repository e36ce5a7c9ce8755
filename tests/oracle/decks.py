"""Presentations."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pptx
from lxml import etree
from PIL import Image
from pptx.dml.color import RGBColor
from pptx.enum.dml import MSO_THEME_COLOR
from pptx.enum.text import PP_ALIGN
from pptx.util import Emu, Inches, Pt

from tests.oracle.pairs import Judge, Pair, broken, each_alone, each_with_base, write

Edit = Callable[[Any], Any]
A, P = (f"http://schemas.openxmlformats.org/{name}/2006/main" for name in ("drawingml", "presentationml"))
TITLE, BOX, PICTURE, TABLE = range(4)


def _png() -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(data, "PNG")
    data.seek(0)
    return data


def deck(*edits: Edit) -> Callable[[Path], Any]:
    """Writes three slides with a title, a text box of two paragraphs, a picture and a table each, edited."""

    def write_deck(place: Path) -> None:
        presentation = pptx.Presentation()
        for number in range(3):
            shapes = presentation.slides.add_slide(presentation.slide_layouts[5]).shapes
            shapes.title.text = "Product Comparison" if number == 1 else f"Slide {number}"
            shapes.title.left, shapes.title.top, shapes.title.width, shapes.title.height = map(Inches, (0.5, 0.2, 8, 0.5))
            frame = shapes.add_textbox(Inches(1), Inches(1), Inches(3), Inches(1)).text_frame
            frame.text = "one line"
            frame.add_paragraph().text = "two"
            shapes.add_picture(_png(), Inches(1), Inches(4), Inches(1), Inches(1))
            shapes.add_table(1, 2, Inches(1), Inches(2.5), Inches(4), Inches(1)).table.cell(0, 0).text = "cell"
        for edit in edits:
            edit(presentation)
        presentation.save(str(place))

    return write_deck


def _shape(slide: int, number: int, **facts: float) -> Edit:
    def edit(presentation: Any) -> None:
        for name, value in facts.items():
            setattr(presentation.slides[slide].shapes[number], name, Inches(value))

    return edit


def _paragraph(presentation: Any, number: int = 0) -> Any:
    return presentation.slides[0].shapes[BOX].text_frame.paragraphs[number]


def _font(name: str, value: Any) -> Edit:
    return lambda presentation: setattr(_paragraph(presentation).runs[0].font, name, value)


def _colour(value: RGBColor | None = None) -> Edit:
    def edit(presentation: Any) -> None:
        color = _paragraph(presentation).runs[0].font.color
        if value is None:
            color.theme_color = MSO_THEME_COLOR.ACCENT_1
        else:
            color.rgb = value

    return edit


def _fill(*colour: int, slides: int = 3) -> Edit:
    def edit(presentation: Any) -> None:
        for slide in list(presentation.slides)[:slides]:
            slide.background.fill.solid()
            slide.background.fill.fore_color.rgb = RGBColor(*colour)

    return edit


def _bullet(char: str) -> Edit:
    def edit(presentation: Any) -> None:
        etree.SubElement(_paragraph(presentation)._p.get_or_add_pPr(), f"{{{A}}}buChar", char=char)

    return edit


def _group(presentation: Any, **facts: float) -> None:
    shapes = presentation.slides[0].shapes
    group = shapes.add_group_shape([shapes[BOX]])
    for name, value in facts.items():
        setattr(group, name, Inches(value))


def _cut(presentation: Any) -> None:
    paragraph = _paragraph(presentation)
    paragraph.runs[0].text = "one "
    paragraph.add_run().text = "line"


def _transition(kind: str) -> Edit:
    return lambda presentation: etree.SubElement(
        etree.SubElement(presentation.slides[0]._element, f"{{{P}}}transition"), f"{{{P}}}{kind}"
    )


def _turn(presentation: Any) -> None:
    presentation.slide_width, presentation.slide_height = presentation.slide_height, presentation.slide_width


def _stretched(share: float, *, centred: bool = True) -> Edit:
    def edit(presentation: Any) -> None:
        picture = presentation.slides[0].shapes[PICTURE]
        width, height = presentation.slide_width, presentation.slide_height
        picture.width, picture.height = Emu(int(width * share)), Emu(int(height * share))
        picture.left, picture.top = (Emu(int((full - full * share) / 2)) if centred else Emu(0) for full in (width, height))

    return edit


def _number(colour: str) -> Edit:
    """Slide numbers of the master in a colour, with another colour after it as applications write it."""

    def edit(presentation: Any) -> None:
        tree = presentation.slide_masters[0].shapes._spTree
        for holder, value in (("fld", colour), ("r", "000000")):
            body = etree.SubElement(etree.SubElement(tree, f"{{{P}}}sp"), f"{{{P}}}txBody")
            paragraph = etree.SubElement(body, f"{{{A}}}p")
            run = etree.SubElement(paragraph, f"{{{A}}}{holder}", **({"type": "slidenum"} if holder == "fld" else {}))
            fill = etree.SubElement(etree.SubElement(run, f"{{{A}}}rPr"), f"{{{A}}}solidFill")
            etree.SubElement(fill, f"{{{A}}}srgbClr", val=value)
            etree.SubElement(run, f"{{{A}}}t").text = "1"

    return edit


def _last_slide_off(presentation: Any) -> None:
    numbers = presentation.slides._sldIdLst
    numbers.remove(numbers[-1])


DECKS: dict[str, Any] = {
    "base": deck(),
    "text": deck(lambda deck: setattr(_paragraph(deck).runs[0], "text", "one lime")),
    "blanks": deck(lambda deck: setattr(_paragraph(deck).runs[0], "text", "one line ")),
    "cut into runs": deck(_cut),
    "paragraph more": deck(lambda deck: deck.slides[0].shapes[BOX].text_frame.add_paragraph()),
    "cell": deck(lambda deck: setattr(deck.slides[0].shapes[TABLE].table.cell(0, 0), "text", "cells")),
    "moved box": deck(_shape(0, BOX, left=3)),
    "moved box a little": deck(_shape(0, BOX, left=1.002)),
    "box at the edge": deck(_shape(0, BOX, left=0)),
    "wider box": deck(_shape(0, BOX, width=4)),
    "higher box": deck(_shape(0, BOX, height=2)),
    "moved picture": deck(_shape(0, PICTURE, left=3)),
    "larger picture": deck(_shape(0, PICTURE, width=2, height=2)),
    "higher picture": deck(_shape(0, PICTURE, height=2)),
    "moved table": deck(_shape(0, TABLE, left=3)),
    "title of the second slide at the bottom": deck(_shape(1, TITLE, top=6)),
    "title of the second slide a bit lower": deck(_shape(1, TITLE, top=1)),
    "title of the first slide at the bottom": deck(_shape(0, TITLE, top=6)),
    "table of the third slide at the bottom": deck(_shape(2, TABLE, top=6)),
    "table of the second slide at the bottom": deck(_shape(1, TABLE, top=6)),
    "picture of the second slide at the top": deck(_shape(1, PICTURE, top=0.5)),
    "picture of the second slide lower": deck(_shape(1, PICTURE, top=6)),
    "picture and table of the second slide right": deck(_shape(1, PICTURE, left=6), _shape(1, TABLE, left=5)),
    "picture of the second slide right": deck(_shape(1, PICTURE, left=6)),
    "font": deck(_font("name", "Arial")),
    "size": deck(_font("size", Pt(40))),
    "bold": deck(_font("bold", True)),
    "not bold": deck(_font("bold", False)),
    "italic": deck(_font("italic", True)),
    "underlined": deck(_font("underline", True)),
    "not underlined": deck(_font("underline", False)),
    "colour": deck(_colour(RGBColor(255, 0, 0))),
    "theme colour": deck(_colour()),
    "struck": deck(lambda deck: _paragraph(deck).runs[0]._r.get_or_add_rPr().set("strike", "sngStrike")),
    "right": deck(lambda deck: setattr(_paragraph(deck), "alignment", PP_ALIGN.RIGHT)),
    "left": deck(lambda deck: setattr(_paragraph(deck), "alignment", PP_ALIGN.LEFT)),
    "indented": deck(lambda deck: setattr(_paragraph(deck), "level", 1)),
    "bullet": deck(_bullet("*")),
    "other bullet": deck(_bullet("-")),
    "blue": deck(_fill(0, 0, 255)),
    "nearly blue": deck(_fill(0, 0, 200)),
    "red": deck(_fill(255, 0, 0)),
    "one blue": deck(_fill(0, 0, 255, slides=1)),
    "note": deck(lambda deck: setattr(deck.slides[0].notes_slide.notes_text_frame, "text", "Remember")),
    "empty note": deck(lambda deck: deck.slides[0].notes_slide),
    "slide less": deck(_last_slide_off),
    "slide more": deck(lambda deck: deck.slides.add_slide(deck.slide_layouts[6])),
    "box more": deck(lambda deck: deck.slides[0].shapes.add_textbox(0, 0, Inches(1), Inches(1))),
    "group": deck(_group),
    "moved group": deck(lambda deck: _group(deck, left=4)),
    "upright": deck(_turn),
    "dissolve": deck(_transition("dissolve")),
    "fade": deck(_transition("fade")),
    "picture over the slide": deck(_stretched(1)),
    "picture nearly over the slide": deck(_stretched(0.96)),
    "picture over three quarters": deck(_stretched(0.75)),
    "picture not in the middle": deck(_stretched(0.9, centred=False)),
    "red numbers": deck(_number("FF0000")),
    "dark red numbers": deck(_number("A01010")),
    "blue numbers": deck(_number("0000FF")),
    "black numbers": deck(_number("101010")),
}
OFF = {"examine_shape": False}
SWITCHES = {
    "text": "text|cell|blanks",
    "indent": "indented",
    "font_name": "^font",
    "font_size": "^size",
    "font_bold": "bold",
    "font_italic": "italic",
    "color_rgb": "colour",
    "font_underline": "underlined",
    "strike_through": "struck",
    "alignment": "^right|^left",
    "bullets": "bullet",
    "background_color": "blue|red",
    "note": "note",
    "number_of_slides": "slide",
}
PLACES = {
    "shape_for_shift_size": "box|picture",
    "image_size": "picture",
    "modify_height": "higher|moved",
    "title_bottom_position": "title",
    "table_bottom_position": "table",
    "right_position": "right",
    "top_position": "picture of",
}
"""Option -> pattern of the presentations that it is about."""


def decks(folder: Path) -> Iterator[Pair]:
    """Presentations."""
    deck()(folder / "whole.pptx")
    files = write(folder / "decks", ".pptx", {**DECKS, **broken((folder / "whole.pptx").read_bytes())})
    options: list[tuple[str, dict[str, Any], str]] = [
        ("", {}, "."),
        ("no shape", OFF, "moved|wider|higher"),
        ("tolerance", {"approximately_tolerance": 0.1}, "little|wider"),
    ]
    options += [(f"no {name}", {f"examine_{name}": False}, about) for name, about in SWITCHES.items()]
    options += [(name, {**OFF, f"examine_{name}": True}, about) for name, about in PLACES.items()]
    judges = [
        Judge("compare_pptx_files", {**facts, "enable_debug": False}, word=word, about=about) for word, facts, about in options
    ]
    judges.append(Judge("check_image_stretch_and_center", about="picture"))
    yield from each_with_base(judges, files, every=60)
    yield from each_alone(
        (
            Judge("check_slide_orientation_Portrait"),
            *(Judge("check_page_number_colors", rules={"color": name}, word=name) for name in ("red", "blue", "black")),
            Judge("check_transition", rules={"slide_idx": 0, "transition_type": "dissolve"}),
            Judge("check_transition", rules={"slide_idx": 9, "transition_type": "dissolve"}, word="no slide"),
            Judge("evaluate_presentation_fill_to_rgb_distance", rules={"rgb": [0, 0, 255], "original_rgb": [255, 0, 0]}),
            Judge("evaluate_presentation_fill_to_rgb_distance", rules={"rgb": [0, 0, 255]}, word="no original"),
        ),
        files,
        every=6,
    )
