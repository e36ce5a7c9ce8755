"""Judges' readers on files with one extreme each: the cost follows what is really read, and a limit is the file's fault."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.forge.book_facts import book_facts, number_kind
from computerrl.env_server.tasks.forge.deck_facts import deck_facts
from computerrl.env_server.tasks.forge.facts import UnreadableFile
from computerrl.env_server.tasks.forge.paper_facts import paper_facts
from computerrl.env_server.tasks.forge.plan import Forged, facts_of
from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import read_json, read_text
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.databases import rows_of
from computerrl.env_server.tasks.reading.limits import Budget, LimitPassed
from computerrl.env_server.tasks.reading.packages import Package, unpacked, xml_of
from computerrl.env_server.tasks.reading.texts import json_of, likeness, line_likeness, literal_of, yaml_of
from computerrl.env_server.tasks.reading.workbooks import cells_of, open_workbook, used_cells
from tests.support.data.extreme_files import (
    book,
    deck,
    document,
    lying,
    odt,
    outcome,
    packed,
    plain_deck,
    plain_document,
    png,
    tarred,
)

WHOLE = "A1:XFD1048576"
_CONDITION = (
    f'<conditionalFormatting sqref="{WHOLE}"><cfRule type="cellIs" dxfId="0" priority="1" operator="greaterThan">'
    "<formula>0</formula></cfRule></conditionalFormatting>"
)
FAR_ROW = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576" ht="30" customHeight="1"><c r="XFD1048576"><v>2</v></c></row>'
LINK = f'<hyperlinks><hyperlink ref="{WHOLE}" location="A1"/></hyperlinks>'
VALIDATION = (
    f'<dataValidations count="1"><dataValidation type="list" sqref="{WHOLE}"><formula1>"a,b"</formula1></dataValidation>'
    "</dataValidations>"
)
WIDE_BOOKS = {
    "far cell": book(rows=FAR_ROW),
    "styled far cell": book(rows='<row r="1048576"><c r="XFD1048576" s="0"/></row>'),
    "dimension": book(before=f'<dimension ref="{WHOLE}"/>'),
    "columns": book(rows=FAR_ROW, before='<cols><col min="1" max="16384" width="12" customWidth="1"/></cols>'),
    "merged": book(after=f'<mergeCells count="1"><mergeCell ref="{WHOLE}"/></mergeCells>'),
    "merged twice": book(after=f'<mergeCells><mergeCell ref="{WHOLE}"/><mergeCell ref="{WHOLE}"/></mergeCells>'),
    "link": book(after=LINK),
    "filter": book(after=f'<autoFilter ref="{WHOLE}"/>'),
    "validation": book(after=VALIDATION),
}
RULES = [
    {"type": kind, "sheet_idx0": 0, "sheet_idx1": "EI0"}
    for kind in ("sheet_name", "sheet_data", "freeze", "filter", "chart", "pivot_table")
] + [
    {"type": "style", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["bgcolor", "font_bold", "merge", "hyperlink"]},
    {"type": "row_props", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["height"]},
    {"type": "col_props", "sheet_idx0": 0, "sheet_idx1": "EI0", "props": ["width"]},
]


def _file(folder: Path, name: str, data: bytes) -> str:
    place = folder / name
    place.write_bytes(data)
    return str(place)


@pytest.mark.parametrize("extreme", WIDE_BOOKS)
def test_workbook_that_claims_a_whole_sheet_is_judged_by_what_it_holds(tmp_path: Path, extreme: str) -> None:
    wide, plain = _file(tmp_path, "wide.xlsx", WIDE_BOOKS[extreme]), _file(tmp_path, "plain.xlsx", book())

    def judge() -> tuple[Any, ...]:
        table = metric("compare_table")
        return (
            table(wide, wide, rules=RULES),
            metric("compare_spreadsheet")(wide, wide, answer_position="A:XFD", check_style=True),
            table(wide, plain, rules=RULES) if extreme not in ("dimension", "validation") else 0.0,
            "Sheet!A1" in book_facts(Path(wide).read_bytes()) or extreme == "styled far cell",
        )

    assert outcome(judge) == "(1.0, 1.0, 0.0, True)"


def test_merged_area_hides_the_cells_below_it_and_is_a_fact() -> None:
    rows = '<row r="1"><c r="A1"><v>1</v></c><c r="B1"><v>2</v></c><c r="D1"><v>3</v></c></row>'
    merged = book(rows=rows, after='<mergeCells><mergeCell ref="A1:C1048576"/></mergeCells>')
    facts = book_facts(merged)
    assert (facts["Sheet!A1"], facts["Sheet!D1"], facts["Sheet merged"]) == (1, 3, ["A1:C1048576"]) and "Sheet!B1" not in facts


@settings(max_examples=30, deadline=None)
@given(
    places=st.dictionaries(st.tuples(st.integers(1, 12), st.integers(1, 12)), st.integers(0, 99), max_size=20),
    merges=st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 3), st.integers(1, 3)), max_size=2),
)
def test_sparse_workbook_has_the_cells_that_openpyxl_reads(
    places: dict[tuple[int, int], int], merges: list[tuple[int, int, int, int]]
) -> None:
    made = openpyxl.Workbook()
    for (row, column), value in places.items():
        made.active.cell(row, column, value)
    for row, column, height, width in merges:
        made.active.merge_cells(start_row=row, start_column=column, end_row=row + height, end_column=column + width)
    buffer = io.BytesIO()
    made.save(buffer)
    dense = openpyxl.load_workbook(io.BytesIO(buffer.getvalue())).active
    wanted = {cell.coordinate: cell.value for row in dense.iter_rows() for cell in row if cell.value is not None}
    sheet = open_workbook(Package(buffer.getvalue()), formulas=True).active
    assert {cell.coordinate: cell.value for cell in used_cells(sheet) if cell.value is not None} == wanted
    for area in sheet.merged_cells.ranges:
        assert [cell.coordinate for cell in cells_of(sheet, area)] in ([], [area.coord.split(":")[0]])


# --- files that pass a limit -----------------------------------------------------------------------------------------

_P, _R = "<w:p><w:r><w:t>ab</w:t></w:r></w:p>", "<w:r><w:t>ab</w:t></w:r>"
_NESTED = 60
DOCUMENTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "millions of paragraphs": (lambda: document([b"<w:p/>" * 1_000_000] * 8), "bytes of XML"),
    "many paragraphs": (lambda: document("<w:p/>" * 60_000), "paragraphs"),
    "attributes": (lambda: document('<w:r w:a="1"/>' * 2_100_000), "XML"),
    "entities": (lambda: _with_entities(), "entities"),
    "other encoding": (lambda: _in_encoding("utf-16"), "encoding"),
    "hidden encoding": (lambda: _in_encoding("utf-7"), "encoding"),
    "depth": (lambda: document("<w:p>" * 5000 + "</w:p>" * 5000), "depth"),
    "lying header": (lambda: lying("word/document.xml", b"\0" * 70_000_000, claimed=10), "."),
}


def _with_entities() -> bytes:
    head = '<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">]><w:document xmlns:w="u"><w:body>&a;</w:body></w:document>'
    return packed({"word/document.xml": head.encode(), "word/styles.xml": b"<a/>", "[Content_Types].xml": b"<a/>"})


def _in_encoding(name: str) -> bytes:
    text = f'<?xml version="1.0" encoding="{name}"?><a><b/></a>'
    encoded = text.encode("utf-16") if name == "utf-16" else text.encode().replace(b"<b/>", b"+ADw-b/+AD4-")
    return packed({"word/document.xml": encoded, "word/styles.xml": b"<a/>", "[Content_Types].xml": b"<a/>"})


@pytest.mark.parametrize("extreme", DOCUMENTS)
def test_document_beyond_a_limit_is_the_agents_fault_for_every_reader(tmp_path: Path, extreme: str) -> None:
    make, reason = DOCUMENTS[extreme]
    path = _file(tmp_path, "made.docx", make())
    plain = _file(tmp_path, "plain.docx", plain_document())
    by_own_task = outcome(lambda: paper_facts(Path(path).read_bytes()))
    by_metric = outcome(lambda: metric("compare_docx_files")(path, plain))
    assert re.match(rf"UnreadableFile: .*({reason})", by_own_task), by_own_task
    assert re.match(rf"BrokenFile: made.docx: .*({reason})", by_metric), by_metric


def _styles(count: int) -> str:
    """Styles, each based on the next, and the last on the first."""
    return "".join(
        f'<w:style w:type="paragraph" w:styleId="s{n}"><w:name w:val="s{n}"/><w:basedOn w:val="s{(n + 1) % count}"/></w:style>'
        for n in range(count)
    )


TEXTS = {
    "empty paragraphs": document("<w:p/>" * 40_000),
    "styles in a circle": document(
        "".join(f'<w:p><w:pPr><w:pStyle w:val="s{n}"/></w:pPr>{_R}</w:p>' for n in range(500)), styles=_styles(500)
    ),
    "wide cells": document(f'<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="1000000000"/></w:tcPr>{_P}</w:tc></w:tr></w:tbl>'),
    "merged cells": document("<w:tbl>" + f"<w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr>{_P}</w:tc></w:tr>" * 3000 + "</w:tbl>"),
    "tables in tables": document(
        "<w:tbl><w:tr><w:tc>" * _NESTED + _P.replace("ab", "a" * 1_000_000) + "</w:tc></w:tr></w:tbl>" * _NESTED
    ),
    "open fields": document("<w:p>" + '<w:r><w:fldChar w:fldCharType="begin"/></w:r>' * 20_000 + "</w:p>"),
    "sections": document(f"<w:p><w:pPr><w:sectPr/></w:pPr>{_R}</w:p>" * 600 + "<w:sectPr/>"),
    "one long paragraph": document(f"<w:p>{_R * 60_000}</w:p>"),
}


@pytest.mark.parametrize("extreme", TEXTS)
def test_document_with_an_extreme_is_read_or_refused_within_bounded_work(tmp_path: Path, extreme: str) -> None:
    path = _file(tmp_path, "made.docx", TEXTS[extreme])
    judges: dict[str, Callable[[], Any]] = {
        "facts": lambda: len(paper_facts(TEXTS[extreme])) > 0,
        "outline": lambda: metric("simple_docx_compare")(path, path),
        "texts": lambda: metric("compare_docx_files")(path, path),
        "tables": lambda: metric("compare_docx_tables")(path, path),
        "fonts": lambda: metric("compare_font_names")(path, {"font_name": "none"}) in (0.0, 1.0),
        "footers": lambda: metric("has_page_numbers_in_footers")(path),
    }
    for name, judge in judges.items():
        found = outcome(judge)
        assert re.match(r"True|1\.0|0\.0|(UnreadableFile|BrokenFile|RecursionError): ", found), f"{name}: {found}"


def test_blanks_of_an_odt_file_are_counted_before_they_are_written(tmp_path: Path) -> None:
    path = _file(tmp_path, "made.odt", odt('<text:p>a<text:s text:c="2000000000"/>b</text:p>'))
    assert outcome(lambda: metric("compare_docx_files")(path, path)).startswith(
        "BrokenFile: made.odt: blanks in a row: 2000000000"
    )


_SHAPE = (
    '<p:sp><p:nvSpPr><p:cNvPr id="2" name="x"/><p:cNvSpPr/><p:nvPr>{kind}</p:nvPr></p:nvSpPr><p:spPr/><p:txBody><a:bodyPr/>'
    "<a:p><a:r><a:t>ab</a:t></a:r></a:p></p:txBody></p:sp>"
)
_GROUP = '<p:grpSp><p:nvGrpSpPr><p:cNvPr id="3" name="g"/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>'
DECKS = {
    "shapes": (deck(_SHAPE.format(kind="") * 60_000), "tags of XML|paragraphs"),
    "one slide often": (deck(entries='<p:sldId id="900" r:id="rId7"/>' * 50), "several places"),
    "placeholders": (deck(_SHAPE.format(kind='<p:ph idx="1"/>') * 200), "placeholders of a page|^"),
    "groups": (deck(_GROUP * 240 + "</p:grpSp>" * 240), "depth|^"),
}


@pytest.mark.parametrize("extreme", DECKS)
def test_presentation_with_an_extreme_is_read_or_refused(tmp_path: Path, extreme: str) -> None:
    data, reason = DECKS[extreme]
    path = _file(tmp_path, "made.pptx", data)
    for judge in (
        lambda: deck_facts(data)["slides"],
        lambda: metric("compare_pptx_files")(path, path),
        lambda: metric("simple_pptx_compare")(path, path),
    ):
        found = outcome(judge)
        assert re.match(rf"1$|1\.0|(UnreadableFile|BrokenFile): .*({reason})", found), found
    if not reason.endswith("^"):
        assert not re.match("1", outcome(lambda: deck_facts(data)["slides"]))


# --- archives --------------------------------------------------------------------------------------------------------

ARCHIVES: dict[str, Callable[[], bytes]] = {
    "deflate": lambda: packed({"a": (b"\0" * 1_000_000 for _ in range(70))}),
    "bzip2": lambda: packed({"a": (b"\0" * 1_000_000 for _ in range(70))}, method=zipfile.ZIP_BZIP2),
    "members": lambda: packed({f"{n}": b"" for n in range(limits.MAX_MEMBERS + 1)}),
    "tar": lambda: tarred("a", 65_000_000, mode=""),
    "tar.gz": lambda: tarred("a", 65_000_000, mode="gz"),
    "tar.bz2": lambda: tarred("a", 65_000_000, mode="bz2"),
    "tar.xz": lambda: tarred("a", 65_000_000, mode="xz"),
    "sparse tar": lambda: tarred("a", 1 << 40, mode="gz", sparse=True),
}


@pytest.mark.parametrize(
    "extreme",
    [pytest.param(name, marks=pytest.mark.release) if name in ("bzip2", "tar.bz2", "tar.xz") else name for name in ARCHIVES],
)
def test_archive_is_counted_while_it_is_unpacked(tmp_path: Path, extreme: str) -> None:
    data = ARCHIVES[extreme]()
    assert outcome(lambda: unpacked(data)).startswith("LimitPassed: "), outcome(lambda: unpacked(data))


def test_archive_whose_headers_lie_gives_no_more_than_they_claim() -> None:
    assert unpacked(lying("a", b"\0" * 70_000_000, claimed=10)) == {"a": b"\0" * 10}


def test_package_is_read_some_times_only_however_often_a_part_is_named() -> None:
    package = Package(packed({"a.xml": b"<a>" + b"x" * 1_000_000 + b"</a>"}))
    with zipfile.ZipFile(package.file()) as archive:

        def read_often() -> None:
            for _ in range(100):
                archive.read("a.xml")

        with pytest.raises(LimitPassed, match="bytes read of the file's parts"):
            read_often()


_VALID = {
    "xlsx": (book_facts, WIDE_BOOKS["far cell"]),
    "docx": (paper_facts, plain_document()),
    "pptx": (deck_facts, plain_deck()),
    "zip": (lambda data: facts_of("a.zip", data), packed({"a": b"1" * 100, "b": b""})),
    "tar.gz": (lambda data: facts_of("a.tar.gz", data), tarred("a", 1000, mode="gz")),
}


@pytest.mark.parametrize("kind", _VALID)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_file_is_read_or_refused_by_its_type(kind: str, data: st.DataObject) -> None:
    read, valid = _VALID[kind]
    damaged = bytearray(valid)
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(valid) - 1), st.integers(0, 255)), max_size=8)):
        damaged[place] = byte
    cut = data.draw(st.integers(0, len(valid)))
    with contextlib.suppress(UnreadableFile):
        assert isinstance(read(bytes(damaged[: cut or None])), dict)


# --- values, texts, pictures, databases --------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "deep JSON": (json_of, "[" * 200_000),
    "many values": (json_of, "[" + "1," * 2_000_000 + "1]"),
    "long JSON": (json_of, '"' + "a" * 11_000_000 + '"'),
    "long number": (json_of, "1" * 100_000),
    "aliases": (yaml_of, BOMB),
    "circle": (yaml_of, "a: &a [*a]"),
    "deep YAML": (yaml_of, "[" * 5_000),
    "deep literal": (literal_of, "(" * 90_000),
    "long sum": (literal_of, "1+" * 40_000 + "1"),
}


@pytest.mark.parametrize("extreme", VALUES)
def test_value_with_an_extreme_is_a_value_error(extreme: str) -> None:
    parse, text = VALUES[extreme]
    assert re.match("ValueError|LimitPassed", found := outcome(lambda: parse(text))), found


@pytest.mark.parametrize(("width", "height"), [(13_000, 13_000), (1_000_000, 17), (5_000, 5_000)])
def test_picture_beyond_the_limit_is_not_decoded(tmp_path: Path, width: int, height: int) -> None:
    path = _file(tmp_path, "made.png", png(width, height))
    assert outcome(lambda: metric("compare_images")(path, path)).startswith("BrokenFile: made.png: pixels: ")


def test_pictures_that_start_programs_are_refused(tmp_path: Path) -> None:
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    path = _file(tmp_path, "made.png", data)
    assert outcome(lambda: metric("compare_images")(path, path)).startswith("BrokenFile: made.png: UnidentifiedImageError")


_ENDLESS = "create view t as with recursive r(n) as (select 1 union all select n + 1 from r) select n as url from r"
DATABASES = {
    "endless view": (_ENDLESS, "select url from t"),
    "endless count": (_ENDLESS, "select count(*) from t"),
    "endless sort": (_ENDLESS, "select url from t order by -url"),
    "large value": ("create view t as select zeroblob(900000000) as url", "select url from t"),
    "printed value": ("create view t as select printf('%.*c', 900000000, 'x') as url", "select url from t"),
    "product": ("create table t as select 1 as url", "select count(*) from " + ", ".join(["(select 1 union all select 2)"] * 40)),
    "file": ("create table t as select 1 as url", "attach '/etc/passwd' as p"),
    "extension": ("create table t as select 1 as url", "select load_extension('x')"),
}


@pytest.mark.parametrize("extreme", DATABASES)
def test_query_over_a_hostile_database_ends(tmp_path: Path, extreme: str) -> None:
    setup, query = DATABASES[extreme]
    path = tmp_path / "made.sqlite"
    with sqlite3.connect(path) as base:
        base.execute(setup)
    found = outcome(lambda: rows_of(path, query))
    assert re.match("LimitPassed|(DataError|OperationalError|DatabaseError): ", found), found


def test_text_file_beyond_the_limit_is_refused_by_name(tmp_path: Path) -> None:
    path = _file(tmp_path, "made.txt", b"a" * (limits.MAX_TEXT_BYTES + 1))
    assert (
        outcome(lambda: read_text(path))
        == f"BrokenFile: made.txt: bytes of text: 20000001, at most {limits.MAX_TEXT_BYTES} are read"
    )
    path = _file(tmp_path, "made.json", b"[" * 100_000)
    assert outcome(lambda: read_json(path)).startswith("BrokenFile: made.json: ")


@settings(max_examples=200, deadline=None)
@given(st.text("abc \n", max_size=60), st.text("abc \n", max_size=60))
def test_likeness_is_that_of_the_libraries(found: str, wanted: str) -> None:
    from rapidfuzz import fuzz

    assert likeness(found, wanted) == pytest.approx(fuzz.ratio(found, wanted) / 100)
    matcher = difflib.SequenceMatcher(a=found.split("\n"), b=wanted.split("\n"), autojunk=False)
    assert line_likeness(found.split("\n"), wanted.split("\n")) == matcher.ratio()


def test_likeness_of_long_texts_is_refused_where_they_differ_throughout() -> None:
    one, other = "ab" * 500_000, "ba" * 400_000 + "c"
    assert likeness(one, one[:-1] + "x") > 0.99
    with pytest.raises(LimitPassed, match="pairs of characters"):
        likeness("x" + one + "y", "z" + other + "w")
    with pytest.raises(LimitPassed, match="pairs of equal lines"):
        line_likeness(["a"] * 20_000, ["a", "b"] * 10_000)


@pytest.mark.parametrize(
    ("name", "text", "judge"),
    [
        ("prefs.js", 'user_pref("a",' + " " * 300_000 + "x" * 300_000, lambda path: metric("check_thunderbird_prefs")(path, {})),
        (
            "msgFilterRules.dat",
            'name="a"\ncondition="' + 'AND ("AND ("' * 60_000,
            lambda path: metric("check_thunderbird_filter")(path, {}),
        ),
        ("book.epub", "", lambda path: metric("compare_epub")(path, path)),
    ],
)
def test_patterns_over_an_agents_text_cost_no_more_than_its_letters(
    tmp_path: Path, name: str, text: str, judge: Callable[[str], Any]
) -> None:
    data = text.encode() if text else packed({"a.opf": b"<dc:identifier" * 100_000 + b"<meta uid " * 100_000})
    path = _file(tmp_path, name, data)
    assert outcome(lambda: judge(path)) == "1.0"
    assert outcome(lambda: number_kind("0" + "[" * 300_000)) == "'number/0'"


# --- whose fault it is ---------------------------------------------------------------------------------------------------


def test_limit_passed_by_the_tasks_own_file_is_the_tasks_fault() -> None:
    large = packed({"a": (b"\0" * 1_000_000 for _ in range(100))})
    forged = Forged("Do it.", {}, lambda: {"made.zip": large}, dict, (), ())
    with pytest.raises(TaskFailed, match=r"made\.zip cannot be read: bytes of the unpacked archive"):
        forged.evaluate(lambda kind, **args: packed({"a": b"1"}))
    forged = Forged("Do it.", {}, lambda: {"made.zip": packed({"a": b"1"})}, dict, (), ())
    verdict = forged.evaluate(lambda kind, **args: large)
    assert verdict.reward == 0.0 and "made.zip: bytes of the unpacked archive: " in verdict.detail


def test_budget_names_what_it_counts_its_value_and_the_limit() -> None:
    budget = Budget("cells", 10)
    budget.spend(10)
    with pytest.raises(LimitPassed, match="cells: 11, at most 10 are read"):
        budget.spend()
    assert xml_of(b"<a/>").tag == "a"


def test_text_beyond_the_limit_is_not_searched_for_a_tasks_pattern(tmp_path: Path) -> None:
    path = _file(tmp_path, "made.txt", b"a" * (limits.MAX_SEARCHED + 1))
    assert outcome(lambda: metric("check_list")(path, {"expect": ["a"]})).startswith("LimitPassed: characters to search: 100001")
    assert metric("check_list")(_file(tmp_path, "short.txt", b"b\n" * 60_000 + b"a"), {"expect": ["a$"]}) == 1.0
