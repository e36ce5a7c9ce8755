"""Text documents: families that change what is written."""

from __future__ import annotations

import random

from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.papers import Paper, par
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import at_paragraph, click_on, wording
from computerrl.env_server.tasks.forge.writer_base import beginning, paper_task, report

_BY_KEYS = (SAVE_BY_KEYS,)


def _replace_name(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    old, new = rng.sample(content.COMPANIES, 2)
    while any(old in item.text or new in item.text for item in pars):
        old, new = rng.sample(content.COMPANIES, 2)
    places = sorted(rng.sample(range(1, len(pars)), level + 1))
    for place in places:
        pars[place] = par(f"{pars[place].text} {wording(rng, *_MENTIONS, name=old)}")

    def change(paper: Paper, where: list[int]) -> None:
        for place in where:
            paper.pars[place] = paper.pars[place].saying(old, new)

    def script(where: list[int] | None) -> list[Move]:
        return [call("writer.find_and_replace", pattern=old, replacement=new, paragraph_indices=where)]

    said = wording(
        rng,
        'Replace "{old}" by "{new}" everywhere in the text.',
        "Our partner {old} is now called {new}: change the name wherever it stands.",
        old=old,
        new=new,
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, places),
        near=lambda paper: change(paper, places[:-1]),
        solution=script(None),
        near_miss=script(places[:-1]),
        by_hand=(key("ctrl+h"), typed(old), key("alt+p"), typed(new), click_on("Replace All"), click_on("Close")),
    )


_MENTIONS = (
    "Ask {name} for an offer.",
    "The contract with {name} is signed.",
    "{name} sends two guests.",
    "Please inform {name}.",
)


def _append_line(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    line = rng.choice(
        (f"Signed: {content.people(rng, 1)[0]}", f"Next {rng.choice(content.EVENTS)}: {content.spoken(content.day(rng))}")
    )
    said = wording(
        rng,
        'Add a last paragraph that says "{line}".',
        'Write "{line}" as a paragraph of its own at the end of the document.',
        line=line,
    )

    def script(text: str) -> list[Move]:
        return [key("ctrl+end"), key("enter"), typed(text)]

    # Without a table at the end, which the cursor would be below of.
    return paper_task(
        rng,
        1,
        pars,
        said=said,
        change=lambda paper: paper.pars.append(par(line)),
        near=lambda paper: paper.pars.append(par(line[:-1])),
        solution=script(line),
        near_miss=script(line[:-1]),
        save=_BY_KEYS,
    )


def _insert_line(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    line = f"{rng.choice(content.CITIES)}, {content.spoken(content.day(rng))}"
    said = wording(
        rng,
        'Put the line "{line}" above the heading, as the first paragraph.',
        'The document should begin with a paragraph "{line}", before everything else.',
        line=line,
    )
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: paper.pars.insert(0, par(line)),
        near=lambda paper: paper.pars.__setitem__(0, par(line + pars[0].text)),
        solution=(key("ctrl+home"), typed(line, enter=True)),
        near_miss=(key("ctrl+home"), typed(line)),
        save=_BY_KEYS,
    )


def _delete_paragraph(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    place = rng.randrange(1, min(4, len(pars) - 1))
    said = wording(
        rng,
        'Delete the whole paragraph that begins with "{words}".',
        'The paragraph "{words} ..." is no longer needed; remove it without leaving an empty one.',
        words=beginning(pars[place].text),
    )

    def script(times: int) -> list[Move]:
        # The selection ends with the paragraph's text; the second time goes what ends the paragraph.
        return [key("ctrl+home"), *[key("ctrl+down")] * times, key("ctrl+shift+down"), key("delete"), key("delete")]

    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: paper.pars.pop(place),
        near=lambda paper: paper.pars.pop(place + 1),
        solution=script(place),
        near_miss=script(place + 1),
        save=_BY_KEYS,
    )


def _new_page(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    place = rng.randrange(1, min(4, len(pars) - 1))
    said = wording(
        rng,
        'Let the paragraph that begins with "{words}" start on a new page.',
        'Insert a page break right before the paragraph "{words} ...".',
        words=beginning(pars[place].text),
    )

    def change(paper: Paper, where: int) -> None:
        paper.pars[where] = par(pars[where].text, new_page=True)

    def script(times: int) -> list[Move]:
        return [key("ctrl+home"), *[key("ctrl+down")] * times, key("ctrl+enter")]

    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, place),
        near=lambda paper: change(paper, place + 1),
        solution=script(place),
        near_miss=script(place + 1),
        save=_BY_KEYS,
    )


def _capitals(rng: random.Random, level: int) -> Forged:
    pars = report(rng, level)
    is_heading = level == 1
    place = 0 if is_heading else rng.randrange(1, len(pars))
    words = pars[0].text if is_heading else " ".join(pars[place].text.split()[1:3])
    where = "of the heading" if is_heading else f'"{words}" in the paragraph that begins with "{beginning(pars[place].text)}"'
    said = wording(
        rng,
        "Turn the words {where} into capital letters.",
        "Write the words {where} in capital letters only.",
        where=where,
    )

    def change(paper: Paper, old: str) -> None:
        paper.pars[place] = pars[place].saying(old, old.upper())

    def script(pattern: str) -> list[Move]:
        return [call("writer.change_text_case", case_type="uppercase", pattern=pattern, paragraph_indices=[place])]

    select = [key("shift+end")] if is_heading else [key("ctrl+right"), *[key("ctrl+shift+right")] * 2]
    by_hand = [*at_paragraph(place), *select, typed(words.upper() + ("" if is_heading else " "))]
    return paper_task(
        rng,
        level,
        pars,
        said=said,
        change=lambda paper: change(paper, words),
        near=lambda paper: change(paper, words[:-1]),
        solution=script(words),
        near_miss=script(words[:-1]),
        by_hand=by_hand,
    )


_POSITIONS = {"bottom": "footer", "top": "header"}
_FORMATS = {"arabic": ("decimal", "1, 2, 3"), "roman": ("lowerRoman", "i, ii, iii"), "ROMAN": ("upperRoman", "I, II, III")}


def _page_numbers(rng: random.Random, level: int) -> Forged:
    edge, side = rng.choice(sorted(_POSITIONS)), rng.choice(("left", "center", "right"))
    first = rng.randrange(2, 12) if level >= 2 else 1
    kind = rng.choice(sorted(_FORMATS)) if level == 3 else "arabic"
    said = wording(
        rng,
        "Add page numbers at the {edge} {side} of the pages.",
        "The pages need numbers in the {margin}, {side}.",
        edge=edge,
        side=side,
        margin=_POSITIONS[edge],
    )
    if level >= 2:
        said += f" The first page has the number {first}."
    if level == 3:
        said += f" Number them {_FORMATS[kind][1]} and so on."

    def change(paper: Paper, align: str) -> None:
        paper.page_numbers = (_POSITIONS[edge], align, first, _FORMATS[kind][0])

    def script(align: str) -> list[Move]:
        return [call("writer.add_page_numbers", position=f"{edge}_{align}", start_number=first, format=kind)]

    wrong = "right" if side == "left" else "left"
    return paper_task(
        rng,
        level,
        report(rng, level),
        said=said,
        change=lambda paper: change(paper, side),
        near=lambda paper: change(paper, wrong),
        solution=script(side),
        near_miss=script(wrong),
    )


FAMILIES = (
    forge_family("writer-replace-name", "writer", "replace a name everywhere", _replace_name),
    forge_family("writer-append-line", "writer", "type a last paragraph", _append_line),
    forge_family("writer-insert-line", "writer", "type a first paragraph", _insert_line),
    forge_family("writer-delete-paragraph", "writer", "delete the named paragraph with the keyboard", _delete_paragraph),
    forge_family("writer-new-page", "writer", "a page break before the named paragraph, with the keyboard", _new_page),
    forge_family("writer-capitals", "writer", "capital letters for the heading or some words", _capitals),
    forge_family("writer-page-numbers", "writer", "page numbers in header or footer", _page_numbers),
)
