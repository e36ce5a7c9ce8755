"""The benchmark of vision-language policies: its rows, on small screens and few rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from computerrl.benchmarks.vision._folders import FAMILIES, save_random_model
from computerrl.benchmarks.vision.vision import MAX_GAP, MEASURED, drawn_screen, gap_row, steps_per_s, way_rows
from computerrl.launch.commands.measure import complete
from tests.support.tiers import one_in


@pytest.mark.parametrize("family", one_in(3, FAMILIES))
def test_gap_after_images_is_rounding_in_float32(tmp_path: Path, family: str) -> None:
    row = complete(gap_row(tmp_path, family, save_random_model(tmp_path / "model", family), "float32"))
    assert 0 < row["value"] < MAX_GAP == row["target"] and family in row["name"]


def test_way_of_an_image_has_a_row_for_each_part_and_repeats_are_not_encoded_again(tmp_path: Path) -> None:
    models = {family: save_random_model(tmp_path / family, family) for family in MEASURED}
    rows = {row["name"]: complete(row) for row in way_rows(tmp_path, models, rounds=2, sizes=[(96, 64)])}
    shared = [f"96x64: {part}" for part in ("capture", "encode, cold", "encode, warm", "move", "decode")]
    parts = ("number of tokens, cold", "number of tokens, warm", "processor", "tower, cold", "tower, warm")
    assert list(rows) == [*shared, *(f"96x64: {part}, {family}" for family in MEASURED for part in parts)]
    assert all(row["value"] > 0 and row["unit"] == "ms" for row in rows.values())
    (segment,) = (tmp_path / "store").iterdir()
    assert segment.read_bytes().count(b"IHDR") == 2, "two screens, each stored once"


def test_drawn_screens_differ_by_seed_and_are_the_same_again() -> None:
    one, again, other = (drawn_screen(seed, (96, 64)) for seed in (1, 1, 2))
    assert one.shape == (64, 96, 3) and np.array_equal(one, again) and not np.array_equal(one, other)


def test_steps_per_second_without_the_configuration_names_it(tmp_path: Path) -> None:
    row = complete(steps_per_s("no-such-quickstart", tmp_path))
    assert row["value"] is None and "missing: configs/no-such-quickstart.yaml" in row["name"]


@pytest.mark.release
def test_steps_per_second_are_those_of_a_whole_run_and_a_failed_run_has_none(tmp_path: Path) -> None:
    short = ["tasks.families=[web-click-button]", "learner.recipe.eval_before_episodes_per_family=0"]
    assert steps_per_s("serial", tmp_path, overrides=short)["value"] > 0
    failed = steps_per_s("serial", tmp_path, overrides=["name=other", "tasks.families=[no-such-family]"])
    assert failed["value"] is None and "it ended with" in failed["name"]
