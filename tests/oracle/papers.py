"""Text documents."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docx
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_BREAK, WD_COLOR_INDEX, WD_TAB_ALIGNMENT
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from docx.shared import Pt, RGBColor
from PIL import Image

from tests.oracle.pairs import Judge, Pair, broken, each_alone, each_with_base, write

Edit = Callable[[Any], Any]
LINES = ("First line of the text", "Second line", "References", "Smith, J. (2001). One.", "Brown, K. (2002). Two.")


def paper(*edits: Edit, lines: tuple[str, ...] = LINES) -> Callable[[Path], Any]:
    """Writes a document of these paragraphs, edited."""

    def write_paper(place: Path) -> None:
        document = docx.Document()
        for line in lines:
            document.add_paragraph(line)
        for edit in edits:
            edit(document)
        document.save(str(place))

    return write_paper


def _runs(number: int = 0, **facts: Any) -> Edit:
    """Font of all runs of a paragraph; of all paragraphs for -1."""

    def edit(document: Any) -> None:
        for paragraph in document.paragraphs if number < 0 else [document.paragraphs[number]]:
            for run in paragraph.runs:
                for name, value in facts.items():
                    setattr(run.font, name, value)

    return edit


def _paragraph(number: int, **facts: Any) -> Edit:
    def edit(document: Any) -> None:
        for name, value in facts.items():
            setattr(document.paragraphs[number].paragraph_format, name, value)

    return edit


def _text(number: int, text: str) -> Edit:
    return lambda document: setattr(document.paragraphs[number].runs[0], "text", text)


def _more(text: str) -> Edit:
    return lambda document: document.add_paragraph(text)


def _wrapped(tag: str, text: str) -> Edit:
    """A run at the first paragraph's end, inside an element."""

    def edit(document: Any) -> None:
        run = document.paragraphs[0].add_run(text)
        outer = OxmlElement(tag)
        if tag in ("w:ins", "w:del"):
            outer.set(qn("w:id"), "9")
            outer.set(qn("w:author"), "A")
        inner = outer
        if tag == "w:sdt":
            inner = OxmlElement("w:sdtContent")
            outer.append(inner)
        run._r.addprevious(outer)
        inner.append(run._r)
        if tag == "w:del":
            run._r.find(qn("w:t")).tag = qn("w:delText")

    return edit


def _table(*words: tuple[str, RGBColor | None]) -> Edit:
    def edit(document: Any) -> None:
        cells = document.add_table(rows=1, cols=len(words)).rows[0].cells
        for cell, (word, color) in zip(cells, words, strict=True):
            run = cell.paragraphs[0].add_run(word)
            if color is not None:
                run.font.color.rgb = color

    return edit


def _picture(color: str, size: int = 8) -> Edit:
    def edit(document: Any) -> None:
        data = io.BytesIO()
        Image.new("RGB", (size, size), color).save(data, "PNG")
        data.seek(0)
        document.add_picture(data)

    return edit


def _footer(text: str = "", field: str = "") -> Edit:
    def edit(document: Any) -> None:
        paragraph = document.sections[0].footer.paragraphs[0]
        paragraph.text = text
        if field:
            node = OxmlElement("w:fldSimple")
            node.set(qn("w:instr"), field)
            run, shown = OxmlElement("w:r"), OxmlElement("w:t")
            shown.text = "1"
            run.append(shown)
            node.append(run)
            paragraph._p.append(node)

    return edit


def _tabs(*places: tuple[int, Any]) -> Edit:
    def edit(document: Any) -> None:
        for paragraph in document.paragraphs:
            for place, side in places:
                paragraph.paragraph_format.tab_stops.add_tab_stop(Pt(place), side)

    return edit


def _shade(color: str) -> Edit:
    def edit(document: Any) -> None:
        shade = OxmlElement("w:shd")
        shade.set(qn("w:fill"), color)
        document.paragraphs[0].runs[0]._r.get_or_add_rPr().append(shade)

    return edit


R, B, NEAR = RGBColor(255, 0, 0), RGBColor(0, 0, 255), RGBColor(0xF1, 0x0D, 0x0C)
L, C = WD_TAB_ALIGNMENT.LEFT, WD_ALIGN_PARAGRAPH.CENTER
PAPERS: dict[str, Any] = {
    "base": paper(),
    "capitals": paper(_text(0, LINES[0].upper())),
    "blanks": paper(_text(0, "First  line of the text ")),
    "near miss": paper(_text(1, "Second lime")),
    "paragraph more": paper(_more("Last")),
    "empty paragraphs": paper(_more(""), _more("  ")),
    "paragraph less": paper(lines=LINES[:2]),
    "other order": paper(lines=(LINES[1], LINES[0], *LINES[2:])),
    "cut into runs": paper(lambda document: document.paragraphs[1].add_run("")),
    "line in two": paper(lines=("First line", "of the text", *LINES[1:])),
    "nothing": paper(lines=()),
    "insertion": paper(_wrapped("w:ins", " more")),
    "run more": paper(lambda document: document.paragraphs[0].add_run(" more")),
    "deletion": paper(_wrapped("w:del", " more")),
    "content control": paper(_wrapped("w:sdt", " more")),
    "link": paper(_wrapped("w:hyperlink", " more")),
    "spacing": paper(_paragraph(0, line_spacing=2.0)),
    "centred": paper(_paragraph(0, alignment=C)),
    "centred later": paper(_paragraph(1, alignment=C)),
    "font": paper(_runs(-1, name="Arial")),
    "font of one": paper(_runs(0, name="Arial")),
    "bold": paper(_runs(0, bold=True)),
    "subscript": paper(_runs(0, subscript=True)),
    "struck": paper(_runs(4, strike=True)),
    "struck elsewhere": paper(_runs(0, strike=True)),
    "italic 14": paper(_runs(0, italic=True, size=Pt(14))),
    "italic 12": paper(_runs(0, italic=True, size=Pt(12))),
    "italic": paper(_runs(0, italic=True)),
    "highlight": paper(_runs(0, highlight_color=WD_COLOR_INDEX.YELLOW)),
    "shade": paper(_shade("FFFF00")),
    "table": paper(_table(("apple", R), ("tree", B))),
    "table, near colours": paper(_table(("apple", NEAR), ("tree", RGBColor(0, 0, 0xF0)))),
    "table, wrong colours": paper(_table(("apple", B), ("tree", R))),
    "table, other text": paper(_table(("apples", R), ("tree", B))),
    "table, three columns": paper(_table(("apple", R), ("tree", B), ("x", B))),
    "picture": paper(_picture("red")),
    "other picture": paper(_picture("blue")),
    "larger picture": paper(_picture("red", 9)),
    "page break": paper(lambda document: document.paragraphs[0].add_run().add_break(WD_BREAK.PAGE)),
    "two page breaks": paper(*[lambda document: document.add_page_break()] * 2),
    "footer with a number": paper(_footer("1")),
    "footer with a field": paper(_footer(field="PAGE")),
    "footer with a text": paper(_footer("page")),
    "header": paper(lambda document: setattr(document.sections[0].header.paragraphs[0], "text", "top")),
    "tab stop": paper(_tabs((200, L))),
    "tab stop near": paper(_tabs((205, L))),
    "tab stop on the other side": paper(_tabs((200, WD_TAB_ALIGNMENT.RIGHT))),
    "two tab stops": paper(_tabs((100, L), (200, L))),
    "reference changed": paper(_text(3, "Smith, J. (2001). Ones.")),
    "reference less": paper(lines=LINES[:4]),
    "other heading": paper(lines=(*LINES[:2], "Bibliography", *LINES[3:])),
    "no heading": paper(lines=(*LINES[:2], *LINES[3:])),
}
ABOUT = {
    "compare_docx_files": "capitals|blanks|miss|order|runs|line|insertion|deletion|control|link|header|^table$",
    "compare_docx_files_and_ignore_new_lines": "paragraph|blanks|line|insertion",
    "compare_docx_lines": "order|paragraph|insertion",
    "compare_docx_tables": "table",
    "compare_docx_images": "picture",
    "compare_line_spacing": "spacing|centred",
    "compare_subscript_contains": "subscript",
    "evaluate_strike_through_last_paragraph": "struck",
    "check_tabstops": "tab stop",
    "compare_references": "reference|heading",
    "evaluate_colored_words_in_tables": "table",
    "check_italic_font_size_14": "italic",
    "compare_font_names": "font",
    "has_page_numbers_in_footers": "foot|head",
    "is_first_line_centered": "centred",
    "contains_page_break": "page break",
}
"""Metric -> pattern of the documents that it is about."""
TRAINS = ("08:00:00, A1, S, 1", "08:05:00, B2, S, 1", "08:10:00, A1, S, 2", "08:20:00, C3, S, 1")


def papers(folder: Path) -> Iterator[Pair]:
    """docx files."""
    paper()(folder / "whole.docx")
    files = write(folder / "papers", ".docx", {**PAPERS, **broken((folder / "whole.docx").read_bytes())})
    options: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("no blanks", {"ignore_blanks": False}),
        ("case", {"ignore_case": True}),
        ("order", {"ignore_order": True}),
        ("content", {"content_only": True}),
        ("fuzzy", {"fuzzy_match": True}),
        ("fuzzy, no blanks", {"fuzzy_match": True, "ignore_blanks": False}),
        ("lines", {"delete_empty_lines": True, "ignore_blanks": False}),
    ]
    judges = [Judge("compare_docx_files", facts, word=word) for word, facts in options]
    judges += [
        Judge(name)
        for name in (
            "compare_docx_files_and_ignore_new_lines",
            "compare_docx_lines",
            "compare_docx_tables",
            "compare_docx_images",
            "compare_line_spacing",
            "compare_subscript_contains",
            "evaluate_strike_through_last_paragraph",
            "compare_references",
            "evaluate_colored_words_in_tables",
            "check_italic_font_size_14",
            "check_tabstops",
        )
    ]
    judges.append(Judge("compare_references", {"reference_base_result": 0.8}, word="base"))
    yield from each_with_base([replace(judge, about=ABOUT.get(judge.metric, "")) for judge in judges], files, every=20)
    alone = (
        Judge("compare_font_names", rules={"font_name": "Arial"}),
        Judge("has_page_numbers_in_footers"),
        Judge("is_first_line_centered"),
        Judge("contains_page_break", rules={}),
        Judge("contains_page_break", rules={"page_break_count": 2}, word="two"),
    )
    yield from each_alone([replace(judge, about=ABOUT[judge.metric]) for judge in alone], files, every=6)
    yield from _other_papers(folder)


def _other_papers(folder: Path) -> Iterator[Pair]:
    trains = {
        "right": (TRAINS[0], TRAINS[1], TRAINS[3]),
        "other line kept": (TRAINS[1], TRAINS[2], TRAINS[3]),
        "untouched": TRAINS,
        "one less": TRAINS[:2],
        "changed": (TRAINS[0], TRAINS[1] + "0", TRAINS[3]),
        "line more": (*TRAINS[:2], TRAINS[3], "08, X"),
        "blanks at line ends": (TRAINS[0] + " ", TRAINS[1], TRAINS[3]),
        "nothing": (),
        "empty lines": (TRAINS[0], "", TRAINS[1], TRAINS[3]),
    }
    files = write(folder / "trains", ".docx", {name: paper(lines=lines) for name, lines in trains.items()})
    for name, path in files.items():
        yield Pair("compare_unique_train_records", name, (path, [files["right"], files["untouched"]]))
    words = {
        "right": ("one two", "three"),
        "near": ("one two", "thre"),
        "two": ("one", "two"),
        "four": ("a b c d",),
        "nothing": (),
    }
    judge = Judge("fuzzy_place_math", rules={"expected": ["one", "two", "three"]})
    yield from each_alone([judge], write(folder / "words", ".docx", {name: paper(lines=lines) for name, lines in words.items()}))
    stops = {"split": ("a b\tc", "d e\tf"), "other": ("a\tb c", "d e\tf"), "none": ("a b", "c d")}
    places = write(folder / "split", ".docx", {name: paper(lines=lines) for name, lines in stops.items()})
    by_word = Judge("check_tabstops", {"word_number_split_by_tabstop": 2, "index": 0}, word="words")
    yield from each_with_base([by_word], places)
    yield from _odt(folder)


_ODT = (
    '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" office:version="1.3" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"><office:automatic-styles>'
    '<style:style style:name="T1" style:family="text"><style:text-properties fo:background-color="{color}"/></style:style>'
    "</office:automatic-styles><office:body><office:text>{body}</office:text></office:body></office:document-content>"
)
_MANIFEST = (
    '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0" manifest:version="1.3">'
    '<manifest:file-entry manifest:full-path="/" manifest:media-type="application/vnd.oasis.opendocument.text"/>'
    '<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/>'
    '<manifest:file-entry manifest:full-path="styles.xml" manifest:media-type="text/xml"/></manifest:manifest>'
)
_STYLES = (
    '<office:document-styles xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" office:version="1.3">'
    "<office:styles/></office:document-styles>"
)
_BODY = '<text:p>One <text:span text:style-name="T1">two</text:span> three</text:p><text:p>Four</text:p>'
ODTS = {
    "base": (_BODY, "transparent"),
    "yellow": (_BODY, "#ffff00"),
    "green": (_BODY, "#00ff00"),
    "white": (_BODY, "#ffffff"),
    "near miss": (_BODY.replace("two", "twa"), "transparent"),
    "paragraph more": (_BODY + "<text:p>Five</text:p>", "transparent"),
    "heading": (_BODY.replace("<text:p>Four</text:p>", "<text:h>Four</text:h>"), "transparent"),
    "tab": (_BODY.replace("One ", "One<text:tab/>"), "transparent"),
    "blanks": (_BODY.replace("One ", "One <text:s/>"), "transparent"),
    "remark": (_BODY.replace("One", "One<office:annotation><text:p>r</text:p></office:annotation>"), "transparent"),
    "note": (
        _BODY.replace("One", "One<text:note><text:note-body><text:p>n</text:p></text:note-body></text:note>"),
        "transparent",
    ),
    "deletion": (
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>" + _BODY,
        "transparent",
    ),
}


def _odt_writer(body: str, color: str) -> Callable[[Path], Any]:
    def write_odt(place: Path) -> None:
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
            archive.writestr("META-INF/manifest.xml", _MANIFEST)
            archive.writestr("content.xml", _ODT.format(body=body, color=color))
            archive.writestr("styles.xml", _STYLES)

    return write_odt


def _odt(folder: Path) -> Iterator[Pair]:
    contents: dict[str, Any] = {name: _odt_writer(*facts) for name, facts in ODTS.items()}
    files = write(folder / "odt", ".odt", {**contents, **broken(b"PK\x03\x04" * 50)})
    judges = (
        Judge("check_highlighted_words"),
        Judge("compare_docx_files", word="odt"),
        Judge("compare_docx_files", {"ignore_blanks": False}, word="odt, no blanks"),
        Judge("compare_docx_files", {"fuzzy_match": True}, word="odt, fuzzy"),
    )
    yield from each_with_base(judges, files)
