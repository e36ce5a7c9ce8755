"""Dense labels: which words lie under each image token of a page, and where the middle of the thing is that lies there.

Shape legend: C cells of a page, one for each image token, in reading order; W words of a cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from computerrl.learner.pretraining import words
from computerrl.learner.pretraining.things import HEIGHT, WIDTH, Page
from computerrl.learner.tiny_vision import PATCH, SCALE, SIDE

CELLS = SIDE // (PATCH * SCALE)
"""Rows and columns of cells."""
MAX_WORDS = 12
_MAX_ITEMS = 3
"""Things that one cell is labelled with."""
_NOTHING = "\n"
"""The word of an empty cell."""
_KINDS_TEXT = (
    "small large circle rectangle triangle shape digit letter button text box input textarea radio check x Close tab Tab # link"
    " instruction"
)
_KINDS = frozenset(_KINDS_TEXT.split())
"""Words for what a thing is."""
_SAID_WEIGHT = 3.0
"""Share of a word that a thing says, by that of a word for what it is: kinds are learned in minutes, reading takes hours."""


class Vocabulary:
    """The tokens that labels name."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer``: of transformers."""
        self._tokenizer = tokenizer
        self._of: dict[str, list[int]] = {}
        cased = {form for word in [*words.WORDS, *words.LOREM] for form in (word, word.lower(), word.capitalize(), word.upper())}
        known = {*cased, *words.COLORS, *words.LETTERS, *"0123456789", *_KINDS, "Click", "Me!", _NOTHING}
        self.tokens = sorted({token for word in known for token in self._tokens(word)})
        """Ids of the language model."""
        self._index = {token: index for index, token in enumerate(self.tokens)}
        self.background = frozenset(self.of(_NOTHING) + self.of("instruction"))
        """Entries of what is not a thing."""

    def of(self, word: str) -> list[int]:
        """Entries for ``word``, at the start of a text and behind a blank; pieces of unknown words may be missing."""
        return [self._index[token] for token in self._tokens(word) if token in self._index]

    def _tokens(self, word: str) -> list[int]:
        if word not in self._of:
            encode = self._tokenizer.encode
            forms = (word, word if word.isspace() else f" {word}")
            self._of[word] = sorted({token for form in forms for token in encode(form, add_special_tokens=False)})
        return self._of[word]


@dataclass(frozen=True, slots=True)
class CellLabels:
    """Labels of one page."""

    entries_CW: np.ndarray
    """[C, W] int64 entries of the vocabulary; -1: none."""
    shares_CW: np.ndarray
    """[C, W] float32; those of a cell sum to 1."""
    places_C2: np.ndarray
    """[C, 2] float32: middle of the thing under the cell, as parts of the screen's width and height."""
    has_thing_C: np.ndarray
    """[C] bool."""


def pixels(image: Image.Image) -> np.ndarray:
    """[3, SIDE, SIDE] float32, as the image processor of `learner.tiny_vision` makes them."""
    small = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return ((np.asarray(small, dtype=np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def cell_labels(page: Page, vocabulary: Vocabulary) -> CellLabels:
    """What lies in front counts. A small thing counts in every cell that holds a good part of it."""
    cover_CI = _cover(page)
    num_cells = CELLS * CELLS
    entries_CW = np.full((num_cells, MAX_WORDS), -1, dtype=np.int64)
    shares_CW = np.zeros((num_cells, MAX_WORDS), dtype=np.float32)
    places_C2 = np.zeros((num_cells, 2), dtype=np.float32)
    has_thing_C = np.zeros(num_cells, dtype=bool)
    for cell, cover_I in enumerate(cover_CI):
        shown = [(page.items[i], float(cover_I[i])) for i in np.argsort(-cover_I, kind="stable")[:_MAX_ITEMS] if cover_I[i] > 0.1]
        found: dict[int, float] = {}
        for item, cover in shown:
            weights = [1.0 if word in _KINDS else _SAID_WEIGHT for word in item.words]
            for word, weight in zip(item.words, weights, strict=True):
                entries = vocabulary.of(word)
                for entry in entries:
                    found[entry] = found.get(entry, 0.0) + cover * weight / sum(weights) / len(entries)
        if not found:
            found = dict.fromkeys(vocabulary.of(_NOTHING), 1.0)
        best = sorted(found.items(), key=lambda one: -one[1])[:MAX_WORDS]
        total = sum(share for _, share in best)
        for number, (entry, share) in enumerate(best):
            entries_CW[cell, number], shares_CW[cell, number] = entry, share / total
        if shown and shown[0][0].names:
            x, y = shown[0][0].middle
            places_C2[cell] = (x / WIDTH, y / HEIGHT)
            has_thing_C[cell] = True
    return CellLabels(entries_CW, shares_CW, places_C2, has_thing_C)


def _cover(page: Page) -> np.ndarray:
    """[C, items] how much of each cell shows each item."""
    width, height = WIDTH / CELLS, HEIGHT / CELLS
    row_C, column_C = np.divmod(np.arange(CELLS * CELLS), CELLS)
    cover_CI = np.zeros((CELLS * CELLS, len(page.items)), dtype=np.float32)
    free_C = np.ones(CELLS * CELLS, dtype=np.float32)
    for index in reversed(range(len(page.items))):
        left, top, right, bottom = page.items[index].box
        across_C = np.clip(np.minimum((column_C + 1) * width, right) - np.maximum(column_C * width, left), 0, None)
        down_C = np.clip(np.minimum((row_C + 1) * height, bottom) - np.maximum(row_C * height, top), 0, None)
        part_of_cell_C = across_C * down_C / (width * height)
        part_of_item_C = across_C * down_C / max(1.0, (right - left) * (bottom - top))
        seen_C = np.where(part_of_cell_C > 0.12, part_of_cell_C, 0)
        cover_CI[:, index] = np.where(part_of_item_C >= 0.3, np.maximum(part_of_cell_C, 0.6), seen_C) * free_C
        free_C = np.clip(free_C - part_of_cell_C, 0, 1)
    return cover_CI


def stacked(labels: Iterable[CellLabels]) -> tuple[np.ndarray, ...]:
    """All fields, one page after the other."""
    listed = list(labels)
    names = ("entries_CW", "shares_CW", "places_C2", "has_thing_C")
    return tuple(np.stack([getattr(one, name) for one in listed]) for name in names)
