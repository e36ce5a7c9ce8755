"""Text documents: families that change how text looks."""

from __future__ import annotations

import random

from computerrl.env_server.tasks.forge.content import COLORS
from computerrl.env_server.tasks.forge.papers import Paper
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key
from computerrl.env_server.tasks.forge.scripts import at_paragraph, wording
from computerrl.env_server.tasks.forge.writer_base import beginning, paper_task, report

_FONTS = ("DejaVu Sans", "DejaVu Serif", "Liberation Mono", "Liberation Sans")


def _some(rng: random.Random, count: int, num_wanted: int) -> tuple[list[int], list[int]]:
    """Numbers of paragraphs that are meant, and the same but for one."""
    *chosen, other = rng.sample(range(1, count), num_wanted + 1)
    return sorted(chosen), sorted([*chosen[:-1], other])


def _named(pars: list[str]) -> str:
    words = " and ".join(f'"{beginning(text)} ..."' for text in pars)
    return f"the paragraph{'s' if len(pars) > 1 else ''} {words}"


def _emphasise_heading(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    chord, look = rng.choice((("ctrl+b", "bold"), ("ctrl+i", "italic")))

    def script(select: str) -> list[Move]:
        return [key("ctrl+home"), key(select), key(chord)]

    def change(paper: Paper, words: str) -> None:
        paper.pars[0] = pars[0].with_look_on(words, **{look: True})

    said = wording(
        rng, "Make the heading, the first line, {look}.", 'Set the first line "{text}" in {look}.', look=look, text=pars[0].text
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, pars[0].text),
        near=lambda paper: change(paper, pars[0].text.split()[0]),
        solution=script("shift+end"),
        near_miss=script("ctrl+shift+right"),
        save=(SAVE_BY_KEYS,),
    )


def _align_heading(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    sides = {"center": ("ctrl+e", "centred"), "right": ("ctrl+r", "right-aligned"), "justify": ("ctrl+j", "justified")}
    side, wrong = rng.sample(sorted(sides), 2)
    place = level - 1
    what = "heading" if place == 0 else f'paragraph that begins with "{beginning(pars[place].text)}"'

    def change(paper: Paper, align: str) -> None:
        paper.pars[place] = type(pars[place])(pars[place].runs, align=align)

    def script(align: str) -> list[Move]:
        return [key("ctrl+home"), *[key("ctrl+down")] * place, key(sides[align][0])]

    said = wording(
        rng,
        "The {what} should be {words}.",
        "Change the alignment of the {what}: it has to be {words}.",
        what=what,
        words=sides[side][1],
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, side),
        near=lambda paper: change(paper, wrong),
        solution=script(side),
        near_miss=script(wrong),
        save=(SAVE_BY_KEYS,),
    )


def _align(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    places, wrong = _some(rng, len(pars), {1: 1, 2: 2, 3: 2}[level])
    if level == 3:
        places, wrong = [0, *places], [0, *wrong]
    side = rng.choice(("center", "right", "justify"))

    def change(paper: Paper, where: list[int]) -> None:
        for place in where:
            paper.pars[place] = type(pars[place])(pars[place].runs, align=side)

    def script(where: list[int]) -> list[Move]:
        return [call("writer.set_paragraph_alignment", alignment=side, paragraph_indices=where)]

    what = ("the heading and " if level == 3 else "") + _named([pars[place].text for place in places if place])
    words = {"center": "centred", "right": "right-aligned", "justify": "justified"}[side]
    chord = {"center": "ctrl+e", "right": "ctrl+r", "justify": "ctrl+j"}[side]
    by_hand = [move for place in places for move in (*at_paragraph(place), key(chord))]
    said = wording(
        rng, "Align {what} so that the text is {words}.", "Set {what} {words}, the rest as it is.", what=what, words=words
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, places),
        near=lambda paper: change(paper, wrong),
        solution=script(places),
        near_miss=script(wrong),
        by_hand=by_hand,
    )


def _line_spacing(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    places, wrong = _some(rng, len(pars), {1: 1, 2: 2, 3: 3}[level])
    lines = rng.choice((1.5, 2.0))

    def change(paper: Paper, where: list[int]) -> None:
        for place in where:
            paper.pars[place] = type(pars[place])(pars[place].runs, spacing=lines)

    def script(where: list[int]) -> list[Move]:
        return [call("writer.set_line_spacing", spacing_value=lines, paragraph_indices=where)]

    said = wording(
        rng,
        "Set the line spacing of {what} to {lines:g}.",
        "{what} should have a line spacing of {lines:g} lines.",
        what=_named([pars[place].text for place in places]),
        lines=lines,
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said[0].upper() + said[1:],
        change=lambda paper: change(paper, places),
        near=lambda paper: change(paper, wrong),
        solution=script(places),
        near_miss=script(wrong),
    )


def _font(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    places, wrong = _some(rng, len(pars), {1: 1, 2: 2, 3: 3}[level])
    font = rng.choice(_FONTS)

    def change(paper: Paper, where: list[int]) -> None:
        for place in where:
            paper.pars[place] = pars[place].looking(font=font)

    def script(where: list[int]) -> list[Move]:
        return [call("writer.set_font", font_name=font, paragraph_indices=where)]

    said = wording(
        rng,
        "Use the font {font} for {what}.",
        "Change the font of {what} to {font}.",
        font=font,
        what=_named([pars[place].text for place in places]),
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, places),
        near=lambda paper: change(paper, wrong),
        solution=script(places),
        near_miss=script(wrong),
    )


def _font_size(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    size, wrong = rng.sample((14, 16, 18, 20, 24), 2)
    place = 0 if level == 1 else rng.randrange(1, len(pars))
    words = pars[0].text if level == 1 else " ".join(pars[place].text.split()[:2])

    def change(paper: Paper, points: int) -> None:
        paper.pars[place] = pars[place].with_look_on(words, size=points)

    def script(points: int) -> list[Move]:
        return [call("writer.set_font_size", font_size=points, pattern=words, paragraph_indices=[place])]

    where = (
        "the heading (the first line)" if level == 1 else f'the words "{words}" at the beginning of {_named([pars[place].text])}'
    )
    said = wording(rng, "Set {where} in {size} points.", "Give {where} a font size of {size} points.", where=where, size=size)
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, size),
        near=lambda paper: change(paper, wrong),
        solution=script(size),
        near_miss=script(wrong),
    )


def _mark_words(rng: random.Random, level: int, *, look: str) -> Forged:
    """Colour or strike words of one paragraph; the same words may stand elsewhere, where they stay as they are."""
    pars = report(rng, level)
    place, other = rng.sample(range(1, len(pars)), 2)
    words = " ".join(pars[place].text.split()[: {1: 2, 2: 3, 3: 4}[level]])
    name = rng.choice(sorted(set(COLORS) - {"yellow"}))
    other_words = " ".join(pars[other].text.split()[:2])

    def change(paper: Paper, where: int, text: str) -> None:
        paper.pars[where] = pars[where].with_look_on(text, **({"color": COLORS[name]} if look == "color" else {"strike": True}))

    def script(where: int, text: str) -> list[Move]:
        if look == "color":
            return [call("writer.set_color", pattern=text, color=f"#{COLORS[name]}", paragraph_indices=[where])]
        return [call("writer.set_strikethrough", pattern=text, paragraph_indices=[where])]

    forms = (
        ('Colour "{words}" in {what} {name} (#{code}).', 'In {what}, the words "{words}" should be {name} (#{code}).')
        if look == "color"
        else ('Strike "{words}" through in {what}.', 'In {what}, cross out the words "{words}" (strikethrough).')
    )
    said = wording(rng, *forms, words=words, what=_named([pars[place].text]), name=name, code=COLORS[name])
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, place, words),
        near=lambda paper: change(paper, other, other_words),
        solution=script(place, words),
        near_miss=script(other, other_words),
    )


def _color_words(rng: random.Random, level: int) -> Forged:
    return _mark_words(rng, level, look="color")


def _strike_words(rng: random.Random, level: int) -> Forged:
    return _mark_words(rng, level, look="strike")


def _remove_highlighting(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    marked = sorted(rng.sample(range(1, len(pars)), level + 1))
    plain = list(pars)
    for place in marked:
        words = " ".join(pars[place].text.split()[1:4])
        pars[place] = pars[place].with_look_on(words, highlight=rng.choice(("yellow", "green", "cyan")))
    kept = marked[0] if level == 3 else None
    wanted = [place for place in marked if place != kept]

    def change(paper: Paper, where: list[int]) -> None:
        for place in where:
            paper.pars[place] = plain[place]

    def script(where: list[int] | None) -> list[Move]:
        return [call("writer.remove_highlighting", paragraph_indices=where)]

    exception = "" if kept is None else f" except in {_named([plain[kept].text])}"
    said = wording(
        rng,
        "Remove the highlighting from the text{exception}.",
        "The review is over: no words may stay highlighted{exception}.",
        exception=exception,
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, wanted),
        near=lambda paper: change(paper, wanted[:-1]),
        solution=script(None if kept is None else wanted),
        near_miss=script(wanted[:-1]),
    )


FAMILIES = (
    forge_family("writer-emphasise-heading", "writer", "bold or italic heading, with the keyboard", _emphasise_heading),
    forge_family("writer-align-one", "writer", "alignment of one paragraph, with the keyboard", _align_heading),
    forge_family("writer-align", "writer", "alignment of named paragraphs", _align),
    forge_family("writer-line-spacing", "writer", "line spacing of named paragraphs", _line_spacing),
    forge_family("writer-font", "writer", "font of named paragraphs", _font),
    forge_family("writer-font-size", "writer", "size of the heading or of some words", _font_size),
    forge_family("writer-color-words", "writer", "colour some words of one paragraph", _color_words),
    forge_family("writer-strike-words", "writer", "strike some words of one paragraph through", _strike_words),
    forge_family("writer-remove-highlighting", "writer", "no words highlighted any more", _remove_highlighting),
)
