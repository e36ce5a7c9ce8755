"""The page of a grounding evaluation: scores with intervals, entries left out, and wrong answers on their pictures.

The page refers to nothing outside itself. All texts on it come from data sets and policies, and are escaped.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from computerrl.common.actions.screen_text import one_line
from computerrl.common.vision.encoded import data_uri, mark_places
from computerrl.launch.grounding.entries import Region
from computerrl.launch.grounding.figures import Answered
from computerrl.launch.grounding.pictures import BROKEN, FORMATS
from computerrl.launch.report.charts import intervals
from computerrl.launch.report.write import page_environment

MAX_SHOWN = 48
"""Maximum number of wrong answers on the page, taken evenly from all: with 30 kB each a page stays below 2 MB."""
PICTURE_SIDE = 560
"""Longest side in pixels of a picture on the page."""
QUALITY = 60
MAX_CHARS = 400
"""Maximum number of characters of an answer on the page."""
_OUTLINE, _AROUND = (47, 125, 79), (255, 255, 255)
"""Colour of the region: green, with white around it. The mark of the answer is red."""


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """One wrong answer on the page."""

    key: str
    instruction: str
    outcome: str
    text: str
    reason: str
    picture: str
    """Data URI; empty when the file of the picture cannot be read any more."""


def make_page(figures: Mapping[str, Any], answers: Sequence[Answered]) -> str:
    """HTML. ``figures``: of `grounding_figures`, with name, model, endpoint, temperature and dataset."""
    wrong = [answer for answer in answers if answer.outcome != "hit"]
    drawn = {
        kind: intervals(f"score of each {kind} with its interval", _rows(values)) for kind, values in figures["kinds"].items()
    }
    template = page_environment().get_template("grounding.html.j2")
    shown = [_wrong_answer(answer) for answer in evenly(wrong, MAX_SHOWN)]
    return template.render(figures=figures, drawn=drawn, wrong=shown, num_wrong=len(wrong))


def _rows(values: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float, float, float]]:
    return [(value, score["mean"], score["low"], score["high"]) for value, score in values.items()]


def evenly(items: Sequence[Answered], most: int) -> list[Answered]:
    """At most ``most`` of ``items``, in order and evenly spread."""
    number = min(len(items), most)
    return [items[place * len(items) // number] for place in range(number)]


def _wrong_answer(answer: Answered) -> WrongAnswer:
    entry = answer.entry
    return WrongAnswer(
        key=entry.key,
        instruction=one_line(entry.instruction, MAX_CHARS),
        outcome=answer.outcome.replace("_", " "),
        text=one_line(answer.text, MAX_CHARS),
        reason=one_line(answer.reason, MAX_CHARS),
        picture=_drawn(answer),
    )


def _drawn(answer: Answered) -> str:
    try:
        with Image.open(answer.entry.picture, formats=FORMATS) as stored:
            picture = stored.convert("RGB")
    except BROKEN:
        return ""  # The page tells it: the file was moved or replaced while the evaluation went on.
    width, height = picture.size
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    outline(picture, answer.entry.region, width=width, height=height)
    mark_places(picture, answer.point or (), width=width, height=height)
    buffer = io.BytesIO()
    picture.save(buffer, format="WEBP", quality=QUALITY, method=4)
    return data_uri(buffer.getvalue())


def outline(image: Image.Image, region: Region, *, width: int, height: int) -> None:
    """Draw ``region`` of a picture of ``width`` x ``height`` pixels on ``image``, which shows that picture at any size."""
    if not region.corners:
        return
    corners = [(x * image.width / width, y * image.height / height) for x, y in region.corners]
    draw = ImageDraw.Draw(image)
    for colour, thickness in ((_AROUND, 5), (_OUTLINE, 2)):
        draw.line([*corners, corners[0]], fill=colour, width=thickness, joint="curve")
