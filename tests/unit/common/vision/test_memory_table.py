"""The tables of memory in docs/how-to/vision.md say what the estimates give for the published sizes of each model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from computerrl.common.vision.memory import TextShape, TowerShape

DOCS = Path(__file__).parents[4] / "docs" / "how-to" / "vision.md"
SHAPES = {
    "Qwen2-VL-7B": (TowerShape("qwen2_vl", 32, 1280, 5120, 1176, 4), TextShape(28, 4, 128, 3584)),
    "Qwen2.5-VL-3B": (TowerShape("qwen2_5_vl", 32, 1280, 3420, 1176, 4), TextShape(36, 2, 128, 2048)),
    "Qwen2.5-VL-7B, UI-TARS-1.5": (TowerShape("qwen2_5_vl", 32, 1280, 3420, 1176, 4), TextShape(28, 4, 128, 3584)),
    "Qwen3-VL-2B": (TowerShape("qwen3_vl", 24, 1024, 4096, 1536, 4), TextShape(28, 8, 128, 2048, num_deep=3)),
    "Qwen3-VL-8B": (TowerShape("qwen3_vl", 27, 1152, 4304, 1536, 4), TextShape(36, 8, 128, 4096, num_deep=3)),
    "GLM-4.1V-9B": (TowerShape("glm4v", 24, 1536, 4096, 1176, 4), TextShape(40, 2, 128, 4096)),
    "SmolVLM2-500M": (TowerShape("smolvlm", 12, 768, 3072, 768, 16), TextShape(32, 5, 64, 960)),
}
"""Model -> tower and language model."""
ENGINE_ROW = re.compile(r"\| ([^|]+) \| ([^|]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d,]+) \|")
ROW = re.compile(r"\| ([^|]+) \| (\d+) M \| [^|]+ \| ([\d,]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|")


def rows_of(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    return [found.groups() for found in map(pattern.fullmatch, DOCS.read_text(encoding="utf-8").splitlines()) if found]


def test_rows_of_engines_are_the_estimates_for_the_same_screens() -> None:
    rows = rows_of(ENGINE_ROW)
    screens = re.findall(r"^\| ([^|]+) \| \d+ M \| ([^|]+) \| ([\d,]+) \|", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [row[:3] for row in rows] == screens
    for name, _, *numbers in rows:
        tokens, kv, features, prepared = (float(number.replace(",", "")) for number in numbers)
        tower, text = SHAPES[name]
        num_tokens = int(tokens)
        assert kv == round(text.kv_bytes(num_tokens, element_bytes=2) / 2**20)
        assert features == pytest.approx(text.feature_bytes(num_tokens, element_bytes=2) / 2**20, abs=0.051)
        assert prepared == round(tower.prepared_bytes(num_tokens * tower.patches_per_token) / 2**20)


def test_rows_are_the_estimates() -> None:
    rows = rows_of(ROW)
    assert {row[0] for row in rows} == SHAPES.keys() and len(rows) >= 2 * len(SHAPES) - 1
    for name, millions, *numbers in rows:
        tokens, features, frozen, inputs, everything = (int(number.replace(",", "")) for number in numbers)
        shape, text = SHAPES[name]
        patches = tokens * shape.patches_per_token
        assert int(millions) == round(shape.num_parameters / 1e6)
        assert features == pytest.approx(text.feature_bytes(tokens, element_bytes=2) / 2**20, abs=0.51)
        assert frozen == shape.pass_bytes(4 * patches, kept="nothing", element_bytes=2) >> 20
        assert inputs == shape.pass_bytes(patches, kept="inputs", element_bytes=2) >> 20
        assert everything == shape.pass_bytes(patches, kept="everything", element_bytes=2) >> 20
