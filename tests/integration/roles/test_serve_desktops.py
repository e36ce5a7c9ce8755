"""`computerrl serve-desktops` with real, contained desktops: clients that play and are killed, OpenEnv's, MCP's."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
import torch
from mcp import Client, StdioServerParameters
from websockets.sync.client import connect

from computerrl.common.models.folder import model_folder
from computerrl.launch.supervision import processes
from tests.foreign.environment import make_environment

ROOT = Path(__file__).resolve().parents[3]
FOREIGN, ORACLE = ROOT / "tests" / "foreign", ROOT / "tests" / "oracle"
START_LIMIT_S = 180.0
FAMILIES = "tasks.families=[web-click-button,calc-set-cell]"


class DesktopServer:
    """One `computerrl serve-desktops`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.token_file = folder / "token"
        self._output = folder / "output.txt"
        command = [sys.executable, "-m", "computerrl", "serve-desktops", str(ROOT / "configs" / "quickstart.yaml")]
        command += [FAMILIES, "--port", "0", "--token-file", str(self.token_file), *words]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        found = self.wait_for(lambda: re.search(r"^serving: (\S+)$", self.output, re.MULTILINE), "address")
        self.address = found[1]

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token_file.read_text()}"}

    def wait_for(self, look: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + START_LIMIT_S
        while not (found := look()):
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {START_LIMIT_S:g} s:\n{self.output}"
            time.sleep(0.1)
        return found

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, headers=self.headers, timeout=START_LIMIT_S, trust_env=False)

    def begin(self, client: httpx2.Client, **task: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """(headers of a new session, its first observation), as soon as a desktop is free."""

        def reset() -> httpx2.Response | None:
            reply = client.post("/reset", json=task)
            return None if reply.status_code == 429 else reply

        reply = self.wait_for(reset, "free desktop")
        assert reply.status_code == 200, reply.text
        return {"X-Session-Id": reply.headers["X-Session-Id"]}, reply.json()["observation"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., DesktopServer]]:
    started: list[DesktopServer] = []

    def begin(*words: str) -> DesktopServer:
        started.append(DesktopServer(tmp_path, *words))
        return started[-1]

    yield begin
    for server in started:
        family = processes.descendants([server.process.pid])
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=60)
        processes.kill_all(family & processes.parents().keys())


def test_task_is_solved_over_http_and_a_client_that_goes_gives_its_desktop_back(serve: Callable[..., DesktopServer]) -> None:
    server = serve("desktop.num_desktops=1")
    assert server.token_file.stat().st_mode & 0o777 == 0o600
    with server.client() as client:
        session, seen = server.begin(client, task="web-click-button", seed=3)
        wanted = seen["instruction"].split('"')[1]
        action = {"name": "click", "arguments": {"target": wanted}}
        last = client.post("/step", json={"action": action}, headers=session).json()
        assert (last["done"], last["reward"], last["observation"]["success"]) == (True, 1.0, True)
        assert client.post("/reset", json={}).status_code == 429
        assert client.delete("/session", headers=session).status_code == 204

        # A client that is killed in the middle of an episode.
        program = (
            "import json, os, sys\n"
            "from websockets.sync.client import connect\n"
            "with connect(sys.argv[1], additional_headers={'Authorization': sys.argv[2]}, max_size=None, proxy=None) as socket:\n"
            "    socket.send(json.dumps({'type': 'reset', 'data': {'task': 'calc-set-cell', 'seed': 5}}))\n"
            "    print(json.loads(socket.recv())['type'], flush=True)\n"
            "    os.kill(os.getpid(), 9)\n"
        )
        address = server.address.replace("http", "ws") + "/ws"
        killed = subprocess.run(
            [sys.executable, "-c", program, address, server.headers["Authorization"]],
            stdout=subprocess.PIPE,
            check=False,
            timeout=120,
        )
        assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"observation\n")
        session, seen = server.begin(client, task="calc-set-cell", seed=5)
        assert seen["instruction"] == "Set cell C7 to ocean."
        with connect(address, additional_headers=server.headers, max_size=None, proxy=None) as socket:
            assert json.loads(socket.recv())["data"]["code"] == "CAPACITY_REACHED"

    family = processes.descendants([server.process.pid])
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0, server.output
    assert not family & processes.parents().keys()
    assert {path.name for path in server.folder.iterdir()} == {"token", "output.txt"}
    assert server.token_file.read_text() not in server.output and "Traceback" not in server.output


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_openenv_s_own_client_plays_two_desktops_and_is_told_that_there_is_no_third(
    serve: Callable[..., DesktopServer], tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "openenv", FOREIGN / "openenv_requirements.txt")
    (tmp_path / "server").mkdir()
    server = DesktopServer(tmp_path / "server", "desktop.num_desktops=2")
    try:
        with server.client() as client:
            # Both are up.
            for session in [server.begin(client)[0] for _ in range(2)]:
                client.delete("/session", headers=session)
        solution = {"name": "calc.set_cell", "arguments": {"cell": "C7", "value": "ocean"}}
        plans = [
            {"task": "calc-set-cell", "seed": 5, "actions": [{"text": "click(3)"}, solution, {"text": "done()"}]},
            {"task": "calc-set-cell", "seed": 5, "actions": [{"text": "no action"}, {"text": "fail()"}]},
        ]
        command = [str(python), "-I", str(FOREIGN / "openenv_player.py"), server.address, server.token_file.read_text()]
        said = subprocess.run(command, input=json.dumps(plans).encode(), stdout=subprocess.PIPE, check=True, timeout=600).stdout
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0, server.output
    found = json.loads(said)
    solved, given_up = ([(one["reward"], one["done"]) for one in play["results"]] for play in found["played"])
    assert solved == [(0.0, False)] * 3 + [(1.0, True)] and given_up == [(0.0, False)] * 2 + [(0.0, True)]
    shown = found["played"][0]["results"][0]["observation"]
    assert (
        shown["screenshot"].startswith(b"RIFF".hex()) and shown["screenshot_format"] == "webp" and "cell" in shown["elements"][0]
    )
    assert found["played"][1]["results"][1]["observation"]["action_error"]
    assert found["played"][1]["state"] == {"episode_id": None, "step_count": 2, "task": "calc-set-cell", "seed": 5, "done": True}
    assert found["other"]["step_count"] == 0 and "CAPACITY_REACHED" in found["refused"]


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_desktop_env_and_a_published_agent_play_as_in_a_virtual_machine(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "osworld", ORACLE / "requirements.txt", FOREIGN / "osworld_requirements.txt")
    note, found_file = tmp_path / "note.txt", tmp_path / "found.json"
    note.write_text("some")
    (tmp_path / "server").mkdir()
    server = DesktopServer(
        tmp_path / "server", "desktop.num_desktops=1", "desktop.apps=[]", "desktop.image=full", "--allow-execute"
    )
    try:
        environment = {"COMPUTERRL_SERVER": server.address, "COMPUTERRL_TOKEN_FILE": str(server.token_file)}
        subprocess.run(
            [str(python), "-I", str(FOREIGN / "osworld_player.py"), str(ROOT / "examples"), str(found_file)],
            env={**os.environ, **environment},
            cwd=tmp_path,
            input=json.dumps({"note": str(note)}).encode(),
            check=True,
            timeout=900,
        )
        with server.client() as client:
            # `close` has given the only desktop back.
            client.delete("/session", headers=server.begin(client)[0])
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0, server.output
    found = json.loads(found_file.read_text())
    assert [found[name] for name in ("untouched", "solved", "after_reset", "given_up")] == [0.0, 1.0, 0.0, 0]
    assert found["picture"] == b"\x89PNG\r\n\x1a\n".hex() and "accessibility.ubuntu.example.org" in found["tree"]
    assert len(found["actions"]) == 5 and found["actions"][-1] == "DONE" and found["film"] == "ftyp"
    said = found["controllers"]
    assert said["terminal"].splitlines()[:2] == ["~$ echo 'it''s'A", "itsA"] and said["script"]["output"] == "42\n"
    assert (said["bash"]["output"], said["bash"]["returncode"]) == ("/tmp\n", 1) and said["missing"]["returncode"] == 1
    assert said["tree"]["children"] == [{"type": "file", "name": "note.txt"}] and said["size"] == {"width": 800, "height": 600}
    assert (said["platform"], said["desktop"], said["pointer"]["returncode"]) == ("Linux", "/home/user/Desktop", 0)


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_trl_takes_a_step_of_grpo_on_two_desktops(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "trl", FOREIGN / "openenv_requirements.txt", FOREIGN / "trl_requirements.txt")
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    # torch and transformers are this project's own: they weigh gigabytes.
    (packages / "zz_others.pth").write_text(str(Path(torch.__file__).parents[1]))
    (tmp_path / "server").mkdir()
    server = DesktopServer(tmp_path / "server", "desktop.num_desktops=2", "tasks.families=[calc-set-cell]")
    try:
        with server.client() as client:
            for session in [server.begin(client)[0] for _ in range(2)]:
                client.delete("/session", headers=session)
        script, token = str(FOREIGN / "trl_trainer.py"), server.token_file.read_text()
        command = [str(python), "-I", script, server.address, token, str(model_folder("smollm2-135m")), str(tmp_path)]
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path, check=True, timeout=1800)
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0, server.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["reward"], found["steps"]) == (0.5, 1) and found["std"] > 0 and found["moved"] > 0
    # Both rollouts began with the task, and one of them took two actions.
    assert found["seen"].count("Set cell C7 to ocean.") == 4


CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_requests_made_from_the_description_are_answered_as_it_says(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "schemathesis", FOREIGN / "schemathesis_requirements.txt")
    (tmp_path / "server").mkdir()
    server = DesktopServer(
        tmp_path / "server", "desktop.num_desktops=2", "tasks.families=[files-move]", "desktop.apps=[files]", "--allow-execute"
    )

    def fuzz(authorization: str, *selection: str) -> None:
        command = [str(python.parent / "schemathesis"), "run", f"{server.address}/openapi.json", "--checks", CHECKS]
        command += [
            "--header",
            f"Authorization: {authorization}",
            "--max-examples",
            "20",
            "--seed",
            "1",
            "--no-color",
            *selection,
        ]
        ended = subprocess.run(
            [*command, "--request-timeout", "120"], cwd=tmp_path, stdout=subprocess.PIPE, check=False, timeout=1800
        )
        assert ended.returncode == 0, ended.stdout.decode()[-6000:]

    try:
        with server.client() as client:
            name = server.wait_for(lambda: _opened(client), "free desktop")
            openenv = ("--exclude-tag", "OSWorld", "--exclude-path-regex", "^/session")
            fuzz(server.headers["Authorization"], "--header", f"X-Session-Id: {name}", *openenv)
            credentials = base64.b64encode(f"{name}:{server.token_file.read_text()}".encode()).decode()
            fuzz(f"Basic {credentials}", "--include-tag", "OSWorld", "--exclude-path-regex", "^/osworld/")
            # Both desktops are as good as new.
            client.delete("/session", headers={"X-Session-Id": name})
            for session in [server.begin(client)[0] for _ in range(2)]:
                client.delete("/session", headers=session)
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0, server.output
    assert "Traceback" not in server.output


def _opened(client: httpx2.Client) -> str | None:
    reply = client.post("/osworld/session")
    return None if reply.status_code == 429 else str(reply.json()["session"])


@pytest.mark.release
def test_assistant_solves_a_task_with_tools_over_stdio_and_nothing_is_left(tmp_path: Path) -> None:
    async def play() -> tuple[str, str, bytes]:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "computerrl", "desktop", "--mcp", "--task", "web-click-button"],
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        )
        async with Client(server, read_timeout_seconds=START_LIMIT_S) as client:
            first = await client.call_tool("start_task", {"seed": 3})
            said, image = first.content
            assert isinstance(said, types.TextContent) and isinstance(image, types.ImageContent)
            wanted = said.text.split('"')[1]
            (end, _) = (await client.call_tool("click", {"target": wanted})).content
            assert isinstance(end, types.TextContent)
            return said.text, end.text, base64.b64decode(image.data)

    before = processes.descendants([os.getpid()])
    task, end, image = asyncio.run(play())
    assert task.startswith("Task: Click on the ") and "Verdict: reward 1" in end and image[8:12] == b"WEBP"
    deadline = time.monotonic() + 60
    while left := processes.descendants([os.getpid()]) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
