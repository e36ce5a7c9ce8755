"""The engine that asks a server in turns of a chat: images by their bytes and in their order, text back, refusals by name."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from computerrl.actor.engines import patience
from computerrl.actor.engines.base import Completion, GenerationRequest
from computerrl.actor.engines.endpoint_engine import EndpointEngine
from computerrl.common.chat import ChatTurn
from computerrl.common.config import EndpointConfig, load_config
from computerrl.common.endpoint import Endpoint
from computerrl.common.errors import ConfigError, EngineFailed
from tests.support.data.chat_server import Answer, chat_server, images_of, said, texts_of

CONFIGS = Path(__file__).resolve().parents[4] / "configs"


def picture(kind: str, shade: int) -> bytes:
    """A small image, encoded as a screenshot store does."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 2 * shade, 200)).save(buffer, format=kind)
    return buffer.getvalue()


def ask(url: str, *turns: ChatTurn, most: int = 32, **endpoint: Any) -> Completion:
    server = Endpoint(EndpointConfig(url=url, mode="chat", **endpoint))
    engine = EndpointEngine(server, model="theirs", decode=str, num_live=1, seed=5)
    engine.load(3, {})
    request = GenerationRequest(np.array([1], np.int32), 0.7, most, frozenset({2}), chat=turns or (ChatTurn("user", ("Go.",)),))
    try:
        return engine.submit(request).result(30)
    finally:
        engine.close()


def test_server_gets_the_stored_bytes_of_every_image_in_order_and_text_comes_back() -> None:
    images = [picture("WEBP", 10), picture("PNG", 20), picture("JPEG", 30)]
    turns = (
        ChatTurn("system", ("You act.",)),
        ChatTurn("user", ("Task: x", images[0], "Done: wait()")),
        ChatTurn("assistant", ("wait()",)),
        ChatTurn("user", (images[1], images[2])),
    )
    with chat_server(lambda _: "click(500, 871)\n") as server:
        done = ask(server.url, *turns)
    (body,) = server.asked
    assert server.paths == ["/v1/chat/completions"]
    sent = images_of(body)
    assert [hashlib.sha256(data).digest() for _, data in sent] == [hashlib.sha256(data).digest() for data in images]
    assert [kind for kind, _ in sent] == ["image/webp", "image/png", "image/jpeg"]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][0]["content"] == "You act.", "text alone goes as text"
    assert [part["type"] for part in body["messages"][1]["content"]] == ["text", "image_url", "text"]
    del body["messages"]
    assert body == {"model": "theirs", "max_tokens": 32, "temperature": 0.7, "seed": 5}
    assert (done.text, done.finish) == ("click(500, 871)\n", "stop")
    assert [len(array) for array in (done.tokens, done.logprobs, done.policy_versions)] == [0, 0, 0]


def test_images_are_sent_as_png_where_that_is_asked_for() -> None:
    stored = [picture("WEBP", 10), picture("PNG", 20)]
    with chat_server(lambda _: "wait()") as server:
        ask(server.url, ChatTurn("user", tuple(stored)), image_format="png")
    (first, second) = images_of(server.asked[0])
    assert first[0] == "image/png" and first[1].startswith(b"\x89PNG") and second == ("image/png", stored[1])
    with Image.open(io.BytesIO(first[1])) as sent, Image.open(io.BytesIO(stored[0])) as kept:
        assert sent.convert("RGB").tobytes() == kept.convert("RGB").tobytes(), "of the stored pixels"


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (said("click(1, 2)", finish="length"), "click(1, 2)", "length"),
        (said("wait()", reasoning_content="so be it"), "<think>\nso be it\n</think>\nwait()", "stop"),
        (said("wait()", reasoning="so be it"), "<think>\nso be it\n</think>\nwait()", "stop"),
        (said(None, reasoning="so b", finish="length"), "<think>\nso b\n</think>\n", "length"),
        (said("a\ud800b"), "a?b", "stop"),
        (said(""), "", "stop"),
    ],
)
def test_text_of_a_reply_is_what_the_server_said(reply: dict[str, Any], text: str, finish: str) -> None:
    with chat_server(lambda _: (200, reply)) as server:
        done = ask(server.url)
    assert (done.text, done.finish) == (text, finish)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, {"error": {"message": "theirs is not a multimodal model"}}), "400: .*not a multimodal model"),
        ((413, {"error": "too large"}), "413: .*too large"),
        ((415, {"error": "no webp"}), "415: .*no webp"),
        ((401, "no"), "401"),
        ((200, {}), "without choices"),
        ((200, said(None)), "holds no text"),
        ((200, said([{"type": "text", "text": "x"}])), "holds no text"),
        ((200, said("x" * 100_000)), "100000 characters, and 1 tokens were allowed"),
        ((200, {"choices": [{"text": "x"}]}), "holds no text"),
    ],
)
def test_refusal_is_named_with_the_way_out_by_the_check_and_ends_a_request(answer: Answer, reason: str) -> None:
    with chat_server(lambda _: answer) as server:
        with pytest.raises(ConfigError, match=rf"actor\.endpoint: .*{reason}") as caught:
            Endpoint(EndpointConfig(url=server.url, mode="chat")).check_chat(images=[picture("PNG", 1)] * 3)
        assert all(problem.next_step for problem in caught.value.problems)
        if answer[0] in (400, 413, 415):
            assert "takes so many images" in caught.value.problems[0].next_step
        assert len(images_of(server.asked[0])) == 3
        with pytest.raises(EngineFailed, match=reason):
            ask(server.url, most=1)


def test_server_that_is_busy_or_breaks_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_BACKOFF_S", (0.01, 0.02))
    answers = iter([(503, "loading"), (429, "later"), (500, ""), "wait()"])
    with chat_server(lambda _: next(answers)) as server:
        assert ask(server.url).text == "wait()"
    assert len(server.asked) == 4


def test_server_of_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with chat_server(texts_of) as server:
        assert ask(server.url).text == "Go."


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("learner.recipe.max_updates=1",), "neither token ids nor log-probs"),
        (("learner.recipe.demos_per_family=1",), "neither token ids nor log-probs"),
        (("actor.prompt.chat_template=false",), "set it to true"),
        (("actor.endpoint.mode=tokens",), "set it to chat"),
        (("desktop.observation=tree",), "holds no screenshot"),
    ],
)
def test_configuration_that_a_chat_cannot_carry_out_is_refused_with_the_reason(overrides: tuple[str, ...], reason: str) -> None:
    usual = (
        "actor.engine=endpoint",
        "actor.endpoint={url: 'http://127.0.0.1:1/v1', mode: chat}",
        "actor.prompt={format: compact_vision, chat_template: true}",
        "learner.recipe.max_updates=0",
        "learner.recipe.demos_per_family=0",
    )
    load_config(CONFIGS / "smoke.yaml", overrides=usual)
    with pytest.raises(ConfigError, match=reason):
        load_config(CONFIGS / "smoke.yaml", overrides=(*usual, *overrides))
