"""A broker and an env_server in processes of their own, while somebody who holds the run's keys sends what harms: they go on
answering everybody else, take no memory for it, and give no secret away."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
import zmq
from click.testing import CliRunner
from test_env_server_process import PROCESS, TASK, Broker, client_of

from computerrl.broker.client import BrokerClient
from computerrl.common.config import RunConfig
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import DirectoryRequest, ErrorReply, TrajectoryReceipt
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire import codec
from computerrl.common.wire.transport import Client, Keys, client_socket
from computerrl.env_server.client import DesktopClient
from computerrl.launch.commands.main import cli
from tests.support.data.broker_data import order
from tests.support.wire_fuzz import mutated, seeds, session

ROOT = Path(__file__).parents[3]
NUM_MESSAGES = 2000
MIB = 1 << 20
GROWTH_BYTES = 64 * MIB
"""What a process may take for good: its first requests load a few modules, and malloc keeps some of what it had."""

BROKER = """
import sys
from computerrl.broker.process import run_broker
from computerrl.common import log
from computerrl.common.config import load_config
from computerrl.common.lifecycle import StopToken, stop_on_signals
log.configure(level="debug")
stop = StopToken()
stop_on_signals(stop)
run_broker(load_config(sys.argv[1]), stop=stop)
"""


class Run:
    """A run folder, and a broker process on it whose output goes to a file in it."""

    def __init__(self, folder: Path) -> None:
        self.config = RunConfig.model_validate({"run_dir": str(folder), "name": "hostile"})
        self.folder = RunFolder(self.config.folder)
        self.keys = self.folder.create(self.config)
        self.config_path = folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(self.config.model_dump(mode="json")))
        self.output = self.folder.logs / "broker.log"
        with self.output.open("wb") as output:
            command = [sys.executable, "-c", BROKER, str(self.config_path)]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        self.address = self.folder.wait_for_broker(StopToken(), 60)

    def client(self) -> BrokerClient:
        return BrokerClient(Client(self.address, keys=self.keys, sender="learner-0:l"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.process.kill()
    run.process.wait()


@contextmanager
def connected(address: str, keys: Keys) -> Iterator[zmq.Socket[bytes]]:
    """A socket that sends any frames, with the right keys."""
    with zmq.Context() as context, client_socket(context, keys) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        socket.connect(address)
        yield socket


def large_frames(rng: random.Random) -> list[bytes]:
    """Far beyond every limit of a small kind, and within ZeroMQ's."""
    return [rng.choice(list(seeds().values()))[0] + bytes(4 * MIB)]


def kind_of_answer(socket: zmq.Socket[bytes]) -> str:
    answer = codec.decode(socket.recv_multipart()).message
    return answer.code if isinstance(answer, ErrorReply) else type(answer).__name__


def attack(address: str, keys: Keys, *, check: Callable[[int], None]) -> Counter[str]:
    """Send `NUM_MESSAGES` malformed messages and count the answers by kind; ``check`` is called between them."""
    rng = random.Random(3)
    kinds = list(seeds().values())
    answers: Counter[str] = Counter()
    with connected(address, keys) as socket:
        for number in range(NUM_MESSAGES):
            frames = large_frames(rng) if number % 100 == 0 else mutated(rng.choice(kinds), rng)
            socket.send_multipart(frames or [b""])
            if number % 20 == 0:
                check(number)
            while socket.poll(0):
                answers[kind_of_answer(socket)] += 1
        # Some are still valid, and wait for a desktop.
        while answers.total() < NUM_MESSAGES:
            answers[kind_of_answer(socket)] += 1
    return answers


def test_broker_process_answers_everything_malformed_and_everybody_else(run: Run) -> None:
    client = run.client()
    client.status()
    process = psutil.Process(run.process.pid)
    before_bytes = process.memory_info().rss
    answered: list[bool] = []

    def check(_number: int) -> None:
        answered.append(client.channel.request(DirectoryRequest("broker"), timeout_s=10).peers == ())

    answers = attack(run.address, run.keys, check=check)
    assert answers.total() == NUM_MESSAGES and answers["decode_error"] > NUM_MESSAGES / 2
    assert all(answered) and len(answered) == NUM_MESSAGES / 20
    assert run.process.poll() is None
    assert process.memory_info().rss - before_bytes < GROWTH_BYTES
    assert client.status().counters["transport/malformed"] == answers["decode_error"]
    # It can still do all that a run needs.
    client.close()
    with connected(run.address, run.keys) as socket:
        for frames in session():
            socket.send_multipart(frames)
            assert codec.decode(socket.recv_multipart()).cause_id is not None


def test_frame_over_the_limit_of_zeromq_ends_that_connection_only(run: Run) -> None:
    process = psutil.Process(run.process.pid)
    before_bytes = process.memory_info().rss
    with connected(run.address, run.keys) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 500)
        socket.send(bytes((1 << 28) + 1), copy=False)
        with pytest.raises(zmq.Again):
            socket.recv()
    client = run.client()
    assert client.status().run_id
    client.close()
    assert process.memory_info().rss - before_bytes < GROWTH_BYTES


def test_same_frames_on_another_connection_are_answered_and_counted_once(run: Run) -> None:
    client = run.client()
    placed = codec.encode(order(), sender="learner-0:l", message_id=1)
    submission = seeds()["Trajectory"]
    receipts = []
    for _ in range(2):
        with connected(run.address, run.keys) as socket:
            for frames in (placed, submission):
                socket.send_multipart(frames)
                receipts.append(codec.decode(socket.recv_multipart()).message)
    assert receipts[0] == receipts[2]
    assert [receipt.reason for receipt in receipts if isinstance(receipt, TrajectoryReceipt)] == ["", "duplicate"]
    status = client.status()
    assert status.counters["accepted"] == 1 and status.gauges["orders_open"] == 1
    client.close()


def test_refused_handshake_is_in_the_status(run: Run) -> None:
    client = run.client()
    assert client.status().counters["transport/unauthorised"] == 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(run.address)
        while client.status().counters["transport/unauthorised"] == 0:
            assert not socket.poll(20)
    client.close()


def test_secrets_are_in_no_file_output_environment_or_status(run: Run) -> None:
    secrets = [run.keys.server_secret, run.keys.client_secret]
    client = run.client()
    with connected(run.address, run.keys) as socket:
        for frames in ([b"\xc1"], *session()):
            socket.send_multipart(frames)
            socket.recv_multipart()
    status = repr(client.status())
    client.close()
    dry = CliRunner().invoke(cli, ["train", str(run.config_path), "--print-config"])
    assert dry.exit_code == 0, dry.output
    places = {"status": status.encode(), "resolved": dry.output.encode()}
    for name in ("environ", "cmdline"):
        places[name] = Path(f"/proc/{run.process.pid}/{name}").read_bytes()
    run.process.terminate()
    run.process.wait()
    files = [path for path in run.folder.folder.parent.rglob("*") if path.is_file() and run.folder.keys not in path.parents]
    assert run.output in files and run.folder.journal in {path.parent for path in files}
    places |= {str(path): path.read_bytes() for path in files}
    assert b"broker.started" in places[str(run.output)]
    assert [name for name, data in places.items() if any(secret in data for secret in secrets)] == []


# --- the env_server --------------------------------------------------------------------------------------------------


@pytest.fixture
def env_config(tmp_path: Path) -> RunConfig:
    desktop = {"driver": "scripted", "num_desktops": 2}
    return RunConfig.model_validate({"run_dir": str(tmp_path), "mode": "serial", "desktop": desktop})


def test_env_server_process_answers_everything_malformed_and_the_actor_that_plays(env_config: RunConfig) -> None:
    folder = RunFolder(env_config.folder)
    keys = folder.create(env_config)
    broker = Broker(keys)
    folder.write_broker(address=broker.server.address, run_id="run")
    process = subprocess.Popen([sys.executable, "-c", PROCESS, env_config.model_dump_json()], cwd=ROOT)
    try:
        client_of(broker, keys).close()
        assert broker.hello is not None
        address = broker.hello.endpoints["desktops"]
        # Of another index than the one that the golden messages name: a newer process of an index replaces the older one.
        desktops = DesktopClient(Client(address, keys=keys, sender="actor-5:a"))
        lease = desktops.lease("a", TASK)
        instruction = desktops.reset(lease, TASK).instruction
        before_bytes = psutil.Process(process.pid).memory_info().rss
        played: list[str] = []
        answers = attack(address, keys, check=lambda _number: played.append(desktops.demonstrate(lease).action_text))
        assert answers.total() == NUM_MESSAGES and answers["decode_error"] > NUM_MESSAGES / 2
        assert process.poll() is None and len(set(played)) == 1
        assert psutil.Process(process.pid).memory_info().rss - before_bytes < GROWTH_BYTES
        assert desktops.reset(lease, TASK).instruction == instruction
        desktops.release(lease)
        desktops.close()
        assert broker.metrics["transport/malformed"] > NUM_MESSAGES / 4
    finally:
        process.kill()
        process.wait()
        broker.close()
