"""The table of memory in docs/vision.md says what the estimate gives for the published sizes of each model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from computerrl.common.vision.memory import TowerShape

DOCS = Path(__file__).parents[4] / "docs" / "vision.md"
SHAPES = {
    "Qwen2-VL-7B": (TowerShape("qwen2_vl", 32, 1280, 5120, 1176, 4), 3584, 1),
    "Qwen2.5-VL-3B": (TowerShape("qwen2_5_vl", 32, 1280, 3420, 1176, 4), 2048, 1),
    "Qwen2.5-VL-7B, UI-TARS-1.5": (TowerShape("qwen2_5_vl", 32, 1280, 3420, 1176, 4), 3584, 1),
    "Qwen3-VL-2B": (TowerShape("qwen3_vl", 24, 1024, 4096, 1536, 4), 2048, 4),
    "Qwen3-VL-8B": (TowerShape("qwen3_vl", 27, 1152, 4304, 1536, 4), 4096, 4),
    "GLM-4.1V-9B": (TowerShape("glm4v", 24, 1536, 4096, 1176, 4), 4096, 1),
    "SmolVLM2-500M": (TowerShape("smolvlm", 12, 768, 3072, 768, 16), 960, 1),
}
"""Model -> tower, width of the language model, and how many vectors of that width a token has (deepstack)."""
ROW = re.compile(r"\| ([^|]+) \| (\d+) M \| [^|]+ \| ([\d,]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|")


def test_rows_are_the_estimates() -> None:
    rows = [found.groups() for found in map(ROW.fullmatch, DOCS.read_text(encoding="utf-8").splitlines()) if found]
    assert {row[0] for row in rows} == SHAPES.keys() and len(rows) >= 2 * len(SHAPES) - 1
    for name, millions, *numbers in rows:
        tokens, features, frozen, inputs, everything = (int(number.replace(",", "")) for number in numbers)
        shape, width, vectors = SHAPES[name]
        patches = tokens * shape.patches_per_token
        assert int(millions) == round(shape.num_parameters / 1e6)
        assert features == pytest.approx(tokens * width * vectors * 2 / 2**20, abs=0.51)
        assert frozen == shape.pass_bytes(4 * patches, kept="nothing", element_bytes=2) >> 20
        assert inputs == shape.pass_bytes(patches, kept="inputs", element_bytes=2) >> 20
        assert everything == shape.pass_bytes(patches, kept="everything", element_bytes=2) >> 20
