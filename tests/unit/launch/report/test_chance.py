"""Chance without a screen: of a random click, and of the best one that the task's text and other episodes allow."""

from __future__ import annotations

import random
from typing import Any

import pytest

from computerrl.launch.report.chance import MAX_TARGETS, Chance, Targets, compare

WIDTH, HEIGHT = 320, 420


def episode(
    seed: int, x: int, y: int, *, text: str = "Click it.", family: str = "f", size: int = 40, steps: int = 1
) -> dict[str, Any]:
    step = {"target": [x, y, size, size, WIDTH, HEIGHT]}
    return {"family": family, "seed": seed, "instruction": text, "steps": [step] * steps}


def chance_of(*episodes: dict[str, Any]) -> Chance:
    targets = Targets()
    for one in episodes:
        targets.add(one)
    return targets.chances()["f"]


def test_target_that_is_always_at_one_place_is_hit_blindly_and_rarely_by_a_random_click() -> None:
    found = chance_of(*(episode(seed, 100, 200) for seed in range(10)))
    assert found == Chance(40 * 40 / (WIDTH * HEIGHT), 1.0, 10)


def test_place_that_the_text_gives_away_is_known_blindly() -> None:
    places = {"Tab 1": 40, "Tab 2": 160, "Tab 3": 280}
    told = [episode(seed, x, 50, text=text) for seed, (text, x) in enumerate(list(places.items()) * 4)]
    assert chance_of(*told).blind == 1.0
    untold = chance_of(*({**one, "instruction": "Click a tab."} for one in told))
    assert untold.blind < 0.5, "one of three places at best"


def test_targets_spread_over_the_screen_are_hit_blindly_about_as_rarely_as_at_random() -> None:
    source = random.Random(1)
    spread = [episode(seed, source.randrange(20, 300), source.randrange(20, 400)) for seed in range(MAX_TARGETS)]
    found = chance_of(*spread)
    assert found.random == pytest.approx(0.0119, abs=1e-3) and found.blind < 0.06


def test_best_place_is_what_overlapping_targets_share_though_it_is_the_middle_of_none() -> None:
    assert chance_of(*(episode(seed, 100 + 15 * (seed % 3), 100) for seed in range(6))).blind == 1.0


def test_target_is_no_evidence_for_itself() -> None:
    apart = [episode(seed, 30 + 60 * seed, 100) for seed in range(5)]
    assert chance_of(*apart).blind == 0.0


def test_rollouts_of_one_instance_count_once_and_longer_episodes_and_those_without_a_target_never() -> None:
    targets = Targets()
    for one in (episode(1, 50, 50), episode(1, 50, 50), episode(2, 50, 50), episode(3, 50, 50, steps=2)):
        targets.add(one)
    targets.add({"family": "f", "seed": 4, "instruction": "", "steps": [{"target": None}]})
    targets.add({"family": "f", "seed": 5, "instruction": "", "steps": []})
    targets.add(episode(1, 9, 9, family="alone"))
    assert {family: chance.num_targets for family, chance in targets.chances().items()} == {"f": 2}


@pytest.mark.parametrize(
    ("successes", "p_value"),
    [(0, 1.0), (1, 1 - 0.5**2 * 0.9**2), (4, 0.5**2 * 0.1**2)],
)
def test_successes_are_compared_with_those_of_the_blind_agent(successes: int, p_value: float) -> None:
    chances = {"even": Chance(0.0, 0.5, 9), "hard": Chance(0.0, 0.1, 9)}
    split = {"even": min(2, successes), "hard": max(0, successes - 2)}
    played = {name: {"successes": number, "episodes": 2} for name, number in split.items()}
    found = compare(played, chances)
    assert found is not None and (found.successes, found.episodes) == (successes, 4)
    assert found.expected == pytest.approx(1.2) and found.p_value == pytest.approx(p_value)


def test_nothing_is_compared_where_a_chance_is_unknown() -> None:
    assert compare({"other": {"successes": 1, "episodes": 2}}, {}) is None
    assert compare({}, {}) is None
