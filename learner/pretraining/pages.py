"""Pages drawn with Pillow, and what stands where on them: free labels for a vision tower.

They look like the pages of small web tasks, in the same fonts and sizes: an instruction on yellow, below it buttons, text fields,
boxes of colour, dialogs, tabs, links and shapes. Drawing one takes 2 ms, while a desktop shows four a second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from computerrl.learner.pretraining.things import HEADER, HEIGHT, WIDTH, Box, Item, Page
from computerrl.learner.pretraining.words import COLORS, COMMON, LETTERS, LOREM, SHAPE_COLORS, WORDS
from computerrl.learner.tiny_vision import PATCH, SIDE


class Fonts:
    """The fonts of a desktop image."""

    def __init__(self, folder: Path) -> None:
        """``folder``: with LiberationSans-Regular.ttf and LiberationSans-Bold.ttf."""

        @cache
        def font(half_pixels: int, bold: bool) -> ImageFont.FreeTypeFont:
            return ImageFont.truetype(str(folder / f"LiberationSans-{'Bold' if bold else 'Regular'}.ttf"), half_pixels / 2)

        self._font = font

    def of(self, size: float, *, bold: bool = False) -> ImageFont.FreeTypeFont:
        """``size`` in pixels, to the half."""
        return self._font(round(size * 2), bold)


class Canvas:
    """A page that is being drawn."""

    def __init__(self, rng: random.Random, fonts: Fonts, *, looseness: float) -> None:
        """``looseness``: see `draw_page`."""
        self.rng = rng
        self.looseness = looseness
        self.image = Image.new("RGB", (WIDTH, HEIGHT), "white")
        self.draw = ImageDraw.Draw(self.image)
        self.items: list[Item] = []
        self._fonts = fonts

    def add(self, box: Box, words: Sequence[str], names: Sequence[str] = ()) -> None:
        self.items.append(Item(box, tuple(words), tuple(names)))

    def length(self, text: str, size: float) -> float:
        """Width of ``text`` in pixels."""
        return self._fonts.of(size).getlength(text)

    def text(
        self, x: float, y: float, text: str, size: float, color: str = "black", *, bold: bool = False, anchor: str = "la"
    ) -> None:
        self.draw.text((x, y), text, font=self._fonts.of(size, bold=bold), fill=color, anchor=anchor)

    def frame(self, box: Box, *, fill: str, edge: str, radius: float = 6) -> None:
        left, top, right, bottom = box
        self.draw.rounded_rectangle((left, top, right - 1, bottom - 1), radius=radius, fill=fill, outline=edge, width=2)

    def button(
        self, x: float, y: float, text: str, *, size: float = 26.67, width: float = 0, height: float = 0, ui: bool = False
    ) -> tuple[float, float]:
        """Returns width and height. ``ui``: as jQuery UI draws it."""
        width = width or self.length(text, size) + (42 if ui else 24)
        height = height or (42 if ui else size * 1.15 + 12)
        fill, edge, ink = ("#f6f6f6", "#c5c5c5", "#454545") if ui else ("#efefef", "#767676", "black")
        box = (x, y, x + width, y + height)
        self.frame(box, fill=fill, edge=edge)
        self.text(x + width / 2, y + height / 2, text, size, ink, anchor="mm")
        self.add(box, ("button", *text.split()), (f'"{text}"', f"button {text}", f'the "{text}" button', '"button"'))
        return width, height

    def field(self, x: float, y: float, width: float, height: float = 42, text: str = "") -> None:
        """For one line of text."""
        box = (x, y, x + width, y + height)
        self.frame(box, fill="white", edge="#767676", radius=4)
        self.text(x + 6, y + height / 2, text, 26.67, anchor="lm")
        self.add(box, ("text", "box", "input", *text.split()), ("textbox", "text field", '"text"'))

    def text_area(self, x: float, y: float, width: float, height: float, text: str) -> None:
        """For several lines of text."""
        box = (x, y, x + width, y + height)
        self.frame(box, fill="white", edge="#767676", radius=0)
        self.draw.line((x + width - 10, y + height - 3, x + width - 3, y + height - 10), fill="#767676")
        self.text(x + 6, y + 6, text, 22)
        self.add(box, ("textarea", "text", *text.split()), ("textarea", '"textarea"'))

    def choice(self, x: float, y: float, text: str, *, round_one: bool) -> None:
        """A radio button or a check box with its text."""
        self.frame((x, y, x + 26, y + 26), fill="white", edge="#767676", radius=13 if round_one else 4)
        self.text(x + 32, y + 4, text, 20)
        box = (x, y, x + 32 + self.length(text, 20), y + 26)
        if round_one:
            self.add(box, ("radio", *text.split()), ("radio", '"radio"', "radio button"))
        else:
            self.add(box, ("check", "box", *text.split()), ("checkbox", '"checkbox"', "check box"))

    def tab(self, x: float, y: float, text: str, *, is_open: bool) -> float:
        """Returns its width."""
        width = self.length(text, 20) + 24
        fill, edge, ink = ("#007fff", "#003eff", "white") if is_open else ("#f6f6f6", "#c5c5c5", "#454545")
        box = (x, y, x + width, y + 47)
        self.frame(box, fill=fill, edge=edge)
        self.text(x + width / 2, y + 23, text, 20, ink, anchor="mm")
        self.add(box, ("tab", *text.replace("#", "# ").split()), (text, f'"{text}"'))
        return width

    def cross(self, x: float, y: float) -> None:
        """The button that closes a dialog."""
        side, reach = 38, 8
        box = (x, y, x + side, y + side)
        self.frame(box, fill="#f6f6f6", edge="#c5c5c5")
        for way in (-1, 1):
            ends = (x + side / 2 - reach, y + side / 2 - way * reach, x + side / 2 + reach, y + side / 2 + way * reach)
            self.draw.line(ends, fill="#777777", width=6)
        self.add(box, ("x", "Close", "button"), ('"x"', 'the "x"', "close"))

    def color_box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        self.draw.rectangle((x, y, x + width - 1, y + height - 1), fill=color, outline="black", width=2)
        self.add((x, y, x + width, y + height), (color, "box"), (f"{color} box", f"{color} colored box", f"the {color} one"))

    def shape(self, x: float, y: float, kind: str, color: str, *, large: bool) -> None:
        """``x``, ``y``: its middle. ``kind``: circle, rectangle, triangle, or a letter or digit itself."""
        radius = 20 if large else 10
        near = radius * 0.9
        if kind == "circle":
            self.draw.ellipse((x - near, y - near, x + near, y + near), fill=color)
        elif kind == "rectangle":
            self.draw.rectangle((x - near, y - near, x + near, y + near), fill=color)
        elif kind == "triangle":
            self.draw.polygon([(x, y - near), (x - near, y + near), (x + near, y + near)], fill=color)
        else:
            self.text(x, y + radius * 0.7, kind, 2 * radius, color, anchor="ms")
        size = "large" if large else "small"
        kinds = ["digit" if kind.isdigit() else "letter"] if len(kind) == 1 else ["shape"]
        names = [f"{color} {kind}", f"{size} {kind}", f"{size} {color} {kind}", f"{color} {kinds[0]}", f"{color} item", kind]
        names += [f"{size} {kinds[0]}", f"{size} {color} {kinds[0]}"]
        self.add((x - radius, y - radius, x + radius, y + radius), (size, color, kind, *kinds), names)

    def paragraph(self, x: float, y: float, width: float, *, num: int, ink: str = "black", num_links: int = 0) -> float:
        """``num`` words in lines; returns the lower edge."""
        rng, size, at = self.rng, 20.0, x
        links = set(rng.sample(range(num), min(num, num_links)))
        for number in range(num):
            word = rng.choice(LOREM)
            word = word.capitalize() if rng.random() < 0.2 else word
            length = self.length(word, size)
            if at + length > x + width and at > x:
                at, y = x, y + 23
            box = (at, y, at + length, y + 23)
            if number in links:
                self.text(at, y, word, size, "blue")
                self.draw.line((at, y + 19.6, at + length, y + 19.6), fill="blue", width=2)
                self.add(box, ("link", word), (f'link "{word}"', f'the link "{word}"'))
            else:
                self.text(at, y, word, size, ink)
                self.add(box, (word,))
            at += length + self.length(" ", size)
        return y + 23

    def header(self) -> None:
        """The instruction, which names things as well: whoever asks means the page below it."""
        rng = self.rng
        self.draw.rectangle((0, 0, WIDTH, HEADER - 1), fill="#ffff00")
        words = rng.choice(["Click on the", "Select", "Click", "Focus into the", "Find and click"]).split()
        words += [rng.choice(WORDS + LOREM + COLORS) for _ in range(rng.randint(1, 6))]
        x, y = 6.0, 6.0
        for word in words:
            length = self.length(word, 20)
            if x + length > WIDTH - 6:
                x, y = 6.0, y + 23
            self.text(x, y, word, 20, bold=rng.random() < 0.1)
            x += length + 5.5
        self.add((0, 0, WIDTH, HEADER), ("instruction",))


def draw_page(rng: random.Random, fonts: Fonts, *, dense: bool, looseness: float = 1.0) -> Page:
    """``dense``: mostly pages full of things, which teach more in the same time. ``looseness``: how far words of `_row_of_words`
    lie from the corners of patches, as a part of a patch. At 0 a word is always the same pixels of the same patches, which is
    learned at once; a tower that begins with words anywhere does not begin to read."""
    canvas = Canvas(rng, fonts, looseness=looseness)
    canvas.header()
    if dense and rng.random() < 0.7:
        _crowd(canvas)
    else:
        kinds, weights = zip(*_KINDS, strict=True)
        rng.choices(kinds, weights)[0](canvas)
    return Page.of(canvas.image, canvas.items)


# --- kinds of pages -------------------------------------------------------------------------------------------------------


def _word(rng: random.Random) -> str:
    kind, case = rng.random(), rng.random()
    word = rng.choice(COMMON if kind < 0.4 else WORDS if kind < 0.8 else LOREM)
    if case < 0.5:
        return word.lower() if case < 0.25 else word.capitalize()
    return word.upper() if case < 0.53 else word


def _string(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS + "0123456789") for _ in range(rng.randint(1, 6)))


def _kind_of_shape(rng: random.Random) -> str:
    return rng.choice([rng.choice(LETTERS), rng.choice("1234567890"), "circle", "rectangle", "triangle"])


def _lines(canvas: Canvas) -> None:
    """Buttons, words and fields in lines."""
    rng = canvas.rng
    x, y, tall = 4.0, HEADER + 4.0, 0.0
    for _ in range(rng.randint(4, 7)):
        if y > HEIGHT - 46:
            break
        kind = rng.random()
        if kind < 0.3:
            y = canvas.paragraph(4, y + (tall if x > 4 else 0), 300, num=3)
            x, tall = 4.0, 0.0
        elif kind < 0.6:
            wide = rng.randint(80, 300)
            if x + wide > 312:
                x, y = 4.0, y + tall
            canvas.field(x, y, wide)
            x, y, tall = 4.0, y + 44, 0.0
        else:
            text = _word(rng)
            if x + canvas.length(text, 26.67) + 24 > 312:
                x, y, tall = 4.0, y + tall, 0.0
            width, tall = canvas.button(x, y, text)
            x += width
            if rng.random() < 0.5:
                x, y, tall = 4.0, y + tall, 0.0


def _scattered(canvas: Canvas) -> None:
    """Buttons of one size anywhere; a later one may cover an earlier one."""
    rng = canvas.rng
    side = rng.choice([0, 80, 80, rng.randint(60, 200)])
    for _ in range(rng.choice([1, 1, 2, 2, 2, 3, 4])):
        text = rng.choice(["ONE", "TWO", "Click Me!", "Submit", "Reset"]) if rng.random() < 0.4 else _word(rng)
        width, height = float(side) or canvas.length(text, 26.67) + 24, float(side) or 43.0
        x, y = rng.uniform(0, WIDTH - min(width, WIDTH)), rng.uniform(HEADER, HEIGHT - height)
        canvas.button(x, y, text, width=width, height=height)


def _color_boxes(canvas: Canvas) -> None:
    rng = canvas.rng
    colors = rng.sample(COLORS, 12)
    if rng.random() < 0.5:
        left, top = 55 + rng.randint(-10, 10), 152 + rng.randint(-20, 40)
        for number in range(4):
            canvas.color_box(left + (number % 2) * 122, top + (number // 2) * 128, 104, 104, colors[number])
        return
    across, down = rng.randint(2, 4), rng.randint(2, 3)
    side = min(290 // across, 300 // down)
    for number in range(across * down):
        width = rng.uniform(0.5, 0.95) * side
        x, y = 8 + (number % across) * side, HEADER + 8 + (number // across) * side
        canvas.color_box(x, y, width, width * rng.uniform(0.7, 1), colors[number])


def _shapes(canvas: Canvas) -> None:
    rng = canvas.rng
    cells = [(x, y) for x in range(7) for y in range(7)]
    for x, y in rng.sample(cells, rng.randint(3, 20)):
        color, large = rng.choice(SHAPE_COLORS), rng.random() < 0.5
        canvas.shape(24 + 40 * x, HEADER + 24 + 40 * y, _kind_of_shape(rng), color, large=large)
    if rng.random() < 0.7:
        _scroll_bars(canvas)


def _scroll_bars(canvas: Canvas) -> None:
    canvas.draw.rectangle((288, 0, 319, 419), fill="#fcfcfc")
    canvas.draw.rectangle((0, 388, 319, 419), fill="#fcfcfc")
    canvas.draw.rounded_rectangle((296, 36, 312, 316), radius=8, fill="#8b8b8b")
    canvas.draw.rounded_rectangle((36, 392, 226, 408), radius=8, fill="#8b8b8b")
    for corner in (
        [(304, 10), (296, 20), (312, 20)],
        [(304, 372), (296, 362), (312, 362)],
        [(10, 400), (20, 392), (20, 408)],
        [(278, 400), (268, 392), (268, 408)],
    ):
        canvas.draw.polygon(corner, fill="#505050")


def _widgets(canvas: Canvas) -> None:
    """Controls of all kinds, one below the other."""
    rng = canvas.rng
    x, y = rng.choice([4, 6, 8, 10]), HEADER + rng.randint(4, 16)
    for _ in range(rng.randint(3, 6)):
        if y > HEIGHT - 60:
            break
        text, kind = _string(rng), rng.randrange(5)
        if kind == 0:
            canvas.field(x, y, rng.choice([200, 240, 250, 300]), 42, text)
        elif kind < 3:
            canvas.choice(x + 6, y + 6, text, round_one=kind == 1)
        elif kind == 3:
            height = rng.choice([54, 56, 62])
            canvas.text_area(x, y, rng.choice([244, 250]), height, text)
            y += height - 42
        else:
            canvas.button(x, y, text)
        y += 44 + rng.randint(0, 10)


def _dialog(canvas: Canvas) -> None:
    rng = canvas.rng
    width, height = rng.randint(200, 300), rng.randint(160, 250)
    x, y = rng.uniform(0, WIDTH - width), rng.uniform(HEADER + 2, HEIGHT - height)
    canvas.frame((x, y, x + width, y + height), fill="white", edge="#c5c5c5")
    canvas.frame((x + 6, y + 6, x + width - 6, y + 46), fill="#e9e9e9", edge="#dddddd")
    if rng.random() < 0.3:
        canvas.text(x + 14, y + 15, _word(rng), 20, "#333333", bold=True)
    canvas.cross(x + width - 54, y + 8)
    end = canvas.paragraph(x + 26, y + 60, width - 50, num=rng.randint(3, 7), ink="#333333")
    if rng.random() < 0.3:
        return
    right, top = x + width - 14, max(end + 16, y + height - 66)
    canvas.draw.line((x + 6, top - 10, x + width - 6, top - 10), fill="#dddddd", width=2)
    for text in dict.fromkeys(rng.sample(["Cancel", "OK", _word(rng), _word(rng)], rng.choice([1, 2, 2, 2, 2]))):
        right -= canvas.length(text, 20) + 50
        canvas.button(right, top, text, size=20, ui=True)


def _tabs(canvas: Canvas) -> None:
    rng = canvas.rng
    canvas.frame((2, HEADER + 2, 317, HEADER + 290), fill="white", edge="#c5c5c5")
    canvas.frame((8, HEADER + 8, 311, HEADER + 62), fill="#e9e9e9", edge="#dddddd")
    num, x, opened = rng.randint(2, 4), 14.0, 0 if rng.random() < 0.7 else rng.randrange(3)
    for number in range(num):
        text = f"Tab #{number + 1}" if rng.random() < 0.85 else _word(rng)
        if x + canvas.length(text, 20) + 24 > 306:
            break
        x += canvas.tab(x, HEADER + 14, text, is_open=number == opened) + 5
    canvas.paragraph(40, HEADER + 100, 250, num=rng.randint(6, 24), ink="#333333", num_links=rng.choice([0, 0, 1, 2]))


def _links(canvas: Canvas) -> None:
    canvas.paragraph(4, HEADER + 4, 306, num=canvas.rng.randint(15, 60), num_links=canvas.rng.randint(1, 8))


def _fields(canvas: Canvas) -> None:
    rng = canvas.rng
    x, y = rng.uniform(0, 70), HEADER + rng.uniform(0, 270)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if y > HEIGHT - 44:
            break
        canvas.field(x, y, rng.choice([200, 208, 240, 250]), rng.choice([40, 42]))
        y += rng.choice([42, 44, 60])


_KINDS: list[tuple[Callable[[Canvas], None], float]] = [
    (_lines, 4),
    (_scattered, 2.5),
    (_color_boxes, 2),
    (_shapes, 1.5),
    (_widgets, 2),
    (_dialog, 2),
    (_tabs, 1.5),
    (_links, 0.5),
    (_fields, 1),
]
"""Kinds of pages and how often each is drawn."""


def _crowd(canvas: Canvas) -> None:
    """Things of many kinds, close together."""
    rng = canvas.rng
    kind = rng.random()
    if kind < 0.2:
        cells = [(x, y) for x in range(8) for y in range(8)]
        for column, row in rng.sample(cells, rng.randint(30, 60)):
            x, y = 20 + 40 * column + rng.uniform(-5, 5), HEADER + 20 + 39 * row + rng.uniform(-5, 5)
            canvas.shape(x, y, _kind_of_shape(rng), rng.choice(SHAPE_COLORS), large=rng.random() < 0.5)
    elif kind < 0.27:
        side = rng.choice([44, 60, 78])
        for column in range(WIDTH // side):
            for row in range((HEIGHT - HEADER) // side):
                width = rng.uniform(0.6, 0.95) * side
                x, y = 4 + column * side, HEADER + 4 + row * side
                canvas.color_box(x, y, width, width * rng.uniform(0.7, 1), rng.choice(COLORS))
    elif kind < 0.75:
        y = HEADER + rng.uniform(0, 20)
        while y < HEIGHT - 30:
            y += _row_of_words(canvas, y) + rng.uniform(0, 10)
    else:
        y = HEADER + 4 + rng.uniform(0, 20)
        while y < HEIGHT - 30:
            y += _row(canvas, y) + rng.uniform(1, 12)


def _row_of_words(canvas: Canvas, y: float) -> float:
    """Words of buttons, with and without the button; returns the row's height."""
    rng = canvas.rng
    ui, framed = rng.random() < 0.4, rng.random() < 0.5
    size = 20 if ui else 26.67
    x = rng.uniform(0, 24)
    y = _loosely(rng, y, PATCH * HEIGHT / SIDE, canvas.looseness)
    while True:
        text = _word(rng)
        width = canvas.length(text, size) + 10
        x = _loosely(rng, x, PATCH * WIDTH / SIDE, canvas.looseness)
        if x + width > WIDTH:
            return 34.0
        if framed:
            canvas.button(x, y, text, size=size, width=width, height=34, ui=ui)
        else:
            canvas.text(x + 5, y + 17, text, size, "#454545" if ui else "black", anchor="lm")
            canvas.add((x, y, x + width, y + 34), text.split(), (f'"{text}"',))
        x += width + rng.uniform(2, 16)


def _loosely(rng: random.Random, at: float, patch: float, looseness: float) -> float:
    """The next corner of a patch behind ``at``, and up to ``looseness`` patches more."""
    return (math.ceil(at / patch) + rng.uniform(0, looseness)) * patch


def _row(canvas: Canvas, y: float) -> float:
    """Things beside one another; returns the height of the tallest."""
    rng, tall = canvas.rng, 24.0
    x = rng.uniform(0, 30)
    while x < 300:
        kind = rng.random()
        width, height = 110.0, 40.0
        if kind < 0.55:
            text, ui = _word(rng), rng.random() < 0.35
            size = 20 if ui else rng.choice([24, 26.67, 26.67, 28])
            if x + canvas.length(text, size) + 42 > 318:
                break
            width, height = canvas.button(x, y, text, size=size, ui=ui)
        elif kind < 0.65:
            width, height = rng.randint(60, 150), 42
            if x + width > 318:
                break
            canvas.field(x, y, width, height, _string(rng) if rng.random() < 0.4 else "")
        elif kind < 0.79:
            canvas.choice(x, y + 6, _string(rng), round_one=kind < 0.72)
        elif kind < 0.84:
            canvas.cross(x, y)
            width = 38
        elif kind < 0.9:
            width, height = 90, 54
            canvas.text_area(x, y, width, height, _string(rng))
        elif kind < 0.95:
            width, height = canvas.tab(x, y, f"Tab #{rng.randint(1, 4)}", is_open=rng.random() < 0.3), 47
        else:
            width = 120
            canvas.paragraph(x, y, width, num=3, num_links=rng.choice([0, 1]))
        tall = max(tall, height)
        x += width + rng.uniform(2, 24)
    return tall
