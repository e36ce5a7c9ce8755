"""Model folders whose parts do not belong together: each is refused before a run starts, by name and with the next step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from computerrl.actor.prompts.builder import FolderTokenizer, make_builder, unreadable
from computerrl.common.config import PromptConfig, RunConfig
from computerrl.common.errors import ConfigError
from computerrl.launch.run.preflight import check_prompt
from tests.support.data.image_prompts import make_folder

GRIDS = ["qwen2_5_vl", "glm4v"]
TILES = ["idefics3"]
"""Families that stand for all of their kind."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_folder(tmp_path_factory.mktemp(family) / "model", family) for family in (*GRIDS, *TILES)}


@pytest.fixture
def copy(whole: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        return Path(shutil.copytree(whole[family], tmp_path / "model"))

    return make


def change(folder: Path, file: str, **values: Any) -> None:
    tree = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(tree | values))


def refusal(folder: Path, *, size: tuple[int, int] = (150, 100), **prompt: Any) -> str:
    config = PromptConfig.model_validate({"format": "compact_vision", "chat_template": True, "max_prompt_tokens": 4096, **prompt})
    with pytest.raises(ConfigError) as caught:
        make_builder(folder, FolderTokenizer(folder), config, actions="gui", screen_size=size, read=unreadable)
    return str(caught.value)


def without_token(folder: Path, text: str) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] != text]
    (folder / "tokenizer.json").write_text(json.dumps(tree))


Break = Callable[[Path], None]

BROKEN: dict[str, tuple[list[str], Break, str]] = {
    "another family": (
        ["qwen2_5_vl"],
        lambda folder: change(folder, "config.json", model_type="llava_next"),
        "'llava_next' in .* cannot be run layer by layer here.*use a model of type qwen2_vl or",
    ),
    "no processor": (
        [*GRIDS, *TILES],
        lambda folder: (folder / "preprocessor_config.json").unlink(),
        "has no image processor: .*save the model's processor with save_pretrained",
    ),
    "processor of no known class": (
        ["qwen2_5_vl", "idefics3"],
        lambda folder: change(folder, "preprocessor_config.json", image_processor_type="NoSuchImageProcessor"),
        "model.name: ",
    ),
    "processor without a form for Pillow": (
        ["qwen2_5_vl"],
        lambda folder: change(folder, "preprocessor_config.json", image_processor_type="Cohere2VisionImageProcessor"),
        "torchvision.*save the ",
    ),
    "processor of another family": (
        ["qwen2_5_vl"],
        lambda folder: change(folder, "preprocessor_config.json", image_processor_type="CLIPImageProcessor"),
        "CLIPImageProcessorPil in .* gives no image_grid_thw, which 'qwen2_5_vl' takes.*of the same model",
    ),
    "processor that is no JSON": (
        ["qwen2_5_vl"],
        lambda folder: (folder / "preprocessor_config.json").write_text("{"),
        "has no image processor: ",
    ),
    "other patches": (
        GRIDS,
        lambda folder: change(folder, "preprocessor_config.json", patch_size=16),
        "has patch_size 16, and the vision tower 14.*copy preprocessor_config.json of the same model",
    ),
    "other pieces": (
        GRIDS,
        lambda folder: change(folder, "preprocessor_config.json", merge_size=4),
        "has merge_size 4, and the vision tower 2",
    ),
    "other frames": (
        GRIDS,
        lambda folder: change(folder, "preprocessor_config.json", temporal_patch_size=1),
        "has temporal_patch_size 1, and the vision tower 2",
    ),
    "other tiles": (
        TILES,
        lambda folder: change(folder, "preprocessor_config.json", max_image_size={"longest_edge": 364}),
        "cuts tiles of 364 pixels, and the vision tower takes 56",
    ),
    "no image token": (
        ["qwen2_5_vl", "idefics3"],
        lambda folder: change(folder, "config.json", image_token_id=-1),
        "takes no images: config.json or its tokenizer names no image token",
    ),
    "image token that is a word": (
        ["qwen2_5_vl", "idefics3"],
        lambda folder: change(folder, "config.json", image_token_id=60),
        "is 60 by config.json, and for its tokenizer that is the plain text",
    ),
    "image token of another tokenizer": (
        ["qwen2_5_vl"],
        lambda folder: change(folder, "tokenizer_config.json", image_token="<|image|>"),
        "is '<.image_pad.>' by config.json, and '<.image.>' by its processor",
    ),
    "no tokens for tiles": (
        TILES,
        lambda folder: without_token(folder, "<row_1_col_2>"),
        "writes <row_1_col_2> as plain text, and these mark the model's images.*use the model's own tokenizer",
    ),
    "template without images": (
        ["qwen2_5_vl"],
        lambda folder: change(
            folder,
            "tokenizer_config.json",
            chat_template="{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}",
        ),
        "the chat template in .* it writes 0 places for 1 images",
    ),
}


@pytest.mark.parametrize(("name", "family"), [(name, family) for name, (families, _, _) in BROKEN.items() for family in families])
def test_folder_whose_parts_disagree_is_refused(copy: Callable[[str], Path], name: str, family: str) -> None:
    _, damage, reason = BROKEN[name]
    folder = copy(family)
    damage(folder)
    found = refusal(folder)
    assert re.search(f"(?s){reason}", found), found


@pytest.mark.parametrize("family", ["qwen2_5_vl", "idefics3"])
def test_budget_below_one_screen_is_refused_with_the_screens_share(whole: dict[str, Path], family: str) -> None:
    found = refusal(whole[family], size=(150, 100), max_prompt_tokens=32)
    assert "actor.prompt.max_prompt_tokens: 32" in found and "of them for one screen of 150 x 100" in found
    assert "or lower desktop.screen_width and desktop.screen_height" in found


def test_size_that_the_model_does_not_take_is_refused(whole: dict[str, Path]) -> None:
    assert "desktop.screen_width: the model takes no picture of 10000 x 28" in refusal(whole["qwen2_5_vl"], size=(10_000, 28))


def test_preflight_finds_them(copy: Callable[[str], Path]) -> None:
    folder = copy("qwen2_5_vl")
    change(folder, "preprocessor_config.json", merge_size=4)
    prompt = {"format": "compact_vision", "chat_template": True, "max_prompt_tokens": 4096}
    config = RunConfig.model_validate({"name": "trial", "model": {"name": str(folder)}, "actor": {"prompt": prompt}})
    (finding,) = check_prompt(config, None)  # type: ignore[arg-type]
    assert finding.error is ConfigError and "has merge_size 4, and the vision tower 2" in finding.problem.reason
