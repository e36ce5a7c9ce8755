"""Presentations: families that change words and the looks of words."""

from __future__ import annotations

import dataclasses
import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.content import COLORS
from computerrl.env_server.tasks.forge.decks import Deck
from computerrl.env_server.tasks.forge.impress_base import deck_task, slides
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import wording

_FONTS = ("DejaVu Sans", "DejaVu Serif", "Liberation Mono", "Liberation Serif")
_BOXES = ("title", "box with the points", "box with the question line")


def _place(rng: random.Random, level: int, count: int) -> tuple[int, int]:
    """(slide from 0, box); the higher the level, the less often it is a title of the first slide."""
    return (0 if level == 1 else rng.randrange(count)), rng.randrange({1: 2, 2: 3, 3: 3}[level])


def _type_title(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = level - 1
    new = f"{rng.choice(content.COMPANIES)} {rng.choice(content.EVENTS)}"
    said = wording(
        rng,
        'Change the title of slide {number} from "{old}" to "{new}".',
        'Slide {number} has the title "{old}"; it should read "{new}".',
        number=index + 1,
        old=found[index].boxes[0].lines[0],
        new=new,
    )

    def script(text: str) -> list[Move]:
        return [*[key("pagedown")] * index, key("tab"), key("f2"), key("ctrl+a"), typed(text), key("esc")]

    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(0, lines=(new,)),
        near=lambda deck: deck.slides[index].change(0, lines=(new[:-1],)),
        solution=script(new),
        near_miss=script(new[:-1]),
        save=(SAVE_BY_KEYS,),
    )


def _write_note(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    new = f"Contact: {content.people(rng, 1)[0]}"
    size = found[index].boxes[2].size
    said = wording(
        rng,
        'On slide {number}, replace the line "{old}" by "{new}", in {size:g} points as before.',
        'The text "{old}" of slide {number} must become "{new}"; keep its size of {size:g} points.',
        number=index + 1,
        old=found[index].boxes[2].lines[0],
        new=new,
        size=size,
    )

    def script(page: int) -> list[Move]:
        return [*[key("pagedown")] * page, *[key("tab")] * 3, key("f2"), key("ctrl+a"), typed(new), key("esc")]

    wrong = (index + 1) % len(found)
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(2, lines=(new,)),
        near=lambda deck: deck.slides[wrong].change(2, lines=(new,)),
        solution=script(index),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _add_point(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = level - 1
    lines = found[index].boxes[1].lines
    new = f"{rng.choice(content.COMPANIES)}: {rng.randrange(11, 99)}"
    said = wording(
        rng,
        'Add the point "{new}" at the end of the list on slide {number}.',
        'The list on slide {number} needs one more line, its last: "{new}".',
        new=new,
        number=index + 1,
    )

    def script(end: str) -> list[Move]:
        return [*[key("pagedown")] * index, key("tab"), key("tab"), key("f2"), key(end), key("enter"), typed(new), key("esc")]

    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(1, lines=(*lines, new)),
        near=lambda deck: deck.slides[index].change(1, lines=(lines[0], new, *lines[1:])),
        solution=script("ctrl+end"),
        near_miss=script("ctrl+home"),
        save=(SAVE_BY_KEYS,),
    )


def _style_box(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index, box = _place(rng, level, len(found))
    looks = rng.sample(("bold", "italic", "underline"), {1: 1, 2: 1, 3: 2}[level])
    other = next(look for look in ("bold", "italic", "underline") if look not in looks)
    said = wording(
        rng,
        "Make all text in the {box} of slide {number} {looks}.",
        "On slide {number}, the {box} should be in {looks}.",
        box=_BOXES[box],
        number=index + 1,
        looks=" and ".join({"underline": "underlined"}.get(look, look) for look in looks),
    )

    def change(deck: Deck, wanted: list[str]) -> None:
        deck.slides[index].change(box, **dict.fromkeys(wanted, True))

    def script(wanted: list[str]) -> list[Move]:
        return [call("impress.set_style", slide_index=index + 1, box_index=box, **dict.fromkeys(wanted, True))]

    wrong = [*looks[:-1], other]
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: change(deck, looks),
        near=lambda deck: change(deck, wrong),
        solution=script(looks),
        near_miss=script(wrong),
    )


def _embolden_by_keys(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = level - 1
    chord, look = rng.choice((("ctrl+b", "bold"), ("ctrl+i", "italic")))

    def script(num_tabs: int) -> list[Move]:
        return [*[key("pagedown")] * index, *[key("tab")] * num_tabs, key(chord)]

    box = rng.randrange(2)
    said = wording(
        rng,
        "Make the whole {box} of slide {number} {look}.",
        "The {box} on slide {number} should be {look}.",
        box=_BOXES[box],
        number=index + 1,
        look=look,
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(box, **{look: True}),
        near=lambda deck: deck.slides[index].change(box + 1, **{look: True}),
        solution=script(box + 1),
        near_miss=script(box + 2),
        save=(SAVE_BY_KEYS,),
    )


def _slide_font(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    font = rng.choice(_FONTS)
    wrong = (index + 1) % len(found)

    def change(deck: Deck, slide: int) -> None:
        deck.each_box(lambda box: dataclasses.replace(box, font=font), slide=slide)

    def script(slide: int) -> list[Move]:
        return [call("impress.set_slide_font", slide_index=slide + 1, font_name=font)]

    said = wording(
        rng,
        "Use the font {font} for all text of slide {number}.",
        "All boxes of slide {number} should be written in {font}.",
        font=font,
        number=index + 1,
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: change(deck, index),
        near=lambda deck: change(deck, wrong),
        solution=script(index),
        near_miss=script(wrong),
    )


def _text_color(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index, box = _place(rng, level, len(found))
    name, wrong = rng.sample(sorted(COLORS), 2)

    def script(color: str) -> list[Move]:
        return [call("impress.set_text_color", slide_index=index + 1, box_index=box, color=f"#{COLORS[color]}")]

    said = wording(
        rng,
        "Colour the text of the {box} on slide {number} {name} (#{code}).",
        "On slide {number}, the text of the {box} should be {name} (#{code}).",
        box=_BOXES[box],
        number=index + 1,
        name=name,
        code=COLORS[name],
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(box, color=COLORS[name]),
        near=lambda deck: deck.slides[index].change(box, color=COLORS[wrong]),
        solution=script(name),
        near_miss=script(wrong),
    )


def _strike_points(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = 0 if level == 1 else rng.randrange(len(found))
    lines = found[index].boxes[1].lines
    *done, other = rng.sample(range(len(lines)), level + 1)
    names = " and ".join(f'"{lines[line]}"' for line in sorted(done))
    said = wording(
        rng,
        "The points {names} on slide {number} are done: strike them through.",
        "On slide {number}, cross out {names} (strikethrough).",
        names=names,
        number=index + 1,
    )

    def script(which: list[int]) -> list[Move]:
        return [call("impress.set_text_strikethrough", slide_index=index + 1, box_index=1, line_numbers=which, apply=True)]

    wrong = [*done[:-1], other]
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(1, struck=frozenset(done)),
        near=lambda deck: deck.slides[index].change(1, struck=frozenset(wrong)),
        solution=script(sorted(done)),
        near_miss=script(sorted(wrong)),
    )


def _align_box(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index, box = _place(rng, level, len(found))
    side, wrong = rng.sample(("center", "right", "justify"), 2)

    def script(alignment: str) -> list[Move]:
        return [call("impress.set_textbox_alignment", slide_index=index + 1, box_index=box, alignment=alignment)]

    said = wording(
        rng,
        "Align the text in the {box} of slide {number}: {side}.",
        "The text of the {box} on slide {number} should be {side}.",
        box=_BOXES[box],
        number=index + 1,
        side={"center": "centred", "right": "right-aligned", "justify": "justified"}[side],
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(box, align=side),
        near=lambda deck: deck.slides[index].change(box, align=wrong),
        solution=script(side),
        near_miss=script(wrong),
    )


FAMILIES = (
    forge_family("impress-type-title", "impress", "type another title into a slide", _type_title),
    forge_family("impress-write-note", "impress", "type another text into a box", _write_note),
    forge_family("impress-add-point", "impress", "type one more line of a list", _add_point),
    forge_family("impress-style-box", "impress", "bold, italic, underlined text of a box", _style_box),
    forge_family("impress-emphasise-box", "impress", "bold or italic text of a box, with the keyboard", _embolden_by_keys),
    forge_family("impress-slide-font", "impress", "one font for a slide", _slide_font),
    forge_family("impress-text-color", "impress", "colour of a box's text", _text_color),
    forge_family("impress-strike-points", "impress", "strike points of a list through", _strike_points),
    forge_family("impress-align-box", "impress", "alignment of a box's text", _align_box),
)
