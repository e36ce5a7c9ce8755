"""What judges take for the content of text documents: everything that a reader sees, however the file holds it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.oxml import OxmlElement, parse_xml
from docx.oxml.ns import nsdecls, qn
from docx.shared import RGBColor
from PIL import Image

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.colours import ciede2000, difference
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile

Edit = Callable[[Any], Any]


def _doc(place: Path, *edits: Edit) -> str:
    document = docx.Document()
    document.add_paragraph("First line")
    document.add_paragraph("Second line")
    for edit in edits:
        edit(document)
    document.save(str(place))
    return str(place)


def _xml(text: str) -> Any:
    spaces = (
        nsdecls("w", "wp", "a")
        + ' xmlns:v="urn:schemas-microsoft-com:vml" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
        + ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
        + ' xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    )
    head, end, rest = text.partition(">")
    closing = "/" if head.endswith("/") else ""
    return parse_xml(f"{head.removesuffix('/')} {spaces}{closing}{end}{rest}")


def _append(text: str, paragraph: int = 1) -> Edit:
    """The XML at a paragraph's end."""
    return lambda document: document.paragraphs[paragraph]._p.append(_xml(text))


def _insert(text: str) -> Edit:
    """The XML between the two paragraphs."""
    return lambda document: document.paragraphs[0]._p.addnext(_xml(text))


RUN = "<w:r><w:t xml:space='preserve'> and more</w:t></w:r>"
MATH = "<m:r><m:t xml:space='preserve'> and more</m:t></m:r>"
MORE: dict[str, Edit] = {
    "run": _append("<w:r><w:t xml:space='preserve'> and more</w:t></w:r>"),
    "insertion": _append(f"<w:ins w:id='1' w:author='A'>{RUN}</w:ins>"),
    "moved here": _append(f"<w:moveTo w:id='1' w:author='A'>{RUN}</w:moveTo>"),
    "content control": _append(f"<w:sdt><w:sdtContent>{RUN}</w:sdtContent></w:sdt>"),
    "link": _append(f"<w:hyperlink>{RUN}</w:hyperlink>"),
    "link in an insertion": _append(f"<w:ins w:id='1' w:author='A'><w:hyperlink>{RUN}</w:hyperlink></w:ins>"),
    "smart tag": _append(f"<w:smartTag>{RUN}</w:smartTag>"),
    "field": _append(f"<w:fldSimple w:instr=' DOCPROPERTY x '>{RUN}</w:fldSimple>"),
    "below a phonetic guide": _append(f"<w:r><w:ruby><w:rubyPr/><w:rt/><w:rubyBase>{RUN}</w:rubyBase></w:ruby></w:r>"),
    "phonetic guide": _append(f"<w:r><w:ruby><w:rubyPr/><w:rt>{RUN}</w:rt><w:rubyBase/></w:ruby></w:r>"),
    "equation": _append(f"<m:oMath><m:f><m:num>{MATH}</m:num><m:den/></m:f></m:oMath>"),
    "equation on a line": _append(f"<m:oMathPara><m:oMath>{MATH}</m:oMath></m:oMathPara>"),
    "with a deletion": lambda document: (MORE["run"](document), MORE_DELETED(document)),
}
"""Forms of one text at the end of the second paragraph."""
MORE_DELETED = _append("<w:del w:id='2' w:author='A'><w:r><w:delText>gone</w:delText></w:r></w:del>")
TEXT_METRICS = ["compare_docx_files", "compare_docx_files_and_ignore_new_lines", "compare_docx_lines", "simple_docx_compare"]


@pytest.mark.parametrize("form", MORE)
@pytest.mark.parametrize("name", TEXT_METRICS)
def test_text_in_any_form_counts(name: str, form: str, tmp_path: Path) -> None:
    plain, run = _doc(tmp_path / "plain.docx"), _doc(tmp_path / "run.docx", MORE["run"])
    found = _doc(tmp_path / "found.docx", MORE[form])
    assert metric(name)(found, run) == 1.0
    assert metric(name)(found, plain) == 0.0
    assert metric(name)(plain, found) == 0.0


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_symbol_of_a_symbol_font_counts(name: str, tmp_path: Path) -> None:
    tick, cross = (
        _doc(tmp_path / f"{char}.docx", _append(f"<w:r><w:sym w:font='Wingdings' w:char='{char}'/></w:r>"))
        for char in ("F0FC", "F0FB")
    )
    assert metric(name)(tick, tick) == 1.0
    for other in (cross, _doc(tmp_path / "plain.docx")):
        assert metric(name)(tick, other) == metric(name)(other, tick) == 0.0


def _table(document: Any) -> None:
    document.add_table(rows=1, cols=2).rows[0].cells[1].text = "in a cell"


def _header(document: Any) -> None:
    document.sections[0].header.paragraphs[0].text = "at the top"


def _footer_page(document: Any) -> None:
    document.sections[0].footer.paragraphs[0]._p.append(_xml("<w:fldSimple w:instr='PAGE'><w:r><w:t>1</w:t></w:r></w:fldSimple>"))


BOX = "<w:txbxContent><w:p><w:r><w:t>in a box</w:t></w:r></w:p></w:txbxContent>"
BOXES = {
    "both": f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wp:anchor><wps:txbx>{BOX}</wps:txbx></wp:anchor>"
    f"</w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>",
    "new": f"<w:r><w:drawing><wp:anchor><wps:txbx>{BOX}</wps:txbx></wp:anchor></w:drawing></w:r>",
    "old": f"<w:r><w:pict><v:textbox>{BOX}</v:textbox></w:pict></w:r>",
}


def _part(kind: str, content: str) -> Edit:
    """A part such as footnotes beside the document, and a reference to its first entry."""
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part

    def edit(document: Any) -> None:
        package = document.part.package
        blob = (
            f"<w:{kind}s {nsdecls('w')}><w:{kind} w:type='separator' w:id='0'><w:p/></w:{kind}>"
            f"<w:{kind} w:id='1'><w:p><w:r><w:t>{content}</w:t></w:r></w:p></w:{kind}></w:{kind}s>"
        ).encode()
        kind_of_content = f"application/vnd.openxmlformats-officedocument.wordprocessingml.{kind}s+xml"
        document.part.relate_to(
            Part(PackURI(f"/word/{kind}s.xml"), kind_of_content, blob, package),
            f"http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}s",
        )
        _append(f"<w:r><w:{kind}Reference w:id='1'/></w:r>")(document)

    return edit


def _picture(document: Any) -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(data, "PNG")
    data.seek(0)
    document.paragraphs[1].add_run().add_picture(data)


BREAK = "<w:p><w:r><w:br w:type='page'/></w:r></w:p>"
PARTS: dict[str, tuple[Edit, bool]] = {
    # edit, does it add text that every comparison of texts sees
    "table": (_table, True),
    "block content control": (_insert(f"<w:sdt><w:sdtContent><w:p>{RUN}</w:p></w:sdtContent></w:sdt>"), True),
    "text box": (_append(BOXES["both"]), True),
    "header": (_header, True),
    "page number in the footer": (_footer_page, True),
    "footnote": (_part("footnote", "below"), True),
    "endnote": (_part("endnote", "behind"), True),
    "comment": (_part("comment", "remark"), False),
    "page break": (_insert(BREAK), False),
    "picture": (_picture, False),
}


@pytest.mark.parametrize("part", PARTS)
def test_simple_docx_compare_untouched_document_pays_nothing(part: str, tmp_path: Path) -> None:
    edit, is_text = PARTS[part]
    plain, gold, same = _doc(tmp_path / "plain.docx"), _doc(tmp_path / "gold.docx", edit), _doc(tmp_path / "same.docx", edit)
    assert metric("simple_docx_compare")(plain, gold) == 0.0
    assert metric("simple_docx_compare")(gold, plain) == 0.0
    assert metric("simple_docx_compare")(same, gold) == 1.0
    assert metric("compare_docx_files")(plain, gold) == float(not is_text)
    assert metric("compare_docx_files")(same, gold) == 1.0


@pytest.mark.parametrize("kind", ["footnote", "endnote", "comment"])
def test_simple_docx_compare_text_of_notes_counts(kind: str, tmp_path: Path) -> None:
    one, other = _doc(tmp_path / "one.docx", _part(kind, "right")), _doc(tmp_path / "other.docx", _part(kind, "wrong"))
    assert metric("simple_docx_compare")(one, other) == 0.0


SAME = {
    "text box": [_append(text) for text in BOXES.values()],
    "page break": [
        _insert(BREAK),
        _append("<w:r><w:br w:type='page'/></w:r>", 0),
        lambda document: document.paragraphs[1]._p.get_or_add_pPr().append(OxmlElement("w:pageBreakBefore")),
        lambda document: document.paragraphs[1]._p.insert(0, _xml("<w:r><w:br w:type='page'/></w:r>")),
    ],
    "styles": [lambda document: None, lambda document: setattr(document.paragraphs[0], "style", "Heading 1")],
    "empty paragraphs": [lambda document: None, _insert("<w:p/>"), _append("<w:r><w:t xml:space='preserve'>  </w:t></w:r>")],
    "page numbers": [
        _footer_page,
        lambda document: (
            document.sections[0]
            .footer.paragraphs[0]
            ._p.append(
                _xml(
                    "<w:r><w:fldChar w:fldCharType='begin'/><w:instrText> PAGE \\* MERGEFORMAT </w:instrText>"
                    "<w:fldChar w:fldCharType='separate'/><w:t>7</w:t><w:fldChar w:fldCharType='end'/></w:r>"
                )
            )
        ),
    ],
    "end of a paragraph deleted": [
        lambda document: (
            document.paragraphs[0]._p.append(_xml("<w:r><w:t>Second line</w:t></w:r>"))
            or document._body._body.remove(document.paragraphs[1]._p)
        ),
        lambda document: document.paragraphs[0]._p.insert(0, _xml("<w:pPr><w:rPr><w:del w:id='1'/></w:rPr></w:pPr>")),
    ],
}
"""Ways in which applications write the same."""


@pytest.mark.parametrize("what", SAME)
def test_simple_docx_compare_same_content_other_form(what: str, tmp_path: Path) -> None:
    places = [_doc(tmp_path / f"{number}.docx", edit) for number, edit in enumerate(SAME[what])]
    assert [metric("simple_docx_compare")(place, places[0]) for place in places] == [1.0] * len(places)


def test_simple_docx_compare_order_counts(tmp_path: Path) -> None:
    before, after = _doc(tmp_path / "before.docx", _picture, MORE["run"]), _doc(tmp_path / "after.docx", MORE["run"], _picture)
    assert metric("simple_docx_compare")(before, after) == 0.0
    assert metric("simple_docx_compare")(before, before) == 1.0


def test_simple_docx_compare_deleted_row_is_gone(tmp_path: Path) -> None:
    def two_rows(document: Any, *, delete: bool) -> None:
        table = document.add_table(rows=2 if delete else 1, cols=1)
        table.rows[0].cells[0].text = "kept"
        if delete:
            table.rows[1].cells[0].text = "gone"
            table.rows[1]._tr.get_or_add_trPr().append(_xml("<w:del w:id='1' w:author='A'/>"))

    one = _doc(tmp_path / "one.docx", lambda document: two_rows(document, delete=True))
    other = _doc(tmp_path / "other.docx", lambda document: two_rows(document, delete=False))
    for name in ("simple_docx_compare", "compare_docx_tables", "compare_docx_files"):
        assert metric(name)(one, other) == 1.0


def test_styles_runs_in_insertions_and_tables_count(tmp_path: Path) -> None:
    def inserted(document: Any) -> None:
        for paragraph in document.paragraphs:
            for run in paragraph.runs:
                run.font.name = "Arial"
        run = "<w:r><w:rPr><w:rFonts w:ascii='Courier'/></w:rPr><w:t>x</w:t></w:r>"
        document.paragraphs[1]._p.append(_xml(f"<w:ins w:id='1' w:author='A'>{run}</w:ins>"))

    assert metric("compare_font_names")(_doc(tmp_path / "a.docx", inserted), {"font_name": "Arial"}) == 0.0

    def coloured(document: Any) -> None:
        run = document.add_table(rows=1, cols=1).rows[0].cells[0].paragraphs[0].add_run("apple")
        run.font.color.rgb = RGBColor(0, 0, 255)
        ins = OxmlElement("w:ins")
        ins.set(qn("w:id"), "1")
        run._r.addprevious(ins)
        ins.append(run._r)

    place = _doc(tmp_path / "b.docx", coloured)
    assert metric("evaluate_colored_words_in_tables")(place, place) == 0.0


_BREAK = "<w:r><w:br w:type='page'/></w:r>"
_PAGE_BREAKS = {
    "deleted": (f"<w:del w:id='1' w:author='A'>{_BREAK}</w:del>", 0),
    "inserted": (f"<w:ins w:id='1' w:author='A'>{_BREAK}</w:ins>", 1),
    "moved away": (f"<w:moveFrom w:id='1' w:author='A'>{_BREAK}</w:moveFrom>", 0),
    "in both forms of an object": (
        f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'>{_BREAK}</mc:Choice><mc:Fallback>{_BREAK}</mc:Fallback>"
        "</mc:AlternateContent></w:r>",
        1,
    ),
    "in a content control": (f"<w:sdt><w:sdtContent>{_BREAK}</w:sdtContent></w:sdt>", 1),
    "of a column": ("<w:r><w:br w:type='column'/></w:r>", 0),
    **{f"before, {value}": (f"<w:pPr><w:pageBreakBefore w:val='{value}'/></w:pPr>", 0) for value in ("off", "false", "0")},
    "before": ("<w:pPr><w:pageBreakBefore/></w:pPr>", 1),
}


@pytest.mark.parametrize("form", _PAGE_BREAKS)
def test_contains_page_break_counts_those_that_are_shown(form: str, tmp_path: Path) -> None:
    content, count = _PAGE_BREAKS[form]
    place = _doc(tmp_path / "a.docx", _append(content))
    assert metric("contains_page_break")(place) == float(count > 0)
    assert metric("contains_page_break")(place, {"page_break_count": count}) == 1.0


@pytest.mark.parametrize(
    ("mark", "is_free"),
    [
        ("<w:highlight w:val='none'/>", True),
        ("<w:highlight w:val='default'/>", True),
        ("<w:shd w:val='clear' w:fill='auto'/>", True),
        ("<w:highlight w:val='yellow'/>", False),
        ("<w:highlight w:val='some colour'/>", False),
        ("<w:shd w:val='clear' w:fill='FFFF00'/>", False),
    ],
)
def test_check_highlighted_words_docx(mark: str, is_free: bool, tmp_path: Path) -> None:
    plain = _doc(tmp_path / "plain.docx", _append("<w:r><w:t>word</w:t></w:r>"))
    marked = _doc(tmp_path / "marked.docx", _append(f"<w:r><w:rPr>{mark}</w:rPr><w:t>word</w:t></w:r>"))
    assert metric("check_highlighted_words")(marked, plain) == float(is_free)


def test_values_of_other_forms_of_the_format_are_read(tmp_path: Path) -> None:
    def tabs(*sides: str) -> str:
        stops = "".join(f"<w:tab w:val='{side}' w:pos='{1000 + number}'/>" for number, side in enumerate(sides))
        return _doc(tmp_path / f"{sides[0]}.docx", _append(f"<w:pPr><w:tabs>{stops}</w:tabs><w:jc w:val='start'/></w:pPr>"))

    assert metric("check_tabstops")(tabs("start", "end", "clear"), tabs("left", "right")) == 1.0
    assert metric("check_tabstops")(tabs("end", "start"), tabs("left", "right")) == 0.0
    unbroken = _doc(tmp_path / "d.docx", lambda document: document.element.body.remove(document.element.body.sectPr))
    assert metric("check_tabstops")(unbroken, unbroken) == 1.0
    start = _doc(tmp_path / "c.docx", _append("<w:pPr><w:jc w:val='start'/></w:pPr>", 0))
    assert metric("is_first_line_centered")(start) == 0.0


# --- odt -------------------------------------------------------------------------------------------------------------

_ODT = (
    '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"><office:automatic-styles>{styles}</office:automatic-styles>'
    "<office:body><office:text>{body}</office:text></office:body></office:document-content>"
)
_STYLES = (
    '<office:document-styles xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0"><office:styles>'
    '<style:style style:name="Marked" style:family="text"><style:text-properties fo:background-color="#ffff00"/></style:style>'
    "</office:styles></office:document-styles>"
)


def _odt(place: Path, body: str, styles: str = "") -> str:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("content.xml", _ODT.format(body=body, styles=styles))
        archive.writestr("styles.xml", _STYLES)
    return str(place)


ODT_TEXT = "<text:p>One<text:s text:c='2'/>two<text:tab/>three</text:p><text:h>Head</text:h>"
ODT_SAME = [
    "<text:p><text:span>One</text:span>  <text:a>two</text:a><text:tab/><text:span><text:span>three</text:span></text:span>"
    "</text:p><text:h>Head</text:h>",
    "<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion></text:changed-region>"
    f"</text:tracked-changes>{ODT_TEXT}",
    "<text:p>One<office:annotation><text:p>remark</text:p></office:annotation>  two<text:tab/>three</text:p>"
    "<text:h>Head</text:h>",
]
ODT_OTHER = [
    "<text:p>One  two<text:tab/>three</text:p>",
    "<text:p>One  two<text:tab/>four</text:p><text:h>Head</text:h>",
    f"{ODT_TEXT}<text:p><draw:frame><draw:text-box><text:p>box</text:p></draw:text-box></draw:frame></text:p>",
    "<text:p>One  two<text:tab/>three<text:note><text:note-body><text:p>note</text:p></text:note-body></text:note></text:p>"
    "<text:h>Head</text:h>",
]


def test_compare_docx_files_odt_what_is_shown_counts(tmp_path: Path) -> None:
    gold = _odt(tmp_path / "gold.odt", ODT_TEXT)
    same = [metric("compare_docx_files")(_odt(tmp_path / "found.odt", body), gold, ignore_blanks=False) for body in ODT_SAME]
    other = [metric("compare_docx_files")(_odt(tmp_path / "found.odt", body), gold, ignore_blanks=False) for body in ODT_OTHER]
    assert (same, other) == ([1.0] * len(ODT_SAME), [0.0] * len(ODT_OTHER))


def _background(name: str, rest: str) -> str:
    return f'<style:style style:name="{name}" style:family="text" {rest}</style:style>'


@pytest.mark.parametrize(
    ("styles", "highlighted"),
    [
        ('><style:text-properties fo:background-color="#ffff00"/>', True),
        ('><style:text-properties fo:background-color="#00ff00"/>', True),
        ('style:parent-style-name="Marked">', True),
        ('style:parent-style-name="Marked"><style:text-properties fo:background-color="transparent"/>', False),
        ('><style:text-properties fo:background-color="transparent"/>', False),
        ("><style:text-properties/>", False),
        ('style:parent-style-name="T1">', False),
    ],
)
def test_check_highlighted_words_odt(styles: str, highlighted: bool, tmp_path: Path) -> None:
    body = '<text:p><text:span text:style-name="T1">word</text:span> other</text:p>'
    gold, found = _odt(tmp_path / "gold.odt", body), _odt(tmp_path / "found.odt", body, _background("T1", styles))
    assert metric("check_highlighted_words")(found, gold) == float(not highlighted)
    assert metric("check_highlighted_words")(found, found) == 1.0


# --- colours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        # From table 1 of the paper.
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0009), 7.1792),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
        ((90.8027, -2.0831, 1.441), (91.1528, -1.6435, 0.0447), 1.4441),
        ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
    ],
)
def test_ciede2000_figures_of_the_paper(first: Any, second: Any, distance: float) -> None:
    assert round(ciede2000(first, second), 4) == distance
    assert round(ciede2000(second, first), 4) == distance


@pytest.mark.parametrize(("colour", "wanted"), [("F10D0C", "FF0000"), ("0000F0", "0000FF")])
def test_difference_colours_of_a_palette_are_near(colour: str, wanted: str) -> None:
    assert difference(colour, wanted) <= 3.5
    assert difference("800000", wanted) > 3.5


@pytest.mark.parametrize("kind", ["footnote", "comment"])
def test_part_that_is_no_xml_is_a_broken_file(kind: str, tmp_path: Path) -> None:
    gold, whole = _doc(tmp_path / "gold.docx"), _doc(tmp_path / "whole.docx", _part(kind, "x"))
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(tmp_path / "found.docx", "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, b"<w:" if info.filename == f"word/{kind}s.xml" else old.read(info))
    with pytest.raises(BrokenFile) as fault:
        metric("simple_docx_compare")(str(tmp_path / "found.docx"), gold)
    assert fault.value.path == tmp_path / "found.docx"
