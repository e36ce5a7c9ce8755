"""OfficeForge without a desktop: every family's files, wordings and checker, on files made by the libraries themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from computerrl.common.actions import parse_action, render_action
from computerrl.common.messages import Action
from computerrl.env_server.driver import Getter
from computerrl.env_server.tasks.forge import FAMILIES
from computerrl.env_server.tasks.forge.plan import Forged, ForgeFamily

SEEDS = tuple(range(4))
EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def getter(files: Mapping[str, bytes | None], folders: tuple[str, ...] = (), result: object = None) -> Getter:
    """A folder with these files and a page that says ``result``."""
    there = {path: data for path, data in files.items() if data is not None}
    above = {path[: index + 1] for path in there for index, char in enumerate(path) if char == "/"}

    def get(kind: str, **args: Any) -> Any:
        if kind == "file_bytes":
            return there.get(args["path"])
        if kind == "folder_listing":
            return sorted({*there, *above, *(f"{folder}/" for folder in folders)})
        assert kind == "web_result"
        return result

    return get


def after(forged: Forged, changes: Mapping[str, bytes | None], result: object = None) -> Getter:
    return getter({**forged.files, **changes}, tuple(forged.folders), result)


@EVERY
def test_family_untouched_zero_right_file_one_near_miss_zero(family: ForgeFamily) -> None:
    for seed in SEEDS:
        forged = family.forged(seed)
        assert forged.evaluate(after(forged, {})).reward == 0.0
        right = forged.evaluate(after(forged, forged.wanted(), forged.result))
        assert right.success and right.reward == 1.0, (seed, right.detail)
        nearly = forged.evaluate(after(forged, forged.nearly(), forged.near_result))
        assert nearly.reward == 0.0 and nearly.detail, (seed, forged.instruction)


@EVERY
def test_family_same_seed_same_bytes_other_seeds_differ(family: ForgeFamily) -> None:
    first, again = family.forged(5), family.forged(5)
    assert (first.instruction, first.files, first.folders) == (again.instruction, again.files, again.folders)
    assert first.wanted() == again.wanted() and family.level(5) == family.level(5)
    forged = [family.forged(seed) for seed in range(12)]
    assert len({(item.instruction, repr(item.files)) for item in forged}) == len(forged)


@EVERY
def test_family_levels_differ_and_all_come(family: ForgeFamily) -> None:
    assert {family.level(seed) for seed in range(60)} == set(family.levels) <= {1, 2, 3}


@EVERY
def test_family_scripts_use_the_action_space(family: ForgeFamily) -> None:
    for seed in SEEDS:
        forged = family.forged(seed)
        for move in (*forged.solution, *forged.near_miss):
            if isinstance(move, Action):
                text = render_action(move)
                assert render_action(parse_action(text)) == text
        assert len(forged.solution) <= 16
        assert [repr(move) for move in forged.solution] != [repr(move) for move in forged.near_miss]


@EVERY
def test_family_instruction_is_a_text_that_asks_for_saving(family: ForgeFamily) -> None:
    wordings = {family.forged(seed).instruction for seed in range(12)}
    assert len(wordings) >= 4
    for text in wordings:
        assert text[0].isupper() and "{" not in text and "  " not in text
        if family.app in ("calc", "writer", "impress") and family.name != "forge-across-rename-by-list":
            assert "save" in text.lower()


@EVERY
def test_family_damaged_or_missing_file_scores_zero_with_a_reason(family: ForgeFamily) -> None:
    forged = family.forged(1)
    for data in (b"not a file of any office", None):
        outcome = forged.evaluate(after(forged, dict.fromkeys(forged.files, data), forged.near_result))
        assert outcome.reward == 0.0 and outcome.detail


def test_families_cover_applications_with_enough_of_each() -> None:
    counts = {area: sum(family.name.startswith(f"forge-{area}-") for family in FAMILIES) for area in AREAS}
    assert all(counts[area] >= least for area, least in AREAS.items()), counts
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) == sum(counts.values())


AREAS = {"calc": 12, "writer": 12, "impress": 12, "files": 6, "web": 4, "across": 3}


def test_a_third_of_the_families_is_played_by_mouse_and_keys() -> None:
    def is_by_hand(family: ForgeFamily) -> bool:
        moves = [move for move in family.forged(0).solution if not isinstance(move, Action) or "." not in move.name]
        return len(moves) >= 2

    assert sum(map(is_by_hand, FAMILIES)) * 3 >= len(FAMILIES)
