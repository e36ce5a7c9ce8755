"""Metrics over text documents and presentations, with files made here."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import docx
import pptx
import pytest
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_COLOR_INDEX, WD_TAB_ALIGNMENT
from docx.oxml import OxmlElement
from docx.shared import Pt, RGBColor
from PIL import Image
from pptx.util import Inches

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule

Edit = Callable[[Any], Any]


def _doc(place: Path, edit: Edit | None = None, texts: Iterable[str] = ("First line", "Second line")) -> str:
    document = docx.Document()
    for text in texts:
        document.add_paragraph(text)
    if edit is not None:
        edit(document)
    document.save(str(place))
    return str(place)


def _png(color: str = "red", size: tuple[int, int] = (8, 8)) -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, "PNG")
    data.seek(0)
    return data


def _table(*words: tuple[str, RGBColor]) -> Edit:
    def edit(document: Any) -> None:
        cell = document.add_table(rows=1, cols=1).rows[0].cells[0]
        for word, color in words:
            cell.paragraphs[0].add_run(f"{word} ").font.color.rgb = color

    return edit


def _run(**facts: Any) -> Edit:
    """A last paragraph "Last" whose font has these facts."""

    def edit(document: Any) -> None:
        font = document.add_paragraph().add_run("Last").font
        for name, value in facts.items():
            setattr(font, name, value)

    return edit


def _spacing(value: float) -> Edit:
    def edit(document: Any) -> None:
        document.paragraphs[0].paragraph_format.line_spacing = value

    return edit


def _picture(color: str) -> Edit:
    return lambda document: document.add_picture(_png(color))


def _stop(place: int, side: Any = WD_TAB_ALIGNMENT.RIGHT) -> Edit:
    def edit(document: Any) -> None:
        document.paragraphs[0].paragraph_format.tab_stops.add_tab_stop(Pt(place), side)

    return edit


RED, BLUE = RGBColor(255, 0, 0), RGBColor(0, 0, 255)
PAIRS: list[tuple[str, Edit | None, Edit | None, Edit | None]] = [
    # metric, what makes the expected document, one that passes, a near miss
    ("compare_docx_files", None, None, lambda document: document.add_paragraph("more")),
    (
        "compare_docx_files_and_ignore_new_lines",
        None,
        lambda document: document.add_paragraph(""),
        lambda document: document.add_paragraph("x"),
    ),
    (
        "compare_docx_lines",
        None,
        lambda document: document.add_paragraph("First line"),
        lambda document: document.add_paragraph("x"),
    ),
    ("compare_docx_tables", _table(("a", RED)), _table(("a", BLUE)), _table(("b", RED))),
    ("compare_docx_images", _picture("red"), _picture("red"), _picture("blue")),
    ("compare_line_spacing", _spacing(2.0), _spacing(2.0), _spacing(1.5)),
    ("compare_subscript_contains", _run(subscript=True), _run(subscript=True), _run(subscript=False)),
    ("check_highlighted_words", _run(), _run(), _run(highlight_color=WD_COLOR_INDEX.YELLOW)),
    ("evaluate_strike_through_last_paragraph", _run(), _run(strike=True), _run(bold=True)),
    (
        "evaluate_colored_words_in_tables",
        _table(("ink", RED), ("pen", BLUE)),
        _table(("ink", RED), ("pen", BLUE)),
        _table(("ink", RED), ("pen", RED)),
    ),
    ("check_italic_font_size_14", _run(), _run(italic=True, size=Pt(14)), _run(italic=True, size=Pt(12))),
    ("check_tabstops", _stop(200), _stop(200), _stop(200, WD_TAB_ALIGNMENT.LEFT)),
    ("simple_docx_compare", _table(("a", RED)), _table(("a", BLUE)), _table(("a b", RED))),
]


@pytest.mark.parametrize(("name", "gold", "passes", "misses"), PAIRS, ids=[case[0] for case in PAIRS])
def test_docx_pair_pass_and_near_miss(
    name: str, gold: Edit | None, passes: Edit | None, misses: Edit | None, tmp_path: Path
) -> None:
    expected = _doc(tmp_path / "gold.docx", gold)
    assert metric(name)(_doc(tmp_path / "a.docx", passes), expected) == 1.0
    assert metric(name)(_doc(tmp_path / "b.docx", misses), expected) == 0.0
    (tmp_path / "c.docx").write_bytes(b"PK")
    with pytest.raises(BrokenFile):
        metric(name)(str(tmp_path / "c.docx"), expected)


def test_compare_docx_files_options_change_what_counts(tmp_path: Path) -> None:
    compare = metric("compare_docx_files")
    gold = _doc(tmp_path / "gold.docx", texts=["One", "Two"])
    other = _doc(tmp_path / "other.docx", texts=["two", "", "one"])
    assert compare(other, gold, ignore_case=True, ignore_order=True, delete_empty_lines=True, ignore_blanks=False) == 1.0
    assert compare(other, gold, ignore_case=True) == 0.0
    near = _doc(tmp_path / "near.docx", texts=["One", "Twe"])
    assert 0.5 < compare(near, gold, fuzzy_match=True) < 1.0
    assert compare(near, gold, content_only=True, reference_base_result=0.99) == 0.0


def test_compare_docx_files_odt_is_read(tmp_path: Path) -> None:
    from odf.opendocument import OpenDocumentText
    from odf.text import P

    def write(name: str, text: str) -> str:
        document = OpenDocumentText()
        document.text.addElement(P(text=text))
        document.save(str(tmp_path / name))
        return str(tmp_path / name)

    assert metric("compare_docx_files")(write("a.odt", "same"), write("b.odt", "same")) == 1.0
    assert metric("compare_docx_files")(write("c.odt", "other"), write("b.odt", "same")) == 0.0


def test_compare_references_entry_by_entry(tmp_path: Path) -> None:
    gold = _doc(tmp_path / "gold.docx", texts=["Text", "References", "Author A (2020). Title.", "Author B (2021). Title."])
    same = _doc(tmp_path / "a.docx", texts=["Other", "References", "Author A (2020). Title.", "Author B (2021). Title."])
    assert metric("compare_references")(same, gold) == 1.0
    assert metric("compare_references")(_doc(tmp_path / "b.docx", texts=["References", "Author A (2020). Title."]), gold) == 0.0


def test_compare_unique_train_records_one_line_each(tmp_path: Path) -> None:
    initial = _doc(tmp_path / "i.docx", texts=["1,T1,x", "2,T1,x", "3,T2,x"])
    gold = _doc(tmp_path / "g.docx", texts=["1,T1,x", "3,T2,x"])
    compare = metric("compare_unique_train_records")
    assert compare(_doc(tmp_path / "a.docx", texts=["2,T1,x", "3,T2,x"]), [gold, initial]) == 1.0
    assert compare(_doc(tmp_path / "b.docx", texts=["1,T1,x", "2,T1,x", "3,T2,x"]), [gold, initial]) == 0.0
    assert compare(_doc(tmp_path / "c.docx", texts=["9,T1,x", "3,T2,x"]), [gold, initial]) == 0.0


def test_fuzzy_place_math_three_words(tmp_path: Path) -> None:
    rules = {"expected": ["12", "34", "56"]}
    assert metric("fuzzy_place_math")(_doc(tmp_path / "a.docx", texts=["12 34", "56"]), rules) == 1.0
    assert metric("fuzzy_place_math")(_doc(tmp_path / "b.docx", texts=["12 34"]), rules) == 0.0


def test_check_tabstops_number_of_words_before_the_tab(tmp_path: Path) -> None:
    gold = _doc(tmp_path / "g.docx", texts=["a b c\td e"])
    assert metric("check_tabstops")(gold, gold, word_number_split_by_tabstop=3, index=0) == 1.0
    assert metric("check_tabstops")(_doc(tmp_path / "a.docx", texts=["a b\tc d e"]), gold, word_number_split_by_tabstop=3) == 0.0


def test_is_first_line_centered_only_when_it_is(tmp_path: Path) -> None:
    def centre(document: Any) -> None:
        document.paragraphs[0].alignment = WD_ALIGN_PARAGRAPH.CENTER

    assert metric("is_first_line_centered")(_doc(tmp_path / "a.docx", centre)) == 1.0
    assert metric("is_first_line_centered")(_doc(tmp_path / "b.docx")) == 0.0


def test_compare_font_names_every_run(tmp_path: Path) -> None:
    def font(name: str) -> Edit:
        def edit(document: Any) -> None:
            document.styles["Normal"].font.name = "Times New Roman"
            document.add_paragraph().add_run("x").font.name = name

        return edit

    rules = {"font_name": "Times New Roman"}
    assert metric("compare_font_names")(_doc(tmp_path / "a.docx", font("Times New Roman")), rules) == 1.0
    assert metric("compare_font_names")(_doc(tmp_path / "b.docx", font("Arial")), rules) == 0.0


def test_has_page_numbers_in_footers_field_counts(tmp_path: Path) -> None:
    def number(document: Any) -> None:
        field = OxmlElement("w:fldSimple")
        field.set("{http://schemas.openxmlformats.org/wordprocessingml/2006/main}instr", " PAGE ")
        document.sections[0].footer.paragraphs[0]._p.append(field)

    def text(document: Any) -> None:
        document.sections[0].footer.paragraphs[0].text = "page"

    assert metric("has_page_numbers_in_footers")(_doc(tmp_path / "a.docx", number)) == 1.0
    assert metric("has_page_numbers_in_footers")(_doc(tmp_path / "b.docx", text)) == 0.0


def test_contains_page_break_counts_them(tmp_path: Path) -> None:
    broken = _doc(tmp_path / "a.docx", lambda document: document.add_page_break())
    assert metric("contains_page_break")(broken) == 1.0
    assert metric("contains_page_break")(broken, {"page_break_count": 2}) == 0.0
    assert metric("contains_page_break")(_doc(tmp_path / "b.docx")) == 0.0


# --- presentations ---------------------------------------------------------------------------------------------------


def _deck(place: Path, edit: Edit | None = None) -> str:
    """One slide with a title and a text box of two paragraphs."""
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Title"
    box = slide.shapes.add_textbox(Inches(1), Inches(2), Inches(4), Inches(1)).text_frame
    box.text = "one"
    box.add_paragraph().text = "two"
    if edit is not None:
        edit(deck)
    deck.save(str(place))
    return str(place)


def _box(deck: Any) -> Any:
    return deck.slides[0].shapes[1]


def _font(name: str, value: Any) -> Edit:
    return lambda deck: setattr(_box(deck).text_frame.paragraphs[0].runs[0].font, name, value)


def _color(deck: Any) -> None:
    _box(deck).text_frame.paragraphs[0].runs[0].font.color.rgb = pptx.dml.color.RGBColor(255, 0, 0)


def _fill(red: int, green: int, blue: int) -> Edit:
    def edit(deck: Any) -> None:
        fill = deck.slides[0].background.fill
        fill.solid()
        fill.fore_color.rgb = pptx.dml.color.RGBColor(red, green, blue)

    return edit


def _note(text: str) -> Edit:
    return lambda deck: setattr(deck.slides[0].notes_slide.notes_text_frame, "text", text)


def _bullet(deck: Any) -> None:
    properties = _box(deck).text_frame.paragraphs[0]._p.get_or_add_pPr()
    properties.append(properties.makeelement("{http://schemas.openxmlformats.org/drawingml/2006/main}buChar", {"char": "*"}))


def _strike(deck: Any) -> None:
    _box(deck).text_frame.paragraphs[0].runs[0]._r.get_or_add_rPr().set("strike", "sngStrike")


ASPECTS: list[tuple[str, Edit]] = [
    ("number_of_slides", lambda deck: deck.slides.add_slide(deck.slide_layouts[6])),
    ("shape", lambda deck: setattr(_box(deck), "left", Inches(3))),
    ("text", lambda deck: setattr(_box(deck).text_frame.paragraphs[1].runs[0], "text", "tvo")),
    ("indent", lambda deck: setattr(_box(deck).text_frame.paragraphs[0], "level", 1)),
    ("font_name", _font("name", "Arial")),
    ("font_size", _font("size", Pt(40))),
    ("font_bold", _font("bold", True)),
    ("font_italic", _font("italic", True)),
    ("font_underline", _font("underline", True)),
    ("color_rgb", _color),
    ("strike_through", _strike),
    ("alignment", lambda deck: setattr(_box(deck).text_frame.paragraphs[0], "alignment", pptx.enum.text.PP_ALIGN.RIGHT)),
    ("bullets", _bullet),
    ("background_color", _fill(1, 2, 3)),
    ("note", _note("Remember")),
]


@pytest.mark.parametrize(("aspect", "change"), ASPECTS, ids=[case[0] for case in ASPECTS])
def test_compare_pptx_files_aspect_counts_unless_switched_off(aspect: str, change: Edit, tmp_path: Path) -> None:
    gold, same, other = _deck(tmp_path / "gold.pptx"), _deck(tmp_path / "a.pptx"), _deck(tmp_path / "b.pptx", change)
    assert metric("compare_pptx_files")(same, gold) == 1.0
    assert metric("compare_pptx_files")(other, gold) == 0.0
    assert metric("compare_pptx_files")(other, gold, **{f"examine_{aspect}": False}) == 1.0


@pytest.mark.parametrize("aspect", ["shape_for_shift_size", "image_size", "modify_height"])
def test_compare_pptx_files_positions_on_demand(aspect: str, tmp_path: Path) -> None:
    def moved(deck: Any) -> None:
        deck.slides[0].shapes.title.top = Inches(6)
        _box(deck).left, _box(deck).top = Inches(8), Inches(0.2)
        deck.slides[0].shapes.add_picture(_png(), 0, 0, height=Inches(2))

    def untouched(deck: Any) -> None:
        _box(deck).top = Inches(6)
        deck.slides[0].shapes.add_picture(_png(), 0, 0, height=Inches(1))

    gold, good, bad = (_deck(tmp_path / f"{index}.pptx", edit) for index, edit in enumerate((moved, moved, untouched)))
    options = {"examine_shape": False, f"examine_{aspect}": True, "_note": "a remark"}
    assert metric("compare_pptx_files")(good, gold, **options) == 1.0
    assert metric("compare_pptx_files")(bad, gold, **options) == 0.0


def test_compare_pptx_files_unknown_option_is_a_bad_rule(tmp_path: Path) -> None:
    deck = _deck(tmp_path / "a.pptx")
    with pytest.raises(BadRule):
        metric("compare_pptx_files")(deck, deck, examine_smell=True)


def test_simple_pptx_compare_text_not_looks(tmp_path: Path) -> None:
    gold = _deck(tmp_path / "gold.pptx")
    assert metric("simple_pptx_compare")(_deck(tmp_path / "a.pptx", _font("bold", True)), gold) == 1.0
    assert metric("simple_pptx_compare")(_deck(tmp_path / "b.pptx", ASPECTS[2][1]), gold) == 0.0


def test_evaluate_presentation_fill_to_rgb_distance_exact_far_and_untouched(tmp_path: Path) -> None:
    judge = metric("evaluate_presentation_fill_to_rgb_distance")
    rules = {"rgb": [0, 0, 255], "original_rgb": [255, 255, 255]}
    assert judge(_deck(tmp_path / "a.pptx", _fill(0, 0, 255)), rules) == 1.0
    assert 0.5 < judge(_deck(tmp_path / "b.pptx", _fill(0, 0, 128)), rules) < 1.0
    assert judge(_deck(tmp_path / "c.pptx", _fill(255, 255, 255)), rules) == 0.0


def test_check_slide_orientation_portrait_higher_than_wide(tmp_path: Path) -> None:
    def turn(deck: Any) -> None:
        deck.slide_width, deck.slide_height = deck.slide_height, deck.slide_width

    assert metric("check_slide_orientation_Portrait")(_deck(tmp_path / "a.pptx", turn)) == 1.0
    assert metric("check_slide_orientation_Portrait")(_deck(tmp_path / "b.pptx")) == 0.0


def _xml(tag: str, text: str) -> Edit:
    from lxml import etree

    def edit(deck: Any) -> None:
        spaces = (
            'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
            'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
        )
        node = etree.fromstring(f"<{tag} {spaces}>{text}</{tag}>")
        parent = deck.slides[0]._element if tag == "p:transition" else _box(deck).text_frame.paragraphs[0]._p
        parent.append(node)

    return edit


def test_check_transition_kind_and_slide(tmp_path: Path) -> None:
    deck = _deck(tmp_path / "a.pptx", _xml("p:transition", "<p:dissolve/>"))
    assert metric("check_transition")(deck, {"slide_idx": 0, "transition_type": "dissolve"}) == 1.0
    assert metric("check_transition")(deck, {"slide_idx": 0, "transition_type": "fade"}) == 0.0
    assert metric("check_transition")(deck, {"slide_idx": 1, "transition_type": "dissolve"}) == 0.0


def test_check_page_number_colors_number_fields_only(tmp_path: Path) -> None:
    def number(color: str) -> Edit:
        def edit(deck: Any) -> None:
            text = f'<a:rPr lang="en"><a:solidFill><a:srgbClr val="{color}"/></a:solidFill></a:rPr><a:t>1</a:t>'
            _xml("a:fld", text)(deck)
            _box(deck).text_frame.paragraphs[0]._p[-1].set("type", "slidenum")

        return edit

    assert metric("check_page_number_colors")(_deck(tmp_path / "a.pptx", number("F00000")), {"color": "red"}) == 1.0
    assert metric("check_page_number_colors")(_deck(tmp_path / "b.pptx", number("0000F0")), {"color": "red"}) == 0.0
    assert metric("check_page_number_colors")(_deck(tmp_path / "c.pptx", _color), {"color": "red"}) == 0.0


def test_check_image_stretch_and_center_fills_the_slide(tmp_path: Path) -> None:
    def picture(*, whole: bool) -> Edit:
        def edit(deck: Any) -> None:
            box = (0, 0, deck.slide_width, deck.slide_height) if whole else (0, 0, deck.slide_width // 2, deck.slide_height)
            deck.slides[0].shapes.add_picture(_png(), *box)

        return edit

    gold = _deck(tmp_path / "gold.pptx", picture(whole=False))
    assert metric("check_image_stretch_and_center")(_deck(tmp_path / "a.pptx", picture(whole=True)), gold) == 1.0
    assert metric("check_image_stretch_and_center")(gold, gold) == 0.0
