"""Writer's API on one real desktop: every method's effect read back from the saved file, and what bad arguments give."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from docx import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.oxml.ns import qn
from docx.shared import Pt, RGBColor
from odf import text
from odf.opendocument import OpenDocumentText, load

from computerrl.common.actions import parse_action
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver
from tests.support.data.office_files import NUM_LINES, lines, picture, report, written
from tests.support.desktops import SharedDesktops

MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> GuestDriver:
    return shared_desktops.get("full").driver


LINE = "The red fox jumps over the lazy dog."
shared = {"used": NUM_LINES}
"""How many lines of the document of lines were given out; all of them when another one is open."""


def open_report(desktop: GuestDriver, data: bytes | None = None) -> Observation:
    shared["used"] = NUM_LINES
    steps = (
        SetupStep("put_file", {"path": "report.docx", "data": data or report()}),
        SetupStep("put_file", {"path": "red.png", "data": picture(60, 30)}),
        SetupStep("write_file", {"path": "no.png", "text": "no picture"}),
        SetupStep("make_folder", {"path": "out"}),
        SetupStep("open", {"path": "report.docx"}),
    )
    task = TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    return desktop.reset(task)[1]


@pytest.fixture
def line(desktop: GuestDriver) -> int:
    """The number of a paragraph that no test has touched: opening a document for each test would take most of the time."""
    if shared["used"] >= NUM_LINES:
        open_report(desktop, lines())
        shared["used"] = 0
    shared["used"] += 1
    return shared["used"] - 1


def act(desktop: GuestDriver, call: str) -> str:
    result = desktop.step(parse_action(call))
    assert result.action_error == "", (call, result.action_error)
    return result.observation.result


def saved(desktop: GuestDriver):
    act(desktop, "writer.save()")
    return Document(io.BytesIO(desktop.get("file_bytes", path="report.docx")))


def with_look(paragraph, has: Callable[..., bool]) -> str:
    """The text of the runs that look so."""
    return "".join(run.text for run in paragraph.runs if has(run.font))


def is_bold(font) -> bool:
    return bool(font.bold)


# --- what is on screen ---


def test_opened_document_shows_its_paragraphs_and_not_the_sheet_behind_it(desktop: GuestDriver) -> None:
    shown = open_report(desktop)
    assert shown.app == "writer" and "report.docx" in shown.window_title
    content = [element.text for element in shown.elements if element.in_content]
    assert content == ["annual report", LINE, "Total: 42 apples and 7 pears at NASA's shop", "last line", "red cell", "blue cell"]
    assert not any("disabled" in element.states for element in shown.elements if element.in_content)
    target = next(element for element in shown.elements if element.text == "last line")
    act(desktop, f"click({target.number})")
    said = act(desktop, "writer.env_info()").split("\n")
    assert said[:3] == ["report.docx: 5 paragraphs; cursor in paragraph 4", "0: annual report", f"1: {LINE}"]
    assert said[-2:] == ["table 1 A1: red cell", "table 1 B1: blue cell"]
    act(desktop, 'key("end")')
    act(desktop, 'type(" typed")')
    assert saved(desktop).paragraphs[4].text == "last line typed"


def test_dialog_is_shown_first_and_belongs_to_writer(desktop: GuestDriver, line: int) -> None:
    shown = desktop.step(parse_action('key("ctrl+h")')).observation
    assert shown.app == "writer"
    assert any("find" in element.text.lower() for element in shown.elements[:12]), shown.elements[:12]
    assert open_report(desktop).app == "writer"


def test_reset_closes_changed_documents_and_the_sheet_is_back(desktop: GuestDriver, line: int) -> None:
    act(desktop, 'type("unsaved")')
    shared["used"] = NUM_LINES
    sheet = SetupStep("calc_open", {"cells": {"A1": "cell"}, "active_cell": "A1"})
    task = TaskInstance("x", (sheet,), lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    shown = desktop.reset(task)[1]
    assert shown.app == "calc" and "cell" in [element.text for element in shown.elements]
    assert "not open" in desktop.step(parse_action("writer.env_info()")).action_error


def test_closed_document_is_named_in_the_error(desktop: GuestDriver, line: int) -> None:
    act(desktop, "writer.save()")
    desktop.step(parse_action('key("ctrl+w")'))
    shared["used"] = NUM_LINES
    assert "no document is open in writer" in desktop.step(parse_action("writer.save()")).action_error
    assert "no window" in desktop.step(parse_action('apps.switch("writer")')).action_error


def test_odt_opens_and_is_saved_in_its_own_format(desktop: GuestDriver) -> None:
    shared["used"] = NUM_LINES
    document, stream = OpenDocumentText(), io.BytesIO()
    for number in range(2):
        document.text.addElement(text.P(text=f"open line {number}"))
    document.save(stream)
    steps = SetupStep("put_file", {"path": "note.odt", "data": stream.getvalue()}), SetupStep("open", {"path": "note.odt"})
    task = TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    shown = desktop.reset(task)[1]
    assert (shown.app, [e.text for e in shown.elements if e.in_content]) == ("writer", ["open line 0", "open line 1"])
    act(desktop, 'writer.find_and_replace("open", "closed", [1])')
    assert act(desktop, "writer.save()") == "saved note.odt"
    found = load(io.BytesIO(desktop.get("file_bytes", path="note.odt"))).getElementsByType(text.P)
    assert [str(paragraph) for paragraph in found] == ["open line 0", "closed line 1"]


# --- text ---


def test_env_info_of_a_long_document_is_short_and_says_what_is_missing(desktop: GuestDriver) -> None:
    document = Document()
    for number in range(120):
        document.add_paragraph(f"{number} " + "words " * 40)
    open_report(desktop, written(document))
    said = act(desktop, "writer.env_info()")
    assert len(said) <= 1500 and re.search(r"\d+ more paragraphs left out", said)


def test_write_text_writes_formatted_paragraphs_at_the_cursor(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'key("ctrl+home")')
    act(desktop, 'key("shift+end")')
    act(desktop, 'writer.write_text("in place of a selection\\nB\U0001f600 new", bold=True, italic=True, size=20)')
    act(desktop, 'writer.write_text(" plain")')
    first, second = saved(desktop).paragraphs[:2]
    assert (first.text, second.text) == ("in place of a selection", "B\U0001f600 new plain")
    for paragraph, styled in ((first, first.text), (second, "B\U0001f600 new")):
        assert with_look(paragraph, lambda font: bool(font.bold and font.italic) and font.size == Pt(20)) == styled


def test_find_and_replace_everywhere_keeps_formatting_and_knows_groups(desktop: GuestDriver) -> None:
    open_report(desktop)
    said = act(desktop, 'writer.find_and_replace("(r)ed|(fox) jumps", "\\\\1\\\\2!")')
    assert said == "replaced: 3 matches in 2 paragraphs"
    document = saved(desktop)
    assert document.paragraphs[1].text == "The r! fox! over the lazy dog."
    assert with_look(document.paragraphs[1], is_bold) == " over"
    assert document.tables[0].cell(0, 0).text == "r! cell"


def test_find_and_replace_of_a_whole_run_keeps_its_formatting_and_other_paragraphs(desktop: GuestDriver, line: int) -> None:
    act(desktop, f'writer.find_and_replace("jumps over", "leaps far across", [{line}])')
    act(desktop, f'writer.find_and_replace("l|^The ", "", [{line}])')
    assert act(desktop, f'writer.find_and_replace("cat", "cow", [{line}])') == "no match, nothing changed"
    paragraphs = saved(desktop).paragraphs
    assert paragraphs[line].text == "red fox eaps far across the azy dog."
    assert with_look(paragraphs[line], is_bold) == "eaps far across"
    assert line + 1 == NUM_LINES or paragraphs[line + 1].text == LINE


def test_change_text_case_of_matches(desktop: GuestDriver, line: int) -> None:
    act(desktop, f'writer.change_text_case("uppercase", "fox jumps|dog", [{line}])')
    act(desktop, f'writer.change_text_case("lowercase", "T|O", [{line}])')
    paragraph = saved(desktop).paragraphs[line]
    assert paragraph.text == "the red FoX JUMPS over the lazy DoG."
    assert with_look(paragraph, is_bold) == "JUMPS over"


def test_capitalize_words_leaves_other_letters(desktop: GuestDriver, line: int) -> None:
    act(desktop, f'writer.find_and_replace("red", "NASA\'s", [{line}])')
    assert act(desktop, f"writer.capitalize_words([{line}])") == "changed 1 paragraph"
    paragraph = saved(desktop).paragraphs[line]
    assert paragraph.text == "The NASA's Fox Jumps Over The Lazy Dog."
    assert with_look(paragraph, is_bold) == "Jumps Over"


# --- looks ---


def test_looks_of_matches_also_in_tables(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, 'writer.set_color("\\\\bred\\\\b", "#FF0000")') == "2 matches in 2 paragraphs"
    act(desktop, 'writer.set_font_size(14.5, "fox jumps", [1])')
    act(desktop, 'writer.set_strikethrough(".+", [4])')
    document = saved(desktop)
    red = RGBColor(255, 0, 0)
    assert with_look(document.paragraphs[1], lambda font: font.color.rgb == red) == "red"
    assert with_look(document.tables[0].cell(0, 0).paragraphs[0], lambda font: font.color.rgb == red) == "red"
    assert with_look(document.paragraphs[1], lambda font: font.size == Pt(14.5)) == "fox jumps"
    assert with_look(document.paragraphs[4], lambda font: bool(font.strike)) == "last line"
    assert with_look(document.paragraphs[3], lambda font: bool(font.strike)) == ""


def test_set_font_spacing_and_alignment_of_paragraphs(desktop: GuestDriver, line: int) -> None:
    act(desktop, f'writer.set_font("DejaVu Sans", [{line}])')
    act(desktop, f"writer.set_line_spacing(1.5, [{line}])")
    for side in ("center", "right", "justify"):
        act(desktop, f'writer.set_paragraph_alignment("{side}", [{line}])')
        paragraph = saved(desktop).paragraphs[line]
        assert paragraph.alignment == WD_ALIGN_PARAGRAPH[side.upper()]
    assert with_look(paragraph, lambda font: font.name == "DejaVu Sans") == LINE
    assert paragraph.paragraph_format.line_spacing == 1.5
    others = [other for index, other in enumerate(saved(desktop).paragraphs) if index != line]
    assert not any(other.paragraph_format.line_spacing == 1.5 or other.alignment for other in others)


def test_set_line_spacing_of_all_paragraphs(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, "writer.set_line_spacing(2)") == "set on 7 paragraphs"
    assert {p.paragraph_format.line_spacing for p in saved(desktop).paragraphs} == {2.0}


def test_set_default_font_leaves_what_is_there_and_new_text_has_it(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.set_default_font("DejaVu Sans", 15)')
    document = saved(desktop)
    normal = document.styles["Normal"].font
    assert (normal.name, normal.size) == ("DejaVu Sans", Pt(15))
    for paragraph in document.paragraphs:
        for run in (run for run in paragraph.runs if run.text):
            assert (run.font.name or paragraph.style.font.name) not in (None, "DejaVu Sans"), run.text
    act(desktop, 'key("ctrl+home")')
    act(desktop, 'writer.set_default_font("DejaVu Serif")')
    act(desktop, 'writer.write_text("NEW ")')
    assert with_look(saved(desktop).paragraphs[0], lambda font: font.name == "DejaVu Serif") == "NEW "


def test_highlighted_text_is_found_and_removed(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, 'writer.find_highlighted_text("yellow")') == "1: lazy"
    assert act(desktop, 'writer.find_highlighted_text("#00FF00")') == "1: dog"
    assert "nothing" in act(desktop, 'writer.find_highlighted_text("red")')
    assert act(desktop, "writer.remove_highlighting([0, 3])") == "took highlighting from 0 places"
    assert act(desktop, "writer.remove_highlighting()") == "took highlighting from 2 places"
    document = saved(desktop)
    assert not list(document.element.iter(qn("w:highlight"))) and document.paragraphs[1].text == LINE


# --- insertions ---


def test_formula_and_images_at_the_cursor_are_in_the_file(desktop: GuestDriver, line: int) -> None:
    act(desktop, 'writer.insert_formula_at_cursor("{a+b} over {c}")')
    assert "60 x 30 pixels" in act(desktop, 'writer.insert_image_at_cursor("red.png")')
    act(desktop, 'writer.insert_image_at_cursor("red.png", 96, 48)')
    act(desktop, 'writer.insert_image_at_cursor("red.png", width=120)')
    document = saved(desktop)
    sizes = [(round(shape.width / 9525), round(shape.height / 9525)) for shape in document.inline_shapes]
    assert sizes == [(60, 30), (96, 48), (120, 60)]
    fraction = next(document.element.iter(f"{MATH}f"))
    assert "".join(part.text for part in fraction.iter(f"{MATH}t")).replace(" ", "") == "a+bc"


def test_insert_page_break_at_the_cursor_and_behind_a_table_at_the_end_but_not_inside(desktop: GuestDriver) -> None:
    shown = open_report(desktop)
    act(desktop, f"click({next(element.number for element in shown.elements if element.text == 'blue cell')})")
    assert "no page break is possible" in desktop.step(parse_action("writer.insert_page_break()")).action_error
    act(desktop, f"click({next(element.number for element in shown.elements if element.text == 'annual report')})")
    act(desktop, 'key("home")')
    act(desktop, "writer.insert_page_break()")
    act(desktop, 'writer.write_text("second ")')
    act(desktop, 'writer.insert_page_break("end_of_document")')
    act(desktop, 'writer.write_text("third")')
    document = saved(desktop)
    assert [p.text.strip() for p in document.paragraphs][:2] == ["", "second annual report"]
    assert document.paragraphs[-1].text.strip() == "third"
    breaks = [item for item in document.element.iter(qn("w:br")) if item.get(qn("w:type")) == "page"]
    assert len(breaks) + len(list(document.element.iter(qn("w:pageBreakBefore")))) == 2


def test_add_page_numbers_puts_fields_into_header_and_footer_once(desktop: GuestDriver) -> None:
    open_report(desktop)
    for position, start, name, shown in (
        ("bottom_center", 1, "arabic", "1"),
        ("top_right", 4, "roman", "iv"),
        ("bottom_left", 2, "ALPHABETIC", "B"),
    ):
        act(desktop, f'writer.add_page_numbers("{position}", {start}, "{name}")')
        section = saved(desktop).sections[0]
        place, side = position.split("_")
        paragraphs = [p for p in (section.footer if place == "bottom" else section.header).paragraphs if p.text.strip()]
        assert [p.text.strip() for p in paragraphs] == [shown]
        assert paragraphs[0].alignment in (WD_ALIGN_PARAGRAPH[side.upper()], None if side == "left" else ...)
        assert "PAGE" in "".join(code.text for code in paragraphs[0]._p.iter(qn("w:instrText")))
        number = section._sectPr.find(qn("w:pgNumType"))
        assert start == 1 or number.get(qn("w:start")) == str(start)


def test_export_to_pdf_beside_the_document_and_elsewhere(desktop: GuestDriver, line: int) -> None:
    assert act(desktop, "writer.export_to_pdf()").startswith("exported report.pdf")
    act(desktop, 'writer.export_to_pdf("out", "copy", True, 50)')
    act(desktop, 'writer.export_to_pdf("out/other.pdf")')
    for path in ("report.pdf", "out/copy.pdf", "out/other.pdf"):
        assert desktop.get("file_bytes", path=path).startswith(b"%PDF-")
    assert act(desktop, "writer.save()") == "saved report.docx"


# --- what does not work ---

BAD = {
    'find_and_replace("(", "x")': "no pattern that can be used",
    'find_and_replace("", "x")': "pattern is empty",
    'find_and_replace("red", "\\\\2")': "invalid group reference",
    'find_and_replace("red", "x", [99])': "there is no paragraph 99",
    'find_and_replace("red", "x", [-1])': "there is no paragraph -1",
    'find_and_replace("red", "x", [])': "paragraph_indices is empty",
    'set_color("red", "reddish")': "no colour",
    'set_color("[", "red")': "no pattern that can be used",
    'set_font("  ")': "font name is needed",
    'set_font("Arial", [7])': "there is no paragraph 7",
    'set_font_size(0, "red")': "font size is between",
    'set_font_size(12, "*")': "no pattern that can be used",
    'set_default_font("", 12)': "font name is needed",
    'set_default_font("Arial", 5000)': "font size is between",
    'set_strikethrough("a**")': "no pattern that can be used",
    "capitalize_words([50])": "there is no paragraph 50",
    'change_text_case("uppercase", "(?P<")': "no pattern that can be used",
    "set_line_spacing(0)": "line spacing is between",
    "set_line_spacing(1.5, [5])": "there is no paragraph 5",
    'set_paragraph_alignment("left", [5])': "there is no paragraph 5",
    "remove_highlighting([5])": "there is no paragraph 5",
    'find_highlighted_text("brightish")': "no colour",
    'write_text("x", size=0)': "font size is between",
    'insert_formula_at_cursor(" ")': "formula is empty",
    'insert_image_at_cursor("none.png")': "there is no file none.png",
    'insert_image_at_cursor("no.png")': "no picture",
    'insert_image_at_cursor("../../x.png")': "outside the folder",
    'insert_image_at_cursor("red.png", 0)': "width must lie above 0",
    'add_page_numbers("bottom_left", -1)': "start_number is between",
    'export_to_pdf("nowhere")': "there is no folder nowhere",
    'export_to_pdf("/etc")': "outside the folder",
    'export_to_pdf(output_filename="a/b")': "is no file name",
    "export_to_pdf(quality=0)": "quality is between",
}


@pytest.fixture(scope="module")
def untouched(desktop: GuestDriver) -> GuestDriver:
    open_report(desktop)
    return desktop


@pytest.mark.parametrize("call", list(BAD))
def test_bad_argument_gives_a_clear_error_and_a_healthy_desktop(untouched: GuestDriver, call: str) -> None:
    result = untouched.step(parse_action(f"writer.{call}"))
    assert BAD[call] in result.action_error and len(result.action_error) < 600
    assert result.observation.app == "writer" and untouched.healthy()


def test_bad_arguments_changed_nothing(untouched: GuestDriver) -> None:
    document = saved(untouched)
    assert [p.text for p in document.paragraphs] == [p.text for p in Document(io.BytesIO(report())).paragraphs]


def test_catastrophic_pattern_is_refused_and_the_desktop_goes_on(desktop: GuestDriver) -> None:
    document = Document()
    document.add_paragraph("a" * 60 + "!")
    open_report(desktop, written(document))
    assert "takes too long" in desktop.step(parse_action('writer.set_color("(a+)+$", "red")')).action_error
    assert act(desktop, 'writer.find_and_replace("a+", "b")') == "replaced: 1 match in 1 paragraph"
