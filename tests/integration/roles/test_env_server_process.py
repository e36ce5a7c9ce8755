"""The env_server as a process of its own: announced to a broker, serving over the real transport, ending when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, HostBroken
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import Ack, Heartbeat, Hello, Message, TaskRef, Welcome
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire.transport import Client, Keys, Server, serve
from computerrl.env_server import process as env_server
from computerrl.env_server.client import DesktopClient

TASK = TaskRef("files-rename", 5, "demonstration")

PROCESS = """
import sys
from computerrl.common.config import RunConfig
from computerrl.common.lifecycle import StopToken, stop_on_signals
from computerrl.env_server.process import run_env_server
stop = StopToken()
stop_on_signals(stop)
run_env_server(RunConfig.model_validate_json(sys.argv[1]), index=0, stop=stop)
"""


class Broker:
    """Takes hellos and heartbeats in, as far as an env_server notices."""

    def __init__(self, keys: Keys) -> None:
        self.hello: Hello | None = None
        self.metrics: dict[str, float] = {}
        self.seen = threading.Event()
        self.stop = StopToken()
        self.server = Server("tcp://127.0.0.1:0", keys=keys, sender="broker-0:test")
        self.thread = threading.Thread(target=serve, args=(self.server, self.handle, self.stop), daemon=True)
        self.thread.start()

    def handle(self, message: Message, sender: str) -> Message:
        if isinstance(message, Hello):
            self.hello = message
            return Welcome(-1)
        assert isinstance(message, Heartbeat)
        self.metrics = message.metrics
        if message.metrics["env_server/desktops_ready"] == 2.0:
            self.seen.set()
        return Ack()

    def close(self) -> None:
        self.stop.stop("end of test")
        self.thread.join()
        self.server.close()


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    desktop = {"driver": "scripted", "num_desktops": 2}
    return RunConfig.model_validate({"run_dir": str(tmp_path), "mode": "serial", "desktop": desktop})


@pytest.fixture
def keys(config: RunConfig) -> Keys:
    return RunFolder(config.folder).create(config)


@pytest.fixture
def broker(config: RunConfig, keys: Keys) -> Iterator[Broker]:
    broker = Broker(keys)
    RunFolder(config.folder).write_broker(address=broker.server.address, run_id="run")
    yield broker
    broker.close()


def client_of(broker: Broker, keys: Keys) -> DesktopClient:
    assert broker.seen.wait(120), "no heartbeat with ready desktops"
    assert broker.hello is not None and broker.hello.role == "env_server"
    return DesktopClient(Client(broker.hello.endpoints["desktops"], keys=keys, sender="actor-0:a"))


def test_env_server_process_serves_and_ends_on_sigterm(config: RunConfig, keys: Keys, broker: Broker) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROCESS, config.model_dump_json()], env={**os.environ, "PYTHONPATH": "."})
    try:
        client = client_of(broker, keys)
        lease = client.lease("a", TASK)
        started = client.reset(lease, TASK)
        assert started.instruction.startswith("Rename") and started.observation.screenshot is not None
        client.step(lease, parse_action(client.demonstrate(lease).action_text))
        assert client.evaluate(lease).success
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in RunFolder(config.folder).trajectories.iterdir()] == [started.observation.screenshot.segment]


def test_run_env_server_host_broken_raises_its_error(
    config: RunConfig, keys: Keys, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_driver(*args: object, **kwargs: object) -> object:
        raise HostBroken("user namespaces are switched off")

    monkeypatch.setattr(env_server, "make_driver", make_driver)
    with pytest.raises(HostBroken, match="user namespaces"):
        env_server.run_env_server(config, index=0, stop=StopToken())


def test_run_env_server_too_many_desktops_refused_with_the_arithmetic(config: RunConfig) -> None:
    desktop = config.desktop.model_copy(update={"driver": "local", "num_desktops": 512, "memory_per_desktop_mb": 4_000_000})
    with pytest.raises(ConfigError, match=r"512 desktops x 4000000 MB .* = 2048000000 MB"):
        env_server.run_env_server(config.model_copy(update={"desktop": desktop}), index=0, stop=StopToken())
