"""Metrics over presentations that check one thing each, and OfficeWorld's comparison of text and structure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, read_package, xml_of
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import whole_number
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, within
from computerrl.env_server.tasks.reading.packages import num_below, outermost

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_MAX_RGB_DISTANCE = 3**0.5 * 255


def open_presentation(path: str) -> Any:
    """A pptx file, or `BrokenFile`."""
    import pptx

    package = read_package(path)

    def parse(place: Path) -> Any:
        presentation = pptx.Presentation(package.file())
        names = [entry.rId for entry in presentation.slides._sldIdLst]
        within("slides", len(names), limits.MAX_SLIDES)
        if len(set(names)) < len(names):
            raise ValueError("one slide stands at several places")
        paragraphs = Budget("paragraphs", limits.MAX_PARAGRAPHS)
        layouts = [page for master in presentation.slide_masters for page in (master, *master.slide_layouts)]
        for page in (*layouts, *presentation.slides):
            # A placeholder searches all of its layout's for the one whose place it takes.
            within("placeholders of a page", num_below(page._element, f"{P}ph"), limits.MAX_PLACEHOLDERS)
            paragraphs.spend(num_below(page._element, f"{A}p"))
        return presentation

    return load(path, parse)


def check_transition(result: str, rules: Rules) -> float:
    """The slide ``slide_idx`` (from 0) comes in with the transition ``transition_type``."""
    slides = open_presentation(result).slides
    index = whole_number(rules["slide_idx"])
    if index >= len(slides):
        return 0.0
    wanted = rules["transition_type"]
    for transition in slides[index]._element.iter(f"{P}transition"):
        if any(child.tag.rpartition("}")[2] == wanted for child in transition):
            return 1.0
    return 0.0


def check_slide_orientation_Portrait(result: str) -> float:
    """Slides are higher than wide."""
    presentation = open_presentation(result)
    return score(presentation.slide_width < presentation.slide_height)


_DRAGGING = 457_200
"""Half an inch in EMU: by so much a picture that was dragged may miss its place."""


def check_image_stretch_and_center(result: str, expected: str) -> float:
    """The picture of the first slide (the one that the untouched file has) fills the slide and lies in its middle."""
    presentation, original = open_presentation(result), open_presentation(expected)
    if not len(presentation.slides):
        return 0.0
    old = [shape.image.blob for shape in original.slides[0].shapes if _is_picture(shape)][:1]
    slide = presentation.slides[0]

    @cache
    def shows_old(relation: str) -> bool:
        return slide.part.related_part(relation).blob in old

    pictures = [shape for shape in slide.shapes if _is_picture(shape) and shows_old(shape._element.blip_rId)]
    if not pictures:
        return 0.0
    width, height, picture = original.slide_width, original.slide_height, pictures[-1]
    off = (
        picture.width - width,
        picture.height - height,
        picture.left - (width - picture.width) / 2,
        picture.top - (height - picture.height) / 2,
    )
    return score(all(abs(distance) <= _DRAGGING for distance in off))


def _is_picture(shape: Any) -> bool:
    return "PICTURE" in str(shape.shape_type) and hasattr(shape, "image")


def check_page_number_colors(result: str, rules: Rules) -> float:
    """Slide numbers of masters, layouts and slides have the colour: red, blue, green or black, by far the strongest part."""
    presentation = open_presentation(result)
    pages = [page for master in presentation.slide_masters for page in (master, *master.slide_layouts)] + list(
        presentation.slides
    )
    colours = [colour for page in pages for colour in _number_colours(page)]
    return score(bool(colours) and all(_looks(colour, rules["color"]) for colour in colours))


def _number_colours(page: Any) -> Iterator[str]:
    """Colours given to fields that show the slide's number."""
    for field in page._element.iter(f"{A}fld"):
        if field.get("type") == "slidenum":
            for node in field.iter(f"{A}srgbClr"):
                yield node.get("val", "000000")


def _looks(colour: str, name: str) -> bool:
    red, green, blue = (int(colour[index : index + 2], 16) for index in (0, 2, 4))
    parts = {"red": red, "green": green, "blue": blue}
    if name == "black":
        return max(parts.values()) < 50
    if name not in parts:
        from PIL import ImageColor

        wanted = ImageColor.getrgb(name)
        return all(abs(a - b) <= 60 for a, b in zip((red, green, blue), wanted, strict=False))
    return parts[name] - max(value for key, value in parts.items() if key != name) > 50


def evaluate_presentation_fill_to_rgb_distance(result: str, rules: Rules) -> float:
    """How near the slides' backgrounds are to ``rgb``, the mean over slides; a slide that kept ``original_rgb`` counts 0."""
    wanted, original = rules["rgb"], rules.get("original_rgb")
    slides = open_presentation(result).slides
    parts = [_nearness(_background(slide), wanted, original) for slide in slides]
    return sum(parts) / len(parts) if parts else 0.0


def _background(slide: Any) -> tuple[int, int, int] | None:
    """The solid background that applies: the slide's own, its layout's or its master's."""
    for page in (slide, slide.slide_layout, slide.slide_layout.slide_master):
        node = page._element.find(f"{P}cSld/{P}bg")
        if node is not None:
            colour = next(node.iter(f"{A}srgbClr"), None)
            value = colour.get("val") if colour is not None else None
            return (int(value[:2], 16), int(value[2:4], 16), int(value[4:], 16)) if value else None
    return None


def _nearness(found: tuple[int, int, int] | None, wanted: Any, original: Any) -> float:
    if found is None or (original is not None and list(found) == list(original)):
        return 0.0
    return 1 - sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) ** 0.5 / _MAX_RGB_DISTANCE


def check_left_panel(result: str) -> float:
    """Impress shows the panel of slides: the accessibility tree has a frame or view with that name."""
    root = xml_of(result.encode())
    tags = {"root-pane", "panel", "document-frame", "list", "document-presentation"}
    return score(any(node.get("name") in ("Slides View", "Slides", "Slide Sorter") and node.tag in tags for node in root.iter()))


def simple_pptx_compare(result: str, expected: str) -> float:
    """Both presentations have slide by slide the same texts, tables and pictures, in any order. Empty boxes, blanks, and what an
    application works out (numbers of slides, dates) do not count."""
    return score(_contents(result) == _contents(expected))


def _contents(path: str) -> list[list[tuple[str, str]]]:
    return [sorted(_content(slide._element)) for slide in open_presentation(path).slides]


def _content(node: Any) -> Iterator[tuple[str, str]]:
    for child in node:
        # The second form of a newer object, for applications that do not know it.
        if child.tag == "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback":
            continue
        if child.tag == f"{A}tbl":
            yield "table", "\n".join(" | ".join(map(_words, outermost(row, f"{A}tc"))) for row in outermost(child, f"{A}tr"))
        elif child.tag == f"{P}txBody":
            if _words(child):
                yield "text", _words(child)
        elif child.tag == f"{P}pic" or child.tag == f"{A}blip":
            yield "picture", ""
        else:
            yield from _content(child)


def _words(node: Any) -> str:
    """The text of all paragraphs, words apart by one blank."""
    paragraphs = ("".join(_letters(paragraph)) for paragraph in outermost(node, f"{A}p"))
    return " ".join(" ".join(paragraphs).split())


def _letters(paragraph: Any) -> Iterator[str]:
    for child in paragraph:
        if child.tag == f"{A}r" or (child.tag == f"{A}fld" and not _WORKED_OUT.match(child.get("type", ""))):
            yield child.findtext(f"{A}t") or ""
        elif child.tag == f"{A}br":
            yield "\n"


_WORKED_OUT = re.compile("slidenum|datetime")
