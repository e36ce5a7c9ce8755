"""What a reader sees of an odt file: its texts in reading order, and what is highlighted in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, opening
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import within
from computerrl.env_server.tasks.reading.packages import Package

_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"

_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_NOT_SHOWN = frozenset({f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_TEXT}note-citation"})
_COMPUTED = {
    f"{_TEXT}page-number": "<PAGE>",
    f"{_TEXT}page-count": "<NUMPAGES>",
    f"{_TEXT}date": "<DATE>",
    f"{_TEXT}time": "<TIME>",
    f"{_TEXT}file-name": "<FILENAME>",
}
"""Fields whose text depends on the application, the file's name or the clock: they are compared by their names."""


def odt_texts(path: str | Path) -> list[str]:
    """The texts of all paragraphs and headings, then those of headers and footers (each once)."""
    content, styles = _parts(path)
    with opening(path):
        margins = {"\n".join(_texts(page)).strip() for page in styles.iter(f"{_STYLE}header", f"{_STYLE}footer")}
        texts = _texts(content.find(f"{_OFFICE}body")) + sorted(margins - {""})
        within("characters of text", sum(map(len, texts)), limits.MAX_DOCUMENT_TEXT)
    return texts


def _parts(path: str | Path) -> tuple[Any, Any]:
    def parse(place: Path) -> tuple[Any, Any]:
        package = Package(place.read_bytes())
        content, styles = package.xml("content.xml"), package.xml("styles.xml")
        if content.find(f"{_OFFICE}body") is None:
            raise ValueError("no text document")
        return content, styles

    return load(path, parse)


def _texts(node: Any) -> list[str]:
    return ["".join(text for text, _ in _pieces(paragraph)) for paragraph in _paragraphs(node)]


def _paragraphs(node: Any) -> Iterator[Any]:
    """Paragraphs in reading order. Those of a note or a text box follow the paragraph that holds it."""
    for child in node:
        if child.tag in _NOT_SHOWN:
            continue
        if child.tag in _PARAGRAPHS:
            yield child
        yield from _paragraphs(child)


def _pieces(node: Any) -> Iterator[tuple[str, str | None]]:
    """(text, name of the nearest style) of a paragraph, without the paragraphs inside it."""
    style = node.get(f"{_TEXT}style-name")
    yield node.text or "", style
    for child in node:
        if child.tag in _COMPUTED:
            yield _COMPUTED[child.tag], style
        elif child.tag == f"{_TEXT}s":
            yield " " * within("blanks in a row", int(child.get(f"{_TEXT}c", "1")), limits.MAX_BLANKS), style
        elif child.tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            yield "\t" if child.tag == f"{_TEXT}tab" else "\n", style
        elif child.tag not in _NOT_SHOWN and child.tag not in _PARAGRAPHS and isinstance(child.tag, str):
            for text, name in _pieces(child):
                yield text, name or style
        yield child.tail or "", style


def odt_highlights(path: str | Path) -> list[str]:
    """The stretches of text that have a colour behind them, by their own style or by one that it comes from."""
    content, styles = _parts(path)
    # Automatic styles of the two parts share names, and the body uses its own part's only.
    colours = _backgrounds(styles.find(f"{_OFFICE}styles"), content.find(f"{_OFFICE}automatic-styles"))
    return [
        text
        for paragraph in _paragraphs(content.find(f"{_OFFICE}body"))
        for text, style in _pieces(paragraph)
        if text.strip() and colours.get(style)
    ]


def _backgrounds(*roots: Any) -> dict[str | None, str]:
    """Name of a style -> the colour behind its text, where it has one."""
    own: dict[str | None, str] = {}
    parents: dict[str | None, str | None] = {}
    for root in (root for root in roots if root is not None):
        for style in root.iter(f"{_STYLE}style"):
            name = style.get(f"{_STYLE}name")
            parents[name] = style.get(f"{_STYLE}parent-style-name")
            colour = next((node.get(f"{_FO}background-color") for node in style.iter(f"{_STYLE}text-properties")), None)
            if colour is not None:
                own[name] = "" if colour.lower() in ("transparent", "#ffffff") else colour
    return {name: _inherited(name, own, parents) for name in parents}


def _inherited(name: str | None, own: dict[str | None, str], parents: dict[str | None, str | None]) -> str:
    seen: set[str] = set()
    while name is not None and name not in own and name not in seen and len(seen) < limits.MAX_STYLE_CHAIN:
        seen.add(name)
        name = parents.get(name)
    return own.get(name, "")
