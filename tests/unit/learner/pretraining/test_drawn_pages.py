"""Drawn pages and their labels: what lies under an image token is named, and what is asked for is there and in front."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import ImageFont

from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.labels import CELLS, Vocabulary, cell_labels, pixels
from computerrl.learner.pretraining.pages import draw_page
from computerrl.learner.pretraining.questions import Asker, askable, slipped
from computerrl.learner.pretraining.screens import Source
from computerrl.learner.pretraining.things import HEIGHT, WIDTH, Item, Page


class PillowsFont:
    """Stands in for the fonts of a desktop image."""

    @cache  # noqa: B019
    def of(self, size: float, *, bold: bool = False) -> Any:
        return ImageFont.load_default(size)


def page(seed: int, *, dense: bool = False) -> Page:
    return draw_page(random.Random(seed), PillowsFont(), dense=dense)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(ensure_model("tiny-random"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary(tokenizer)


def cell_at(x: float, y: float) -> int:
    return int(y * CELLS / HEIGHT) * CELLS + int(x * CELLS / WIDTH)


@pytest.mark.parametrize("dense", [False, True])
def test_cell_in_the_middle_of_what_is_in_front_names_it(vocabulary: Vocabulary, dense: bool) -> None:
    num_named = 0
    for seed in range(60):
        drawn = page(seed, dense=dense)
        labels = cell_labels(drawn, vocabulary)
        np.testing.assert_allclose(labels.shares_CW.sum(1), 1, atol=1e-5)
        for _, item in askable(drawn):
            left, top, right, bottom = item.box
            if right - left < 50 or bottom - top < 40:
                continue  # a cell's neighbours may show more of something else
            cell = cell_at(*item.middle)
            named = set(labels.entries_CW[cell].tolist())
            wanted = {entry for entry in vocabulary.of(item.words[0])}
            assert wanted <= named, (seed, item)
            num_named += 1
    assert num_named > 100


def test_thing_behind_another_is_asked_for_where_it_is_seen() -> None:
    def button(name: str, *box: float) -> Item:
        return Item(box, ("button",), (name,))  # type: ignore[arg-type]

    drawn = Page.of(
        page(1).image,
        [
            button("behind", 0, 200, 80, 280),
            button("front", 30, 220, 110, 300),
            button("hidden", 200, 110, 240, 150),
            button("over", 190, 118, 260, 170),
            button("twin", 200, 200, 240, 240),
            button("twin", 200, 300, 240, 340),
            button("outside", 330, 400, 400, 450),
            Item((30, 220, 60, 240), ("word",)),
        ],
    )
    assert {name: item.box for name, item in askable(drawn)} == {
        "behind": (0, 200, 30, 280),
        "front": (30, 220, 110, 300),
        "over": (190, 118, 260, 170),
    }


def test_nothing_in_front_lies_on_the_middle_of_what_is_asked_for() -> None:
    num_partly_seen = 0
    for seed in range(400):
        drawn = draw_page(random.Random(seed), PillowsFont(), dense=False)  # type: ignore[arg-type]
        for number, item in enumerate(drawn.items):
            (x, y), later = item.middle, [other.box for other in drawn.items[number + 1 :] if other.names]
            on_it = [box for box in later if box[0] < x < box[2] and box[1] < y < box[3]]
            assert not item.names or not on_it, (seed, item)
            num_partly_seen += bool(item.names) and item.words[0] == "button" and item.box[2] - item.box[0] < 30
    assert num_partly_seen > 5


def test_questions_know_which_of_their_tokens_name_the_thing(tokenizer: Any) -> None:
    asker = Asker(tokenizer, Source(PillowsFont()), max_questions=8)  # type: ignore[arg-type]
    rng, num_words = random.Random(1), 0
    for question in (one for _ in range(60) for one in asker.page(rng)[1]):
        named = tokenizer.decode(question.ask[: question.name_end + 1])
        # A quotation mark may share its token with what ends the sentence.
        assert named.rstrip("?.,").endswith(question.item.names), named
        said = [tokenizer.decode(question.ask[at]).strip().lower() for at in question.words]
        whole = " ".join(question.item.words).lower()
        assert question.words == [question.name_end] or all(piece in whole for piece in said), (said, whole)
        num_words += question.words != [question.name_end]
    assert num_words > 100


def test_after_a_wrong_first_digit_the_nearest_coordinate_is_wanted() -> None:
    rng, num_slips = random.Random(1), 0
    for coordinate in range(1000):
        said, wanted = slipped(coordinate, rng)
        assert wanted[0] == f"{coordinate:03d}"[0]
        if said != f"{coordinate:03d}":
            beginning = 100 * int(said[0])
            assert int(said) == min(range(beginning, beginning + 100), key=lambda place: abs(place - coordinate))
            num_slips += 1
        assert said[1:] == wanted[1:]
    assert 200 < num_slips < 600


def test_answers_that_slipped_differ_from_what_is_wanted_in_first_digits_alone(tokenizer: Any) -> None:
    asker = Asker(tokenizer, Source(PillowsFont()), max_questions=8)  # type: ignore[arg-type]
    rng, num_slips = random.Random(1), 0
    for question in (one for _ in range(20) for one in asker.page(rng)[1]):
        pairs = zip(question.digits, question.said, question.answer, strict=True)
        differing = {digit for digit, said, wanted in pairs if said != wanted}
        assert differing <= {0, 2}
        num_slips += bool(differing)
    assert num_slips > 10


def test_same_seed_draws_the_same_page() -> None:
    for seed in range(20):
        one, other = page(seed, dense=True), page(seed, dense=True)
        assert one.items == other.items
        np.testing.assert_array_equal(pixels(one.image), pixels(other.image))
