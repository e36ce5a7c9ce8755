"""Writer's API on one real desktop: every method's effect read back from the saved file, and what bad arguments give."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator

import pytest
from docx import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_COLOR_INDEX
from docx.oxml.ns import qn
from docx.shared import Pt, RGBColor
from lxml import etree
from PIL import Image

from common.actions import parse_action
from common.config import DesktopConfig
from common.messages import Action, Evaluation, Observation
from env_server.driver import SetupStep, TaskInstance
from env_server.drivers.guest_driver import GuestDriver
from tests.desktops import open_desktop

pytestmark = pytest.mark.timeout(120)

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestDriver]:
    with open_desktop(tmp_path_factory.mktemp("desktop"), DesktopConfig(image="full", max_elements=300)) as driver:
        yield driver


def report() -> bytes:
    """Six paragraphs: a heading, runs of several formats, highlighted words, an empty one; then a table of two cells."""
    document = Document()
    document.add_heading("annual report", 1)
    mixed = document.add_paragraph("The red fox ")
    mixed.add_run("jumps over").bold = True
    mixed.add_run(" the lazy dog.")
    marked = document.add_paragraph("Keep this ")
    marked.add_run("secret").font.highlight_color = WD_COLOR_INDEX.YELLOW
    marked.add_run(" word and ")
    marked.add_run("that").font.highlight_color = WD_COLOR_INDEX.BRIGHT_GREEN
    document.add_paragraph("")
    document.add_paragraph("Total: 42 apples and 7 pears at NASA's shop")
    document.add_paragraph("last line")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "red cell", "blue cell"
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def picture(width: int = 60, height: int = 30) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(stream, "PNG")
    return stream.getvalue()


def open_report(desktop: GuestDriver, data: bytes | None = None, path: str = "report.docx") -> Observation:
    steps = (
        SetupStep("put_file", {"path": path, "data": data or report()}),
        SetupStep("put_file", {"path": "red.png", "data": picture()}),
        SetupStep("write_file", {"path": "no.png", "text": "no picture"}),
        SetupStep("make_folder", {"path": "out"}),
        SetupStep("open", {"path": path}),
    )
    task = TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    return desktop.reset(task)[1]


def act(desktop: GuestDriver, text: str) -> str:
    result = desktop.step(parse_action(text))
    assert result.action_error == "", (text, result.action_error)
    return result.observation.result


def saved(desktop: GuestDriver, path: str = "report.docx"):
    act(desktop, "writer.save()")
    return Document(io.BytesIO(desktop.get("file_bytes", path=path)))


def xml(desktop: GuestDriver, part: str = "word/document.xml") -> etree._Element:
    act(desktop, "writer.save()")
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="report.docx"))) as archive:
        return etree.fromstring(archive.read(part))


def with_look(paragraph, has: Callable[..., bool]) -> str:
    """The text of the runs that look so."""
    return "".join(run.text for run in paragraph.runs if has(run.font))


# --- what is on screen ---


def test_opened_document_shows_its_paragraphs_and_not_the_sheet_behind_it(desktop: GuestDriver) -> None:
    shown = open_report(desktop)
    assert shown.app == "writer" and "report.docx" in shown.window_title
    content = [element.text for element in shown.elements if element.in_content]
    assert "annual report" in content and "The red fox jumps over the lazy dog." in content and "red cell" in content
    assert not any(element.role == "table-cell" and re.fullmatch(r"[A-Z]\d+", element.text) for element in shown.elements)
    assert not any("sheet" in element.text.lower() for element in shown.elements if element.in_content)


def test_click_on_a_paragraph_puts_the_cursor_into_it(desktop: GuestDriver) -> None:
    shown = open_report(desktop)
    target = next(element for element in shown.elements if element.text == "last line")
    act(desktop, f"click({target.number})")
    assert "cursor in paragraph 5" in act(desktop, "writer.env_info()")
    act(desktop, 'key("end")')
    act(desktop, 'type(" typed")')
    assert saved(desktop).paragraphs[5].text == "last line typed"


def test_dialog_is_shown_first_and_belongs_to_writer(desktop: GuestDriver) -> None:
    open_report(desktop)
    shown = desktop.step(parse_action('key("ctrl+h")')).observation
    assert shown.app == "writer"
    assert any("find" in element.text.lower() for element in shown.elements[:12]), shown.elements[:12]
    assert open_report(desktop).app == "writer"


def test_reset_closes_changed_documents_and_the_sheet_is_back(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'type("unsaved")')
    sheet = SetupStep("calc_open", {"cells": {"A1": "cell"}, "active_cell": "A1"})
    task = TaskInstance("x", (sheet,), lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    shown = desktop.reset(task)[1]
    assert shown.app == "calc" and "cell" in [element.text for element in shown.elements]
    assert "not open" in desktop.step(parse_action("writer.env_info()")).action_error


def test_odt_opens_and_is_saved_in_its_own_format(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.find_and_replace("fox", "cat")')
    act(desktop, "writer.save()")
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="report.docx"))) as archive:
        assert "word/document.xml" in archive.namelist()


# --- text ---


def test_env_info_lists_paragraphs_tables_and_cursor(desktop: GuestDriver) -> None:
    open_report(desktop)
    lines = act(desktop, "writer.env_info()").split("\n")
    assert lines[0] == "report.docx: 6 paragraphs; cursor in paragraph 0"
    assert lines[1:3] == ["0: annual report", "1: The red fox jumps over the lazy dog."]
    assert "table 1 A1: red cell" in lines


def test_env_info_of_a_long_document_is_short_and_says_what_is_missing(desktop: GuestDriver) -> None:
    document = Document()
    for number in range(120):
        document.add_paragraph(f"{number} " + "words " * 40)
    stream = io.BytesIO()
    document.save(stream)
    open_report(desktop, stream.getvalue())
    said = act(desktop, "writer.env_info()")
    assert len(said) <= 1500 and re.search(r"\d+ more paragraphs left out", said)


def test_write_text_writes_formatted_paragraphs_at_the_cursor(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'key("ctrl+end")')
    act(desktop, 'writer.write_text("A\\nB\U0001f600 new", bold=True, italic=True, size=20)')
    act(desktop, 'writer.write_text(" plain")')
    paragraphs = saved(desktop).paragraphs
    assert [p.text for p in paragraphs[-2:]] == ["A", "B\U0001f600 new plain"]
    assert with_look(paragraphs[-1], lambda font: bool(font.bold and font.italic) and font.size == Pt(20)) == "B\U0001f600 new"


def test_write_text_replaces_the_selection(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'key("ctrl+a")')
    act(desktop, 'key("ctrl+home")')
    act(desktop, 'key("shift+end")')
    act(desktop, 'writer.write_text("Title")')
    assert saved(desktop).paragraphs[0].text == "Title"


def test_find_and_replace_keeps_formatting_and_knows_groups(desktop: GuestDriver) -> None:
    open_report(desktop)
    said = act(desktop, 'writer.find_and_replace("(r)ed|(fox) jumps", "\\\\1\\\\2!")')
    assert said == "replaced: 3 matches in 2 paragraphs"
    document = saved(desktop)
    assert document.paragraphs[1].text == "The r! fox! over the lazy dog."
    assert with_look(document.paragraphs[1], lambda font: bool(font.bold)) == " over"
    assert document.tables[0].cell(0, 0).text == "r! cell"


def test_find_and_replace_in_whole_runs_keeps_their_formatting(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.find_and_replace("jumps over", "leaps far across", [1])')
    paragraph = saved(desktop).paragraphs[1]
    assert paragraph.text == "The red fox leaps far across the lazy dog."
    assert with_look(paragraph, lambda font: bool(font.bold)) == "leaps far across"


def test_find_and_replace_only_in_named_paragraphs_and_says_when_nothing_matched(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, 'writer.find_and_replace("red", "green", [0, 4])') == "no match, nothing changed"
    act(desktop, 'writer.find_and_replace("l", "", [5])')
    document = saved(desktop)
    assert document.paragraphs[5].text == "ast ine" and document.paragraphs[1].text.startswith("The red")


def test_change_text_case_of_matches(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.change_text_case("uppercase", "fox jumps|dog")')
    act(desktop, 'writer.change_text_case("lowercase", "NASA", [4])')
    document = saved(desktop)
    assert document.paragraphs[1].text == "The red FOX JUMPS over the lazy DOG."
    assert with_look(document.paragraphs[1], lambda font: bool(font.bold)) == "JUMPS over"
    assert document.paragraphs[4].text.endswith("nasa's shop")


def test_capitalize_words_leaves_other_letters(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, "writer.capitalize_words([1, 4])")
    document = saved(desktop)
    assert document.paragraphs[1].text == "The Red Fox Jumps Over The Lazy Dog."
    assert document.paragraphs[4].text == "Total: 42 Apples And 7 Pears At NASA's Shop"
    assert document.paragraphs[5].text == "last line"
    assert with_look(document.paragraphs[1], lambda font: bool(font.bold)) == "Jumps Over"


# --- looks ---


def test_set_color_colours_matches_only_also_in_tables(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, 'writer.set_color("\\\\bred\\\\b", "#FF0000")') == "2 matches in 2 paragraphs"
    document = saved(desktop)
    red = RGBColor(255, 0, 0)
    assert with_look(document.paragraphs[1], lambda font: font.color.rgb == red) == "red"
    assert with_look(document.tables[0].cell(0, 0).paragraphs[0], lambda font: font.color.rgb == red) == "red"


def test_set_font_changes_whole_paragraphs(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.set_font("Liberation Mono", [1, 5])')
    document = saved(desktop)
    for number in (1, 5):
        paragraph = document.paragraphs[number]
        assert with_look(paragraph, lambda font: font.name == "Liberation Mono") == paragraph.text
    assert with_look(document.paragraphs[4], lambda font: font.name == "Liberation Mono") == ""


def test_set_font_size_changes_matches(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.set_font_size(14.5, "fox jumps", [1])')
    assert with_look(saved(desktop).paragraphs[1], lambda font: font.size == Pt(14.5)) == "fox jumps"


def test_set_strikethrough_strikes_matches(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.set_strikethrough(".+", [5])')
    document = saved(desktop)
    assert with_look(document.paragraphs[5], lambda font: bool(font.strike)) == "last line"
    assert with_look(document.paragraphs[4], lambda font: bool(font.strike)) == ""


def test_set_default_font_leaves_what_is_there_and_new_text_has_it(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.set_default_font("DejaVu Sans", 15)')
    document = saved(desktop)
    normal = document.styles["Normal"].font
    assert (normal.name, normal.size) == ("DejaVu Sans", Pt(15))
    for paragraph in document.paragraphs:
        for run in (run for run in paragraph.runs if run.text):
            assert run.font.name not in (None, "DejaVu Sans") or paragraph.style.font.name not in (None, "DejaVu Sans"), run.text
    act(desktop, 'key("ctrl+home")')
    act(desktop, 'writer.set_default_font("Liberation Mono")')
    act(desktop, 'writer.write_text("NEW ")')
    assert with_look(saved(desktop).paragraphs[0], lambda font: font.name == "Liberation Mono") == "NEW "


def test_set_line_spacing_and_alignment_of_paragraphs(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, "writer.set_line_spacing(1.5, [1, 4])")
    act(desktop, 'writer.set_paragraph_alignment("center", [4])')
    act(desktop, 'writer.set_paragraph_alignment("justify", [5])')
    act(desktop, 'writer.set_paragraph_alignment("right", [1])')
    paragraphs = saved(desktop).paragraphs
    assert [paragraphs[n].paragraph_format.line_spacing for n in (1, 4)] == [1.5, 1.5]
    assert paragraphs[5].paragraph_format.line_spacing != 1.5
    wanted = {1: WD_ALIGN_PARAGRAPH.RIGHT, 4: WD_ALIGN_PARAGRAPH.CENTER, 5: WD_ALIGN_PARAGRAPH.JUSTIFY}
    assert {number: paragraphs[number].alignment for number in wanted} == wanted
    act(desktop, "writer.set_line_spacing(2)")
    assert {p.paragraph_format.line_spacing for p in saved(desktop).paragraphs} == {2.0}


def test_highlighted_text_is_found_and_removed(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, 'writer.find_highlighted_text("yellow")') == "2: secret"
    assert act(desktop, 'writer.find_highlighted_text("#00FF00")') == "2: that"
    assert "nothing" in act(desktop, 'writer.find_highlighted_text("red")')
    act(desktop, "writer.remove_highlighting([0, 1])")
    assert "secret" in act(desktop, 'writer.find_highlighted_text("yellow")')
    assert act(desktop, "writer.remove_highlighting()") == "took highlighting from 2 places"
    root = xml(desktop)
    assert not list(root.iter(f"{W}highlight"))
    assert saved(desktop).paragraphs[2].text == "Keep this secret word and that"


# --- insertions ---


def test_insert_formula_at_cursor_is_a_formula_in_the_file(desktop: GuestDriver) -> None:
    open_report(desktop)
    act(desktop, 'writer.insert_formula_at_cursor("{a+b} over {c}")')
    math = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
    fraction = next(xml(desktop).iter(f"{math}f"))
    assert "".join(text.text for text in fraction.iter(f"{math}t")).replace(" ", "") == "a+bc"


def test_insert_image_at_cursor_with_own_asked_and_proportional_size(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert "60 x 30 pixels" in act(desktop, 'writer.insert_image_at_cursor("red.png")')
    act(desktop, 'writer.insert_image_at_cursor("red.png", 96, 48)')
    act(desktop, 'writer.insert_image_at_cursor("red.png", width=120)')
    sizes = [(round(shape.width / 9525), round(shape.height / 9525)) for shape in saved(desktop).inline_shapes]
    assert sizes == [(60, 30), (96, 48), (120, 60)]


@pytest.mark.parametrize("position", ["at_cursor", "end_of_document"])
def test_insert_page_break_starts_a_page(desktop: GuestDriver, position: str) -> None:
    open_report(desktop)
    act(desktop, 'key("ctrl+home")')
    act(desktop, f'writer.insert_page_break("{position}")')
    act(desktop, 'writer.write_text("behind")')
    root = xml(desktop)
    breaks = [b for b in root.iter(f"{W}br") if b.get(f"{W}type") == "page"] + list(root.iter(f"{W}pageBreakBefore"))
    assert len(breaks) == 1
    texts = [p.text for p in saved(desktop).paragraphs]
    assert texts[-1].strip() == "behind" if position == "end_of_document" else texts[1].strip() == "behindannual report"


@pytest.mark.parametrize(
    ("position", "format_name", "start", "shown"),
    [("bottom_center", "arabic", 1, "1"), ("top_right", "roman", 4, "iv"), ("bottom_left", "ALPHABETIC", 2, "B")],
)
def test_add_page_numbers_puts_a_field_into_header_or_footer(
    desktop: GuestDriver, position: str, format_name: str, start: int, shown: str
) -> None:
    open_report(desktop)
    act(desktop, f'writer.add_page_numbers("{position}", {start}, "{format_name}")')
    section = saved(desktop).sections[0]
    place, side = position.split("_")
    paragraph = (section.footer if place == "bottom" else section.header).paragraphs[0]
    aligned = {
        None: "left",
        WD_ALIGN_PARAGRAPH.LEFT: "left",
        WD_ALIGN_PARAGRAPH.CENTER: "center",
        WD_ALIGN_PARAGRAPH.RIGHT: "right",
    }
    assert aligned[paragraph.alignment] == side
    codes = "".join(code.text for code in paragraph._p.iter(f"{W}instrText"))
    assert "PAGE" in codes
    assert paragraph.text.strip() == shown
    number = section._sectPr.find(qn("w:pgNumType"))
    assert start == 1 or number.get(qn("w:start")) == str(start)


def test_export_to_pdf_beside_the_document_and_elsewhere(desktop: GuestDriver) -> None:
    open_report(desktop)
    assert act(desktop, "writer.export_to_pdf()").startswith("exported report.pdf")
    act(desktop, 'writer.export_to_pdf("out", "copy", True, 50)')
    act(desktop, 'writer.export_to_pdf("out/other.pdf")')
    for path in ("report.pdf", "out/copy.pdf", "out/other.pdf"):
        assert desktop.get("file_bytes", path=path).startswith(b"%PDF-")
    assert saved(desktop).paragraphs[0].text == "annual report"


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
    "set_line_spacing(1.5, [6])": "there is no paragraph 6",
    'set_paragraph_alignment("left", [6])': "there is no paragraph 6",
    "remove_highlighting([6])": "there is no paragraph 6",
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


def test_page_break_in_a_table_is_refused(desktop: GuestDriver) -> None:
    shown = open_report(desktop)
    target = next(element for element in shown.elements if element.text == "blue cell")
    act(desktop, f"click({target.number})")
    assert "no page break is possible" in desktop.step(parse_action("writer.insert_page_break()")).action_error


def test_catastrophic_pattern_is_refused_and_the_desktop_goes_on(desktop: GuestDriver) -> None:
    document = Document()
    document.add_paragraph("a" * 60 + "!")
    stream = io.BytesIO()
    document.save(stream)
    open_report(desktop, stream.getvalue())
    assert "takes too long" in desktop.step(parse_action('writer.set_color("(a+)+$", "red")')).action_error
    assert act(desktop, 'writer.find_and_replace("a+", "b")') == "replaced: 1 match in 1 paragraph"


def test_closed_document_is_named_in_the_error(desktop: GuestDriver) -> None:
    open_report(desktop)
    desktop.step(parse_action('key("ctrl+w")'))
    assert "no document is open in writer" in desktop.step(parse_action("writer.save()")).action_error
    assert "no window" in desktop.step(parse_action('apps.switch("writer")')).action_error
    assert open_report(desktop).app == "writer"
