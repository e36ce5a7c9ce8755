"""OfficeForge without a desktop: every family's files, wordings and checker, on files made by the libraries themselves."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import docx
import openpyxl
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from computerrl.common.actions import parse_action, render_action
from computerrl.common.messages import Action
from computerrl.env_server.driver import Getter
from computerrl.env_server.tasks.forge import FAMILIES
from computerrl.env_server.tasks.forge.facts import differences
from computerrl.env_server.tasks.forge.paper_facts import paper_facts
from computerrl.env_server.tasks.forge.plan import Forged, ForgeFamily
from tests.support.data.extreme_files import document

SEEDS = tuple(range(4))
EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def getter(files: Mapping[str, bytes | None], folders: tuple[str, ...] = (), result: object = None) -> Getter:
    """A folder with these files and a page that says ``result``."""
    there = {path: data for path, data in files.items() if data is not None}
    above = {path[: index + 1] for path in there for index, char in enumerate(path) if char == "/"}

    def get(kind: str, **args: Any) -> Any:
        if kind == "file_bytes":
            return there.get(args["path"])
        if kind == "folder_listing":
            return sorted({*there, *above, *(f"{folder}/" for folder in folders)})
        assert kind == "web_result"
        return result

    return get


def after(forged: Forged, changes: Mapping[str, bytes | None], result: object = None) -> Getter:
    return getter({**forged.files, **changes}, tuple(forged.folders), result)


@EVERY
def test_family_untouched_zero_right_file_one_near_miss_zero(family: ForgeFamily) -> None:
    for seed in SEEDS:
        forged = family.forged(seed)
        assert forged.evaluate(after(forged, {})).reward == 0.0
        right = forged.evaluate(after(forged, forged.wanted(), forged.result))
        assert right.success and right.reward == 1.0, (seed, right.detail)
        nearly = forged.evaluate(after(forged, forged.nearly(), forged.near_result))
        assert nearly.reward == 0.0 and nearly.detail, (seed, forged.instruction)


@EVERY
def test_family_progress_rises_from_zero_to_one_and_no_loss_of_files_raises_it(family: ForgeFamily) -> None:
    assert family.counts_facts and family.make(0).counts_facts
    for seed in SEEDS:
        forged = family.forged(seed)
        assert forged.evaluate(after(forged, {})).progress == 0.0
        assert forged.evaluate(after(forged, forged.wanted(), forged.result)).progress == 1.0
        nearly = forged.evaluate(after(forged, forged.nearly(), forged.near_result))
        assert nearly.progress is not None and nearly.progress < 1.0
        # What is to be deleted may be deleted; all else is lost.
        kept = {path for path in forged.files if forged.wanted().get(path, b"") is not None}
        if kept:
            emptied = forged.evaluate(getter({}, tuple(forged.folders), forged.near_result))
            broken = forged.evaluate(after(forged, dict.fromkeys(kept, b"\0")))
            assert emptied.progress == 0.0 and broken.progress == 0.0, (seed, emptied.detail, broken.detail)


@EVERY
def test_family_same_seed_same_bytes_other_seeds_differ(family: ForgeFamily) -> None:
    first, again = family.forged(5), family.forged(5)
    assert (first.instruction, first.files, first.folders) == (again.instruction, again.files, again.folders)
    assert first.wanted() == again.wanted() and family.level(5) == family.level(5)
    forged = [family.forged(seed) for seed in range(12)]
    assert len({(item.instruction, repr(item.files)) for item in forged}) == len(forged)


@EVERY
def test_family_levels_differ_and_all_come(family: ForgeFamily) -> None:
    assert {family.level(seed) for seed in range(60)} == set(family.levels) <= {1, 2, 3}


@EVERY
def test_family_scripts_use_the_action_space(family: ForgeFamily) -> None:
    for seed in SEEDS:
        forged = family.forged(seed)
        for move in (*forged.solution, *forged.near_miss):
            if isinstance(move, Action):
                text = render_action(move)
                assert render_action(parse_action(text)) == text
        assert len(forged.solution) <= 16
        assert [repr(move) for move in forged.solution] != [repr(move) for move in forged.near_miss]


@EVERY
def test_family_instruction_is_a_text_that_asks_for_saving(family: ForgeFamily) -> None:
    wordings = {family.forged(seed).instruction for seed in range(12)}
    assert len(wordings) >= 4
    for text in wordings:
        assert text[0].isupper() and "{" not in text and "  " not in text
        if family.app in ("calc", "writer", "impress") and family.name != "forge-across-rename-by-list":
            assert "save" in text.lower()


@EVERY
def test_family_damaged_or_missing_file_scores_zero_with_a_reason(family: ForgeFamily) -> None:
    forged = family.forged(1)
    for data in (b"not a file of any office", None):
        outcome = forged.evaluate(after(forged, dict.fromkeys(forged.files, data), forged.near_result))
        assert outcome.reward == 0.0 and outcome.detail


WRITERS = [family for family in FAMILIES if family.name.startswith("forge-writer-")]
PIECES = {
    "symbol": "<w:sym w:font='Wingdings' w:char='F0FC'/>",
    "hyphen": "<w:noBreakHyphen/>",
    "phonetic guide": "<w:ruby><w:rt><w:r><w:t>x</w:t></w:r></w:rt><w:rubyBase/></w:ruby>",
    "equation": "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>",
}
MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'


def with_piece(data: bytes, piece: str) -> bytes:
    """A text document with one more piece in its first paragraph that has text."""
    document = docx.Document(io.BytesIO(data))
    paragraph = next(paragraph for paragraph in document.paragraphs if paragraph.text)
    run = parse_xml(f"<w:r {nsdecls('w')} {MATH}>{piece}</w:r>")
    paragraph._p.append(run[0] if piece.startswith("<m:") else run)
    saved = io.BytesIO()
    document.save(saved)
    return saved.getvalue()


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("family", WRITERS, ids=lambda family: family.name)
def test_family_right_text_with_an_unwanted_piece_scores_zero(family: ForgeFamily, piece: str) -> None:
    forged = family.forged(0)
    wanted = forged.wanted()
    path = next(path for path in wanted if path.endswith(".docx"))
    spoilt = {**wanted, path: with_piece(wanted[path] or b"", PIECES[piece])}
    assert forged.evaluate(after(forged, spoilt, forged.result)).reward == 0.0


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.app == "calc"], ids=lambda family: family.name)
@pytest.mark.parametrize("truth", [True, False])
def test_family_cells_with_truth_values_score_zero(family: ForgeFamily, truth: bool) -> None:
    """In a workbook, a cell with TRUE or FALSE stands for no number and no text."""
    for seed in range(3):
        forged = family.forged(seed)
        wanted = forged.wanted()
        saved = {**wanted, **{path: data for path, data in forged.files.items() if path not in wanted}}
        path, data = next((path, data) for path, data in saved.items() if data is not None and path.endswith(".xlsx"))
        book = openpyxl.load_workbook(io.BytesIO(data))
        sheet = book.worksheets[0]
        cell = next(cell for row in sheet.iter_rows() for cell in row if type(cell.value) in (int, float, str))
        for place in (cell.coordinate, f"A{sheet.max_row + 3}"):
            before = sheet[place].value
            sheet[place].value = truth
            changed = io.BytesIO()
            book.save(changed)
            assert forged.evaluate(after(forged, {**wanted, path: changed.getvalue()})).reward == 0.0, (seed, place)
            sheet[place].value = before


@pytest.mark.parametrize("value", [0, 1, 1234, 0.5, "", "pear", None, [1], ("bold", 1)])
@pytest.mark.parametrize("truth", [True, False])
def test_facts_truth_value_in_place_of_another_differs(value: object, truth: bool) -> None:
    assert differences({"A1": value}, {"A1": truth}) != []
    assert differences({"A1": truth}, {"A1": value}) != []
    assert differences({"A1": truth}, {"A1": truth}) == []


def test_families_cover_applications_with_enough_of_each() -> None:
    counts = {area: sum(family.name.startswith(f"forge-{area}-") for family in FAMILIES) for area in AREAS}
    assert all(counts[area] >= least for area, least in AREAS.items()), counts
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) == sum(counts.values())


AREAS = {"calc": 12, "writer": 12, "impress": 12, "files": 6, "web": 4, "across": 3}


def test_a_third_of_the_families_is_played_by_mouse_and_keys() -> None:
    def is_by_hand(family: ForgeFamily) -> bool:
        moves = [move for move in family.forged(0).solution if not isinstance(move, Action) or "." not in move.name]
        return len(moves) >= 2

    assert sum(map(is_by_hand, FAMILIES)) * 3 >= len(FAMILIES)


_RUN = "<w:r><w:t>word</w:t></w:r>"
_CHANGE = "w:id='1' w:author='A'"
_ROW = "<w:tr>{}<w:tc><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc></w:tr>"


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        (f"<w:p>{_RUN}<w:moveFrom {_CHANGE}>{_RUN}</w:moveFrom></w:p>", f"<w:p>{_RUN}</w:p>"),
        (f"<w:p>{_RUN}<w:del {_CHANGE}><w:r><w:br w:type='page'/></w:r></w:del></w:p>", f"<w:p>{_RUN}</w:p>"),
        (f"<w:p><w:ins {_CHANGE}>{_RUN}</w:ins></w:p>", f"<w:p>{_RUN}</w:p>"),
        (f"<w:sdt><w:sdtContent><w:p>{_RUN}</w:p></w:sdtContent></w:sdt>", f"<w:p>{_RUN}</w:p>"),
        (f"<w:customXml><w:p>{_RUN}</w:p></w:customXml>", f"<w:p>{_RUN}</w:p>"),
        (
            f"<w:tbl>{_ROW.format('')}{_ROW.format(f'<w:trPr><w:del {_CHANGE}/></w:trPr>')}</w:tbl>",
            f"<w:tbl>{_ROW.format('')}</w:tbl>",
        ),
    ],
)
def test_paper_facts_are_of_what_a_reader_sees(body: str, plain: str) -> None:
    found, wanted = paper_facts(document(body)), paper_facts(document(plain))
    assert not differences(wanted, found)
    assert differences(wanted, paper_facts(document("<w:p/>")))
