"""A policy that is asked about one picture: what it is shown, and what its answers mean in each format."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from computerrl.actor.grounding import PicturePolicy
from computerrl.actor.prompts.formats import make_format
from computerrl.common.config import PromptConfig, RunConfig, load_config
from computerrl.common.config.actor import IMAGE_FORMATS
from computerrl.common.errors import PictureError
from computerrl.common.messages import Observation, ScreenshotRef, content_hash
from tests.support.data.chat_server import ChatServer, chat_server, images_of, texts_of
from tests.support.data.image_prompts import make_folder

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "serial.yaml"
SIZE = WIDTH, HEIGHT = 230, 170
INSTRUCTION = "find the needle"


def picture() -> tuple[ScreenshotRef, bytes]:
    buffer = io.BytesIO()
    Image.new("RGB", SIZE, (1, 2, 3)).save(buffer, format="PNG")
    data = buffer.getvalue()
    return ScreenshotRef(content_hash(data), "a.png", 0, len(data), *SIZE), data


REF, DATA = picture()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "theirs", "qwen3_vl")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(lambda body: "") as one:
        yield one


def config_of(folder: Path, server: ChatServer, name: str, *overrides: str) -> RunConfig:
    prompt = f"{{format: {name}, chat_template: true, window_title: false, max_prompt_tokens: 1984}}"
    asked = ("actor.engine=endpoint", f"actor.endpoint.url={server.url}", "actor.endpoint.mode=chat", "tasks.actions=gui")
    recipe = ("learner.recipe.demos_per_family=0", "learner.recipe.max_updates=0")
    mine = (f"model.name={folder}", f"actor.prompt={prompt}", "actor.max_new_tokens=64", *overrides)
    return load_config(CONFIG, overrides=(*asked, *recipe, *mine))


def screen() -> Observation:
    return Observation("", "", (), REF, *SIZE, "none", 0.0, "")


@pytest.mark.parametrize("name", sorted(IMAGE_FORMATS))
def test_answer_in_any_format_is_a_point_a_refusal_another_action_or_none(folder: Path, server: ChatServer, name: str) -> None:
    config = config_of(folder, server, name)
    policy = PicturePolicy(config, read=lambda ref: DATA)
    policy.start(config)
    form = make_format(PromptConfig.model_validate({"format": name}), actions="gui")

    def asked(completion: str) -> tuple[str, tuple[int, int] | None]:
        server.answer = lambda body: completion
        answer = policy.answer(REF, INSTRUCTION)
        assert answer.text == completion.strip() and (answer.kind in ("point", "fail")) == (not answer.reason)
        return answer.kind, answer.point

    for place in ((0, 0), (WIDTH - 1, HEIGHT - 1), (31, 47)):
        kind, point = asked(form.render(f"click({place[0]}, {place[1]})", screen()))
        assert kind == "point" and point is not None
        # Coordinates of a thousand are finer than these pixels.
        assert all(abs(found - wanted) <= 1 for found, wanted in zip(point, place, strict=True))
    assert asked(form.render("double_click(31, 47)", screen()))[0] == "point"
    assert asked(form.render("fail()", screen())) == ("fail", None)
    for call in ("done()", "wait()", "drag_pixels([1, 1, 90, 90])", 'scroll(31, 47, direction="down")', 'type("words")'):
        assert asked(form.render(call, screen())) == ("other_action", None), call
    for text in ("", "I cannot tell", "click(2000, 5)", 'click("needle")'):
        assert asked(text) == ("no_action", None), text
    for body in server.asked:
        assert [data for _, data in images_of(body)] == [DATA]
        texts = texts_of(body)
        assert INSTRUCTION in texts and "Application in front" not in texts
    policy.close()


def test_answer_that_is_cut_is_none(folder: Path, server: ChatServer) -> None:
    config = config_of(folder, server, "compact_vision")
    policy = PicturePolicy(config, read=lambda ref: DATA)
    policy.start(config)
    choice = {"message": {"role": "assistant", "content": "click(1, 2)"}, "finish_reason": "length"}
    server.answer = lambda body: (200, {"choices": [choice]})
    answer = policy.answer(REF, INSTRUCTION)
    assert answer.kind == "no_action" and "cut off after 64 tokens" in answer.reason
    policy.close()


def test_prompt_is_counted_without_reading_the_picture_and_grows_with_it(folder: Path, server: ChatServer) -> None:
    def gone(ref: ScreenshotRef) -> bytes:
        raise FileNotFoundError(ref.segment)

    config = config_of(folder, server, "compact_vision")
    policy = PicturePolicy(config, read=gone)
    numbers = [policy.num_tokens(ScreenshotRef("none", "none", 0, 0, side, side), "x") for side in (100, 200, 400)]
    assert numbers == sorted(set(numbers))
    assert policy.num_tokens(REF, "word " * 3000) > 1984, "nothing is left out of a prompt"
    with pytest.raises(PictureError, match="takes no picture"):
        policy.num_tokens(ScreenshotRef("none", "none", 0, 0, 1000, 2), "x")
    policy.start(config)
    with pytest.raises(PictureError, match="cannot be read"):
        policy.answer(REF, INSTRUCTION)
    policy.close()
