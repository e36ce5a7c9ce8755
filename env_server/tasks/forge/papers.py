"""Text documents that the families make: paragraphs as data, written by python-docx. Facts of saved ones are in `paper_facts`."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from computerrl.env_server.tasks.forge.packing import repack

FONT, SIZE = "Liberation Serif", 12.0
"""Of all text that has none of its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text with one look."""

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    size: float | None = None
    color: str | None = None
    """`RRGGBB`."""
    highlight: str | None = None
    """`yellow`, `green`, `cyan`."""
    font: str | None = None


@dataclass(frozen=True, slots=True)
class Par:
    """One paragraph."""

    runs: tuple[Run, ...]
    align: str = "left"
    spacing: float = 1.0
    style: str = "Normal"
    new_page: bool = False
    """A page break comes before its text."""

    @property
    def text(self) -> str:
        """Without looks."""
        return "".join(run.text for run in self.runs)

    def looking(self, **look: Any) -> Par:
        """The same with a look on all of its text."""
        return dataclasses.replace(self, runs=tuple(dataclasses.replace(run, **look) for run in self.runs))

    def with_look_on(self, words: str, **look: Any) -> Par:
        """The same with a look wherever these words stand."""
        runs: list[Run] = []
        for run in self.runs:
            for index, part in enumerate(run.text.split(words)):
                if index:
                    runs.append(dataclasses.replace(run, text=words, **look))
                if part:
                    runs.append(dataclasses.replace(run, text=part))
        return dataclasses.replace(self, runs=tuple(runs))

    def saying(self, old: str, new: str) -> Par:
        """The same with other words."""
        return dataclasses.replace(
            self, runs=tuple(dataclasses.replace(run, text=run.text.replace(old, new)) for run in self.runs)
        )


def par(text: str, **changes: Any) -> Par:
    """A plain paragraph."""
    return Par((Run(text),), **changes)


@dataclass(slots=True)
class Paper:
    """A document in the making; families change `pars` in place."""

    pars: list[Par]
    grid: Sequence[Sequence[str]] = field(default_factory=list)
    """Rows of a table at the end, none when empty."""
    page_numbers: tuple[str, str, int, str] | None = None
    """(`header` or `footer`, alignment, first number, docx format), None: no page numbers."""

    def to_bytes(self) -> bytes:
        """The .docx file."""
        from docx import Document

        document = Document()
        _make_lean(document)
        _set_defaults(document)
        for item in self.pars:
            _write(document.add_paragraph(style=item.style), item)
        if self.grid:
            table = document.add_table(len(self.grid), len(self.grid[0]), style="Table Grid")
            for row, texts in zip(table.rows, self.grid, strict=True):
                for cell, text in zip(row.cells, texts, strict=True):
                    cell.text = text
        if self.page_numbers:
            _number_pages(document, *self.page_numbers)
        buffer = io.BytesIO()
        document.save(buffer)
        return repack(buffer.getvalue())


_STYLES = frozenset({"Normal", "Heading 1", "List Bullet", "Header", "Footer", "Normal Table", "Table Grid", "No List"})
"""The template has 160 others."""


def _make_lean(document: Any) -> None:
    from docx.oxml.ns import qn

    styles = document.styles.element
    for style in styles.findall(qn("w:style")):
        if style.find(qn("w:name")).get(qn("w:val")).lower() not in {name.lower() for name in _STYLES}:
            styles.remove(style)
    styles.remove(styles.find(qn("w:latentStyles")))
    for name, relation in list(document.part.rels.items()):
        if relation.reltype.endswith("/stylesWithEffects"):
            document.part.drop_rel(name)
            document.part.rels.pop(name, None)


def _set_defaults(document: Any) -> None:
    from docx.oxml.ns import qn
    from docx.shared import Pt

    for name in ("Normal", "Heading 1", "List Bullet"):
        style = document.styles[name]
        fonts = style.element.get_or_add_rPr().get_or_add_rFonts()
        for attribute in [name for name in fonts.attrib if "heme" in name]:
            del fonts.attrib[attribute]
        for attribute in ("w:ascii", "w:hAnsi", "w:cs", "w:eastAsia"):
            fonts.set(qn(attribute), FONT)
    document.styles["Normal"].font.size = Pt(SIZE)
    document.styles["Normal"].paragraph_format.line_spacing = 1.0


def _write(paragraph: Any, item: Par) -> None:
    from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_BREAK, WD_COLOR_INDEX
    from docx.shared import Pt, RGBColor

    if item.align != "left":
        paragraph.alignment = {
            "center": WD_ALIGN_PARAGRAPH.CENTER,
            "right": WD_ALIGN_PARAGRAPH.RIGHT,
            "justify": WD_ALIGN_PARAGRAPH.JUSTIFY,
        }[item.align]
    if item.spacing != 1.0:
        paragraph.paragraph_format.line_spacing = item.spacing
    if item.new_page:
        paragraph.add_run().add_break(WD_BREAK.PAGE)
    for part in item.runs:
        run = paragraph.add_run(part.text)
        font = run.font
        font.bold, font.italic, font.strike = part.bold or None, part.italic or None, part.strike or None
        if part.size is not None:
            font.size = Pt(part.size)
        if part.color is not None:
            font.color.rgb = RGBColor.from_string(part.color)
        if part.highlight is not None:
            font.highlight_color = {
                "yellow": WD_COLOR_INDEX.YELLOW,
                "green": WD_COLOR_INDEX.BRIGHT_GREEN,
                "cyan": WD_COLOR_INDEX.TURQUOISE,
            }[part.highlight]
        if part.font is not None:
            font.name = part.font


def _number_pages(document: Any, place: str, align: str, first: int, number_format: str) -> None:
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    section = document.sections[0]
    paragraph = getattr(section, place).paragraphs[0]
    _write(paragraph, Par((), align=align))
    field_code = OxmlElement("w:fldSimple")
    field_code.set(qn("w:instr"), "PAGE")
    paragraph._p.append(field_code)
    kind = OxmlElement("w:pgNumType")
    kind.set(qn("w:start"), str(first))
    kind.set(qn("w:fmt"), number_format)
    section._sectPr.append(kind)
