"""What a saved presentation says and how it looks, as facts; see `facts`."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from computerrl.env_server.tasks.forge.facts import Facts, Look, Near, joined, reading
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget
from computerrl.env_server.tasks.reading.packages import Package, num_below, outermost

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_ALIGNMENTS = {"l": "left", "ctr": "center", "r": "right", "just": "justify"}
_SIZE_TOLERANCE_CM = 0.35
"""An office fits boxes to their text by a little."""
_EMU_PER_CM = 360_000
_SAME_FONTS = {"Liberation Sans": "Arial", "Liberation Serif": "Times New Roman", "Liberation Mono": "Courier New"}
"""The office writes the second name where a presentation has the first: the letters are as wide."""
_NO_EXTRAS = frozenset({"dt", "ftr", "sldNum"})


def deck_facts(data: bytes) -> Facts:
    """Facts of a .pptx file. Raises `UnreadableFile`."""
    with reading("presentation"):
        package = Package(data)
        root = package.xml("ppt/presentation.xml")
        targets = _targets(package.xml("ppt/_rels/presentation.xml.rels"))
        names = [posixpath.normpath(posixpath.join("ppt", targets[node.get(f"{_R}id")])) for node in root.iter(f"{_P}sldId")]
        if len(set(names)) < len(names):
            raise ValueError("one slide stands at several places")
        size = root.find(f"{_P}sldSz")
        is_portrait = int(size.get("cy")) > int(size.get("cx"))
        facts: Facts = {"slides": len(names), "orientation": "portrait" if is_portrait else "landscape"}
        paragraphs = Budget("paragraphs", limits.MAX_PARAGRAPHS)
        for index, name in enumerate(names, start=1):
            slide = package.xml(name)
            paragraphs.spend(num_below(slide, f"{_A}p"))
            facts.update(_slide_facts(f"slide {index}", slide))
    return facts


def _targets(relations: Any) -> dict[str, str]:
    return {node.get("Id"): node.get("Target").lstrip("/").removeprefix("ppt/") for node in relations}


def _slide_facts(name: str, slide: Any) -> Facts:
    background = _color(slide.find(f"{_P}cSld/{_P}bg/{_P}bgPr/{_A}solidFill"))
    facts: Facts = {f"{name} background": "" if background == "FFFFFF" else background}
    shapes = [node for node in slide.find(f"{_P}cSld/{_P}spTree") if _is_box(node)]
    facts[f"{name} boxes"] = len(shapes)
    for index, shape in enumerate(shapes):
        facts.update(_box_facts(f"{name} box {index}", shape))
    return facts


def _is_box(node: Any) -> bool:
    if node.tag == f"{_P}pic":
        return True
    kind = node.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph") if node.tag == f"{_P}sp" else None
    return node.tag == f"{_P}sp" and (kind is None or kind.get("type") not in _NO_EXTRAS)


def _box_facts(name: str, shape: Any) -> Facts:
    facts: Facts = {}
    place = shape.find(f"{_P}spPr/{_A}xfrm")
    if place is not None:
        corner, extent = place.find(f"{_A}off"), place.find(f"{_A}ext")
        for label, value in (("left", corner.get("x")), ("top", corner.get("y")), ("width", extent.get("cx"))):
            facts[f"{name} {label}"] = Near(round(int(value) / _EMU_PER_CM, 2), _SIZE_TOLERANCE_CM)
    if shape.tag == f"{_P}pic":
        facts[f"{name} kind"] = "picture"
        return facts
    outline = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
    facts[f"{name} kind"] = "title" if outline is not None and "itle" in (outline.get("type") or "") else "text"
    facts[f"{name} fill"] = _color(shape.find(f"{_P}spPr/{_A}solidFill"))
    lines = [line for line in outermost(shape, f"{_A}p") if _text(line)]
    facts[f"{name} lines"] = [_text(line) for line in lines]
    for index, line in enumerate(lines):
        facts[f"{name} line {index} looks"] = _spans(line)
        properties = line.find(f"{_A}pPr")
        algn = (properties.get("algn") if properties is not None else None) or "l"
        facts[f"{name} line {index} alignment"] = _ALIGNMENTS.get(algn, algn)
    return facts


def _text(line: Any) -> str:
    return "".join("\n" if node.tag == f"{_A}br" else node.text or "" for node in line.iter(f"{_A}t", f"{_A}br"))


def _spans(line: Any) -> list[tuple[str, Look]]:
    return joined((re.sub(r"\s+", "", _text(run)), _look(run.find(f"{_A}rPr"))) for run in outermost(line, f"{_A}r"))


def _look(properties: Any) -> Look:
    if properties is None:
        return ()
    color, font = _color(properties.find(f"{_A}solidFill")), properties.find(f"{_A}latin")
    look = {
        "bold": properties.get("b") in ("1", "true"),
        "italic": properties.get("i") in ("1", "true"),
        "underlined": properties.get("u", "none") != "none",
        "struck": properties.get("strike", "noStrike") != "noStrike",
        "size": int(properties.get("sz", "1800")) / 100,
        "colour": "" if color == "000000" else color,
        "font": _SAME_FONTS.get(name := font.get("typeface", ""), name) if font is not None else "",
    }
    return tuple((name, value) for name, value in look.items() if value)


def _color(fill: Any) -> str:
    node = fill.find(f"{_A}srgbClr") if fill is not None else None
    return str(node.get("val")).upper() if node is not None else ""
