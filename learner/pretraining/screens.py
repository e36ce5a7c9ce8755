"""Screens of our own desktops, and what their accessibility trees say lies where: free labels on the pages of real tasks.

What the trees do not name, such as boxes of colour and drawn shapes, only `pages` can show.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from computerrl.learner.pretraining.pages import Fonts, draw_page
from computerrl.learner.pretraining.things import HEADER, HEIGHT, WIDTH, Box, Item, Page

_FAMILIES_TEXT = """
web-click-button web-click-test web-click-test-2 web-click-widget web-click-dialog web-click-dialog-2 web-click-tab web-focus-text
web-click-button web-click-button-sequence web-click-widget web-click-dialog web-click-dialog-2 web-click-tab-2 web-focus-text-2
web-click-option web-click-checkboxes web-enter-text web-login-user web-click-link
"""
FAMILIES = _FAMILIES_TEXT.split()
"""Their screens are recorded in turn; those of most use twice."""
_INDEX = "screens.jsonl"
_TEXT_SIZE, _LINE_HEIGHT = 20, 23
_LINE = 30
"""Text of a greater height stands in several lines."""
_FIELD = 46
"""So high is a field for one line, and no field for more."""
_LABEL_GAP = 6
_SHARE = 0.4
"""Of the pages of `Source`."""


def record(folder: Path, *, num: int, seed: int, say: Callable[[str], None]) -> None:
    """Play ``num`` training instances up to their first screen and keep it in ``folder``, after those that it holds already."""
    import gymnasium

    folder.mkdir(parents=True, exist_ok=True)
    index = folder / _INDEX
    done = len(_lines(index))
    if done >= num:
        return
    env = gymnasium.make(
        "computerrl.env_server.gym:computerrl/Desktop-v0", desktop={"screen_width": WIDTH, "screen_height": HEIGHT}
    )
    try:
        with index.open("a") as lines:
            for number in range(done, num):
                family = FAMILIES[number % len(FAMILIES)]
                drawn = random.Random(f"{seed} {number}").randrange(2**31)
                observation, info = env.reset(seed=drawn, options={"task": family})
                encoded = io.BytesIO()
                Image.fromarray(observation["screenshot"]).save(encoded, format="PNG")
                _file(folder, number).write_bytes(encoded.getvalue())
                known = {"family": family, "seed": info["task_seed"], "elements": info["elements"]}
                lines.write(json.dumps(known, separators=(",", ":")) + "\n")
                lines.flush()
                if (number + 1) % 100 == 0 or number + 1 == num:
                    say(f"{number + 1} of {num} screens")
    finally:
        env.close()


class Screens:
    """What `record` has kept."""

    def __init__(self, folder: Path, fonts: Fonts) -> None:
        """``fonts``: those of the desktops. Raises `FileNotFoundError` where nothing was recorded."""
        self._folder, self._fonts = folder, fonts
        self._elements = [json.loads(line)["elements"] for line in _lines(folder / _INDEX)]
        if not self._elements:
            raise FileNotFoundError(f"no recorded screens in {folder}")

    def page(self, rng: random.Random) -> Page:
        """One of them."""
        number = rng.randrange(len(self._elements))
        with Image.open(_file(self._folder, number)) as image:
            return Page.of(image.convert("RGB"), items_of(self._elements[number], self._fonts))

    def digest(self) -> str:
        """SHA-256 of all of it."""
        whole = hashlib.sha256((self._folder / _INDEX).read_bytes())
        for number in range(len(self._elements)):
            whole.update(_file(self._folder, number).read_bytes())
        return whole.hexdigest()


class Source:
    """Where pages come from: drawn ones, and screens among them."""

    def __init__(self, fonts: Fonts, screens: Screens | None = None) -> None:
        self._fonts, self._screens = fonts, screens

    def page(self, rng: random.Random, *, dense: bool, looseness: float = 1.0) -> Page:
        """See `draw_page`. On screens words lie anywhere, so there are as few of them as ``looseness`` is small."""
        if self._screens is not None and rng.random() < _SHARE * looseness:
            return self._screens.page(rng)
        return draw_page(rng, self._fonts, dense=dense, looseness=looseness)


def items_of(elements: list[Mapping[str, Any]], fonts: Fonts) -> list[Item]:
    """``elements`` of a page of a web task, as `Gymnasium`'s info has them, under the names that `pages` gives such things."""
    items = [Item((0, 0, WIDTH, HEADER), ("instruction",))]
    for element in elements:
        left, top = element["x"] - element["width"] / 2, element["y"] - element["height"] / 2
        box = (left, top, left + element["width"], top + element["height"])
        if top < HEADER and element["y"] < HEADER:
            continue  # the instruction
        items += _items(element["role"], element["text"], box, fonts)
    return items


def _items(role: str, text: str, box: Box, fonts: Fonts) -> list[Item]:
    words = text.split()
    if role == "button" and text == "Close":
        return [Item(box, ("x", "Close", "button"), ('"x"', 'the "x"', "close"))]
    if role == "button":
        return [Item(box, ("button", *words), (f'"{text}"', f"button {text}", f'the "{text}" button', '"button"'))]
    if role in ("entry", "password-text"):
        if box[3] - box[1] > _FIELD:
            return [Item(box, ("textarea", "text", *words), ("textarea", '"textarea"'))]
        return [Item(box, ("text", "box", "input", *words), ("textbox", "text field", '"text"'))]
    if role in ("radio-button", "check-box"):
        # The tree has the control alone; it also takes clicks on its text.
        wide = (box[0], box[1], box[2] + _LABEL_GAP + fonts.of(_TEXT_SIZE).getlength(text), box[3])
        if role == "radio-button":
            return [Item(wide, ("radio", *words), ("radio", '"radio"', "radio button"))]
        return [Item(wide, ("check", "box", *words), ("checkbox", '"checkbox"', "check box"))]
    if role == "page-tab":
        return [Item(box, ("tab", *text.replace("#", "# ").split()), (text, f'"{text}"'))]
    if role == "link":
        return [Item(box, ("link", *words), (f'link "{text}"', f'the link "{text}"'))]
    return _flowing(words, box, fonts)


def _flowing(words: list[str], box: Box, fonts: Fonts) -> list[Item]:
    """Words of a text, each where it stands; in several lines, about there."""
    left, top, right, bottom = box
    if bottom - top < _LINE:
        right = float("inf")
    font = fonts.of(_TEXT_SIZE)
    x, y, items = left, top, []
    for word in words:
        width = font.getlength(word)
        if x + width > right + 1 and x > left:
            x, y = left, y + _LINE_HEIGHT
        items.append(Item((x, y, x + width, y + _LINE_HEIGHT), (word,)))
        x += width + font.getlength(" ")
    return items


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.png"


def _lines(index: Path) -> list[str]:
    """Whole lines; a part of one, left by whom was ended, is taken away."""
    if not index.exists():
        return []
    text = index.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        index.write_text(whole)
    return whole.splitlines()
