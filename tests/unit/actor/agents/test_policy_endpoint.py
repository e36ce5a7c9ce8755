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
from computerrl.actor.agents.module_agent import ModuleAgent, demonstrate_of
from computerrl.actor.agents.policy_endpoint import MODEL, PolicyEndpoint, PolicySession
from computerrl.actor.agents.server import Access, AgentServer
from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.episode import play_episode
from computerrl.actor.prompts.tokenizer import FolderTokenizer
from computerrl.common.config import AgentConfig, load_config
from computerrl.common.errors import ConfigError, EngineFailed
from computerrl.common.messages import Trajectory
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.serial import run_serial
from computerrl.learner.model_store import ensure_model
from tests.support.data.actor_data import (
    ByteTokenizer,
    FakeDesktops,
    ScriptedEngine,
    make_assignment,
    make_observation,
)

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
SETTING = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=32)


@pytest.fixture
def server() -> Iterator[AgentServer]:
    made = AgentServer(PolicyEndpoint(ByteTokenizer(), max_prompt_tokens=400, max_new_tokens=32))
    yield made
    made.close()


def open_session(server: AgentServer, *answers: str | Exception, max_calls: int = 4) -> tuple[str, PolicySession, ScriptedEngine]:
    """(key, session, engine)."""
    engine = ScriptedEngine(*answers)
    session = PolicySession(engine, make_assignment(), max_calls=max_calls)
    return server.open(Access(session)), session, engine


def ask(server: AgentServer, key: str, body: Any, *, path: str = "chat/completions") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}/{path}", data=data, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
            return reply.status, text.decode() if b"data: " in text[:6] else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": MODEL, "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)], **more}


def test_completion_is_kept_with_the_tokens_that_the_engine_got_and_gave(server: AgentServer) -> None:
    key, session, engine = open_session(server, "click(1)\n")
    status, reply = ask(server, key, chat("Do it.", max_tokens=20))
    (call,), failure = session.take_calls()
    assert (status, failure, reply["choices"][0]["message"]["content"]) == (200, "", call.completion.text)
    (request,) = engine.requests
    assert np.array_equal(call.prompt_tokens, request.prompt_tokens) and request.max_new_tokens == 20
    assert request.temperature == make_assignment().temperature and request.may_be_older
    assert reply["usage"]["prompt_tokens"] == len(call.prompt_tokens)
    assert reply["usage"]["completion_tokens"] == len(call.completion.tokens) == len(call.completion.logprobs)
    assert session.take_calls() == ((), "")


def test_stop_words_cut_the_sample_after_the_token_that_completes_them(server: AgentServer) -> None:
    key, session, _ = open_session(server, "Thought: x\nObservation: made up\n")
    _, reply = ask(server, key, chat("Go.", stop=["nothing", "\nObservation:"]))
    (call,), _ = session.take_calls()
    assert reply["choices"][0]["message"]["content"] == "Thought: x"
    assert bytes(call.completion.tokens.tolist()).decode().strip() == "Thought: x\nObservation:"
    assert len(call.completion.logprobs) == len(call.completion.policy_versions) == len(call.completion.tokens)


def test_stream_holds_the_same_text(server: AgentServer) -> None:
    key, _, _ = open_session(server, "click(1)\n")
    _, text = ask(server, key, chat("Go.", stream=True))
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
    body: Any, status: int, reason: str, server: AgentServer
) -> None:
    key, session, engine = open_session(server)
    found, reply = ask(server, key, body)
    assert found == status and any(word in reply["error"]["message"] for word in reason.split("|")), reply
    assert not engine.requests and session.take_calls() == ((), "")


def test_key_of_another_episode_or_of_one_that_has_ended_opens_nothing(server: AgentServer) -> None:
    key, _, engine = open_session(server, "x\n")
    for wrong in ("", "guess", key[:-1]):
        assert ask(server, wrong, chat("x"))[0] == 401
    server.end(key)
    assert ask(server, key, chat("x"))[0] == 401 and not engine.requests
    assert server.metrics()["actor/agent_refused_total"] == 4


def test_another_model_fails_the_agent_and_a_broken_engine_the_episode(server: AgentServer) -> None:
    key, session, _ = open_session(server)
    assert ask(server, key, {**chat("x"), "model": "gpt"})[0] == 404
    assert "'gpt'" in session.take_calls()[1]
    key, session, _ = open_session(server, EngineFailed("gone"))
    assert ask(server, key, chat("x"))[0] == 503
    with pytest.raises(EngineFailed, match="gone"):
        session.take_calls()


def test_side_by_side_calls_are_all_kept_up_to_the_limit_and_rewritten_prompts_are_counted(server: AgentServer) -> None:
    key, session, _ = open_session(server, *["word\n"] * 4)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: ask(server, key, chat(f"Call {number}."))[0], range(6)))
    assert sorted(found) == [200] * 4 + [429] * 2 and len(session.take_calls()[0]) == 4
    assert server.metrics()["actor/agent_calls_total"] == 4 and server.metrics()["actor/agent_rewritten_total"] == 3


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


class Pupil(Reasoner):
    def predict(self, instruction, observation):
        return super().predict(instruction, observation).removeprefix("Do ").removesuffix(".")


def right(messages, action):
    return "A thought." if messages[0]["content"].startswith("0") else f"Do {action}."


def rambling(messages, action):
    return right(messages, action) + "And so on. " * 9


def wrong(messages, action):
    return "Do wait()."


def broken(messages, action):
    return {}[action]


def mute(messages, action):
    return None


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


def play_agent(server: AgentServer, engine: ScriptedEngine, desktops: FakeDesktops, **options: Any) -> Trajectory:
    agent = ModuleAgent(AgentConfig(kind="reasoner:Reasoner", timeout_s=30.0, options=options), server)
    return play_episode(make_assignment(), desktops, engine, agent, setting=SETTING)  # type: ignore[arg-type]


@pytest.mark.usefixtures("agent_file")
def test_every_completion_of_an_episode_is_a_step_in_the_order_in_which_it_was_sampled(server: AgentServer) -> None:
    engine = ScriptedEngine("click it\n", "click(1)\n", "again\n", "no action\n", "end\n", "done()\n")
    trajectory = play_agent(server, engine, FakeDesktops())
    assert [step.action_text.strip() for step in trajectory.steps] == [
        "click it", "click(1)", "again", "no action", "end", "done()",
    ]  # fmt: skip
    assert [step.format_ok for step in trajectory.steps] == [True, True, True, False, True, True]
    assert trajectory.end_reason == "done_action" and trajectory.success
    for step, request in zip(trajectory.steps, engine.requests, strict=True):
        assert np.array_equal(step.prompt_tokens, request.prompt_tokens)
        assert len(step.action_tokens) == len(step.behavior_logprobs) == len(step.policy_versions) > 0
    assert not server._accesses, "the key of the episode is gone"


@pytest.mark.usefixtures("agent_file")
def test_action_without_a_completion_is_done_and_is_no_step(server: AgentServer) -> None:
    desktops = FakeDesktops()
    trajectory = play_agent(server, ScriptedEngine(), desktops, asks=0)
    assert trajectory.steps == () and [action.name for action in desktops.actions] == ["wait"] * 4


@pytest.mark.usefixtures("agent_file")
def test_agent_that_asks_too_often_fails_and_what_it_sampled_is_kept(server: AgentServer) -> None:
    trajectory = play_agent(server, ScriptedEngine(*["word\n"] * 9), FakeDesktops(), asks=9)
    assert trajectory.end_reason == "agent_failed" and len(trajectory.steps) == 4
    assert "429" in trajectory.steps[-1].action_error and not trajectory.steps[-1].format_ok


@pytest.mark.usefixtures("agent_file")
def test_agent_that_goes_on_after_its_episode_gets_no_more(server: AgentServer) -> None:
    agent = ModuleAgent(AgentConfig(kind="reasoner:Reasoner"), server)
    conversation = agent.begin("Do it.", assignment=make_assignment(), engine=ScriptedEngine("x\n", "wait()\n"))  # type: ignore[arg-type]
    assert conversation.act(Sight(make_observation(), None, "")).action is not None
    conversation.close()
    late = conversation.act(Sight(make_observation(), None, ""))
    assert "401" in late.failure and late.calls == ()


def play_demonstration(server: AgentServer, teacher: str) -> Trajectory:
    config = AgentConfig(kind="reasoner:Pupil", timeout_s=30.0, demonstrate=f"reasoner:{teacher}")
    agent = ModuleAgent(config, server)
    return play_episode(make_assignment(kind="demonstration"), FakeDesktops(), None, agent, setting=SETTING)  # type: ignore[arg-type]


@pytest.mark.usefixtures("agent_file")
def test_demonstration_is_what_the_policy_should_have_answered_in_the_agents_own_prompts(server: AgentServer) -> None:
    trajectory = play_demonstration(server, "right")
    assert [step.action_text for step in trajectory.steps] == ["A thought.", "click(1)", "A thought.", "done()"]
    assert trajectory.success and trajectory.end_reason == "done_action"
    answers = ["A thought.", "Do click(1).", "A thought.", "Do done()."]
    for step, answer in zip(trajectory.steps, answers, strict=True):
        assert step.action_tokens.tolist() == ByteTokenizer().encode_completion(answer)
        assert len(step.prompt_tokens) and not len(step.behavior_logprobs) and not len(step.policy_versions)
    assert bytes(trajectory.steps[1].prompt_tokens.tolist()).decode() == "<user>1: A thought.</user><assistant>"


@pytest.mark.usefixtures("agent_file")
@pytest.mark.parametrize(
    ("name", "end", "reason"),
    [
        ("wrong", "off_demonstration", "of what demonstrate answered, the agent made 'wait()'"),
        ("rambling", "agent_failed", "tokens, and a completion 32 at most"),
        ("broken", "agent_failed", "demonstrate raised KeyError"),
        ("mute", "agent_failed", "demonstrate returned NoneType"),
    ],
)
def test_demonstration_that_an_agent_cannot_give_is_none(
    name: str, end: str, reason: str, server: AgentServer, capsys: pytest.CaptureFixture[str]
) -> None:
    trajectory = play_demonstration(server, name)
    assert trajectory.end_reason == end and not trajectory.success and not trajectory.reward
    assert reason in capsys.readouterr().out


@pytest.mark.usefixtures("agent_file")
@pytest.mark.parametrize(
    ("teacher", "reason"),
    [("reasoner:nobody", "cannot be imported"), ("nowhere:right", "cannot be imported"), ("reasoner:__name__", "is no function")],
)
def test_teacher_that_is_none_is_refused_by_name(teacher: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"actor.agent.demonstrate.*{reason}"):
        demonstrate_of(AgentConfig(kind="reasoner:Pupil", demonstrate=teacher))


def test_run_that_begins_with_demonstrations_needs_to_know_what_the_agent_should_have_asked_for() -> None:
    with pytest.raises(ConfigError, match="demonstrate: is missing"):
        load_config(CONFIG, overrides=["actor.agent={kind: 'reasoner:Pupil'}"])


def test_completions_end_where_the_model_ends_a_turn_and_not_at_a_line(tmp_path: Path) -> None:
    folder = ensure_model("tiny-random")
    tokenizer = FolderTokenizer(folder)
    ended = AgentServer(PolicyEndpoint(tokenizer, max_prompt_tokens=400, max_new_tokens=32))
    try:
        key, _, engine = open_session(ended, "one\n")
        assert ask(ended, key, chat("Go."))[0] == 200
        (request,) = engine.requests
        assert tokenizer.end_of_turn() in request.stop_tokens
        assert not any("\n" in tokenizer.decode([token]) for token in request.stop_tokens)
    finally:
        ended.close()


@pytest.mark.usefixtures("agent_file")
def test_agent_is_cloned_from_its_own_prompts(tmp_path: Path) -> None:
    overrides = [
        "tasks.families=[calc-set-cell]",
        f"run_dir={tmp_path / 'runs'}",
        "actor.agent={kind: 'reasoner:Pupil', max_calls: 2, demonstrate: 'reasoner:right'}",
        "actor.max_new_tokens=48",
        "learner.recipe={demos_per_family: 2, max_updates: 0, eval_episodes_per_family: 0}",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    shown = [one for one in read_json_lines(RunFolder(config.folder).episodes_path) if one["kind"] == "demonstration"]
    assert len(shown) == 2 and all(one["success"] for one in shown), shown
    assert state.sft_steps, "they were cloned"


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
