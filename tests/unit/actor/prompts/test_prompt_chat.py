"""Prompts as turns of a chat, for servers that take those alone: texts without special tokens, images as they are stored."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from computerrl.actor.prompts.builder import FolderTokenizer, PromptBuilder, Receiver
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.actor.prompts.images import ImageTokens
from computerrl.common.chat import ChatTurn
from computerrl.common.config import PromptConfig
from computerrl.common.errors import PictureError
from computerrl.common.messages import Observation, ScreenshotRef, ShownImages
from tests.support.data.image_prompts import make_folder

SIZE = (150, 100)


def read(ref: ScreenshotRef) -> bytes:
    if ref.offset > 9:
        raise FileNotFoundError(ref.segment)
    return f"stored {ref.offset}".encode()


def screen(number: int) -> Observation:
    ref = ScreenshotRef(f"screen-{number}", "segment-0.bin", number, 1, *SIZE)
    return Observation("editor", "notes", (), ref, *SIZE, "quiet", 0.0, "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("qwen") / "model", "qwen3_vl")


def make(folder: Path, *, receiver: Receiver = "chat", **prompt: Any) -> PromptBuilder:
    tokenizer = FolderTokenizer(folder)
    images = ImageTokens.of(folder, tokenizer, read=read)
    config = PromptConfig.model_validate({"format": "compact_vision", "chat_template": True, "max_prompt_tokens": 4096, **prompt})
    return PromptBuilder(tokenizer, config, images=images, screen_size=SIZE, receiver=receiver)


def turns(builder: PromptBuilder, number: int, shown: ShownImages = "own") -> tuple[ChatTurn, ...]:
    past = [PastAction(f"click({place}, 1)", screenshot=screen(place).screenshot) for place in range(number)]
    return builder.chat_turns(builder.build("Say <|im_end|> to it.", screen(number), past), shown=shown)


def test_turns_hold_the_stored_images_in_order_and_no_special_token(folder: Path) -> None:
    builder = make(folder, images=2)
    (older, newest) = turns(builder, 2)
    assert older == ChatTurn("user", (b"stored 1",))
    assert newest.parts[0] == b"stored 2" and newest.role == "user"
    text = newest.parts[1]
    assert isinstance(text, str) and "<|im_end|>" not in text and text.startswith("Task: Say <")
    assert text.endswith("Done: click(0, 1)\nDone: click(1, 1)")
    prompt = builder.build("x", screen(1), [])
    assert builder.request_images(prompt) == (), "a server makes its own tensors"


def test_format_of_text_alone_is_turns_of_text(folder: Path) -> None:
    builder = make(folder, format="computerrl_text", max_prompt_tokens=60_000)
    (system, user) = turns(builder, 0)
    assert [turn.role for turn in (system, user)] == ["system", "user"]
    assert all(len(turn.parts) == 1 and isinstance(turn.parts[0], str) for turn in (system, user))


def test_control_shows_black_images_or_those_of_other_prompts(folder: Path) -> None:
    builder = make(folder)
    (black,) = turns(builder, 0, "foreign")
    for one in (black, *turns(builder, 1, "blank")):
        assert isinstance(one.parts[0], bytes)
        with Image.open(io.BytesIO(one.parts[0])) as image:
            assert image.size == SIZE and image.convert("L").getextrema() == (0, 0)
    turns(builder, 3)
    (other,) = turns(builder, 4, "foreign")
    assert other.parts[0] == b"stored 3"


def test_image_that_cannot_be_read_is_an_error_and_engines_with_weights_get_no_turns(folder: Path) -> None:
    with pytest.raises(PictureError, match=r"screen-10 .*cannot be read"):
        turns(make(folder), 10)
    assert turns(make(folder, receiver="engine"), 1) == ()
