"""The line of `computerrl plan` about images: what a screen takes, and the tower as the run will compute it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import RunConfig
from computerrl.common.memory_plan import Choice, image_plan
from computerrl.launch.plan.resources import describe_images
from tests.support.data.vision_data import FAMILIES, save_model

ALL_KEPT, RECOMPUTED = Choice("none", "there is room"), Choice("full", "there is none")


def config(folder: Path, *, vision: str = "frozen", recomputation: str = "auto", shows_images: bool = True) -> RunConfig:
    tree: dict[str, Any] = {
        "model": {"name": str(folder), "dtype": "bfloat16", "vision": vision},
        "actor": {"prompt": {"format": "compact_vision" if shows_images else "compact"}},
        "learner": {"activation_checkpointing": recomputation},
        "desktop": {"screen_width": 640, "screen_height": 480},
    }
    return RunConfig.model_validate(tree)


def large_model(folder: Path, family: str) -> Path:
    """A tower of which an image takes some MiB, so that different figures differ."""
    blocks = "num_hidden_layers" if family in ("idefics3", "smolvlm") else "depth"
    width = "embed_dim" if family == "qwen2_vl" else "hidden_size"
    return save_model(folder, model_type=family, tower={blocks: 8, width: 128})


def tower_mb(line: str) -> list[int]:
    """Figures of the tower in ``line``."""
    [clause] = [part for part in line.split("; ") if "vision tower" in part]
    return [int(number) for number in re.findall(r"(\d+) MiB", clause)]


@pytest.mark.parametrize("family", FAMILIES)
def test_line_tells_what_a_screen_is(tmp_path: Path, family: str) -> None:
    run = config(large_model(tmp_path / "model", family))
    plan = image_plan(run, "none")
    assert plan is not None
    line, tokens = describe_images(run, ALL_KEPT), plan.screen.num_tokens
    vectors = 3 if family == "qwen3_vl" else 1
    # Keys and values of 2 heads of 8 numbers in 3 layers; vectors of 32 numbers.
    kv_mb, features_mb = tokens * 2 * 3 * 2 * 8 * 2 / 2**20, tokens * vectors * 32 * 2 / 2**20
    assert f"a screen of 640 x 480 is {tokens} tokens" in line
    assert f"{kv_mb:.2g} MiB of keys and values and {features_mb:.2g} MiB of features" in line
    assert f"{plan.num_in_pack} screens fit into a pack" in line
    assert "at most of a process with an engine" in line and "\n" not in line


@pytest.mark.parametrize("family", FAMILIES)
def test_line_tells_the_tower_s_memory_as_the_run_computes_it(tmp_path: Path, family: str) -> None:
    folder = large_model(tmp_path / "model", family)
    trained = config(folder, vision="trained")

    def planned(recomputation: Any, *, on_card: bool) -> int:
        found = image_plan(trained, recomputation, on_card=on_card)
        assert found is not None
        return found.pass_mb

    kept, on_host, on_card = planned("none", on_card=False), planned("full", on_card=False), planned("full", on_card=True)
    # The C library holds memory between recomputed blocks; a GPU's allocator does not.
    assert on_card < on_host < kept
    assert tower_mb(describe_images(trained, ALL_KEPT)) == [kept]
    assert tower_mb(describe_images(trained, RECOMPUTED)) == [on_host]
    # The learner will choose on its GPU.
    assert tower_mb(describe_images(trained, None)) == [on_card, kept]
    assert "of a GPU, or" in describe_images(trained, None)
    for recomputation, expected in (("full", on_card), ("none", kept)):
        configured = config(folder, vision="trained", recomputation=recomputation)
        assert tower_mb(describe_images(configured, None)) == [expected]


@pytest.mark.parametrize("choice", [ALL_KEPT, RECOMPUTED, None])
def test_line_tells_of_a_frozen_tower_one_pass_and_its_features(tmp_path: Path, choice: Choice | None) -> None:
    run = config(large_model(tmp_path / "model", "qwen2_5_vl"))
    plan = image_plan(run, "none")
    assert plan is not None
    line = describe_images(run, choice)
    assert tower_mb(line) == [plan.pass_mb] and ("of a GPU" in line) == (choice is None)
    assert f"its features {run.learner.image_cache_mb} MiB at most" in line
    assert "its features" not in describe_images(config(Path(run.model.name), vision="trained"), choice)


def test_runs_without_images_have_no_line(tmp_path: Path) -> None:
    assert not describe_images(config(save_model(tmp_path / "model"), shows_images=False), None)
