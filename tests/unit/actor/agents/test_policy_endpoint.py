"""The run's policy behind OpenAI's interface: exact samples, refusals by name, and a whole run that trains an agent."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computerrl.actor.agents.base import Sight
from computerrl.actor.agents.module_agent import ModuleAgent
from computerrl.actor.agents.policy_endpoint import MODEL, PolicyEndpoint, Session
from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.episode import play_episode
from computerrl.common.config import AgentConfig, load_config
from computerrl.common.errors import EngineFailed
from computerrl.common.messages import Trajectory
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.serial import run_serial
from tests.support.data.actor_data import (
    EOS,
    ByteTokenizer,
    FakeDesktops,
    ScriptedEngine,
    make_assignment,
    make_observation,
    make_prompt,
)

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
SETTING = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32)


@pytest.fixture
def endpoint() -> Iterator[PolicyEndpoint]:
    made = PolicyEndpoint(make_prompt(), ByteTokenizer(), max_prompt_tokens=400, max_new_tokens=32)
    yield made
    made.close()


def open_session(endpoint: PolicyEndpoint, *answers: str | Exception, max_calls: int = 4) -> tuple[Session, ScriptedEngine]:
    engine = ScriptedEngine(*answers)
    return endpoint.open(engine, make_assignment(), max_calls=max_calls), engine


def ask(endpoint: PolicyEndpoint, key: str, body: Any, *, path: str = "chat/completions") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{endpoint.url}/{path}", data=data, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
            return reply.status, text.decode() if b"data: " in text[:6] else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": MODEL, "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], **more}


def test_completion_is_kept_with_the_tokens_that_the_engine_got_and_gave(endpoint: PolicyEndpoint) -> None:
    session, engine = open_session(endpoint, "click(1)\n")
    status, reply = ask(endpoint, session.key, chat("Do it.", max_tokens=20))
    (call,), failure = session.take_calls()
    assert (status, failure, reply["choices"][0]["message"]["content"]) == (200, "", call.completion.text)
    (request,) = engine.requests
    assert np.array_equal(call.prompt_tokens, request.prompt_tokens) and request.max_new_tokens == 20
    assert request.temperature == make_assignment().temperature and request.may_be_older
    assert reply["usage"]["prompt_tokens"] == len(call.prompt_tokens)
    assert reply["usage"]["completion_tokens"] == len(call.completion.tokens) == len(call.completion.logprobs)
    assert session.take_calls() == ((), "")


def test_stop_words_cut_the_sample_after_the_token_that_completes_them(endpoint: PolicyEndpoint) -> None:
    session, _ = open_session(endpoint, "Thought: x\nObservation: made up\n")
    _, reply = ask(endpoint, session.key, chat("Go.", stop=["nothing", "\nObservation:"]))
    (call,), _ = session.take_calls()
    assert reply["choices"][0]["message"]["content"] == "Thought: x"
    assert bytes(call.completion.tokens.tolist()).decode().strip() == "Thought: x\nObservation:"
    assert len(call.completion.logprobs) == len(call.completion.policy_versions) == len(call.completion.tokens)


def test_stream_holds_the_same_text(endpoint: PolicyEndpoint) -> None:
    session, _ = open_session(endpoint, "click(1)\n")
    _, text = ask(endpoint, session.key, chat("Go.", stream=True))
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line and "[DONE]" not in line]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks).strip() == "click(1)"
    assert text.endswith("data: [DONE]\n\n") and chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"no JSON", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        ([], 400, "no JSON object"),
        ({"model": MODEL}, 400, "no list of turns"),
        (chat("x", tools=[{}]), 400, "no tools"),
        (chat("x", n=2), 400, "n is 1"),
        (chat("x", max_tokens=0), 400, "max_tokens"),
        (chat("x", max_tokens="many"), 400, "max_tokens"),
        (chat("x", stop=[1]), 400, "stop"),
        (chat("x" * 500), 400, "500 tokens|tokens, and a prompt may have 400"),
        ({"model": MODEL, "messages": [{"role": "tool", "content": "x"}]}, 400, "role"),
        ({"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "no images"),
        ({"model": MODEL, "messages": ["x"]}, 400, "role"),
        (b" " * (9 << 20), 413, "at most 8 MiB"),
    ],
)
def test_request_that_is_not_answered_says_why_and_samples_nothing(
    body: Any, status: int, reason: str, endpoint: PolicyEndpoint
) -> None:
    session, engine = open_session(endpoint)
    found, reply = ask(endpoint, session.key, body)
    assert found == status and any(word in reply["error"]["message"] for word in reason.split("|")), reply
    assert not engine.requests and session.take_calls() == ((), "")


def test_key_of_another_episode_or_of_one_that_has_ended_opens_nothing(endpoint: PolicyEndpoint) -> None:
    session, engine = open_session(endpoint, "x\n")
    for key in ("", "guess", session.key[:-1]):
        assert ask(endpoint, key, chat("x"))[0] == 401
    endpoint.end(session)
    assert ask(endpoint, session.key, chat("x"))[0] == 401 and not engine.requests
    assert endpoint.metrics()["actor/agent_refused_total"] == 4


def test_another_model_fails_the_agent_and_a_broken_engine_the_episode(endpoint: PolicyEndpoint) -> None:
    session, _ = open_session(endpoint)
    assert ask(endpoint, session.key, {**chat("x"), "model": "gpt"})[0] == 404
    assert "'gpt'" in session.take_calls()[1]
    session, _ = open_session(endpoint, EngineFailed("gone"))
    assert ask(endpoint, session.key, chat("x"))[0] == 503
    with pytest.raises(EngineFailed, match="gone"):
        session.take_calls()


def test_side_by_side_calls_are_all_kept_up_to_the_limit_and_rewritten_prompts_are_counted(endpoint: PolicyEndpoint) -> None:
    session, _ = open_session(endpoint, *["word\n"] * 4)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: ask(endpoint, session.key, chat(f"Call {number}."))[0], range(6)))
    assert sorted(found) == [200] * 4 + [429] * 2 and len(session.take_calls()[0]) == 4
    assert endpoint.metrics()["actor/agent_calls_total"] == 4 and endpoint.metrics()["actor/agent_rewritten_total"] == 3


AGENT = '''
import json, re, urllib.request


class Reasoner:
    """Asks twice for each action: what to do, and how to say it."""

    def __init__(self, base_url, api_key, model, asks=2):
        self.url, self.key, self.model, self.asks = base_url, api_key, model, asks

    def predict(self, instruction, observation):
        text = instruction
        for number in range(self.asks):
            body = {"model": self.model, "messages": [{"role": "user", "content": f"{number}: {text[:40]}"}]}
            request = urllib.request.Request(self.url + "/chat/completions", json.dumps(body).encode(),
                                             {"Authorization": "Bearer " + self.key})
            text = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"]
        return text.strip() if self.asks else "wait()"


class Gambler(Reasoner):
    """Solves its task itself where the policy's completion has an even number of letters."""

    def predict(self, instruction, observation):
        text = super().predict(instruction, observation)
        found = re.fullmatch(r"Set cell (\\w+) to (.+)\\.|Put (.+) into cell (\\w+)\\.", instruction)
        cell, value = (found[1], found[2]) if found[1] else (found[4], found[3])
        return f'calc.set_cell("{cell}", "{value}")' if len(text) % 2 == 0 else "wait()"
'''


@pytest.fixture
def agent_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reasoner.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def play_agent(endpoint: PolicyEndpoint, engine: ScriptedEngine, desktops: FakeDesktops, **options: Any) -> Trajectory:
    agent = ModuleAgent(AgentConfig(kind="reasoner:Reasoner", timeout_s=30.0, options=options), endpoint)
    return play_episode(make_assignment(), desktops, engine, agent, setting=SETTING)  # type: ignore[arg-type]


@pytest.mark.usefixtures("agent_file")
def test_every_completion_of_an_episode_is_a_step_in_the_order_in_which_it_was_sampled(endpoint: PolicyEndpoint) -> None:
    engine = ScriptedEngine("click it\n", "click(1)\n", "again\n", "no action\n", "end\n", "done()\n")
    trajectory = play_agent(endpoint, engine, FakeDesktops())
    assert [step.action_text.strip() for step in trajectory.steps] == [
        "click it", "click(1)", "again", "no action", "end", "done()",
    ]  # fmt: skip
    assert [step.format_ok for step in trajectory.steps] == [True, True, True, False, True, True]
    assert trajectory.end_reason == "done_action" and trajectory.success
    for step, request in zip(trajectory.steps, engine.requests, strict=True):
        assert np.array_equal(step.prompt_tokens, request.prompt_tokens)
        assert len(step.action_tokens) == len(step.behavior_logprobs) == len(step.policy_versions) > 0
    assert not endpoint._sessions, "the key of the episode is gone"


@pytest.mark.usefixtures("agent_file")
def test_action_without_a_completion_is_done_and_is_no_step(endpoint: PolicyEndpoint) -> None:
    desktops = FakeDesktops()
    trajectory = play_agent(endpoint, ScriptedEngine(), desktops, asks=0)
    assert trajectory.steps == () and [action.name for action in desktops.actions] == ["wait"] * 4


@pytest.mark.usefixtures("agent_file")
def test_agent_that_asks_too_often_fails_and_what_it_sampled_is_kept(endpoint: PolicyEndpoint) -> None:
    trajectory = play_agent(endpoint, ScriptedEngine(*["word\n"] * 9), FakeDesktops(), asks=9)
    assert trajectory.end_reason == "agent_failed" and len(trajectory.steps) == 4
    assert "429" in trajectory.steps[-1].action_error and not trajectory.steps[-1].format_ok


@pytest.mark.usefixtures("agent_file")
def test_agent_that_goes_on_after_its_episode_gets_no_more(endpoint: PolicyEndpoint) -> None:
    agent = ModuleAgent(AgentConfig(kind="reasoner:Reasoner"), endpoint)
    conversation = agent.begin("Do it.", assignment=make_assignment(), engine=ScriptedEngine("x\n", "wait()\n"))  # type: ignore[arg-type]
    assert conversation.act(Sight(make_observation(), None, "")).action is not None
    conversation.close()
    late = conversation.act(Sight(make_observation(), None, ""))
    assert "401" in late.failure and late.calls == ()


@pytest.mark.usefixtures("agent_file")
def test_run_trains_an_agent_and_loses_none_of_its_samples(tmp_path: Path) -> None:
    overrides = [
        "tasks.families=[calc-set-cell]",
        f"run_dir={tmp_path / 'runs'}",
        "actor.agent={kind: 'reasoner:Gambler', max_calls: 2}",
        "learner.recipe.demos_per_family=0",
        "learner.group_size=4",
        "learner.num_threads=1",
        "actor.num_threads=1",
        "tasks.max_steps=2",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    before = threading.active_count()
    state = run_serial(config)
    assert threading.active_count() <= before + 2, "the server has ended"
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0
    training = [one for one in read_json_lines(RunFolder(config.folder).episodes_path) if one["kind"] == "training"]
    assert len({episode["trajectory_id"] for episode in training}) == len(training) > 0
    assert all(len(episode["steps"]) in (2, 4) for episode in training), "two completions for each action"
    assert {episode["success"] for episode in training} == {False, True}
    assert sum(update["num_tokens"] for update in state.updates) > 0, "groups with a signal were trained"


def test_end_of_text_is_the_byte_tokenizer_s() -> None:
    assert EOS in make_prompt().stop_tokens
