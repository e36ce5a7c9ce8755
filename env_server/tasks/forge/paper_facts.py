"""What a saved text document says and how it looks, as facts; see `facts`.

Looks are what a reader sees: a run's own, else its style's, else the document's; an office moves them between these places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from computerrl.env_server.tasks.forge.facts import Facts, Look, Near, joined, reading
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import within
from computerrl.env_server.tasks.reading.packages import Package, num_below, outermost

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_ALIGNMENTS = {"start": "left", "end": "right", "both": "justify"}
_FALSE = frozenset({"0", "false", "none", "off"})
_HIGHLIGHTS = {"FFFF00": "yellow", "00FF00": "green", "00FFFF": "cyan"}
_PAGE_FORMATS = {
    "ROMAN": "upperRoman",
    "roman": "lowerRoman",
    "ALPHABETIC": "upperLetter",
    "alphabetic": "lowerLetter",
    "ARABIC": "decimal",
    "Arabic": "decimal",
    "arabic": "decimal",
}
_SPACING_TOLERANCE = 0.02


def paper_facts(data: bytes) -> Facts:
    """Facts of a .docx file. Raises `UnreadableFile`."""
    with reading("text document"):
        package = Package(data)
        body = package.xml("word/document.xml").find(f"{_W}body")
        within("paragraphs", num_below(body, f"{_W}p"), limits.MAX_PARAGRAPHS)
        _take_out_removed(body)
        looks = _Looks(package.xml("word/styles.xml"))
        facts = _body_facts(body, looks)
        for name in sorted(package.parts):
            if re.fullmatch(r"word/(header|footer)\d*\.xml", name):
                facts.update(_margin_facts(re.sub(r"[^a-z]", "", name[5:-4]), package.xml(name), looks))
        if any(name.endswith("page numbers") for name in facts):
            kinds = list(body.iter(f"{_W}pgNumType"))
            facts["first page number"] = next((int(kind.get(f"{_W}start")) for kind in kinds if kind.get(f"{_W}start")), 1)
            of_section = next((kind.get(f"{_W}fmt") for kind in kinds if kind.get(f"{_W}fmt")), "decimal")
            facts.setdefault("page number format", of_section)
        facts["pictures"] = sum(name.startswith("word/media/") for name in package.parts)
    return facts


def _take_out_removed(body: Any) -> None:
    """Take out of ``body`` what tracked changes have deleted or moved away: no reader of the result sees it."""
    for node in list(body.iter(f"{_W}del", f"{_W}moveFrom")):
        mark = node.getparent()
        if mark.tag == f"{_W}trPr":  # The mark of a deleted row.
            mark.getparent().getparent().remove(mark.getparent())
        elif mark.tag != f"{_W}rPr":
            mark.remove(node)


def _blocks(node: Any) -> Iterator[Any]:
    """Paragraphs, tables and the section's properties, also those in content controls, such as an index, and in insertions."""
    for child in node:
        if child.tag in (f"{_W}p", f"{_W}tbl", f"{_W}sectPr"):
            yield child
        else:
            yield from _blocks(child)


def _body_facts(body: Any, looks: _Looks) -> Facts:
    facts: Facts = {}
    number = 0
    breaks_before = False
    blocks = list(_blocks(body))
    closing = _closing(blocks)
    for position, block in enumerate(blocks):
        if block.tag == f"{_W}tbl":
            for index, row in enumerate(outermost(block, f"{_W}tr"), start=1):
                cells = outermost(row, f"{_W}tc")
                facts[f"table row {index}"] = ["\n".join(map(_text, outermost(cell, f"{_W}p"))) for cell in cells]
        if block.tag != f"{_W}p":
            continue
        text = _text(block)
        has_break = _breaks_page(block, looks)
        if not text.strip():
            # Empty paragraphs that only carry a page break or close the document are as good as none.
            breaks_before = breaks_before or has_break
            if not has_break and not closing[position]:
                number += 1
                facts[f"paragraph {number}"] = ""
            continue
        number += 1
        name = f"paragraph {number}"
        facts[name] = text
        facts[f"{name} looks"] = _spans(block, looks)
        facts[f"{name} alignment"] = looks.alignment(block)
        facts[f"{name} spacing"] = Near(looks.spacing(block), _SPACING_TOLERANCE)
        facts[f"{name} style"] = looks.style_name(block)
        if has_break or breaks_before:
            facts[f"{name} new page"] = True
        breaks_before = False
    if breaks_before:
        facts["new page at the end"] = True
    return facts


def _closing(blocks: Sequence[Any]) -> list[bool]:
    """Block by block: do only empty paragraphs follow, up to the end or to the section's properties?"""
    closing = []
    closes = True
    for block in reversed(blocks):
        closing.append(closes)
        closes = block.tag == f"{_W}sectPr" or (closes and block.tag == f"{_W}p" and not _text(block).strip())
    return closing[::-1]


def _margin_facts(place: str, root: Any, looks: _Looks) -> Facts:
    facts: Facts = {}
    for block in outermost(root, f"{_W}p"):
        codes = [node.get(f"{_W}instr") or "" for node in block.iter(f"{_W}fldSimple")]
        codes += [node.text or "" for node in block.iter(f"{_W}instrText")]
        for code in codes:
            match = re.match(r"\s*PAGE\b(?:\s*\\\*\s*(\w+))?", code)
            if match is None:
                continue
            facts[f"{place} page numbers"] = looks.alignment(block)
            if match[1] in _PAGE_FORMATS:
                facts["page number format"] = _PAGE_FORMATS[match[1]]
    return facts


def _text(block: Any) -> str:
    pieces = []
    for node in block.iter():
        if node.tag == f"{_W}t":
            pieces.append((node.text or "").upper() if _is_in_capitals(node.getparent()) else node.text or "")
        elif node.tag == f"{_M}t":
            pieces.append(node.text or "")
        elif node.tag == f"{_W}sym":
            pieces.append(f"<{node.get(f'{_W}char')}>")
        elif node.tag == f"{_W}noBreakHyphen":
            pieces.append("-")
        elif node.tag == f"{_W}tab" and node.getparent().tag == f"{_W}r":
            pieces.append("\t")
        elif node.tag == f"{_W}br" and node.get(f"{_W}type") is None:
            pieces.append("\n")
    return "".join(pieces)


def _is_in_capitals(run: Any) -> bool:
    """Small letters shown as capitals read like capitals."""
    node = run.find(f"{_W}rPr/{_W}caps")
    return node is not None and node.get(f"{_W}val", "true") not in _FALSE


def _breaks_page(block: Any, looks: _Looks) -> bool:
    before = looks.of_paragraph(block, "pageBreakBefore")
    by_paragraph = before is not None and before.get(f"{_W}val") not in _FALSE
    return by_paragraph or any(node.get(f"{_W}type") == "page" for node in block.iter(f"{_W}br"))


def _spans(block: Any, looks: _Looks) -> list[tuple[str, Look]]:
    """The text cut where its look changes; blanks count for nothing, since a selection may or may not take them along."""
    style_id = looks.style_id(block)
    return joined((re.sub(r"\s+", "", _text(run)), looks.of_run(run, style_id)) for run in outermost(block, f"{_W}r"))


class _Looks:
    """Resolves looks through runs, styles and defaults."""

    def __init__(self, styles: Any) -> None:
        self._styles = {style.get(f"{_W}styleId"): style for style in styles.iter(f"{_W}style")}
        self._default = next(
            (
                style.get(f"{_W}styleId")
                for style in styles.iter(f"{_W}style")
                if style.get(f"{_W}type") == "paragraph" and style.get(f"{_W}default") not in (None, *_FALSE)
            ),
            None,
        )
        self._defaults = {place: styles.find(f"{_W}docDefaults/{_W}{place}Default/{_W}{place}") for place in ("rPr", "pPr")}
        self._known: dict[tuple[str | None, str, str], Any] = {}

    def of_run(self, run: Any, style_id: str | None) -> Look:
        """All that is looked at; ``style_id``: the paragraph's style."""
        fonts = self._run_value(run, style_id, "rFonts")
        size = self._run_value(run, style_id, "sz")
        color = self._run_value(run, style_id, "color")
        look = {
            "bold": self._is_on(run, style_id, "b"),
            "italic": self._is_on(run, style_id, "i"),
            "struck": self._is_on(run, style_id, "strike"),
            "underlined": self._is_on(run, style_id, "u"),
            "size": float(size.get(f"{_W}val")) / 2 if size is not None else 10.0,
            "colour": self._color(color),
            "highlight": self._highlight(run, style_id),
            "font": fonts.get(f"{_W}ascii", "") if fonts is not None else "",
        }
        return tuple((name, value) for name, value in look.items() if value)

    def alignment(self, block: Any) -> str:
        """Left, center, right or justify."""
        node = self.of_paragraph(block, "jc")
        value = str(node.get(f"{_W}val")) if node is not None else "left"
        return _ALIGNMENTS.get(value, value)

    def spacing(self, block: Any) -> float:
        """Lines; exact spacings count as negative points."""
        node = self.of_paragraph(block, f"spacing[@{_W}line]")
        if node is None:
            return 1.0
        line, rule = float(node.get(f"{_W}line")), node.get(f"{_W}lineRule", "auto")
        return line / 240 if rule == "auto" else -line / 20

    def style_name(self, block: Any) -> str:
        """The paragraph style's name in lower case."""
        style = self._styles.get(self.style_id(block))
        name = style.find(f"{_W}name").get(f"{_W}val") if style is not None else "normal"
        return str(name).lower()

    def of_paragraph(self, block: Any, tag: str) -> Any:
        """The property that counts for a paragraph, or None."""
        return self._first(block.find(f"{_W}pPr"), (self.style_id(block),), "pPr", tag)

    def _run_value(self, run: Any, style_id: str | None, tag: str) -> Any:
        own = run.find(f"{_W}rPr")
        run_style = own.find(f"{_W}rStyle") if own is not None else None
        own_style = () if run_style is None else (run_style.get(f"{_W}val"),)
        return self._first(own, (*own_style, style_id), "rPr", tag)

    def _first(self, own: Any, styles: tuple[str | None, ...], place: str, tag: str) -> Any:
        """The element's own property, else that of the first style, or of a style below it, that has one, else the default."""
        node = own.find(f"{_W}{tag}") if own is not None else None
        for style_id in styles:
            node = self._styled(style_id, place, tag) if node is None else node
        return self._styled("", place, tag) if node is None else node

    def _styled(self, style_id: str | None, place: str, tag: str) -> Any:
        """A style's property; the style "" has the document's defaults. Looked up once: styles may be long and runs many."""
        key = (style_id, place, tag)
        if key not in self._known:
            chain = [style.find(f"{_W}{place}") for style in self._chain(style_id)]
            holders = chain if style_id != "" else [self._defaults[place]]
            nodes = (holder.find(f"{_W}{tag}") for holder in holders if holder is not None)
            self._known[key] = next((node for node in nodes if node is not None), None)
        return self._known[key]

    def _is_on(self, run: Any, style_id: str | None, tag: str) -> bool:
        node = self._run_value(run, style_id, tag)
        return node is not None and node.get(f"{_W}val", "true") not in _FALSE

    @staticmethod
    def _color(node: Any) -> str:
        value = str(node.get(f"{_W}val")).upper() if node is not None else ""
        return "" if value in ("AUTO", "000000") else value

    def _highlight(self, run: Any, style_id: str | None) -> str:
        node = self._run_value(run, style_id, "highlight")
        value = str(node.get(f"{_W}val")) if node is not None else "none"
        if value != "none":
            return value
        shade = self._run_value(run, style_id, "shd")
        fill = str(shade.get(f"{_W}fill")).upper() if shade is not None else "AUTO"
        return "" if fill in ("AUTO", "NONE", "FFFFFF") else _HIGHLIGHTS.get(fill, fill)

    def style_id(self, block: Any) -> str | None:
        """The paragraph's style. A search through all runs where the paragraph names none: once for each paragraph."""
        node = block.find(f"{_W}pPr/{_W}pStyle")
        return str(node.get(f"{_W}val")) if node is not None else self._default

    def _chain(self, style_id: str | None) -> Iterator[Any]:
        for _ in range(20):  # a file may say that a style is based on itself
            style = self._styles.get(style_id)
            if style is None:
                return
            yield style
            base = style.find(f"{_W}basedOn")
            if base is None:
                return
            style_id = base.get(f"{_W}val")
