"""Questions about pages: where a named thing lies, and what the answer's tokens count. No model here.

The questions about one page see the page's tokens and their own, so that a page is computed once:

    [image] Task: Find "Submit".  Action: click(412, 230)
            Task: Find the red box.  Action: click(071, 655)

Coordinates as in the prompt format compact_vision.

Shape legend: B pages of a batch, C cells of a page, Q questions of all pages, L tokens of the longest question.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from computerrl.learner.pretraining.labels import CELLS, pixels
from computerrl.learner.pretraining.screens import Source
from computerrl.learner.pretraining.things import HEIGHT, WIDTH, Item, Page

_ASKS = (
    "Find {}.",
    "Point at {}.",
    "Where is {}?",
    "Click {}.",
    "Click on {}.",
    "Press {}, please.",
    "Select {} and go on.",
    "Go on by clicking {}.",
)
_NEWLINE = "\n"
NUM_DIGITS = 4
"""The first two digits of x and of y, in this order."""
DIGIT_WEIGHTS = (1.0, 0.6, 0.15)
"""What the loss of a coordinate's digits counts: an element is seldom smaller than a hundredth of the screen."""
_OTHER_WEIGHT = 0.1
_SLIP_REACH, _SLIP_SHARE = 40, 0.5
"""Of coordinates at most so far from a change of the first digit, this share is answered with the digit beyond it. What should
follow is then the nearest that can: 69 after the 6 of 703. Without it, a first digit that is chosen by a hair is followed by the
digits of the other one: 603."""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing of a page."""

    ask: list[int]
    """Tokens up to the answer."""
    words: list[int]
    """Indexes into ``ask``: tokens that say what the thing is, by themselves."""
    name_end: int
    """Index of the last token of the thing's name, which follows all of it."""
    said: list[int]
    """Tokens of the answer so far, at each of ``answer``'s next ones; those of ``answer`` itself, but for slips."""
    answer: list[int]
    """Tokens that should follow each of ``said``'s beginnings."""
    weights: list[float]
    """Of the answer's tokens in the loss."""
    digits: list[int]
    """Which of the `NUM_DIGITS` digits each token of the answer is; -1: another token."""
    place: tuple[int, int, int, int]
    """Those digits."""
    item: Item


@dataclass(frozen=True, slots=True)
class Batch:
    """Pages and their questions."""

    images: torch.Tensor
    """[B, 3, SIDE, SIDE]."""
    page_Q: torch.Tensor
    """The page of each question."""
    tokens_QL: torch.Tensor
    targets_QL: torch.Tensor
    """The token to say next; -1: none."""
    weights_QL: torch.Tensor
    words_QL: torch.Tensor
    """Bool: `Question.words`."""
    name_ends_QL: torch.Tensor
    """Bool: `Question.name_end`, one of each question."""
    digits_QL: torch.Tensor
    """`Question.digits` of the token to say next."""
    places_Q4: torch.Tensor
    """`Question.place`."""
    cells_QC: torch.Tensor
    """Bool: the cells in which the thing lies."""

    def to(self, device: str) -> Batch:
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def up_to_names(self) -> Batch:
        """Without the tokens behind the longest name."""
        length = 1 + int(self.name_ends_QL.nonzero()[:, 1].max())
        return replace(
            self, **{name: getattr(self, name)[:, :length] for name in self.__dataclass_fields__ if name.endswith("_QL")}
        )


class Asker:
    """Asks for things on pages."""

    def __init__(self, tokenizer: Any, source: Source, *, max_questions: int) -> None:
        self._encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))
        self.text = lambda tokens: str(tokenizer.decode(tokens))
        self._source = source
        self._max_questions = max_questions

    def page(self, rng: random.Random) -> tuple[np.ndarray, list[Question]]:
        """Pixels, and at least one question."""
        while True:
            page = self._source.page(rng, dense=False)
            asked = askable(page)
            if asked:
                rng.shuffle(asked)
                return pixels(page.image), [self._question(rng, *one) for one in asked[: self._max_questions]]

    def _question(self, rng: random.Random, name: str, item: Item) -> Question:
        x, y = (min(999, max(0, round(1000 * at / size))) for at, size in zip(item.middle, (WIDTH, HEIGHT), strict=True))
        (said_x, wanted_x), (said_y, wanted_y) = slipped(x, rng), slipped(y, rng)
        said, answer = (
            self._encode(f" click({of_x}, {of_y}){_NEWLINE}") for of_x, of_y in ((said_x, said_y), (wanted_x, wanted_y))
        )
        weights, digits, num_before, number = [], [], 0, 0
        for token in answer:
            number = number + 1 if self.text([token]).strip().isdigit() else 0
            weights.append(DIGIT_WEIGHTS[number - 1] if number else _OTHER_WEIGHT)
            digits.append(num_before if number in (1, 2) else -1)
            num_before += number in (1, 2)
        before, after = rng.choice(_ASKS).split("{}")
        ask = self._encode(f"{_NEWLINE}Task: {before}{name}{after}{_NEWLINE}Action:")
        # The blank before a word belongs to its token, and what ends a sentence may share one with a quotation mark.
        begin = len(self._encode(f"{_NEWLINE}Task: {before.rstrip()}"))
        length = len(f"{_NEWLINE}Task: {before}{name}")
        end = next(end for end in range(begin, len(ask)) if len(self.text(ask[:end])) >= length)
        known = {token for word in item.words for form in (word, word.lower()) for token in self._forms(form)}
        words = [index for index in range(begin, end) if ask[index] in known]
        place = (x // 100, x // 10 % 10, y // 100, y // 10 % 10)
        return Question(ask, words or [end - 1], end - 1, said, answer, weights, digits, place, item)

    def _forms(self, word: str) -> list[int]:
        return self._encode(word) + self._encode(f" {word}")


def slipped(coordinate: int, rng: random.Random) -> tuple[str, str]:
    """(digits as they are said, digits that should be), each three: the same, or with a slip of the first one."""
    first, rest = divmod(coordinate, 100)
    beyond = first - 1 if rest < _SLIP_REACH else first + 1 if rest >= 100 - _SLIP_REACH else first
    if beyond == first or not 0 <= beyond <= 9 or rng.random() >= _SLIP_SHARE:
        return f"{coordinate:03d}", f"{coordinate:03d}"
    nearest = "99" if beyond < first else "00"
    return f"{beyond}{nearest}", f"{first}{nearest}"


def askable(page: Page) -> list[tuple[str, Item]]:
    """Names that mean one thing of the page, and the thing."""
    counts = Counter(name for item in page.items for name in item.names)
    return [(name, item) for item in page.items for name in item.names if counts[name] == 1]


def make_batch(pages: Sequence[tuple[np.ndarray, list[Question]]]) -> Batch:
    """``pages``: pixels and questions of each."""
    asked = [(number, question) for number, (_, questions) in enumerate(pages) for question in questions]
    shape = (len(asked), max(len(question.ask) + len(question.answer) - 1 for _, question in asked))
    tokens, targets, digits = (np.full(shape, value, dtype=np.int64) for value in (0, -1, -1))
    weights, words, name_ends = (np.zeros(shape, dtype=dtype) for dtype in (np.float32, np.bool_, np.bool_))
    for row, (_, question) in enumerate(asked):
        said = [*question.ask, *question.said[:-1]]
        answer = slice(len(question.ask) - 1, len(said))
        tokens[row, : len(said)] = said
        targets[row, answer], weights[row, answer], digits[row, answer] = question.answer, question.weights, question.digits
        words[row, question.words] = name_ends[row, question.name_end] = True
    cells = np.stack([_cells_of(question.item) for _, question in asked])
    images, page_Q = np.stack([image for image, _ in pages]), np.array([page for page, _ in asked])
    places = np.array([question.place for _, question in asked])
    return Batch(*map(torch.from_numpy, (images, page_Q, tokens, targets, weights, words, name_ends, digits, places, cells)))


def _cells_of(item: Item) -> np.ndarray:
    """[C] bool: the cell with the middle, and those of which the thing fills a good part."""
    (x, y), (left, top, right, bottom) = item.middle, item.box
    width, height = WIDTH / CELLS, HEIGHT / CELLS
    edge = np.arange(CELLS)
    across = np.clip(np.minimum((edge + 1) * width, right) - np.maximum(edge * width, left), 0, None) / width
    down = np.clip(np.minimum((edge + 1) * height, bottom) - np.maximum(edge * height, top), 0, None) / height
    cells = down[:, None] * across > 0.3
    cells[min(CELLS - 1, int(y / height)), min(CELLS - 1, int(x / width))] = True
    return cells.ravel()


@dataclass(frozen=True, slots=True)
class AskedPages:
    """Makes batches of questions."""

    asker: Asker
    batch: int
    """Number of pages."""

    def __call__(self, rng: random.Random, _number: int) -> Batch:
        return make_batch([self.asker.page(rng) for _ in range(self.batch)])
