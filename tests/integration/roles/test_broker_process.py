"""The broker as a process of its own: killed with SIGKILL under load, stopped, denied its port."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from computerrl.broker.client import BrokerClient
from computerrl.common.config import BrokerConfig, RunConfig
from computerrl.common.errors import PeerTimeout
from computerrl.common.lifecycle import HeartbeatThread, StopToken
from computerrl.common.messages import (
    Assignment,
    NoGroup,
    PeerEntry,
    RolloutOrder,
    Step,
    StepTiming,
    Trajectory,
    TrajectoryGroup,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire import transport

ROOT = Path(__file__).parents[3]
NUM_EPISODES = 200
GROUP_SIZE = 4
NUM_CLIENTS = 4
KILL_AFTER = (40, 100, 160)
"""Acknowledged submissions after which the broker is killed."""

ENTRY = """
import sys
from computerrl.broker.process import run_broker
from computerrl.common.config import load_config
from computerrl.common.errors import ComputerRLError
from computerrl.common.lifecycle import StopToken, stop_on_signals
stop = StopToken()
stop_on_signals(stop)
try:
    run_broker(load_config(sys.argv[1]), stop=stop)
except ComputerRLError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


class BrokerProcess:
    """Starts, kills and restarts a broker of one run folder."""

    def __init__(self, folder: Path, *, before: Sequence[str] = (), **broker: object) -> None:
        """``before``: put before its command."""
        self.before = before
        self.config = RunConfig(run_dir=str(folder), broker=BrokerConfig(**broker))  # type: ignore[arg-type]
        self.run_folder = RunFolder(self.config.folder)
        self.keys = self.run_folder.create(self.config)
        self.config_path = folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(self.config.model_dump(mode="json")))
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([*self.before, sys.executable, "-c", ENTRY, str(self.config_path)], cwd=ROOT)
        return self.process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def client(self, sender: str, **options: float) -> BrokerClient:
        address = self.run_folder.wait_for_broker(StopToken(), 60)
        return BrokerClient(transport.Client(address, keys=self.keys, sender=sender), **options)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path)
    yield made
    made.kill()


def episode(granted: Assignment, actor: str) -> Trajectory:
    timing = StepTiming(0.1, 0.1, 0.0)
    tokens = list(range(300))
    step = Step(tokens, tokens, [-0.5] * 300, [0] * 300, "click(1)", True, "", None, "quiet", timing)
    return Trajectory(
        granted.assignment_id,
        granted.group_id,
        granted.index,
        granted.order_id,
        granted.kind,
        granted.task,
        "Click.",
        (step,),
        1.0,
        True,
        "task_finished",
        None,
        actor,
        "",
        time.time(),
        1.0,
        0.1,
        0.1,
    )


class Player(threading.Thread):
    """An actor: takes assignments and submits until the order is done."""

    def __init__(self, broker: BrokerProcess, index: int, acknowledged: list[str]) -> None:
        super().__init__()
        self.name = f"actor-{index}:i{index}"
        self.incarnation = f"i{index}"
        self.client = broker.client(self.name)
        self.acknowledged = acknowledged
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while (granted := self.client.request_assignment(self.incarnation, 0)) and isinstance(granted, Assignment):
                receipt = self.client.submit(episode(granted, self.name))
                if receipt.accepted:
                    self.acknowledged.append(receipt.trajectory_id)
                else:
                    # The receipt was lost with the broker, or somebody else filled the slot after the restart.
                    assert receipt.reason == "duplicate"
        except Exception as error:  # noqa: BLE001 (shown by the test)
            self.error = error
        finally:
            self.client.close()


def test_sigkill_in_the_middle_of_submissions_loses_and_doubles_nothing(broker: BrokerProcess) -> None:
    learner = broker.client("learner-0:l")
    families = ("web-click-button", "calc-set-cell")
    per_family = NUM_EPISODES // GROUP_SIZE // len(families)
    learner.place_order(RolloutOrder("eval", "evaluation", families, per_family, GROUP_SIZE, 10_000_000, 0.0, 4, 0))
    acknowledged: list[str] = []
    players = [Player(broker, index, acknowledged) for index in range(NUM_CLIENTS)]
    for player in players:
        player.start()
    for count in KILL_AFTER:
        while len(acknowledged) < count and any(player.is_alive() for player in players):
            time.sleep(0.002)
        broker.kill()
        broker.start()
    for player in players:
        player.join()
    assert [player.error for player in players] == [None] * NUM_CLIENTS

    # Slots whose assignment died with its broker are free again; play what is left.
    last = Player(broker, 99, acknowledged)
    last.run()
    assert last.error is None

    groups: list[TrajectoryGroup] = []
    while not isinstance(group := learner.fetch_group(len(groups)), NoGroup):
        groups.append(group)
    taken = Counter(trajectory.trajectory_id for group in groups for trajectory in group.trajectories)
    assert set(taken.values()) == {1}
    assert len(taken) == NUM_EPISODES
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(taken)
    counters = learner.status().counters
    assert counters["received"] == counters["delivered"] + counters["held"] + counters["rejected"]
    learner.close()


def later_boot() -> list[str]:
    """What to put before a command so that its monotonic clock is eleven days ahead. Skips where that is not allowed."""
    command = ["unshare", "--map-root-user", "--time", "--monotonic", "1000000", "--fork", "--kill-child=KILL"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no time namespaces for this user here")
    return command


def test_broker_whose_host_was_rebooted_goes_on_though_its_clock_fell_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, before=later_boot())
    try:
        learner = broker.client("learner-0:l")
        learner.place_order(RolloutOrder("eval", "evaluation", ("web-click-button",), 2, GROUP_SIZE, 10_000_000, 0.0, 4, 0))
        actor = broker.client("actor-0:a")
        granted = [actor.request_assignment("a", 0) for _ in range(3)]
        assert all(isinstance(one, Assignment) for one in granted)
        assert actor.submit(episode(granted[0], "actor-0:a")).accepted
        broker.kill()
        broker.before = ()
        broker.start()
        # An assignment from before the reboot, then the rest: nobody waits for a deadline that is eleven days ahead.
        receipt = actor.submit(episode(granted[1], "actor-0:a"))
        # The client may see the old connection break after its message went out on the new one: then it sends it twice.
        assert receipt.accepted or receipt.reason == "duplicate"
        acknowledged: list[str] = []
        player = Player(broker, 1, acknowledged)
        player.run()
        assert player.error is None
        assert len(acknowledged) == 2 * GROUP_SIZE - 2
        assert not isinstance(learner.fetch_group(1), NoGroup)
        learner.close()
        actor.close()
    finally:
        broker.kill()


def test_sigterm_ends_the_broker_cleanly_and_frees_its_port(broker: BrokerProcess) -> None:
    client = broker.client("learner-0:l", deadline_s=0.5)
    assert client.status().counters["received"] == 0
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(timeout=120) == 0
    with pytest.raises(PeerTimeout):
        client.status()
    client.close()
    address = broker.run_folder.wait_for_broker(StopToken(), 1)
    transport.Server(address, keys=broker.keys, sender="x-0:x").close()


def test_port_taken_ends_the_broker_with_a_clear_error_and_its_exit_code(tmp_path: Path) -> None:
    taken = transport.Server("tcp://127.0.0.1:0", keys=transport.generate_keys(), sender="x-0:x")
    port = int(taken.address.rpartition(":")[2])
    broker = BrokerProcess(tmp_path, port=port)
    assert broker.process.wait(timeout=120) == 2
    taken.close()


def wait_for_env_server(client: BrokerClient) -> PeerEntry:
    """The one env_server that the broker knows."""
    deadline = time.monotonic() + 120
    while not (peers := client.directory("env_server")) and time.monotonic() < deadline:
        time.sleep(0.05)
    (peer,) = peers
    return peer


def test_heartbeat_finds_the_restarted_broker(broker: BrokerProcess) -> None:
    client = broker.client("env_server-0:e")
    endpoints = {"desktops": "tcp://127.0.0.1:1"}
    with HeartbeatThread(client, role="env_server", index=0, incarnation="e", endpoints=endpoints):
        asker = broker.client("actor-0:a")
        wait_for_env_server(asker)
        broker.kill()
        broker.start()
        peer = wait_for_env_server(asker)
        assert replace(peer, age_s=0.0).endpoints == endpoints
        asker.close()
    client.close()
