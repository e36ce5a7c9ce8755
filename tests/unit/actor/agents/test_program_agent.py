"""Programs that act by requests: they see every screen once, one action at a time, and nothing of them is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from computerrl.actor.agents import make_agent
from computerrl.actor.agents.desk import Desk
from computerrl.actor.agents.policy_endpoint import PolicyEndpoint
from computerrl.actor.agents.program import ProgramAgent, check_program
from computerrl.actor.agents.refused import Refused
from computerrl.actor.agents.server import AgentServer
from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.episode import play_episode
from computerrl.common.config import AgentConfig, load_config
from computerrl.common.errors import ConfigError
from computerrl.common.messages import OrderKind, Trajectory
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.run.serial import run_serial
from tests.support.data.actor_data import ByteTokenizer, FakeDesktops, ScriptedEngine, make_assignment

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "serial.yaml"
SETTING = EpisodeSetting(actor="actor-0:i", incarnation="i", max_new_tokens=64)
LIMIT_S = 60.0

HEAD = """
import json, os, subprocess, sys, time, urllib.request

def call(url, key, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": "Bearer " + key})
    return json.load(urllib.request.urlopen(request, timeout=60))

def look():
    return call(os.environ["COMPUTERRL_DESKTOP_URL"], os.environ["COMPUTERRL_DESKTOP_KEY"])

def act(action):
    return call(os.environ["COMPUTERRL_DESKTOP_URL"], os.environ["COMPUTERRL_DESKTOP_KEY"], {"action": action})

def ask(text):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return call(url, os.environ["OPENAI_API_KEY"], body)["choices"][0]["message"]["content"].strip()
"""
PLAYER = """
screen = look()
while not screen["ended"]:
    screen = act(ask(screen["instruction"] + screen["rows"][0]).removeprefix("Do "))
"""
TEACHER = """
def right(messages, action):
    return f"Do {action}"
"""


def make_server() -> AgentServer:
    return AgentServer(PolicyEndpoint(ByteTokenizer(), max_prompt_tokens=400, max_new_tokens=64))


class Played:
    """One episode of a program of the given lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        lines: str,
        *answers: str,
        desktops: FakeDesktops | None = None,
        kind: OrderKind = "training",
        timeout_s: float = LIMIT_S,
    ) -> Trajectory:
        file = self._folder / "player.py"
        file.write_text(HEAD + lines)
        command = (sys.executable, str(file))
        teacher = "teacher:right" if kind == "demonstration" else None
        config = AgentConfig(kind="program", command=command, timeout_s=timeout_s, demonstrate=teacher)
        self.server = make_server()
        agent = ProgramAgent(config, self.server)
        try:
            engine = None if kind == "demonstration" else ScriptedEngine(*answers)
            return play_episode(make_assignment(kind=kind), desktops or FakeDesktops(), engine, agent, setting=SETTING)  # type: ignore[arg-type]
        finally:
            agent.close()


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    (tmp_path / "teacher.py").write_text(TEACHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Played(tmp_path)


def test_program_sees_each_screen_and_what_it_asks_of_the_policy_is_the_trajectory(play: Played) -> None:
    desktops = FakeDesktops()
    trajectory = play(PLAYER, "click(1)\n", "no action\n", "done()\n", desktops=desktops)
    assert [step.action_text for step in trajectory.steps] == ["click(1)", "no action", "done()"]
    assert [step.format_ok for step in trajectory.steps] == [True, False, True]
    assert trajectory.end_reason == "done_action" and [action.name for action in desktops.actions] == ["click"]
    assert all(len(step.action_tokens) == len(step.behavior_logprobs) > 0 for step in trajectory.steps)
    assert not play.server._accesses, "the key of the episode is gone"


def test_program_that_ends_well_is_done_and_one_that_breaks_is_named_with_its_last_words(
    play: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play("act('click(1)')").end_reason == "done_action"
    trajectory = play("ask('x')\nsys.exit('out of ideas')", "thought\n")
    assert trajectory.end_reason == "agent_failed" and len(trajectory.steps) == 1
    assert trajectory.steps[0].action_error == "the program ended with exit status 1: out of ideas"
    assert "out of ideas" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("time.sleep(300)", "has posted no action within"),
        ("os.environ['OPENAI_MODEL'] = 'gpt'\nask('x')", "asked for the model 'gpt'"),
        ("[ask('x') for _ in range(9)]", "429"),
        ("os.kill(os.getpid(), 9)", "exit status -9"),
        ("print('x' * 10**6)\nprint(b'\\xff' * 9)\nraise SystemExit(3)", "exit status 3"),
    ],
)
def test_program_that_does_not_play_fails_by_name(
    lines: str, reason: str, play: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    trajectory = play(lines, *["word\n"] * 9, timeout_s=3.0)
    assert trajectory.end_reason == "agent_failed"
    assert reason in capsys.readouterr().out


def test_program_gets_its_demonstrations_by_its_own_requests(play: Played) -> None:
    trajectory = play(PLAYER, kind="demonstration")
    assert trajectory.success and [step.action_text for step in trajectory.steps] == ["click(1)", "done()"]
    said = [bytes(step.action_tokens[:-1].tolist()).decode() for step in trajectory.steps]
    assert said == ["Do click(1)", "Do done()"]


def test_nothing_of_a_program_outlives_its_episode(play: Played, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    leaves = "child = subprocess.Popen(['sleep', '300'])\n"
    leaves += f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
    play(leaves + "act('done()')\ntime.sleep(300)")
    found = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + LIMIT_S
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.05)


ACTOR = """
import sys, time
from computerrl.actor.agents.program import ProgramAgent, check_program
from computerrl.actor.agents.server import AgentServer
from computerrl.common.config import AgentConfig
from tests.support.data.actor_data import make_assignment

agent = ProgramAgent(AgentConfig(kind="program", command=("sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 300")), AgentServer())
agent.begin("Do it.", assignment=make_assignment(), engine=None)
time.sleep(300)
"""


def test_program_dies_with_its_actor(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", ACTOR, str(file)], cwd=CONFIG.parents[1]) as actor:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not file.exists() or not file.read_text().strip():
                assert time.monotonic() < deadline and actor.poll() is None
                time.sleep(0.05)
        finally:
            actor.send_signal(signal.SIGKILL)
    pid = int(file.read_text())
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_desk_takes_one_action_at_a_time_and_says_when_all_is_over() -> None:
    desk = Desk()
    desk.show({"rows": ["first"]})
    seen: list[dict[str, object]] = []
    acting = threading.Thread(target=lambda: seen.append(desk.act("click(1)")))
    acting.start()
    assert desk.next_action(is_over=lambda: False) == "click(1)"
    with pytest.raises(Refused, match="one at a time"):
        desk.act("click(2)")
    with pytest.raises(Refused, match="is a text"):
        desk.act(3)
    desk.show({"rows": ["second"]})
    acting.join(LIMIT_S)
    assert seen == [{"rows": ["second"], "ended": False}] and desk.look() == seen[0]
    assert desk.next_action(is_over=lambda: True) is None
    desk.end()
    assert desk.act("click(3)") == desk.look() == {"ended": True}


def test_run_trains_a_program_and_clones_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "player.py").write_text(HEAD + PLAYER)
    (tmp_path / "teacher.py").write_text(TEACHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = f"['{sys.executable}', '{tmp_path / 'player.py'}']"
    overrides = [
        "tasks.families=[calc-set-cell]",
        f"run_dir={tmp_path / 'runs'}",
        f"actor.agent={{kind: program, command: {command}, demonstrate: 'teacher:right', max_calls: 1}}",
        "actor.max_new_tokens=48",
        "learner.recipe={demos_per_family: 2, max_updates: 1, eval_episodes_per_family: 1}",
        "learner.num_threads=1",
        "actor.num_threads=1",
        "tasks.max_steps=2",
    ]
    config = load_config(CONFIG, overrides=overrides)
    RunFolder(config.folder).create(config)
    state = run_serial(config)
    assert state.summary is not None and state.summary["num_trajectories_lost"] == 0 and state.sft_steps
    episodes = read_json_lines(RunFolder(config.folder).episodes_path)
    shown = [one for one in episodes if one["kind"] == "demonstration"]
    assert len(shown) == 2 and all(one["success"] for one in shown)
    assert all(len(one["steps"]) == 2 for one in episodes if one["kind"] == "training")


def test_program_may_play_with_a_model_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(HEAD + "assert 'OPENAI_MODEL' not in os.environ\nact('done()')")
    command = f"['{sys.executable}', '{tmp_path / 'player.py'}']"
    changes = ["actor.engine=agent", f"actor.agent={{kind: program, command: {command}}}"]
    changes.append("learner.recipe={demos_per_family: 0, max_updates: 0}")
    agent = make_agent(load_config(CONFIG, overrides=changes))
    assert agent is not None
    try:
        trajectory = play_episode(make_assignment(kind="evaluation"), FakeDesktops(), None, agent, setting=SETTING)  # type: ignore[arg-type]
    finally:
        agent.close()
    assert trajectory.end_reason == "done_action" and len(trajectory.steps) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("{kind: program}", "command belongs to kind program"),
        ("{kind: 'mine:Agent', command: [sh]}", "command belongs to kind program"),
        ("{kind: program, command: [sh], demonstrate: nobody}", "demonstrate"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_config(CONFIG, overrides=[f"actor.agent={settings}"])


def test_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        check_program(AgentConfig(kind="program", command=("no-such-program",)))
