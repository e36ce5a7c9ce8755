"""The predicted pages: the same random numbers as the browser's, and no instance that a guess solves too often."""

from __future__ import annotations

import pytest

from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.pages import PAGES, Page, PageRandom, page


@pytest.mark.parametrize(
    ("seed", "first"),
    [(5, 0.8975141500470741), (12345678, 0.06738945874544443)],  # printed by seedrandom itself, in node
)
def test_page_random_same_seed_gives_the_browsers_numbers(seed: int, first: float) -> None:
    assert PageRandom(seed).random() == first


def shown(family: str, seed: int) -> Page:
    args = FAMILIES[family].make(seed).setup[0].args
    return page(args["page"], args["seed"])


@pytest.mark.parametrize(("family", "role"), [("web-click-button", "button"), ("web-click-option", "radio-button")])
def test_page_choice_has_at_least_four_and_one_right(family: str, role: str) -> None:
    for seed in range(200):
        candidates = shown(family, seed).texts(role)
        assert len(candidates) >= 4
        assert candidates.count(shown(family, seed).solution[0]) == 1


def test_page_checkboxes_few_to_check_among_at_least_three() -> None:
    for seed in range(200):
        instance = shown("web-click-checkboxes", seed)
        assert 1 <= len(instance.solution) <= 3 <= len(instance.texts("check-box"))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_same_seed_gives_same_page(name: str) -> None:
    assert page(name, 11) == page(name, 11)
    assert len({page(name, seed).utterance for seed in range(50)}) > 5
