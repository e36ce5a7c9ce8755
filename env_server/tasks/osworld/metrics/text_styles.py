"""Metrics over the looks of text documents: fonts, alignment, tab stops, page numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.colours import difference
from computerrl.env_server.tasks.osworld.metrics.docx_content import W, everything, is_on, paragraphs, runs, table_paragraphs
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.odt_content import odt_highlights
from computerrl.env_server.tasks.osworld.metrics.text_documents import compare_docx_files, open_document
from computerrl.env_server.tasks.reading.limits import MAX_STYLE_CHAIN


def _texts(document: Any) -> list[Any]:
    return [paragraph for paragraph in paragraphs(document) if _text(paragraph)]


def _text(paragraph: Any) -> str:
    return "".join(run.text for run in runs(paragraph)).strip()


def check_tabstops(
    result: str, expected: str, *, word_number_split_by_tabstop: int | None = None, index: int = 0, **_: Any
) -> float:
    """Tab stops are as in the expected document, paragraph by paragraph: 1, or less by how far off they are.

    With ``word_number_split_by_tabstop`` every line must be cut by its tab after that many words.
    """
    found, wanted = _texts(open_document(result)), _texts(open_document(expected))
    if len(found) != len(wanted):
        return 0.0
    if word_number_split_by_tabstop is not None:
        for paragraph in found:
            parts = [part for part in _text(paragraph).split("\t") if part.strip()]
            if len(parts) < 2 or len(parts[index].split()) != word_number_split_by_tabstop:
                return 0.0
    section = next(iter(open_document(expected).sections), None)
    width = (section.page_width or 0) - (section.left_margin or 0) - (section.right_margin or 0) if section is not None else 0
    off = 0.0
    for one, other in zip(found, wanted, strict=True):
        ours, theirs = _stops(one), _stops(other)
        if len(ours) != len(theirs):
            return 0.0
        for (side, place), (wanted_side, wanted_place) in zip(ours, theirs, strict=True):
            if side != wanted_side:
                return 0.0
            off += abs(place - wanted_place) / max(1, width)
    return max(0.0, 1 - off / max(1, len(found)))


_TWIP = 635
"""EMU of a twentieth of a point."""


def _stops(paragraph: Any) -> list[tuple[str, int]]:
    """Side and place of the paragraph's own tab stops. The sides have other names in the strict form of the format."""
    sides = {"start": "left", "end": "right", "num": "left"}
    nodes = paragraph._p.findall(f"{W}pPr/{W}tabs/{W}tab")
    stops = [(node.get(f"{W}val", "left"), round(float(node.get(f"{W}pos", "0")) * _TWIP)) for node in nodes]
    return [(sides.get(side, side), place) for side, place in stops if side != "clear"]


def compare_subscript_contains(result: str, expected: str) -> float:
    """The letters that stand low in the expected document do so in the result, in the same paragraphs."""

    def low(path: str) -> list[str]:
        return [
            "".join(run.text for run in runs(paragraph) if run.font.subscript) for paragraph in paragraphs(open_document(path))
        ]

    found, wanted = low(result), low(expected)
    return score(any(wanted) and [text.strip() for text in found] == [text.strip() for text in wanted])


_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def has_page_numbers_in_footers(result: str) -> float:
    """The footer of every section shows the page's number."""
    document = open_document(result)
    footers: dict[str | None, Any] = {}
    name = None
    for section in document.element.sectPr_lst:
        # A section without a footer of its own has that of the one before.
        own = (node for node in section.iter(f"{W}footerReference") if node.get(f"{W}type", "default") == "default")
        name = next((node.get(_RELATION) for node in own), name)
        if name is None:
            return 0.0
        footers[name] = document.part.related_parts[name].element
    return score(len(footers) > 0 and all(map(_shows_page, footers.values())))


def _shows_page(footer: Any) -> bool:
    nodes = list(everything(footer))
    fields = [node.get(f"{W}instr", "") for node in nodes if node.tag == f"{W}fldSimple"]
    fields += [node.text or "" for node in nodes if node.tag == f"{W}instrText"]
    if any("PAGE" in field for field in fields):
        return True
    return any(re.search(r"\d", node.text or "") for node in nodes if node.tag == f"{W}t")


def compare_font_names(result: str, rules: Rules) -> float:
    """All text has the expected font, by the run itself or by its style."""
    document = open_document(result)
    fonts = _Fonts(document)
    for paragraph in _texts(document):
        below = fonts.of_paragraph(paragraph)
        written = (run for run in runs(paragraph) if run.text.strip())
        if any((fonts.of_run(run) or below) != rules["font_name"] for run in written):
            return 0.0
    return 1.0


class _Fonts:
    """Fonts by style. Each style is looked up once: python-docx searches all styles for every run."""

    def __init__(self, document: Any) -> None:
        nodes = list(document.styles.element.iter(f"{W}style"))
        self._styles = {node.get(f"{W}styleId"): node for node in nodes}
        self._defaults = {node.get(f"{W}type"): node.get(f"{W}styleId") for node in nodes if node.get(f"{W}default") == "1"}
        named = (
            node.get(f"{W}styleId")
            for node in nodes
            if (node.find(f"{W}name") is not None and node.find(f"{W}name").get(f"{W}val") == "Normal")
        )
        self._normal = next(named, None)
        self._known: dict[str | None, str | None] = {}

    def of_run(self, run: Any) -> str | None:
        """The run's own font or that of its style."""
        name: str | None = run.font.name
        return name or self._of_style(run._r.style or self._defaults.get("character"))

    def of_paragraph(self, paragraph: Any) -> str | None:
        """The font of runs that have none: that of the paragraph's style or of the style *Normal*."""
        return self._of_style(paragraph._p.style or self._defaults.get("paragraph")) or self._of_style(self._normal)

    def _of_style(self, style_id: str | None) -> str | None:
        if style_id not in self._known:
            self._known[style_id] = self._inherited(style_id)
        return self._known[style_id]

    def _inherited(self, style_id: str | None) -> str | None:
        for _ in range(MAX_STYLE_CHAIN):  # a file may say that a style is based on itself
            node = self._styles.get(style_id)
            fonts = node.find(f"{W}rPr/{W}rFonts") if node is not None else None
            if fonts is not None and fonts.get(f"{W}ascii"):
                return str(fonts.get(f"{W}ascii"))
            base = node.find(f"{W}basedOn") if node is not None else None
            if base is None:
                return None
            style_id = base.get(f"{W}val")
        return None


def is_first_line_centered(result: str) -> float:
    """The first paragraph is centred."""
    first = next(iter(paragraphs(open_document(result))), None)
    aligned = first._p.find(f"{W}pPr/{W}jc") if first is not None else None
    return score(aligned is not None and aligned.get(f"{W}val") == "center")


def check_highlighted_words(result: str, expected: str) -> float:
    """The same text, and nothing in it is highlighted (colour or background), but for what is so in the expected document."""
    if not compare_docx_files(result, expected):
        return 0.0
    found = _highlights(result)
    return score(not found or found == _highlights(expected))


def _highlights(path: str) -> list[str]:
    if path.endswith(".odt"):
        return odt_highlights(path)
    every = (run for paragraph in paragraphs(open_document(path)) for run in runs(paragraph))
    return [run.text for run in every if run.text.strip() and _is_highlighted(run)]


def _is_highlighted(run: Any) -> bool:
    marked = run._element.find(f"{W}rPr/{W}highlight")
    if marked is not None:
        return marked.get(f"{W}val") not in ("none", "default")
    shade = run._element.find(f"{W}rPr/{W}shd")
    return shade is not None and shade.get(f"{W}fill", "auto").lower() not in ("auto", "ffffff")


def evaluate_strike_through_last_paragraph(result: str, expected: str) -> float:
    """The same text, and all of the last paragraph is struck through."""
    if not compare_docx_files(result, expected):
        return 0.0
    texts = _texts(open_document(result))
    return score(bool(texts) and all(run.font.strike for run in runs(texts[-1]) if run.text.strip()))


_VOWELS = frozenset("aeiouAEIOU")


def evaluate_colored_words_in_tables(result: str, expected: str, *, threshold: float = 3.5, **_: Any) -> float:
    """The same text, and in tables words that begin with a vowel are red, others blue.

    ``threshold``: largest difference (CIEDE2000) at which two colours are taken for the same.
    """
    if not compare_docx_files(result, expected):
        return 0.0
    for word, colour in _table_words(open_document(result)):
        wanted = "FF0000" if word[0] in _VOWELS else "0000FF"
        if colour is None or difference(colour, wanted) > threshold:
            return 0.0
    return 1.0


def _table_words(document: Any) -> Iterator[tuple[str, str | None]]:
    for paragraph in table_paragraphs(document):
        for run in runs(paragraph):
            for word in run.text.split():
                yield word, str(run.font.color.rgb) if run.font.color.rgb is not None else None


def check_italic_font_size_14(result: str, expected: str) -> float:
    """The same text, and everything in italics has 14 points."""
    if not compare_docx_files(result, expected):
        return 0.0
    sizes = [
        run.font.size.pt if run.font.size is not None else None
        for paragraph in paragraphs(open_document(result))
        for run in runs(paragraph)
        if run.italic and run.text.strip()
    ]
    return score(all(size == 14 for size in sizes))


def contains_page_break(result: str, rules: Rules | None = None) -> float:
    """The document has a page break; with ``page_break_count`` exactly so many."""
    count = sum(_breaks_page(node) for node in everything(open_document(result).element.body))
    wanted = (rules or {}).get("page_break_count")
    return score(count == wanted if wanted is not None else count > 0)


def _breaks_page(node: Any) -> bool:
    return node.get(f"{W}type") == "page" if node.tag == f"{W}br" else node.tag == f"{W}pageBreakBefore" and is_on(node)
