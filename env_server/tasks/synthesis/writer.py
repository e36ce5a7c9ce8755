"""Text documents: where walks begin, which actions they are made of, and the words for what they have changed. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from computerrl.common.messages import Action
from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.content import COLORS
from computerrl.env_server.tasks.forge.facts import Facts, Near, same
from computerrl.env_server.tasks.forge.papers import Paper, Par
from computerrl.env_server.tasks.forge.plan import call, key, typed
from computerrl.env_server.tasks.forge.writer_base import beginning, report
from computerrl.env_server.tasks.synthesis.changes import Change, Differing, UnsaidError, change, colour, quoted
from computerrl.env_server.tasks.synthesis.start import Start

_SIDES = {"center": "centred", "right": "right-aligned", "justify": "justified", "left": "left-aligned"}
_CHORDS = {"center": "ctrl+e", "right": "ctrl+r", "justify": "ctrl+j"}
_FONTS = ("DejaVu Sans", "DejaVu Serif", "Liberation Mono", "Liberation Sans")
_NUMBERED = ("first page number", "page number format")
_ASPECTS = ("alignment", "spacing", "style", "new page")
_FORMATS = {"decimal": "arabic numerals", "upperRoman": "large Roman numerals", "lowerRoman": "small Roman numerals"}


def start(rng: random.Random) -> Start:
    """A letter or report of a few paragraphs."""
    pars = report(rng, rng.choice((1, 2)))
    path = f"{content.file_stem(rng, rng.choice(('report', 'letter', 'minutes')))}.docx"
    return Start(
        "document",
        {path: Paper(pars).to_bytes()},
        opened=(path,),
        save=call("writer.save"),
        draw=lambda rng: _draw(rng, pars),
    )


def _draw(rng: random.Random, pars: Sequence[Par]) -> list[Action]:
    """One move."""
    place = rng.randrange(len(pars))
    word = rng.choice([word.strip(".") for word in pars[place].text.split() if len(word) > 3])
    whole = "^.*$"
    to_place = [key("ctrl+home"), *[key("ctrl+down")] * place]
    color = f"#{rng.choice(sorted(COLORS.values()))}"
    side = rng.choice(sorted(_CHORDS))
    line = rng.choice(
        (f"Signed: {content.people(rng, 1)[0]}", f"{rng.choice(content.CITIES)}, {content.spoken(content.day(rng))}")
    )
    moves = (
        lambda: [
            call("writer.find_and_replace", pattern=word, replacement=rng.choice(content.CITIES), paragraph_indices=[place])
        ],
        lambda: [call("writer.find_and_replace", pattern=word, replacement=rng.choice(content.COMPANIES))],
        lambda: [call("writer.set_color", pattern=rng.choice((word, whole)), color=color, paragraph_indices=[place])],
        lambda: [call("writer.set_font", font_name=rng.choice(_FONTS), paragraph_indices=rng.choice(([place], None)))],
        lambda: [call("writer.set_font_size", font_size=rng.choice((14, 16, 18)), pattern=whole, paragraph_indices=[place])],
        lambda: [call("writer.set_strikethrough", pattern=rng.choice((word, whole)), paragraph_indices=[place])],
        lambda: [call("writer.set_line_spacing", spacing_value=rng.choice((1.5, 2.0)), paragraph_indices=[place])],
        lambda: [call("writer.set_paragraph_alignment", alignment=side, paragraph_indices=[place])],
        lambda: [*to_place, key(_CHORDS[side])],
        lambda: [call("writer.change_text_case", case_type="uppercase", pattern=word, paragraph_indices=[place])],
        lambda: [key("ctrl+end"), key("enter"), typed(line)],
        lambda: [*to_place, typed(line, enter=True)],
        lambda: [*to_place, key("shift+end"), key(rng.choice(("ctrl+b", "ctrl+i", "ctrl+u")))],
        lambda: [call("writer.insert_page_break", position="end_of_document")],
        lambda: [
            call(
                "writer.add_page_numbers",
                position=rng.choice(("bottom_center", "bottom_right", "top_left", "top_right")),
                format=rng.choice(("arabic", "roman", "ROMAN")),
            )
        ],
        lambda: [call("writer.env_info")],
        lambda: [key("ctrl+home")],
    )
    return rng.choice(moves)()


@dataclass(frozen=True, slots=True)
class _Pair:
    """One paragraph before and after, by number from 1."""

    old: int
    new: int


def changes(before: Facts, after: Facts) -> list[Change]:
    """The changes between two text documents. Raises `UnsaidError`."""
    old, new = _texts(before), _texts(after)
    pairs = _aligned(old, new)
    found: list[Change] = []
    moved = {_renumbered(name, pairs): value for name, value in before.items()}
    differing = Differing(moved, after)
    if len(new) != len(old):
        found.append(_one_more_or_less(differing, old, new, pairs))
    numbers = {pair.new: old[pair.old - 1] for pair in pairs}
    found += _word_changes(differing, numbers)
    found += _look_changes(differing, numbers)
    found += _aspect_changes(differing, numbers)
    found += _page_changes(differing)
    differing.require_none()
    return found


def _texts(facts: Facts) -> list[str]:
    """All paragraphs in their order."""
    found: list[str] = []
    while (text := facts.get(f"paragraph {len(found) + 1}")) is not None:
        found.append(str(text))
    return found


def _aligned(old: Sequence[str], new: Sequence[str]) -> list[_Pair]:
    """Paragraphs that are each other's successors. Raises `UnsaidError` when more than one was added or removed."""
    if abs(len(old) - len(new)) > 1:
        raise UnsaidError("several paragraphs added or removed")
    shorter = min(len(old), len(new))
    same_until = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    if len(old) == len(new):
        return [_Pair(number, number) for number in range(1, shorter + 1)]
    shift = len(new) - len(old)
    head = [_Pair(number, number) for number in range(1, same_until + 1)]
    tail = [_Pair(number + (shift < 0), number + (shift > 0)) for number in range(same_until + 1, shorter + 1)]
    if any(old[pair.old - 1] != new[pair.new - 1] for pair in tail):
        raise UnsaidError("a paragraph added or removed, and another changed")
    return [*head, *tail]


def _renumbered(name: str, pairs: Iterable[_Pair]) -> str:
    """The name of a paragraph's fact by its new number; that of a removed one begins otherwise."""
    word, _, rest = name.partition(" ")
    if word != "paragraph":
        return name
    number, _, aspect = rest.partition(" ")
    found = next((str(pair.new) for pair in pairs if pair.old == int(number)), "")
    return " ".join(filter(None, ("paragraph" if found else "removed", found, aspect)))


def _one_more_or_less(differing: Differing, old: Sequence[str], new: Sequence[str], pairs: Sequence[_Pair]) -> Change:
    """The paragraph that was added or removed."""
    if len(new) < len(old):
        gone = next(number for number in range(1, len(old) + 1) if all(pair.old != number for pair in pairs))
        differing.take([name for name in differing.names() if name.split()[0] == "removed"])
        return change("writer.delete", place=_place(old[gone - 1], old))
    number = next(number for number in range(1, len(new) + 1) if all(pair.new != number for pair in pairs))
    # A new paragraph looks like one beside it: only what it says has to be said.
    for aspect in ("looks", "alignment", "spacing", "style"):
        name = f"paragraph {number} {aspect}"
        beside = [differing.after.get(f"paragraph {other} {aspect}") for other in (number - 1, number + 1)]
        if any(_plain_look(differing.after.get(name)) == _plain_look(one) for one in beside if one is not None):
            differing.take([name])
    differing.take([f"paragraph {number}"])
    text = quoted(new[number - 1])
    if number == len(new):
        return change("writer.append", text=text)
    return change("writer.insert", text=text, place=_place(new[number], old))


def _plain_look(value: object) -> object:
    """Looks without their texts; a length as its number."""
    if isinstance(value, Near):
        return round(value.value, 2)
    return [look for _, look in value] if isinstance(value, list) else value


def _place(text: str, texts: Iterable[str]) -> str:
    """A paragraph by its first words. Raises `UnsaidError` where another one begins alike."""
    words = beginning(text)
    if sum(other.startswith(words) for other in texts) != 1:
        raise UnsaidError("a paragraph that its first words do not name")
    return f"the paragraph that begins with {quoted(words)}"


def _word_changes(differing: Differing, numbers: Mapping[int, str]) -> list[Change]:
    """Other words in paragraphs."""
    replaced: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, old in numbers.items():
        new = str(differing.after.get(f"paragraph {number}", ""))
        if old == new:
            continue
        replaced[_replaced_words(old, new)].append(number)
        looks = [differing.before.get(f"paragraph {number} looks"), differing.after.get(f"paragraph {number} looks")]
        if len(_plain_looks(looks[0])) != 1 or _plain_looks(looks[0]) != _plain_looks(looks[1]):
            raise UnsaidError("other words in another look")
        differing.take([f"paragraph {number}", f"paragraph {number} looks"])
    found = []
    for (old, new), places in replaced.items():
        everywhere = sum(text.count(old) for text in numbers.values())
        if everywhere == sum(numbers[number].count(old) for number in places):
            found.append(change("writer.replace everywhere", old=quoted(old), new=quoted(new)))
        else:
            found += [
                change("writer.replace", old=quoted(old), new=quoted(new), place=_place(numbers[number], numbers.values()))
                for number in places
            ]
    return found


def _plain_looks(value: object) -> list[object]:
    found = _plain_look(value)
    return found if isinstance(found, list) else []


def _replaced_words(old: str, new: str) -> tuple[str, str]:
    """The words that stand in ``old``, and those in ``new`` in each of their places. Raises `UnsaidError`."""
    one, other = old.split(), new.split()
    spans = [
        (" ".join(one[i1:i2]), " ".join(other[j1:j2]))
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    pairs = {_without_stop(*span) for span in spans}
    for before, after in pairs:
        if len(pairs) == 1 and before and after and old.replace(before, after) == new:
            return before, after
    raise UnsaidError("words that one replacement does not change")


def _without_stop(old: str, new: str) -> tuple[str, str]:
    """Words without the full stop that both end with."""
    return (old[:-1], new[:-1]) if old[-1:] == new[-1:] == "." else (old, new)


def _look_changes(differing: Differing, numbers: Mapping[int, str]) -> list[Change]:
    """Looks of paragraphs and of words in them; once for the whole text where all paragraphs change alike."""
    by_paragraph: dict[int, list[Change]] = {}
    for number, text in numbers.items():
        name = f"paragraph {number} looks"
        if name not in differing.names():
            continue
        words, looks = _changed_look(text, differing.before[name], differing.after.get(name))
        place = _place(text, numbers.values())
        where = place if not words else f"the words {quoted(words)} in {place}"
        by_paragraph[number] = [_look_change(look, value, where) for look, value in looks]
        differing.take([name])
    all_alike = {tuple((one.kind, one.values[:-1]) for one in found) for found in by_paragraph.values()}
    is_whole = all("the words" not in one.as_dict()["what"] for found in by_paragraph.values() for one in found)
    if len(by_paragraph) == len(numbers) > 1 and len(all_alike) == 1 and is_whole:
        return [change(one.kind, **{**one.as_dict(), "what": "the whole text"}) for one in next(iter(by_paragraph.values()))]
    return [one for found in by_paragraph.values() for one in found]


def _changed_look(text: str, before: object, after: object) -> tuple[str, list[tuple[str, object]]]:
    """The words whose look changed, none for all of them, and how. Raises `UnsaidError` where that is no single stretch."""
    old, new = _by_character(before), _by_character(after)
    changed = [index for index, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    deltas = {tuple(sorted(_delta(old[index], new[index]), key=str)) for index in changed}
    if not changed or len(deltas) != 1 or changed != list(range(changed[0], changed[-1] + 1)):
        raise UnsaidError("looks of several stretches of text")
    places = [index for index, char in enumerate(text) if not char.isspace()]
    if len(changed) == len(places):
        return "", list(deltas.pop())
    words = text[places[changed[0]] : places[changed[-1]] + 1]
    if text.count(words) != 1:
        raise UnsaidError("words that stand several times in their paragraph")
    return words, list(deltas.pop())


def _by_character(looks: object) -> list[dict[str, object]]:
    assert isinstance(looks, list)
    return [dict(look) for text, look in looks for _ in text]


def _delta(old: Mapping[str, object], new: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, new.get(name)) for name in {*old, *new} if old.get(name) != new.get(name)]


def _look_change(look: str, value: object, what: str) -> Change:
    if look in ("bold", "italic", "underlined", "struck") and value is True:
        return change(f"writer.{look}", what=what)
    if look == "colour" and value:
        return change("writer.colour", colour=colour(str(value), COLORS), what=what)
    if look == "size" and isinstance(value, int | float):
        return change("writer.size", size=f"{value:g}", what=what)
    if look == "font" and value:
        return change("writer.font", font=value, what=what)
    raise UnsaidError(f"no words for the look {look!r}")


def _aspect_changes(differing: Differing, numbers: Mapping[int, str]) -> list[Change]:
    """Changes of whole paragraphs."""
    found = []
    for number, text in numbers.items():
        place = ""
        for aspect in _ASPECTS:
            name = f"paragraph {number} {aspect}"
            old, new = differing.before.get(name), differing.after.get(name)
            if same(old, new):
                continue
            place = place or _place(text, numbers.values())
            if aspect == "alignment" and new in _SIDES:
                found.append(change("writer.align", place=place, side=_SIDES[str(new)]))
            elif aspect == "spacing" and isinstance(new, Near) and new.value > 0:
                found.append(change("writer.spacing", place=place, lines=f"{new.value:.2g}"))
            elif aspect == "new page" and new is True:
                found.append(change("writer.new page", place=place))
            else:
                continue
            differing.take([name])
    return found


def _page_changes(differing: Differing) -> list[Change]:
    """Page numbers, and a page break at the end."""
    found = []
    for margin in ("header", "footer"):
        name = f"{margin} page numbers"
        if name in differing.names() and name not in differing.before:
            side, first, form = (differing.after.get(one) for one in (name, *_NUMBERED))
            if side not in _SIDES or form not in _FORMATS or not isinstance(first, int):
                raise UnsaidError("page numbers of another kind")
            values = {"first": first, "form": _FORMATS[str(form)], "margin": margin, "side": _SIDES[str(side)]}
            found.append(change("writer.page numbers", **values))
            differing.take([name, *_NUMBERED])
    if differing.after.get("new page at the end") and not differing.before.get("new page at the end"):
        found.append(change("writer.page break"))
        differing.take(["new page at the end"])
    return found
