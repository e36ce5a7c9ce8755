"""Whole evaluations of agents with a model of their own, with imitated desktops: each published interface, and a Python class."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.config import TasksConfig
from computerrl.common.errors import ConfigError, EndpointRefused
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import content_hash
from computerrl.env_server.tasks import FAMILIES
from computerrl.launch.run.evaluate import Wish, evaluate
from computerrl.launch.run.preflight import PreflightFailed
from computerrl.launch.web.episodes import Episodes, Wanted
from tests.support.data.actor_data import make_observation
from tests.support.data.chat_server import Answer, chat_server

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
FAMILY, FIRST_SEED = "calc-set-cell", TasksConfig().evaluation_seeds[0]
NUM_TASKS, KEY = 3, "a-key-that-no-log-shows"
Call = tuple[str, dict[str, Any]]


def instances() -> dict[str, dict[str, Any]]:
    """Instruction of each task -> arguments of the call that solves it."""
    made = [FAMILIES[FAMILY].make(FIRST_SEED + number) for number in range(NUM_TASKS)]
    return {one.instruction: dict(one.demonstrate("", make_observation(), (), lambda kind: None).args) for one in made}


def next_call(body: dict[str, Any], num_said: int) -> Call | None:
    """Looks, does one thing that cannot be done, solves the task, and is done; None: nobody has given a task."""
    text = json.dumps(body, ensure_ascii=False)
    args = next((args for instruction, args in instances().items() if json.dumps(instruction)[1:-1] in text), None)
    if args is None:
        return None
    calls: list[Call] = [
        ("wait", {}),
        ("calc_set_cell", {"cell": "no cell"}),
        ("calc_set_cell", {"cell": args["cell"], "value": str(args["value"])}),
        ("done", {}),
    ]
    return calls[num_said]


def answer_chat(body: dict[str, Any]) -> Answer:
    said = [message for message in body["messages"] if message["role"] == "assistant"]
    results = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert results == [call["id"] for message in said for call in message["tool_calls"]], "each call is answered once"
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    call = next_call(body, len(said))
    if call is None:
        return 200, {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}], "usage": usage}
    function = {"name": call[0], "arguments": json.dumps(call[1])}
    message = {
        "role": "assistant",
        "content": "Next.",
        "tool_calls": [{"id": f"c{len(said)}", "type": "function", "function": function}],
    }
    return 200, {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}


def answer_responses(body: dict[str, Any]) -> Answer:
    items = body["input"]
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert [item["call_id"] for item in items if item.get("type") == "function_call_output"] == calls
    assert sum(item.get("type") == "reasoning" for item in items) == len(calls), "thoughts come back as they were"
    assert body["store"] is False
    usage = {"input_tokens": 100, "output_tokens": 7}
    call = next_call(body, len(calls))
    if call is None:
        return 200, {"output": [{"type": "message", "content": [{"type": "output_text", "text": "ok"}]}], "usage": usage}
    asked = {"type": "function_call", "call_id": f"c{len(calls)}", "name": call[0], "arguments": json.dumps(call[1])}
    return 200, {"output": [{"type": "reasoning", "encrypted_content": "x"}, asked], "usage": usage}


def answer_messages(body: dict[str, Any]) -> Answer:
    said = [message for message in body["messages"] if message["role"] == "assistant"]
    usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 7}
    call = next_call(body, len(said))
    if call is None:
        return 200, {"content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn", "usage": usage}
    if call[0] == "done":  # a model with a tool of its own just stops
        return 200, {"content": [{"type": "text", "text": "All done."}], "stop_reason": "end_turn", "usage": usage}
    name, arguments = ("computer", {"action": "wait", "duration": 1}) if call[0] == "wait" else call
    look = {"type": "tool_use", "id": f"l{len(said)}", "name": "computer", "input": {"action": "screenshot"}}
    asked = {"type": "tool_use", "id": f"c{len(said)}", "name": name, "input": arguments}
    return 200, {"content": [{"type": "text", "text": "Next."}, look, asked], "stop_reason": "tool_use", "usage": usage}


def images_in(tree: Any) -> list[bytes]:
    """Images anywhere in a request, in their order."""
    if isinstance(tree, list):
        return [image for one in tree for image in images_in(one)]
    if isinstance(tree, str):
        return [base64.b64decode(tree.partition(",")[2])] if tree.startswith("data:image/") else []
    if not isinstance(tree, dict):
        return []
    if tree.get("type") == "base64":
        return [base64.b64decode(tree["data"])]
    return [image for one in tree.values() for image in images_in(one)]


SERVICES: dict[str, tuple[str, Callable[[dict[str, Any]], Answer], str, tuple[str, ...]]] = {
    "chat": ("openai", answer_chat, "/v1/chat/completions", ()),
    "responses": ("openai", answer_responses, "/v1/responses", ("actor.agent.interface=responses",)),
    "messages": ("anthropic", answer_messages, "/v1/messages", ()),
}


@pytest.mark.parametrize("name", SERVICES)
def test_model_of_each_interface_solves_tasks_by_calling_tools(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, answer, path, more = SERVICES[name]
    monkeypatch.chdir(tmp_path)
    variable = kind.upper()
    monkeypatch.setenv(f"{variable}_API_KEY", KEY)
    overrides = ("tasks.max_steps=6", "actor.agent.images=2", "actor.agent.input_price=3", "actor.agent.output_price=15", *more)
    with chat_server(answer) as server:
        monkeypatch.setenv(f"{variable}_BASE_URL", server.url if kind == "openai" else server.url.removesuffix("/v1"))
        wish = Wish("theirs", agent=kind, config=CONFIG, families=(FAMILY,), episodes=NUM_TASKS, overrides=overrides)
        assert evaluate(wish) == 0
    folder = tmp_path / "runs" / "eval-theirs"
    figures = json.loads((folder / "evaluation.json").read_text())
    assert figures["all"]["num_rollouts"] == NUM_TASKS and figures["all"]["pass@1"]["mean"] == 1.0
    num_requests = 4 * NUM_TASKS
    cost = (100 * num_requests * 3 + 7 * num_requests * 15) / 1e6
    assert (figures["model"], figures["agent"], figures["endpoint"]) == ("theirs", kind, server.url)
    assert figures["usage"] == pytest.approx(
        {
            "input_tokens": 100 * num_requests,
            "output_tokens": 7 * num_requests,
            "num_requests": num_requests,
            "cost": cost,
            "num_agent_failed": 0,
        }
    )
    assert f"{num_requests} requests" in capsys.readouterr().out

    assert set(server.paths) == {path}
    sent = {key: server.headers[0].get(key) for key in ("authorization", "x-api-key")}
    assert sent == {
        "authorization": None if kind == "anthropic" else f"Bearer {KEY}",
        "x-api-key": KEY if kind == "anthropic" else None,
    }
    episodes = read_json_lines(RunFolder(folder).episodes_path)
    stored = {step["screenshot"]["content_hash"] for episode in episodes for step in episode["steps"]}
    images = [images_in(body) for body in server.asked]
    assert {content_hash(image) for of_body in images for image in of_body} <= stored and max(map(len, images)) == 2
    for episode in episodes:
        errors = [step["action_error"] for step in episode["steps"]]
        assert errors[0] == "" and "value" in errors[1] and errors[2] == "" and episode["end_reason"] == "done_action"
        assert "calc.set_cell(" in episode["steps"][2]["action_text"]
    assert not [file for file in folder.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]

    # What people see of it.
    shown = Episodes(RunFolder(folder), model="smollm2-135m")
    shown.refresh()
    (row, *_) = shown.list(Wanted())["rows"]
    steps = shown.get(row["trajectory_id"])["steps"]
    assert [step["tokens"] for step in steps] == [[]] * len(steps)
    assert (
        "theirs" in (folder / "evaluation.html").read_text()
        and f"{7 * num_requests:,} of them out" in (folder / "evaluation.html").read_text()
    )


AGENT = '''
class Mine:
    """Solves the first task, and fails in the ways that a class can."""

    def __init__(self, solution=None, fails=""):
        self.solution, self.fails, self.seen = solution, fails, []

    def predict(self, instruction, observation):
        self.seen.append(observation)
        if self.fails == "raises":
            raise RuntimeError("my model is gone")
        if self.fails == "returns nothing":
            return None
        if self.fails == "hangs":
            import time
            time.sleep(600)
        assert {"app", "window_title", "elements", "rows", "screenshot", "screen_width", "result", "error"} <= set(observation)
        if len(self.seen) == 1:
            return "I would rather not"
        assert "not one function call" in observation["error"]
        return self.solution if len(self.seen) == 2 else "done()"
'''


def module_wish(tmp_path: Path, *overrides: str) -> Wish:
    (tmp_path / "mine_agent.py").write_text(AGENT)
    overrides = ("tasks.max_steps=6", *overrides)
    return Wish("mine", agent="mine_agent:Mine", config=CONFIG, families=(FAMILY,), episodes=1, overrides=overrides)


def test_class_of_somebody_else_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = next(iter(instances().values()))
    solution = f'calc.set_cell("{args["cell"]}", "{args["value"]}")'
    assert evaluate(module_wish(tmp_path, f"actor.agent.options.solution={json.dumps(solution)}")) == 0
    figures = json.loads((tmp_path / "runs" / "eval-mine" / "evaluation.json").read_text())
    assert figures["all"]["pass@1"]["mean"] == 1.0 and figures["model"] == "mine_agent:Mine"


@pytest.mark.parametrize("fails", ["raises", "returns nothing", "hangs"])
def test_agent_that_fails_ends_its_episode_which_is_judged(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = (f"actor.agent.options.fails={fails}", "actor.agent.timeout_s=0.5")
    assert evaluate(module_wish(tmp_path, *overrides)) == 0
    (episode,) = read_json_lines(RunFolder(tmp_path / "runs" / "eval-mine").episodes_path)
    assert (episode["end_reason"], episode["success"], len(episode["steps"])) == ("agent_failed", False, 1)
    assert "predict" in episode["steps"][0]["action_error"]
    figures = json.loads((tmp_path / "runs" / "eval-mine" / "evaluation.json").read_text())
    assert figures["usage"]["num_agent_failed"] == 1


@pytest.mark.parametrize(
    ("wish", "field", "reason"),
    [
        (Wish("theirs", agent="openai"), "--config", "no configuration"),
        (Wish("theirs", agent="openai", config=CONFIG), "--endpoint", "no address"),
        (Wish("mine", agent="no_such:Thing", config=CONFIG), "actor.agent.kind", "cannot be imported"),
        (Wish("mine", agent="json:loads", config=CONFIG), "actor.agent.kind", "cannot be made"),
        (Wish("mine", agent="threading:Event", config=CONFIG), "actor.agent.kind", "no method predict"),
        (Wish("mine", agent="robot", config=CONFIG), "actor.agent.kind", "robot"),
        (Wish("mine", "http://127.0.0.1:1/v1", agent="threading:Event", config=CONFIG), "--endpoint", "goes with"),
        (
            Wish("theirs", "http://127.0.0.1:1/v1", agent="anthropic", config=CONFIG, overrides=("desktop.observation=tree",)),
            "desktop.observation",
            "pictures",
        ),
        (
            Wish("theirs", "http://127.0.0.1:1/v1", agent="openai", config=CONFIG, overrides=("learner.recipe.max_updates=2",)),
            "actor.engine",
            "only evaluate",
        ),
        (
            Wish(
                "theirs",
                "http://127.0.0.1:1/v1",
                agent="openai",
                config=CONFIG,
                overrides=("actor.endpoint.key_variable=NO_KEY",),
            ),
            "actor.endpoint.key_variable",
            "NO_KEY",
        ),
    ],
)
def test_agent_that_cannot_play_is_refused_before_anything_starts(
    wish: Wish, field: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises((ConfigError, PreflightFailed)) as refused:
        evaluate(wish)
    assert re.search(f"{field}.*{reason}", str(refused.value)), refused.value
    assert not (tmp_path / "runs").exists()


def test_service_that_refuses_the_key_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with chat_server(lambda _: (401, {"error": f"key {KEY} is wrong"})) as server, pytest.raises(PreflightFailed) as refused:
        evaluate(Wish("theirs", server.url, agent="openai", config=CONFIG))
    said = str(refused.value)
    assert "401" in said and KEY not in said and "OPENAI_API_KEY" in said


def test_evaluation_that_a_service_broke_off_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[dict[str, Any]] = []
    refuses = True

    def answer(body: dict[str, Any]) -> Answer:
        asked.append(body)
        return (400, {"error": "no more credit"}) if refuses and len(asked) > 6 else answer_chat(body)

    wish = Wish("theirs", agent="openai", config=CONFIG, families=(FAMILY,), episodes=NUM_TASKS, overrides=("tasks.max_steps=6",))
    with chat_server(answer) as server:
        with pytest.raises(EndpointRefused, match="no more credit"):
            evaluate(replace(wish, endpoint=server.url))
        refuses = False
        assert evaluate(replace(wish, endpoint=server.url, resume=True)) == 0
    figures = json.loads((tmp_path / "runs" / "eval-theirs" / "evaluation.json").read_text())
    assert (figures["all"]["num_rollouts"], figures["all"]["pass@1"]["mean"]) == (NUM_TASKS, 1.0)
    assert figures["usage"]["num_requests"] == 4 * NUM_TASKS, "what a broken episode asked for is not counted twice"
    assert len({json.dumps(body) for body in asked}) < len(asked), "the broken episode was played again"
