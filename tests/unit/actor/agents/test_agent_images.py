"""An agent that shows its policy the screen: the image is known by its name, sampled on, and trained on."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from computerrl.actor.agents.policy_endpoint import MODEL, PolicyEndpoint
from computerrl.actor.agents.server import AgentServer
from computerrl.common.config import load_config
from computerrl.common.messages import ScreenshotRef
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.serial import run_serial
from tests.support.data.actor_data import make_observation
from tests.support.data.image_prompts import make_folder
from tests.unit.actor.agents.test_policy_endpoint import ask, chat, open_session
from tests.unit.images.test_engine_process_images import Shown

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("shown"))


def served(shown: Shown, **options: Any) -> AgentServer:
    return AgentServer(PolicyEndpoint(shown.tokenizer, max_prompt_tokens=400, max_new_tokens=8, images=shown.images, **options))


@pytest.fixture
def server(shown: Shown) -> Iterator[AgentServer]:
    made = served(shown)
    yield made
    made.close()


def part(data: bytes | str) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}" if isinstance(data, bytes) else data
    return {"type": "image_url", "image_url": {"url": url}}


def turns(*contents: list[Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content} for content in contents]}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def looked_at(server: AgentServer, *refs: ScreenshotRef) -> tuple[str, Any, Any]:
    """(key, session, engine) of an agent that has seen ``refs``."""
    key, session, engine = open_session(server, "a", "b")
    for ref in refs:
        session.see(msgspec.structs.replace(make_observation(), screenshot=ref))
    return key, session, engine


@pytest.mark.parametrize("is_central", [False, True])
def test_screens_are_in_the_prompt_in_the_request_and_with_the_completion(shown: Shown, is_central: bool) -> None:
    server = served(shown, is_central=is_central)
    try:
        first, second = shown.take(1), shown.take(2)
        key, session, engine = looked_at(server, first, second)
        body = turns([text("Before."), part(shown.images.encoded(first))], [part(shown.images.encoded(second)), text("Now.")])
        status, reply = ask(server, key, body)
        assert status == 200, reply
        (call,), _ = session.take_calls()
        assert call.images == (first, second)
        assert list(call.prompt_tokens).count(shown.images.token) == sum(map(shown.images.num_pieces, (first, second)))
        (request,) = engine.requests
        assert np.array_equal(request.prompt_tokens, call.prompt_tokens)
        sent = [one.ref for one in request.sent] if is_central else [one.content_hash for one in request.images]
        assert sent == ([first, second] if is_central else [first.content_hash, second.content_hash])
        assert not (request.images if is_central else request.sent)
    finally:
        server.close()


def test_what_is_no_screen_of_the_episode_is_refused_by_its_reason_and_samples_nothing(server: AgentServer, shown: Shown) -> None:
    seen, unseen = shown.take(1), shown.take(3)
    key, session, engine = looked_at(server, seen)
    own = shown.images.encoded(seen)
    table: list[tuple[list[Any], str]] = [
        ([part(shown.images.encoded(unseen))], "screens of its desktop alone"),
        ([part(own + b"\0")], "screens of its desktop alone"),
        ([part(own), part(own)], "one image at most"),
        ([part("http://127.0.0.1/screen.png")], "nothing is fetched"),
        ([part("data:text/plain;base64,aGk=")], "nothing is fetched"),
        ([part("data:image/png;base64,###")], "no base64"),
        ([{"type": "image_url", "image_url": []}], "nothing is fetched"),
        ([{"type": "image_url"}], "nothing is fetched"),
        ([{"type": "input_audio"}], "text and image_url"),
        ([text("many words " * 200), part(own)], "a prompt may have 400"),
    ]
    for content, reason in table:
        status, reply = ask(server, key, turns(content))
        assert status == 400 and reason in reply["error"]["message"], (content, reply)
    assert not engine.requests and session.take_calls() == ((), "")


def test_a_policy_without_eyes_says_which_setting_gives_it_some(shown: Shown) -> None:
    server = AgentServer(PolicyEndpoint(shown.tokenizer, max_prompt_tokens=400, max_new_tokens=8))
    try:
        key, _, _ = looked_at(server, seen := shown.take(1))
        status, reply = ask(server, key, turns([part(shown.images.encoded(seen))]))
        assert status == 400 and "actor.prompt.format" in reply["error"]["message"]
        assert ask(server, key, chat("words alone"))[0] == 200
    finally:
        server.close()


LOOKER = """
import base64, json, urllib.request


class Looker:
    def __init__(self, base_url, api_key, model):
        self.url, self.key, self.model, self.seen = base_url, api_key, model, []

    def predict(self, instruction, observation):
        self.seen.append(base64.b64encode(observation["screenshot"]).decode())
        show = lambda data: {"type": "image_url", "image_url": {"url": "data:image/webp;base64," + data}}
        contents = [[show(data), {"type": "text", "text": instruction}] for data in self.seen[-2:]]
        body = {"model": self.model, "messages": [{"role": "user", "content": content} for content in contents]}
        request = urllib.request.Request(self.url + "/chat/completions", json.dumps(body).encode(),
                                         {"Authorization": "Bearer " + self.key})
        return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"]


def demonstrate(messages, action):
    return action
"""


def test_run_trains_an_agent_on_the_screens_that_it_showed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs of engine and learner are compared: an image that one of them misses would end the run."""
    (tmp_path / "looker.py").write_text(LOOKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = [
        f"model.name={make_folder(tmp_path / 'model', 'qwen3_vl')}",
        f"run_dir={tmp_path}",
        "tasks.families=[calc-set-cell]",
        "actor.agent={kind: 'looker:Looker', demonstrate: 'looker:demonstrate'}",
        "actor.prompt={format: compact_vision, max_prompt_tokens: 600}",
        "actor.max_new_tokens=60",
        "actor.num_threads=1",
        "learner.num_threads=1",
        "learner.max_logprob_gap=0.001",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0
    assert state.sft_steps and len(state.updates) == 2
    kept = read_json_lines(config.folder / "trajectories" / "samples.jsonl")
    shown = [len(step["images"]) for one in kept for step in one["steps"]]
    assert shown and set(shown) == {1, 2}
