"""What a MiniWoB++ page will show for a seed, without a browser.

The pages draw from `Math.random`, which their `core.js` replaces by David Bau's seedrandom (ARC4). Doing the same draws here
tells how many buttons or options an instance has, so that families can leave out instances that luck would solve, and the
scripted driver can imitate the page. A test compares the outcome with the real pages.
The demonstrators and evaluators never look here: they see the screen and the page's own verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_BUTTON_TEXTS = ("submit", "okay", "ok", "yes", "no", "cancel", "next", "previous")
_NAMES = tuple(
    """Kenda Karrie Joye Cheree Deneen Tula Briana Beaulah Vina Vanda Cierra Leonie Bernardine Keli Renda Marcella
    Kanesha Enola Nathalie Annis Nieves Lyda Livia Kasie Tora Macie Agustina Dolores Ashlea Cristin Jerald Teodoro Rex
    Riley Jess Emile Donovan Keneth Chas Thaddeus Sergio Michel Myron Olin Dannie Juan Alan Ignacio Truman Augus""".split()  # noqa: SIM905
)
_ALPHANUMERIC = "qwertyuiopasdfghjklzxcvbnmQWERTYUIOPASDFGHJKLZXCVBNM1234567890"
_LOREM = ("lorem", "ipsum", "dolor", "sit", "amet", "elit", "magna", "urna")
_TABLE_KEYS = ("Color", "First name", "Last name", "Country", "Gender", "Language", "Year of Birth", "Religion")


class PageRandom:
    """`Math.random` after `Math.seedrandom(seed)` with a number, bit for bit, and the helpers of `core.js` over it."""

    def __init__(self, seed: int) -> None:
        key = self._mix(f"{seed}\0")
        state = list(range(256))
        j = 0
        for i in range(256):
            low = state[i]
            j = 255 & (j + key[i % len(key)] + low)
            state[i], state[j] = state[j], low
        self._state, self._i, self._j = state, 0, 0
        self._bytes(256)

    @staticmethod
    def _mix(text: str) -> list[int]:
        key: list[int] = []
        smear = 0
        for index, char in enumerate(text):
            old = key[index & 255] if index < len(key) else 0
            smear ^= 19 * old
            mixed = 255 & (smear + ord(char))
            if index < 256:
                key.append(mixed)
            else:
                key[index & 255] = mixed
        return key

    def _bytes(self, count: int) -> int:
        state, i, j, value = self._state, self._i, self._j, 0
        for _ in range(count):
            i = 255 & (i + 1)
            low = state[i]
            j = 255 & (j + low)
            state[i], state[j] = state[j], low
            value = value * 256 + state[255 & (state[i] + low)]
        self._i, self._j = i, j
        return value

    def random(self) -> float:
        """In [0, 1): 52 random bits and a few more, as seedrandom makes them."""
        numerator, denominator, extra = self._bytes(6), 256**6, 0
        while numerator < 2**52:
            numerator, denominator = (numerator + extra) * 256, denominator * 256
            extra = self._bytes(1)
        while numerator >= 2**53:
            numerator, denominator, extra = numerator // 2, denominator // 2, extra >> 1
        return (numerator + extra) / denominator

    def randi(self, low: int, high: int) -> int:
        """Integer in [low, high)."""
        return int(self.random() * (high - low) + low)

    def sample(self, items: Sequence[T]) -> T:
        """One of ``items``."""
        return items[self.randi(0, len(items))]

    def string(self, low: int, high: int) -> str:
        """Letters and digits, at least ``low`` and fewer than ``high``."""
        return "".join(self.sample(_ALPHANUMERIC) for _ in range(self.randi(low, high)))


@dataclass(frozen=True, slots=True)
class Widget:
    """One visible part of a page."""

    role: str
    """`static`, `entry`, `button`, `radio-button`, `check-box`."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page right after its start."""

    utterance: str
    widgets: tuple[Widget, ...]
    solution: tuple[str, ...]
    """What has to be clicked, checked or entered."""

    def texts(self, role: str) -> list[str]:
        """Texts of all widgets of ``role``."""
        return [widget.text for widget in self.widgets if widget.role == role]


def _click_button(rng: PageRandom) -> Page:
    widgets: list[Widget] = []
    for row in range(6):
        draw = rng.random()
        must_make_button = row == 5 and not any(widget.role == "button" for widget in widgets)
        if draw < 0.33 and not must_make_button:
            widgets.append(Widget("static", " ".join(rng.sample(_LOREM) for _ in range(3))))
        elif draw < 0.66 and not must_make_button:
            if rng.random() < 0.5:
                widgets.append(Widget("static", " ".join(rng.sample(_LOREM) for _ in range(3)) + ":"))
            rng.randi(40, 150)
            widgets.append(Widget("entry"))
        else:
            text = rng.sample(_BUTTON_TEXTS)
            widgets.append(Widget("button", text.capitalize() if rng.random() < 0.5 else text))
            rng.random()
    wanted = rng.sample([widget.text for widget in widgets if widget.role == "button"])
    return Page(f'Click on the "{wanted}" button.', tuple(widgets), (wanted,))


def _click_option(rng: PageRandom) -> Page:
    names = [rng.string(2, 8) for _ in range(rng.randi(2, 7))]
    wanted = rng.sample(names)
    widgets = (*(Widget("radio-button", name) for name in names), Widget("button", "Submit"))
    return Page(f"Select {wanted} and click Submit.", widgets, (wanted,))


def _click_checkboxes(rng: PageRandom) -> Page:
    names, wanted = [], []
    for _ in range(rng.randi(2, 7)):
        names.append(rng.string(2, 8))
        if rng.random() < 0.5:
            wanted.append(names[-1])
    widgets = (*(Widget("check-box", name) for name in names), Widget("button", "Submit"))
    return Page(f"Select {', '.join(wanted) or 'nothing'} and click Submit.", widgets, tuple(wanted))


def _enter_text(rng: PageRandom) -> Page:
    return _form(rng, lambda: rng.sample(_NAMES))


def _enter_text_dynamic(rng: PageRandom) -> Page:
    return _form(rng, lambda: rng.string(1, 6))


def _form(rng: PageRandom, draw_text: Callable[[], str]) -> Page:
    for _ in range(3):  # margins of the form and the button
        rng.randi(0, 20)
    wanted = draw_text()
    utterance = f'Enter "{wanted}" into the text field and press Submit.'
    return Page(utterance, (Widget("entry"), Widget("button", "Submit")), (wanted,))


def _read_table(rng: PageRandom) -> Page:
    """Not the page's own instance (its lists hold thousands of names), but the same kind."""
    keys = list(_TABLE_KEYS)
    rows = [keys.pop(rng.randi(0, len(keys))) for _ in range(5)]
    values = [str(rng.randi(1940, 2016)) if key == "Year of Birth" else rng.sample(_NAMES) for key in rows]
    row = rng.randi(0, 5)
    table = tuple(Widget("static", text) for pair in zip(rows, values, strict=True) for text in pair)
    utterance = f"Enter the value of {rows[row]} into the text field and press Submit."
    return Page(utterance, (*table, Widget("entry"), Widget("button", "Submit")), (values[row],))


PAGES: dict[str, Callable[[PageRandom], Page]] = {
    "click-button": _click_button,
    "click-option": _click_option,
    "click-checkboxes": _click_checkboxes,
    "enter-text": _enter_text,
    "enter-text-dynamic": _enter_text_dynamic,
    "read-table": _read_table,
}


def page(name: str, seed: int) -> Page:
    """The instance of page ``name`` that `Math.seedrandom(seed)` leads to."""
    return PAGES[name](PageRandom(seed))
