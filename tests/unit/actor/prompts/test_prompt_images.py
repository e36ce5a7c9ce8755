"""Prompts that show images: final token ids, whole images or none, places instead of elements."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from PIL import Image

from computerrl.actor.prompts.builder import FolderTokenizer, Prompt, PromptBuilder, unreadable
from computerrl.actor.prompts.formats import make_format
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.actor.prompts.images import ImageTokens
from computerrl.common.actions import ActionSyntaxError, parse_action
from computerrl.common.config import PromptConfig
from computerrl.common.errors import ConfigError
from computerrl.common.messages import Element, Observation, ScreenshotRef
from computerrl.common.vision.processor import load_processor
from computerrl.common.vision.screens import Screens
from computerrl.learner.model.images import PromptImages
from tests.support.data.image_prompts import TOKENS_OF, make_folder
from tests.support.tiers import one_in

SIZE = (150, 100)
BUTTON = Element(1, "push-button", "Submit", 30, 50, 20, 10, (), True)


@dataclass
class Model:
    """A model folder, as an actor sees it."""

    folder: Path
    tokenizer: FolderTokenizer
    images: ImageTokens

    def builder(self, **prompt: Any) -> PromptBuilder:
        config = PromptConfig.model_validate({"format": "compact_vision", "max_prompt_tokens": 4096, **prompt})
        return PromptBuilder(self.tokenizer, config, images=self.images, screen_size=SIZE)

    def num_image_tokens(self, prompt: Prompt) -> int:
        return int((prompt.tokens == self.images.token).sum())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    made = {}
    for family in TOKENS_OF:
        folder = make_folder(tmp_path_factory.mktemp(family) / "model", family)
        tokenizer = FolderTokenizer(folder)
        made[family] = Model(folder, tokenizer, ImageTokens.of(folder, tokenizer, read=unreadable))
    return made


def ref(number: int, size: tuple[int, int] = SIZE) -> ScreenshotRef:
    return ScreenshotRef(f"screen-{number}", "segment-0.bin", number, 1, *size)


def screen(number: int = 0, elements: Sequence[Element] = (BUTTON,)) -> Observation:
    return Observation("editor", "notes", tuple(elements), ref(number), *SIZE, "quiet", 0.0, "")


def past(count: int) -> list[PastAction]:
    return [PastAction(f"click({number}, 1)", screenshot=ref(number)) for number in range(count)]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chat": {"chat_template": True},
    "published": {"format": "computerrl_vision", "chat_template": True, "max_prompt_tokens": 60_000},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", TOKENS_OF)
def test_prompt_holds_each_image_whole_and_the_learner_finds_them(models: dict[str, Model], family: str, way: str) -> None:
    model = models[family]
    learner = PromptImages(Screens(lambda ref: b"", load_processor(model.folder)))
    for num_images, count in ((1, 0), (1, 3), (3, 3), (3, 1)):
        prompt = model.builder(images=num_images, history_steps=4, **WAYS[way]).build("Press Submit.", screen(count), past(count))
        shown = [ref(number) for number in range(count + 1)][-num_images:]
        assert list(prompt.images) == shown
        assert model.num_image_tokens(prompt) == sum(model.images.num_pieces(one) for one in shown)
        (pack,) = learner.packs([_Sample(prompt)], max_tokens=10**6)
        assert pack.images is not None and list(pack.images.refs) == sorted(shown, key=shown.index)
    text = model.tokenizer.decode(prompt.tokens.tolist())
    assert text.index("Press Submit.") < text.index("click(0, 1)")


@dataclass
class _Sample:
    prompt: Prompt

    @property
    def prompt_tokens(self) -> np.ndarray:
        return self.prompt.tokens

    @property
    def action_tokens(self) -> np.ndarray:
        return np.array([1], dtype=np.int32)

    @property
    def images(self) -> Sequence[ScreenshotRef]:
        return self.prompt.images


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(sorted(TOKENS_OF)),
    is_chat=st.booleans(),
    limit=st.integers(96, 400),
    num_images=st.integers(1, 4),
    stride=st.integers(1, 4),
    count=st.integers(0, 6),
    instruction=st.text(max_size=300),
)
def test_no_budget_cuts_an_image(
    models: dict[str, Model],
    family: str,
    is_chat: bool,
    limit: int,
    num_images: int,
    stride: int,
    count: int,
    instruction: str,
) -> None:
    model = models[family]
    options = {"images": num_images, "image_stride": min(stride, num_images), "max_prompt_tokens": limit}
    if limit < model.builder(chat_template=is_chat).num_instruction_tokens(""):
        with pytest.raises(ConfigError, match="max_prompt_tokens"):
            model.builder(chat_template=is_chat, **options)
        return
    builder = model.builder(chat_template=is_chat, **options)
    prompt = builder.build(instruction, screen(count), past(count))
    assert 0 < len(prompt.tokens) <= limit
    assert prompt.images and len(prompt.images) <= num_images
    assert model.num_image_tokens(prompt) == sum(model.images.num_pieces(one) for one in prompt.images)


def test_screen_larger_than_the_budget_is_left_out_whole(models: dict[str, Model]) -> None:
    model = models["qwen2_5_vl"]
    builder = model.builder(max_prompt_tokens=60)
    large = replace(screen(), screenshot=ref(0, (700, 700)))
    prompt = builder.build("Press Submit.", large, past(2))
    assert prompt.images == () and model.num_image_tokens(prompt) == 0 and len(prompt.tokens) <= 60


def test_oldest_screens_go_several_at_a_time(models: dict[str, Model]) -> None:
    builder = models["qwen3_vl"].builder(images=4, image_stride=2, history_steps=20)
    firsts = []
    for count in range(9):
        images = builder.build("x", screen(count), past(count)).images
        assert images[-1] == ref(count)
        firsts.append(images[0].offset)
    assert firsts == [0, 0, 0, 0, 2, 2, 4, 4, 6]


@pytest.mark.parametrize("family", TOKENS_OF)
def test_text_of_others_holds_no_image(models: dict[str, Model], family: str) -> None:
    model = models[family]
    for way in ("plain", "chat"):
        builder = model.builder(**WAYS[way])
        expected = model.num_image_tokens(builder.build("x", screen(), []))
        prompt = builder.build(f"Press {' '.join(TOKENS_OF[family])}.", screen(), [PastAction(TOKENS_OF[family][1])])
        assert model.num_image_tokens(prompt) == expected


@pytest.mark.parametrize("family", TOKENS_OF)
def test_controls_give_images_that_do_not_belong_to_the_prompt(models: dict[str, Model], family: str) -> None:
    model = models[family]
    stored = {number: png(number) for number in range(3)}
    images = ImageTokens.of(model.folder, model.tokenizer, read=lambda ref: stored[ref.offset])
    builder = PromptBuilder(model.tokenizer, PromptConfig(format="compact_vision"), images=images, screen_size=SIZE)
    prompts = [builder.build("x", screen(number), []) for number in range(3)]
    ((only,),) = [builder.request_images(prompts[0], shown="foreign")]
    assert only.content_hash == builder.request_images(prompts[0], shown="blank")[0].content_hash
    own = [builder.request_images(prompt)[0] for prompt in prompts]
    for prompt, mine in zip(prompts, own, strict=True):
        (blank,), (foreign,) = (builder.request_images(prompt, shown=shown) for shown in ("blank", "foreign"))
        assert blank.processed.layout == foreign.processed.layout == mine.processed.layout
        assert foreign.content_hash in {one.content_hash for one in own} - {mine.content_hash}
        assert len(np.unique(blank.processed.tensors["pixel_values"])) <= 3


def png(seed: int) -> bytes:
    encoded = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(encoded, format="PNG")
    return encoded.getvalue()


@pytest.mark.parametrize("written", ["", "<|image_pad|><|image_pad|>", "[image]"])
def test_template_without_one_place_for_each_image_is_refused(tmp_path: Path, written: str) -> None:
    folder = make_folder(tmp_path / "model", "qwen2_5_vl", image=written)
    tokenizer = FolderTokenizer(folder)
    config = PromptConfig(format="compact_vision", chat_template=True, max_prompt_tokens=4096)
    with pytest.raises(ConfigError, match=r"chat template.*places for 1 images"):
        PromptBuilder(tokenizer, config, images=ImageTokens.of(folder, tokenizer, read=unreadable))


def test_model_without_image_token_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "qwen2_5_vl")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"image_token_id"', '"no_token"'))
    with pytest.raises(ConfigError, match="takes no images"):
        ImageTokens.of(folder, FolderTokenizer(folder), read=unreadable)


# --- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "said", "done"),
    [
        ("click(149, 99)", "click(993, 990)", "click(149, 99)"),
        ("click(3, 0)", "click(020, 000)", "click(3, 0)"),
        ('type("007 0", target=3, y=9)', 'type("007 0", target=020, y=090)', 'type("007 0", target=3, y=9)'),
        ('key("ctrl+s", 2)', 'key("ctrl+s", 2)', 'key("ctrl+s", 2)'),
        ('type("hello", target=30, y=50)', 'type("hello", target=200, y=500)', 'type("hello", target=30, y=50)'),
        ('type("hello")', 'type("hello")', 'type("hello")'),
        ("drag_pixels([30, 50, 60, 20])", "drag_pixels([200, 500, 400, 200])", "drag_pixels([30, 50, 60, 20])"),
        ('key("ctrl+s")', 'key("ctrl+s")', 'key("ctrl+s")'),
        ("done()", "done()", "done()"),
    ],
)
def test_demonstrated_action_is_said_with_places_and_read_back(ours: str, said: str, done: str) -> None:
    form = make_format(PromptConfig(format="compact_vision"))
    written = form.render(ours, screen())
    assert written == said
    assert form.parse(written, screen()) == parse_action(done)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('click("Submit")', "write x, y"),
        ("click(3)", "write x, y"),
        ('drag("a", "b")', "drag_pixels"),
        ("click(1200, 10)", "not on the screen"),
        ("click(-1, 10)", "not on the screen"),
        ("drag_pixels([1, 2, 3])", "a path is"),
    ],
)
def test_element_or_place_outside_is_no_action(text: str, reason: str) -> None:
    with pytest.raises(ActionSyntaxError, match=reason):
        make_format(PromptConfig(format="compact_vision")).parse(text, screen())


FAMILY_EXTENTS = {"qwen2_5_vl": (140, 112), "qwen2_vl": (1000, 1000), "qwen3_vl": (1000, 1000), "glm4v": (1000, 1000)}
"""Family -> largest coordinates on a screen of SIZE; the families of tiles speak in thousandths, too."""


@pytest.mark.parametrize("name", ["compact_vision", "computerrl_vision", "ui_tars", "qwen_computer_use"])
@pytest.mark.parametrize("family", TOKENS_OF)
def test_coordinates_are_those_of_the_models_family(models: dict[str, Model], family: str, name: str) -> None:
    across, down = FAMILY_EXTENTS.get(family, (1000, 1000))
    way = {"format": name, "chat_template": True, "max_prompt_tokens": 60_000}
    builder = models[family].builder(**way)
    said = builder.render("click(75, 50)", screen())
    assert f"{across // 2}" in said and f"{down // 2}" in said
    assert builder.parse(said, screen()) == parse_action("click(75, 50)")
    in_thousandths = models[family].builder(**way, coordinates="thousand")
    assert in_thousandths.parse(in_thousandths.render("click(75, 50)", screen()), screen()) == parse_action("click(75, 50)")
    assert "500" in in_thousandths.render("click(75, 50)", screen())


def test_pixels_are_those_of_the_processors_own_image(models: dict[str, Model]) -> None:
    folder = models["qwen3_vl"].folder
    processor = load_processor(folder)
    for size in ((150, 100), (800, 600), (1280, 720), (57, 200)):
        _, height, width = processor.process(Image.new("RGB", size)).tensors["image_grid_thw"][0].tolist()
        assert processor.resized(*size) == (14 * width, 14 * height)
    builder = models["qwen3_vl"].builder(coordinates="pixels")
    across, down = processor.resized(*SIZE)
    assert builder.render("click(75, 50)", screen()) == f"click({across // 2:03}, {down // 2:03})"


def test_pixels_of_a_family_of_tiles_are_refused(models: dict[str, Model]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)actor\.prompt\.coordinates.*tiles.*set it to auto or thousand"):
        models["idefics3"].builder(coordinates="pixels")


# --- numbers of tokens -------------------------------------------------------------------------------------------------

LIMITS = {
    "grid": [(28 * 28 * 4, 28 * 28 * 16), (28 * 28 * 8, 28 * 28 * 100), (28 * 28 * 60, 28 * 28 * 400)],
    "tiles": [(56, 56), (56, 112), (56, 224)],
}
"""Least and most pixels of an image (grid); side of a tile and of the whole image (tiles)."""


@pytest.mark.parametrize("family", one_in(4, TOKENS_OF))
def test_prompt_processor_and_learner_count_alike_for_200_sizes(models: dict[str, Model], family: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    numbers = set()
    for number, (low, high) in enumerate(LIMITS["tiles" if "<image>" in TOKENS_OF[family] else "grid"]):
        folder = Path(shutil.copytree(models[family].folder, tmp_path / str(number)))
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        size = {"shortest_edge": low, "longest_edge": high} if "max_image_size" not in settings else {"longest_edge": high}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"size": size}))
        processor = load_processor(folder)
        model = Model(folder, models[family].tokenizer, ImageTokens.of(folder, models[family].tokenizer, read=unreadable))
        builder = model.builder(max_prompt_tokens=60_000)
        learner = PromptImages(Screens(lambda ref: b"", load_processor(folder)))
        for width, height in rng.integers(60, 400, (67, 2)).tolist():
            seen = replace(screen(), screenshot=ref(0, (width, height)), screen_width=width, screen_height=height)
            prompt = builder.build("Press Submit.", seen, [])
            pixels = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            expected = processor.process(pixels).layout.num_pieces
            (pack,) = learner.packs([_Sample(prompt)], max_tokens=10**6)
            assert pack.images is not None
            assert model.num_image_tokens(prompt) == len(pack.images.nodes_V) == expected, (width, height)
            numbers.add(expected)
    assert len(numbers) > (3 if "<image>" in TOKENS_OF[family] else 20)


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(sorted(TOKENS_OF)),
    name=st.sampled_from(["compact_vision", "ui_tars", "qwen_computer_use"]),
    spare=st.integers(0, 300),
    num_images=st.integers(1, 5),
    stride=st.integers(1, 5),
    count=st.integers(0, 8),
    instruction=st.text(max_size=30).map(lambda text: text * 200),
)
def test_no_long_instruction_cuts_an_image(
    models: dict[str, Model], family: str, name: str, spare: int, num_images: int, stride: int, count: int, instruction: str
) -> None:
    model = models[family]
    way = {"format": name, "chat_template": True, "history_steps": 8}
    least = model.builder(**way, max_prompt_tokens=60_000).num_instruction_tokens("")
    options = {"images": num_images, "image_stride": min(stride, num_images), "max_prompt_tokens": least + spare}
    prompt = model.builder(**way, **options).build(instruction, screen(count), past(count))
    assert 0 < len(prompt.tokens) <= least + spare
    assert prompt.images and prompt.images[-1] == ref(count) and len(prompt.images) <= num_images
    assert model.num_image_tokens(prompt) == sum(model.images.num_pieces(one) for one in prompt.images)
