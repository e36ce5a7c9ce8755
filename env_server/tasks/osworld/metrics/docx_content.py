"""What a reader sees of a docx file, in reading order.

python-docx lists the paragraphs and runs that are direct children of their parents. Tracked insertions, content controls, cells
and text boxes lie deeper, and a tracked deletion is still in the file. Here is one walk over all of it. How it looks is not
compared here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, read_package, xml_of
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import within
from computerrl.env_server.tasks.reading.packages import num_below

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_WP = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}"

_TAKEN_OUT = frozenset({f"{W}del", f"{W}moveFrom"})
"""Tracked changes that remove what is in them."""
_BOX = f"{W}txbxContent"
_BESIDE = frozenset({"header", "footer", "footnotes", "endnotes", "comments"})


@dataclass(frozen=True, slots=True)
class DocxFile:
    """A document and the parts beside its body."""

    document: Any
    beside: Mapping[str, Sequence[Any]]
    """Kind of part (`_BESIDE`) -> the XML of each such part."""

    @property
    def body(self) -> Any:
        """The body's XML."""
        return self.document.element.body


def read_docx(path: str) -> DocxFile:
    """A docx file with all parts that a reader sees. Raises `BrokenFile`."""
    import docx

    package = read_package(path)

    def parse(place: Path) -> DocxFile:
        document = docx.Document(package.file())
        within("paragraphs", num_below(document.element, f"{W}p"), limits.MAX_PARAGRAPHS)
        parts = set()
        beside: dict[str, list[Any]] = {kind: [] for kind in _BESIDE}
        for relation in document.part.rels.values():
            kind = relation.reltype.rpartition("/")[2]
            if kind in beside and not relation.is_external and relation.target_part.partname not in parts:
                parts.add(relation.target_part.partname)
                beside[kind].append(xml_of(relation.target_part.blob))
        return DocxFile(document, beside)

    return load(path, parse)


def shown(node: Any) -> Iterator[Any]:
    """The children that are shown: no tracked deletions, and one of two alternatives that stand for the same."""
    for child in node:
        if child.tag == f"{_MC}AlternateContent":
            choice = child.find(f"{_MC}Choice")
            yield from shown(choice if choice is not None else next(iter(child), child))
        elif isinstance(child.tag, str) and child.tag not in _TAKEN_OUT and not _deleted_row(child):
            yield child


def _deleted_row(node: Any) -> bool:
    return bool(node.tag == f"{W}tr" and node.find(f"{W}trPr/{W}del") is not None)


def _below(node: Any, wanted: str, *, stop: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Shown elements with this tag, in reading order; what lies in one of them or in ``stop`` is not entered."""
    for child in shown(node):
        if child.tag == wanted:
            yield child
        elif child.tag not in stop:
            yield from _below(child, wanted, stop=stop)


def paragraphs(document: Any) -> list[Any]:
    """All paragraphs of the body, also those in tables and content controls, as python-docx's objects."""
    from docx.text.paragraph import Paragraph

    return [Paragraph(node, document._body) for node in _below(document.element.body, f"{W}p")]


def table_paragraphs(document: Any) -> list[Any]:
    """The paragraphs of all tables."""
    from docx.text.paragraph import Paragraph

    return [
        Paragraph(node, document._body) for table in _below(document.element.body, f"{W}tbl") for node in _below(table, f"{W}p")
    ]


def runs(paragraph: Any) -> list[Any]:
    """All runs of a paragraph, also those in tracked insertions, links and content controls, as python-docx's objects."""
    from docx.text.run import Run

    return [Run(node, paragraph) for node in _below(paragraph._p, f"{W}r")]


# --- texts -----------------------------------------------------------------------------------------------------------

_COMPUTED = frozenset(
    {"PAGE", "NUMPAGES", "SECTIONPAGES", "PAGEREF", "DATE", "TIME", "SAVEDATE", "PRINTDATE", "FILENAME", "TOC", "INDEX"}
)
"""Fields whose text depends on the application, the file's name or the clock: they are compared by their names."""


_MAX_INSTRUCTION = 200
"""Characters of a field's instruction that are kept: its name stands first."""


def _inline(node: Any) -> Iterator[Any]:
    """The parts of a paragraph in order: children of runs, texts of equations, and computed fields that are one element."""
    for child in shown(node):
        if child.tag == f"{W}r":
            for piece in shown(child):
                # A phonetic guide and the text below it are runs in a run.
                if piece.tag == f"{W}ruby":
                    yield from _inline(piece)
                else:
                    yield piece
        elif child.tag == f"{_M}t" or (child.tag == f"{W}fldSimple" and _computed(child.get(f"{W}instr", ""))):
            yield child
        elif child.tag != f"{W}pPr":
            yield from _inline(child)


class _Reader:
    """Texts of a story, paragraph by paragraph; fields may begin in one and end in another."""

    def __init__(self) -> None:
        self._fields: list[str] = []
        """Beginnings of the instructions of the complex fields that are open."""

    def text(self, paragraph: Any) -> str:
        return "".join(map(self.piece, _inline(paragraph)))

    def piece(self, child: Any) -> str:
        """The text of a part (see `_inline`); that of a computed field is its name, where it ends."""
        if child.tag == f"{W}fldSimple":
            return _computed(child.get(f"{W}instr", ""))
        if child.tag == f"{W}fldChar":
            return self._field(child.get(f"{W}fldCharType"))
        if child.tag == f"{W}instrText" and self._fields:
            self._fields[-1] = (self._fields[-1] + (child.text or ""))[:_MAX_INSTRUCTION]
        return "" if any(map(_computed, self._fields)) else _letters(child)

    def _field(self, kind: str | None) -> str:
        outer = not any(map(_computed, self._fields[:-1]))
        if kind == "begin":
            within("fields in fields", len(self._fields), limits.MAX_OPEN_FIELDS)
            self._fields.append("")
        elif kind == "end" and self._fields:
            name = _computed(self._fields.pop())
            return name if outer else ""
        return ""


def _computed(instruction: str) -> str:
    """``<PAGE>`` for the instruction of such a field; nothing for one whose text is the author's."""
    words = instruction.split()
    return f"<{words[0].upper()}>" if words and words[0].upper() in _COMPUTED else ""


def _letters(node: Any) -> str:
    if node.tag in (f"{W}t", f"{_M}t"):
        return node.text or ""
    if node.tag == f"{W}sym":
        return f"<{node.get(f'{W}char', '').upper()}>"
    if node.tag == f"{W}br" and node.get(f"{W}type", "textWrapping") != "textWrapping":
        return ""
    return {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}.get(node.tag, "")


def texts(node: Any) -> list[str]:
    """The texts of all paragraphs below a node. One whose end was deleted with changes tracked goes on in the next."""
    reader = _Reader()
    found: list[list[str]] = []
    goes_on = False
    for paragraph in _below(node, f"{W}p"):
        text = reader.text(paragraph)
        if goes_on:
            found[-1].append(text)
        else:
            found.append([text])
        goes_on = paragraph.find(f"{W}pPr/{W}rPr/{W}del") is not None
    return ["".join(pieces) for pieces in found]


def all_texts(file: DocxFile) -> list[str]:
    """The body's texts, then those of text boxes, of footnotes and endnotes, and of headers and footers (each once)."""
    found = texts(file.body)
    for box in _boxes(file.body):
        found += texts(box)
    for kind in ("footnote", "endnote"):
        notes = _notes(file, kind)
        found += [notes[key] for key in _references(file.body, kind) if key in notes]
    found += _margins(file)
    within("characters of text", sum(map(len, found)), limits.MAX_DOCUMENT_TEXT)
    return found


def _boxes(node: Any) -> Iterator[Any]:
    """Text boxes, also those in other boxes."""
    for box in _below(node, _BOX):
        yield box
        yield from _boxes(box)


def _references(node: Any, kind: str) -> list[str | None]:
    return [reference.get(f"{W}id") for reference in _below(node, f"{W}{kind}Reference")]


def _margins(file: DocxFile) -> list[str]:
    """Distinct texts of headers and footers. Applications write one text as several parts, for even and for first pages."""
    pages = (*file.beside["header"], *file.beside["footer"])
    found = {"\n".join(text.strip() for text in texts(page) if text.strip()) for page in pages}
    return sorted(found - {""})


def _notes(file: DocxFile, kind: str) -> dict[str | None, str]:
    """Id -> text of all notes of a kind (footnote, endnote, comment); separators are no notes."""
    return {
        note.get(f"{W}id"): _plain(" ".join(texts(note)))
        for part in file.beside[f"{kind}s"]
        for note in part.iter(f"{W}{kind}")
        if note.get(f"{W}type", "normal") == "normal"
    }


def _plain(text: str) -> str:
    return " ".join(text.split())


# --- tables and pictures ---------------------------------------------------------------------------------------------


def tables(file: DocxFile) -> list[list[list[str]]]:
    """Rows of texts of every table that lies in no other."""
    return [table_texts(table) for table in _below(file.body, f"{W}tbl")]


def table_texts(table: Any) -> list[list[str]]:
    """Rows of cells' texts."""
    inner = frozenset({f"{W}tbl"})
    return [
        [_plain("\n".join(texts(cell))) for cell in _below(row, f"{W}tc", stop=inner)]
        for row in _below(table, f"{W}tr", stop=inner)
    ]


def pictures(file: DocxFile) -> Iterator[bytes]:
    """The content of every picture of the body, in order."""
    related = file.document.part.related_parts
    relationship = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
    for node in everything(file.body):
        name = {f"{_A}blip": "embed", "{urn:schemas-microsoft-com:vml}imagedata": "id"}.get(node.tag)
        part = related.get(node.get(f"{relationship}{name}")) if name else None
        if part is not None:
            yield part.blob


def everything(node: Any) -> Iterator[Any]:
    """All elements below ``node`` that are shown, in reading order."""
    for child in shown(node):
        yield child
        yield from everything(child)


# --- the whole content -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outline:
    """Collects the content as a list: texts between marks, and marks such as ("picture",)."""

    notes: dict[str, dict[str | None, str]]
    items: list[Any]
    reader: _Reader
    pieces_of_text: list[str] = field(default_factory=list)
    num_tables: int = 0
    """Tables that this content lies in."""

    def end_text(self) -> None:
        """The text up to here is one piece: a paragraph's end and a mark between two paragraphs are the same to a reader."""
        text = _plain("".join(self.pieces_of_text))
        if text:
            self.items.append(text)
        self.pieces_of_text.clear()

    def mark(self, *mark: Any) -> None:
        self.end_text()
        self.items.append(mark)

    def story(self, node: Any) -> None:
        for child in shown(node):
            if child.tag == f"{W}p":
                self.paragraph(child)
            elif child.tag == f"{W}tbl":
                self.mark("table", table_texts(child))
                # Texts are in the table's mark. What else its cells hold comes after it.
                inside = _Outline(self.notes, [], _Reader(), num_tables=self.num_tables + 1)
                within("tables in tables", inside.num_tables, limits.MAX_NESTED_TABLES)
                inside.story(child)
                inside.end_text()
                self.items += [item for item in inside.items if not isinstance(item, str)]
            else:
                self.story(child)

    def paragraph(self, paragraph: Any) -> None:
        if is_on(paragraph.find(f"{W}pPr/{W}pageBreakBefore")):
            self.mark("page break")
        # A floating object belongs to its paragraph. Where in it is up to the application.
        for run in _below(paragraph, f"{W}r"):
            for node in filter(_floats, shown(run)):
                self.object(node)
        for piece in _inline(paragraph):
            self.pieces_of_text.append(self.reader.piece(piece))
            self.mark_of(piece)
        if paragraph.find(f"{W}pPr/{W}rPr/{W}del") is None:
            self.end_text()

    def mark_of(self, piece: Any) -> None:
        if piece.tag == f"{W}br" and piece.get(f"{W}type") == "page":
            self.mark("page break")
        elif piece.tag in _OBJECTS:
            if not _floats(piece):
                self.object(piece)
        else:
            for kind, notes in self.notes.items():
                if piece.tag == f"{W}{kind}Reference":
                    self.mark(kind, notes.get(piece.get(f"{W}id"), ""))

    def object(self, node: Any) -> None:
        boxes = [_plain(" ".join(texts(box))) for box in _boxes(node)]
        if boxes:
            self.mark("text box", *boxes)
        else:
            self.mark("picture")


_OBJECTS = frozenset({f"{W}drawing", f"{W}pict", f"{W}object"})


def _floats(node: Any) -> bool:
    """Is this an object beside the text? In the older form of drawings, text boxes are."""
    if node.tag == f"{W}drawing":
        return node.find(f"{_WP}anchor") is not None
    return node.tag in _OBJECTS and next(_boxes(node), None) is not None


def is_on(node: Any) -> bool:
    """Is this switch there, and not off?"""
    return node is not None and node.get(f"{W}val", "true") not in ("0", "false", "off")


def outline(file: DocxFile) -> list[Any]:
    """The whole content in reading order: texts, tables, pictures, text boxes, page breaks, notes and comments at their places;
    headers and footers at the end."""
    notes = {kind: _notes(file, kind) for kind in ("footnote", "endnote", "comment")}
    found = _Outline(notes, [], _Reader())
    found.story(file.body)
    found.end_text()
    return [*found.items, ("margins", _margins(file))]
