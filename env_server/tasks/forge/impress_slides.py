"""Presentations: families about boxes and slides as wholes."""

from __future__ import annotations

import dataclasses
import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.content import COLORS
from computerrl.env_server.tasks.forge.decks import HEIGHT_CM, WIDTH_CM, Box, Deck, Slide
from computerrl.env_server.tasks.forge.facts import Check, Near, anything
from computerrl.env_server.tasks.forge.impress_base import deck_task, slides
from computerrl.env_server.tasks.forge.packing import picture
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key
from computerrl.env_server.tasks.forge.scripts import wording

_EDGE_CM = 3.0
"""A box is in a corner when its edges are as near as this to the slide's."""


def _box_fill(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    name = rng.choice(sorted(COLORS))
    box, wrong = rng.sample((1, 2), 2)

    def script(which: int) -> list[Move]:
        return [call("impress.set_background_color", slide_index=index + 1, box_index=which, color=f"#{COLORS[name]}")]

    said = wording(
        rng,
        'Fill the box that says "{text}" on slide {number} with {name} (#{code}).',
        'On slide {number}, the box with "{text}" needs a {name} background (#{code}).',
        text=found[index].boxes[box].lines[0],
        number=index + 1,
        name=name,
        code=COLORS[name],
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(box, fill=COLORS[name]),
        near=lambda deck: deck.slides[index].change(wrong, fill=COLORS[name]),
        solution=script(box),
        near_miss=script(wrong),
    )


def _move_box(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    corner, wrong = rng.sample(("top-left", "top-right", "bottom-left", "bottom-right"), 2)
    box = found[index].boxes[2]

    def place(where: str) -> dict[str, float]:
        left = 0.5 if "left" in where else WIDTH_CM - box.width - 0.5
        return {"left": left, "top": 0.5 if "top" in where else HEIGHT_CM - box.height - 0.5}

    def near_to(expected: float) -> Check:
        return lambda found: isinstance(found, Near) and abs(found.value - expected) <= _EDGE_CM

    def script(where: str) -> list[Move]:
        return [call("impress.position_box", slide_index=index + 1, box_index=2, position=where)]

    said = wording(
        rng,
        'Move the box "{text}" of slide {number} into the {corner} corner.',
        'On slide {number}, put the box that says "{text}" into the {corner} corner of the slide.',
        text=box.lines[0],
        number=index + 1,
        corner=corner.replace("-", " "),
    )
    name = f"slide {index + 1} box 2"
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].change(2, **place(corner)),
        near=lambda deck: deck.slides[index].change(2, **place(wrong)),
        solution=script(corner),
        near_miss=script(wrong),
        checks={f"{name} left": near_to(place(corner)["left"]), f"{name} top": near_to(place(corner)["top"])},
    )


def _delete_box(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = level - 1
    box, wrong = rng.sample((1, 2), 2)

    def script(which: int) -> list[Move]:
        return [*[key("pagedown")] * index, *[key("tab")] * (which + 1), key("delete")]

    said = wording(
        rng,
        'Delete the box that says "{text}" from slide {number}.',
        'Slide {number} should no longer have the box with "{text}"; remove it.',
        text=found[index].boxes[box].lines[0],
        number=index + 1,
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].boxes.pop(box),
        near=lambda deck: deck.slides[index].boxes.pop(wrong),
        solution=script(box),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _delete_picture(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    pictures = [
        Box(picture=picture(COLORS[name]), left=left, top=9, width=4, height=3) for name, left in (("red", 2), ("blue", 18))
    ]
    found[index].boxes += pictures
    last = len(found[index].boxes) - 1

    def script(which: int) -> list[Move]:
        return [call("impress.delete_content", slide_index=index + 1, box_index=which)]

    which, wrong = rng.sample((last, last - 1), 2)
    color = "blue" if which == last else "red"
    said = wording(
        rng,
        "Delete the {color} picture from slide {number}.",
        "Slide {number} shows two pictures. Remove the {color} one.",
        color=color,
        number=index + 1,
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: deck.slides[index].boxes.pop(which),
        near=lambda deck: deck.slides[index].boxes.pop(wrong),
        solution=script(which),
        near_miss=script(wrong),
    )


def _copy_slide(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    wrong = (index + 1) % len(found)

    def copy(deck: Deck, which: int) -> None:
        deck.slides.append(Slide(list(deck.slides[which].boxes), deck.slides[which].background))

    def script(which: int) -> list[Move]:
        return [call("impress.duplicate_slide", slide_index=which + 1)]

    said = wording(
        rng,
        "Add a copy of slide {number} as the last slide.",
        'The slide "{title}" should be shown once more at the end: append a copy of it.',
        number=index + 1,
        title=found[index].boxes[0].lines[0],
    )
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: copy(deck, index),
        near=lambda deck: copy(deck, wrong),
        solution=script(index),
        near_miss=script(wrong),
    )


def _slide_background(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    name = rng.choice(sorted(COLORS))
    is_all = level == 3
    wrong = (index + 1) % len(found)

    def change(deck: Deck, which: int | None) -> None:
        for number, slide in enumerate(deck.slides):
            if which is None or which == number:
                slide.background = COLORS[name]

    def script(which: int | None) -> list[Move]:
        return [call("impress.set_slide_background", slide_index=None if which is None else which + 1, color=f"#{COLORS[name]}")]

    said = wording(
        rng,
        "Give {what} a {name} background (#{code}).",
        "Set the background of {what} to {name} (#{code}).",
        what="all slides" if is_all else f"slide {index + 1}",
        name=name,
        code=COLORS[name],
    )
    target = None if is_all else index
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: change(deck, target),
        near=lambda deck: change(deck, wrong),
        solution=script(target),
        near_miss=script(wrong),
    )


def _orientation(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    said = wording(
        rng,
        "Turn the slides to portrait orientation.",
        "The presentation will be printed upright: set the slides to portrait.",
        "All slides should be higher than wide; choose the portrait orientation.",
        "Change the page orientation of this presentation to portrait.",
    )

    def turn(deck: Deck) -> None:
        deck.is_portrait = True

    # How boxes are fitted into the new shape is the office's affair.
    checks = {f"slide * {side}": anything for side in ("left", "top", "width")}
    return deck_task(
        rng,
        found,
        said=said,
        change=turn,
        near=lambda deck: deck.slides[0].change(0, align="center"),
        solution=(call("impress.set_slide_orientation", orientation="portrait"),),
        near_miss=(call("impress.set_slide_orientation", orientation="landscape"),),
        checks=checks,
    )


def _save_copy(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    name, wrong = (
        f"{rng.choice(content.CITIES).lower()}-{word}.pptx" for word in rng.sample(("backup", "copy", "final", "old"), 2)
    )
    task = deck_task(rng, found, said="", change=lambda deck: None, near=lambda deck: None, solution=(), near_miss=())
    (before,) = task.files.values()
    said = wording(
        rng,
        'Save the presentation once more under the name "{name}" in the same folder; the old file stays.',
        'Make a copy of the presentation: save it as "{name}" beside the original.',
        name=name,
    )

    def script(path: str) -> list[Move]:
        return [call("impress.save_as", file_path=path)]

    return dataclasses.replace(
        task,
        instruction=said,
        wanted=lambda: {name: before},
        nearly=lambda: {wrong: before},
        solution=script(name),
        near_miss=script(wrong),
    )


def _insert_picture(rng: random.Random, level: int) -> Forged:
    found = slides(rng, level)
    index = rng.randrange(len(found))
    wrong = (index + 1) % len(found)
    width, height = rng.choice(((4, 3), (6, 4), (8, 6)))
    name = f"{rng.choice(content.PRODUCTS).lower()}.png"
    data = picture(COLORS[rng.choice(sorted(COLORS))])

    def change(deck: Deck, which: int) -> None:
        left, top = (WIDTH_CM - width) / 2, (HEIGHT_CM - height) / 2
        deck.slides[which].boxes.append(Box(picture=data, left=left, top=top, width=width, height=height))

    def script(which: int) -> list[Move]:
        return [call("impress.insert_image", slide_index=which + 1, image_path=name, width=width, height=height)]

    said = wording(
        rng,
        "Put the picture {name} on slide {number}, {width} cm wide and {height} cm high.",
        "Insert {name} into slide {number} with a width of {width} cm and a height of {height} cm.",
        name=name,
        number=index + 1,
        width=width,
        height=height,
    )
    checks = {f"slide {index + 1} box 3 {side}": anything for side in ("left", "top")}
    return deck_task(
        rng,
        found,
        said=said,
        change=lambda deck: change(deck, index),
        near=lambda deck: change(deck, wrong),
        solution=script(index),
        near_miss=script(wrong),
        checks=checks,
        beside={name: data},
    )


FAMILIES = (
    forge_family("impress-box-fill", "impress", "fill of a box", _box_fill),
    forge_family("impress-move-box", "impress", "move a box into a corner", _move_box),
    forge_family("impress-delete-box", "impress", "delete a box, with the keyboard", _delete_box),
    forge_family("impress-delete-picture", "impress", "delete one of two pictures", _delete_picture),
    forge_family("impress-copy-slide", "impress", "a slide's copy at the end", _copy_slide),
    forge_family("impress-slide-background", "impress", "background of a slide or of all", _slide_background),
    forge_family("impress-orientation", "impress", "portrait instead of landscape", _orientation),
    forge_family("impress-save-copy", "impress", "save under another name", _save_copy),
    forge_family("impress-insert-picture", "impress", "put a picture of the folder on a slide", _insert_picture),
)
