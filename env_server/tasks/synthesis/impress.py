"""Presentations: where walks begin, which actions they are made of, and the words for what they have changed. Pure."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from computerrl.common.messages import Action
from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.content import COLORS
from computerrl.env_server.tasks.forge.decks import Deck, Slide
from computerrl.env_server.tasks.forge.facts import Facts
from computerrl.env_server.tasks.forge.impress_base import slides
from computerrl.env_server.tasks.forge.plan import call, key
from computerrl.env_server.tasks.synthesis.changes import Change, Differing, UnsaidError, change, colour, quoted
from computerrl.env_server.tasks.synthesis.start import Start

_FACT = re.compile(r"slide (\d+) (?:box (\d+) (?:line (\d+) )?)?(.+)")
_SIDES = {"left": "left-aligned", "center": "centred", "right": "right-aligned", "justify": "justified"}


def start(rng: random.Random) -> Start:
    """A presentation of two or three slides."""
    found = slides(rng, rng.choice((1, 2)))
    path = f"{content.file_stem(rng, rng.choice(('slides', 'talk', 'overview')))}.pptx"
    data = Deck(found).to_bytes()
    return Start("presentation", {path: data}, opened=(path,), save=call("impress.save"), draw=lambda rng: _draw(rng, found))


def _draw(rng: random.Random, found: Sequence[Slide]) -> list[Action]:
    """One move."""
    slide = rng.randrange(1, len(found) + 1)
    box = rng.randrange(3)
    color = f"#{rng.choice(sorted(COLORS.values()))}"
    look = rng.choice(("bold", "italic", "underline"))
    size = found[slide - 1].boxes[2].size
    moves = (
        lambda: [call("impress.write_text", content=rng.choice(content.EVENTS), page_index=slide, box_index=2, size=size)],
        lambda: [call("impress.set_style", slide_index=slide, box_index=box, **{look: True})],
        lambda: [call("impress.set_text_color", slide_index=slide, box_index=box, color=color)],
        lambda: [call("impress.set_background_color", slide_index=slide, box_index=box, color=color)],
        lambda: [call("impress.set_slide_background", slide_index=slide, color=color)],
        lambda: [call("impress.set_slide_background", color=color)],
        lambda: [
            call("impress.set_textbox_alignment", slide_index=slide, box_index=box, alignment=rng.choice(("center", "right")))
        ],
        lambda: [call("impress.set_text_strikethrough", slide_index=slide, box_index=1, line_numbers=[0], apply=True)],
        lambda: [call("impress.go_to_slide", slide_index=slide)],
        lambda: [call("impress.get_slide_count")],
        lambda: [key("pagedown")],
    )
    return rng.choice(moves)()


def changes(before: Facts, after: Facts) -> list[Change]:
    """The changes between two presentations. Raises `UnsaidError`."""
    differing = Differing(before, after)
    if before["slides"] != after["slides"]:
        raise UnsaidError("slides added or removed")
    found, backgrounds = [], {}
    for name in differing.names():
        match = _FACT.fullmatch(name)
        if match is None or match[3] is not None:
            continue
        new = after.get(name)
        if match[4] == "background" and new:
            backgrounds[int(match[1])] = str(new)
        elif match[4] == "fill" and new:
            found.append(change("impress.fill", box=_box(match, before), colour=colour(str(new), COLORS)))
        elif match[4] == "lines":
            found.append(_other_words(match, before, new))
            lines = f"slide {match[1]} box {match[2]} line 0 looks"
            if _looks(before.get(lines)) == _looks(after.get(lines)):
                differing.take([lines])
        else:
            continue
        differing.take([name])
    found += _line_changes(differing)
    found += _background_changes(backgrounds, before["slides"])
    differing.require_none()
    return found


def _box(match: re.Match[str], before: Facts) -> str:
    """A box by its words before."""
    name = f"slide {match[1]} box {match[2]}"
    if before.get(f"{name} kind") == "title":
        return f"the title of slide {match[1]}"
    lines = before.get(f"{name} lines")
    if not isinstance(lines, list) or not lines:
        raise UnsaidError("a box without words")
    return f"the box of slide {match[1]} that begins with {quoted(lines[0])}"


def _other_words(match: re.Match[str], before: Facts, new: object) -> Change:
    old = before.get(match[0])
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != 1 or len(new) != 1:
        raise UnsaidError("other words in several lines")
    return change("impress.write", box=_box(match, before), text=quoted(new[0]))


def _looks(value: object) -> list[object]:
    return [look for _, look in value] if isinstance(value, list) else []


def _line_changes(differing: Differing) -> list[Change]:
    """Looks and alignment: of all lines of a box, or of one."""
    lines: dict[tuple[str, str, tuple[tuple[str, object], ...]], list[re.Match[str]]] = defaultdict(list)
    for name in differing.names():
        match = _FACT.fullmatch(name)
        if match is None or match[3] is None:
            continue
        old, new = differing.before.get(name), differing.after.get(name)
        if match[4] == "alignment":
            delta: list[tuple[str, object]] = [("alignment", new)]
        else:
            one, other = _looks(old), _looks(new)
            if len(one) != 1 or len(other) != 1:
                raise UnsaidError("a line of several looks")
            delta = _delta(dict(one[0]), dict(other[0]))  # type: ignore[call-overload]  # looks are pairs
        lines[match[1], match[2], tuple(sorted(delta, key=str))].append(match)
    found = []
    for (_, _, looks), matches in lines.items():
        all_lines = differing.after.get(f"slide {matches[0][1]} box {matches[0][2]} lines")
        assert isinstance(all_lines, list)
        where = _box(matches[0], differing.before)
        if len(matches) != len(all_lines):
            if len(matches) > 1 or all_lines.count(all_lines[int(matches[0][3])]) > 1:
                raise UnsaidError("some lines of a box")
            where = f"the line {quoted(all_lines[int(matches[0][3])])} on slide {matches[0][1]}"
        found += [_look_change(look, value, where) for look, value in looks]
        differing.take([match[0] for match in matches])
    return found


def _delta(old: Mapping[str, object], new: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, new.get(name)) for name in {*old, *new} if old.get(name) != new.get(name)]


def _look_change(look: str, value: object, what: str) -> Change:
    if look in ("bold", "italic", "underlined", "struck") and value is True:
        return change(f"impress.{look}", what=what)
    if look == "colour" and value:
        return change("impress.colour", colour=colour(str(value), COLORS), what=what)
    if look == "alignment" and value in _SIDES:
        return change("impress.align", side=_SIDES[str(value)], what=what)
    raise UnsaidError(f"no words for the look {look!r}")


def _background_changes(backgrounds: Mapping[int, str], num_slides: object) -> list[Change]:
    codes = set(backgrounds.values())
    if len(backgrounds) == num_slides and len(codes) == 1:
        return [change("impress.all backgrounds", colour=colour(codes.pop(), COLORS))]
    return [change("impress.background", slide=number, colour=colour(code, COLORS)) for number, code in backgrounds.items()]
