"""Differences of synthesized tasks and their words: what changed is said in full, or the walk is refused with a reason."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.tasks.forge.books import Book
from computerrl.env_server.tasks.forge.content import Table
from computerrl.env_server.tasks.forge.decks import Deck
from computerrl.env_server.tasks.forge.facts import Facts
from computerrl.env_server.tasks.forge.impress_base import slides
from computerrl.env_server.tasks.forge.packing import zipped
from computerrl.env_server.tasks.forge.papers import Paper, Par, par
from computerrl.env_server.tasks.synthesis.changes import Differing, UnsaidError, change, colour
from computerrl.env_server.tasks.synthesis.walks import APPLICATIONS, MAX_CHANGES, State, changes_of, draw_walk
from computerrl.env_server.tasks.synthesis.wording import WORDS, instruction, template

TABLE = Table("Sales", ("Product", "City", "Units"), (("Desk", "Leeds", 20), ("Lamp", "Quito", 31), ("Chair", "Turin", 47)), (2,))
OTHER = Table("Stock", ("Item",), (("Ruler",),), ())
PARS = (
    par("Notes of the fair"),
    par("The branch in Leeds reports 31 new customers for May."),
    par("Every visitor receives a badge and a map."),
    par("The board approved 12 days in Leeds for the team."),
)


def book(change_it: Callable[[Book], object] = lambda book: None, *tables: Table) -> State:
    made = Book(*(tables or (TABLE,)))
    change_it(made)
    return State({"a.xlsx": made.to_bytes()})


def paper(*pars: Par, page_numbers: tuple[str, str, int, str] | None = None) -> State:
    return State({"a.docx": Paper(list(pars), page_numbers=page_numbers).to_bytes()})


def kinds(app: str, before: State, after: State) -> list[str]:
    return sorted(one.kind for one in changes_of(app, before, after))


def said(app: str, before: State, after: State) -> str:
    """The instruction in the first wording of each kind."""
    return " ".join(WORDS[one.kind][0].format(**one.as_dict()) for one in changes_of(app, before, after))


@pytest.mark.parametrize(
    ("change_it", "expected"),
    [
        (lambda b: b.put("C3", 1200), "Change the content of C3 from 31 to 1200."),
        (lambda b: b.put("D2", "Packed"), 'Write "Packed" into the empty cell D2.'),
        (lambda b: b.put("C3", None), "Empty the cell C3."),
        (lambda b: b.paint("A1:C1", bold=True), "Make A1:C1 bold."),
        (lambda b: b.paint("A1:D1", bold=True), "Make A1:C1 bold."),
        (lambda b: b.paint("C2", fill="FF0000"), "Give C2 the background colour red (#FF0000)."),
        (lambda b: b.paint("A2:A4", color="123456"), "Write A2:A4 in the font colour #123456."),
        (lambda b: b.paint("A2:B3", align="center"), "Align A2:B3 centred."),
        (lambda b: b.paint("C2:C4", number="0.0%"), "Show C2:C4 in the format percentage with 1 decimal."),
        (lambda b: b.sheet().merge_cells("A6:B6"), "Merge the cells A6:B6 of the sheet."),
        (lambda b: setattr(b.sheet(), "freeze_panes", "A2"), "Freeze the first row of the sheet."),
        (lambda b: setattr(b.sheet().sheet_view, "zoomScale", 150), "Zoom the sheet to 150 %."),
        (lambda b: setattr(b.sheet().row_dimensions[3], "hidden", True), "Hide these rows of the sheet: 3."),
        (lambda b: setattr(b.sheet(), "title", "Turnover"), 'Rename the sheet "Sales" to "Turnover".'),
        (lambda b: b.raw.create_sheet("Notes"), 'Add a sheet "Notes" behind the others.'),
        (
            lambda b: b.put("C5", "=SUM(C2:C4)", result=98),
            "Put a formula into C5 that gives the sum of C2:C4.",
        ),
    ],
)
def test_change_of_a_workbook_is_said(change_it: Callable[[Book], object], expected: str) -> None:
    assert said("calc", book(), book(change_it)) == expected


def test_cell_of_one_of_several_sheets_is_said_with_its_sheet() -> None:
    def fill(b: Book) -> None:
        b.put("A2", "Binder", sheet="Stock")

    assert 'A2 of the sheet "Stock"' in said("calc", book(lambda b: None, TABLE, OTHER), book(fill, TABLE, OTHER))


def two_corners(b: Book) -> None:
    b.paint("A2", bold=True)
    b.paint("B3", bold=True)


def two_empty_cells(b: Book) -> None:
    b.paint("D1", fill="FF0000")
    b.paint("F1", fill="FF0000")


def four_values(b: Book) -> None:
    for row in range(2, 5):
        b.put(f"C{row}", row)
    b.put("E9", 1)


@pytest.mark.parametrize(
    ("change_it", "reason"),
    [
        (lambda b: None, "nothing changed"),
        (two_corners, "form no rectangle"),
        (two_empty_cells, "form no rectangle"),
        (four_values, f"more than {MAX_CHANGES} changes"),
        (lambda b: b.put("C5", "=C2*C3", result=620), "not clear from its result"),
        (lambda b: b.put("C5", "=SUM(C2:C4)-SUM(C2:C4)+20", result=20), ""),
        (lambda b: b.put("E5", "=SUM(C2:C4)", result=98), "something else than the column above"),
        (lambda b: b.put("D2", "31"), "read as something else"),
        (lambda b: b.put("D2", "=1+1", result=2), "something else"),
        (lambda b: b.raw.create_sheet("Notes", 0), "several ways"),
        (lambda b: setattr(b.sheet().column_dimensions["A"], "width", 40), "no words for the fact"),
        (lambda b: b.paint("A1", align="fill"), "alignment"),
    ],
)
def test_change_of_a_workbook_without_words_is_refused(change_it: Callable[[Book], object], reason: str) -> None:
    if not reason:  # A formula is judged by its result alone: that it gives the smallest value can be said.
        assert kinds("calc", book(), book(change_it)) == ["calc.formula"]
        return
    with pytest.raises(UnsaidError, match=reason):
        changes_of("calc", book(), book(change_it))


BRANCH, VISITOR = (
    'the paragraph that begins with "The branch in Leeds"',
    'the paragraph that begins with "Every visitor receives a"',
)


@pytest.mark.parametrize(
    ("pars", "expected"),
    [
        ((PARS[0], PARS[1].saying("Leeds", "Turin"), *PARS[2:]), f'In {BRANCH}, replace "Leeds" by "Turin".'),
        (tuple(one.saying("Leeds", "Turin") for one in PARS), 'Replace "Leeds" by "Turin" everywhere in the text.'),
        ((*PARS[:2], PARS[2].looking(bold=True), PARS[3]), f"Make {VISITOR} bold."),
        ((*PARS[:2], PARS[2].with_look_on("badge", strike=True), PARS[3]), f'Strike the words "badge" in {VISITOR} through.'),
        ((*PARS[:2], PARS[2].looking(size=16), PARS[3]), f"Set {VISITOR} in 16 points."),
        ((*PARS[:2], PARS[2].looking(color="0070C0"), PARS[3]), f"Give {VISITOR} the font colour blue (#0070C0)."),
        (tuple(one.looking(font="DejaVu Sans") for one in PARS), "Set the whole text in the font DejaVu Sans."),
        ((*PARS[:2], Par(PARS[2].runs, align="right"), PARS[3]), f"Make {VISITOR} right-aligned."),
        ((*PARS[:2], Par(PARS[2].runs, spacing=1.5), PARS[3]), f"Set the line spacing of {VISITOR} to 1.5."),
        ((*PARS[:2], Par(PARS[2].runs, new_page=True), PARS[3]), f"Begin a new page with {VISITOR}."),
        ((*PARS, par("Signed: Rosa Novak")), 'Add a last paragraph that says "Signed: Rosa Novak".'),
        ((*PARS[:2], par("Turin"), *PARS[2:]), f'Insert a new paragraph "Turin" right before {VISITOR}.'),
        ((PARS[0], *PARS[2:]), f"Delete {BRANCH}."),
    ],
)
def test_change_of_a_text_is_said(pars: tuple[Par, ...], expected: str) -> None:
    assert said("writer", paper(*PARS), paper(*pars)) == expected


@pytest.mark.parametrize("others", [State({"b.txt": b""}), State({}, frozenset({"new"}))])
def test_document_beside_which_something_changed_is_refused(others: State) -> None:
    before, after = book(), book(lambda b: b.put("C3", 1200))
    with pytest.raises(UnsaidError, match="other files than the document"):
        changes_of("calc", before, State({**after.files, **others.files}, others.folders))


def test_page_numbers_are_said_with_all_that_is_asked_of_them() -> None:
    after = paper(*PARS, page_numbers=("footer", "center", 1, "decimal"))
    assert said("writer", paper(*PARS), after) == "Add page numbers in the footer, centred, from 1 on, in arabic numerals."


@pytest.mark.parametrize(
    ("pars", "reason"),
    [
        (PARS, "nothing changed"),
        (PARS[2:], "several paragraphs"),
        ((PARS[0], PARS[1].with_look_on("new", bold=True).with_look_on("May", bold=True), *PARS[2:]), "several stretches"),
        ((PARS[0], PARS[1].saying("branch in", "shop of").saying("new", "old"), *PARS[2:]), "one replacement"),
        ((*PARS[:3], PARS[3].looking(highlight="yellow")), "highlight"),
        ((*PARS, par("Bye").looking(italic=True)), "looks"),
    ],
)
def test_change_of_a_text_without_words_is_refused(pars: tuple[Par, ...], reason: str) -> None:
    with pytest.raises(UnsaidError, match=reason):
        changes_of("writer", paper(*PARS), paper(*pars))


LIKE = "Every visitor receives a guide, and a bag."
TWICE = (*PARS, par(LIKE))


@pytest.mark.parametrize(
    ("pars", "reason"),
    [
        ((*PARS, par(LIKE).looking(bold=True)), "first words do not name"),
        ((*PARS[:2], *PARS[3:], par(LIKE)), "first words do not name"),
    ],
)
def test_paragraph_that_begins_like_another_one_is_refused(pars: tuple[Par, ...], reason: str) -> None:
    with pytest.raises(UnsaidError, match=reason):
        changes_of("writer", paper(*TWICE), paper(*pars))


def test_word_that_stands_twice_in_its_paragraph_is_refused() -> None:
    before = par("Ask Leeds, then Leeds again.")
    bold = Par((*par("Ask ").runs, *par("Leeds").looking(bold=True).runs, *par(", then Leeds again.").runs))
    with pytest.raises(UnsaidError, match="several times in their paragraph"):
        changes_of("writer", paper(PARS[0], before), paper(PARS[0], bold))


TREE = State({"a.txt": b"one\n", "in/b.md": b"two\n", "in/c.md": b"three\n"}, frozenset({"in", "out"}))


def tree(changed: dict[str, bytes | None], *folders: str) -> State:
    files = {path: data for path, data in {**TREE.files, **changed}.items() if data is not None}
    return State(files, TREE.folders | set(folders))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (tree({"a.txt": None}), "Delete a.txt."),
        (tree({"a.txt": None, "z.txt": b"one\n"}), "Rename a.txt to z.txt."),
        (tree({"a.txt": None, "out/a.txt": b"one\n"}), "Move a.txt into the folder out."),
        (tree({"in/b.md": None, "b.md": b"two\n"}), "Move in/b.md into the home folder."),
        (tree({"a.txt": None, "out/z.txt": b"one\n"}), "Move a.txt into the folder out, and call it z.txt there."),
        (tree({"out/a.txt": b"one\n"}), "Copy a.txt to out/a.txt."),
        (tree({}, "new"), "Make a folder new."),
        (tree({"n.txt": b"four\nfive\n"}), 'Write a text file n.txt with these lines: "four", "five".'),
        (tree({"a.txt": b"one\nmore\n"}), 'Add these lines at the end of a.txt: "more".'),
        (tree({"a.txt": b"other\n"}), 'Replace the content of a.txt by these lines: "other".'),
        (tree({"in.zip": zipped({"in/b.md": b"two\n", "in/c.md": b"three\n"})}), "Pack the folder in into an archive in.zip."),
    ],
)
def test_change_of_files_is_said(after: State, expected: str) -> None:
    assert said("files", TREE, after) == expected


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (TREE, "nothing changed"),
        (State(TREE.files, frozenset({"in"})), "folder is gone"),
        (tree({"n.txt": b"1\n2\n3\n4\n"}), "many lines"),
        *((tree({"n.txt": text}), "cannot be quoted") for text in (b"\n", b"a\tb\n", b'say "a"\n', b"long " * 40)),
        (tree({"n.zip": zipped({"x": b"y"})}), "something else than one folder"),
        (tree({"a.txt": None, "x.txt": b"one\n", "y.txt": b"one\n"}), "same content moved"),
        (tree({name: f"{name}\n".encode() for name in "wxyz"}), "more than"),
    ],
)
def test_change_of_files_without_words_is_refused(after: State, reason: str) -> None:
    with pytest.raises(UnsaidError, match=reason):
        changes_of("files", TREE, after)


def test_copy_of_one_of_two_equal_files_is_refused() -> None:
    twins = State({"a.txt": b"one\n", "b.txt": b"one\n"})
    with pytest.raises(UnsaidError, match="one of several equal files"):
        changes_of("files", twins, State({**twins.files, "c.txt": b"one\n"}))


def deck(change_it: Callable[[Deck], object] = lambda deck: None) -> State:
    made = Deck(slides(random.Random(3), 1))
    change_it(made)
    return State({"a.pptx": made.to_bytes()})


@pytest.mark.parametrize(
    ("change_it", "expected"),
    [
        (lambda d: d.slides[0].change(0, bold=True), "Make the title of slide 1 bold."),
        (lambda d: d.slides[1].change(0, align="right"), "Make the text of the title of slide 2 right-aligned."),
        (lambda d: d.slides[1].change(0, fill="FFC000"), "Fill the title of slide 2 with the colour orange (#FFC000)."),
        (lambda d: d.slides[1].change(0, lines=("Other",)), 'Replace the text of the title of slide 2 by "Other".'),
        (lambda d: setattr(d.slides[1], "background", "0070C0"), "Give slide 2 the background colour blue (#0070C0)."),
    ],
)
def test_change_of_a_presentation_is_said(change_it: Callable[[Deck], object], expected: str) -> None:
    assert said("impress", deck(), deck(change_it)) == expected


@pytest.mark.parametrize(
    ("change_it", "reason"),
    [
        (lambda d: None, "nothing changed"),
        (lambda d: d.slides.pop(), "slides added or removed"),
        (lambda d: d.slides[0].change(0, size=40), "look 'size'"),
        (lambda d: d.slides[0].change(0, left=9), "no words for the fact"),
        (lambda d: d.slides[0].change(1, lines=("One", "Two")), "several lines"),
    ],
)
def test_change_of_a_presentation_without_words_is_refused(change_it: Callable[[Deck], object], reason: str) -> None:
    with pytest.raises(UnsaidError, match=reason):
        changes_of("impress", deck(), deck(change_it))


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_all_wordings_of_a_kind_say_the_same_fields(kind: str) -> None:
    fields = [sorted(name for _, name, _, _ in string.Formatter().parse(words) if name) for words in WORDS[kind]]
    assert len(fields) >= 2 and all(found == fields[0] for found in fields)
    assert all(words.endswith(".") for words in WORDS[kind])


@given(st.randoms(use_true_random=False))
def test_instruction_says_every_value_and_to_save(rng: random.Random) -> None:
    wanted = [change("calc.correct", cell="C3", old="31", value="77"), change("calc.zoom", sheet="the sheet", percent=150)]
    text = instruction(wanted, rng, thing="workbook")
    assert all(value in text.lower() for one in wanted for value in (value.lower() for value in one.as_dict().values()))
    assert "ave" in text and template(wanted) == "calc.correct + calc.zoom"
    assert "ave" not in instruction(wanted, rng, thing="")


FACTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3))


@given(FACTS, FACTS)
def test_facts_that_no_change_takes_are_never_lost(before: Facts, after: Facts) -> None:
    differing = Differing(before, after)
    names = differing.names()
    assert names == sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for index in range(len(names)):
        with pytest.raises(UnsaidError):
            differing.require_none()
        differing.take(names[index : index + 1])
    differing.require_none()


@pytest.mark.parametrize("app", sorted(APPLICATIONS))
def test_walks_are_the_same_for_a_seed_and_differ_between_numbers(app: str) -> None:
    walks = [draw_walk(app, seed=1, number=number) for number in range(4)]
    assert [draw_walk(app, seed=1, number=number).actions for number in range(4)] == [walk.actions for walk in walks]
    assert len({walk.actions[0].name + str(walk.before.files) for walk in walks}) == 4
    assert all(changes_refused(app, walk.before) for walk in walks)


def changes_refused(app: str, state: State) -> bool:
    with pytest.raises(UnsaidError, match="nothing changed"):
        changes_of(app, state, state)
    return True


@pytest.mark.parametrize(("code", "said_as"), [("FF0000", "red (#FF0000)"), ("010203", "#010203")])
def test_colour_is_said_with_its_code(code: str, said_as: str) -> None:
    assert colour(code, {"red": "FF0000"}) == said_as
