"""Run folder, meters, JSON lines and logs."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
import yaml

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import PeerTimeout, SetupError
from computerrl.common.lifecycle import StopToken
from computerrl.common.metrics import JsonLines, Rate, Timings, read_json_lines
from computerrl.common.run_files.run_folder import BROKER_ADDRESS_VARIABLE, RunFolder, write_atomically
from tests.support.clock import ManualClock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.delenv(BROKER_ADDRESS_VARIABLE, raising=False)
    return RunFolder(tmp_path / "run")


def test_create_makes_folders_keys_config_and_versions(folder: RunFolder) -> None:
    config = RunConfig(name="run")
    keys = folder.create(config)
    assert keys == folder.load_keys() == folder.create(config)
    assert stat.S_IMODE(folder.keys.stat().st_mode) == 0o700
    assert RunConfig.model_validate(yaml.safe_load(folder.resolved_config.read_text())) == config
    assert "commit" in json.loads((folder.folder / "versions.json").read_text())


def test_wait_for_broker_gives_the_address_once_it_is_written(folder: RunFolder) -> None:
    folder.create(RunConfig())
    threading.Timer(0.1, folder.write_broker, kwargs={"address": "tcp://127.0.0.1:5", "run_id": "r"}).start()
    assert folder.wait_for_broker(StopToken(), 30) == "tcp://127.0.0.1:5"
    assert folder.read_broker() == {"address": "tcp://127.0.0.1:5", "run_id": "r"}


def test_wait_for_broker_ends_with_the_deadline_or_the_stop(folder: RunFolder) -> None:
    with pytest.raises(PeerTimeout, match="no broker"):
        folder.wait_for_broker(StopToken(), 0.1)
    stop = StopToken()
    stop.stop("signal SIGTERM")
    with pytest.raises(PeerTimeout, match="SIGTERM"):
        folder.wait_for_broker(stop, 30)


def test_environment_variable_wins_over_the_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER_ADDRESS_VARIABLE, "tcp://node7:5000")
    assert folder.wait_for_broker(StopToken(), 0.0) == "tcp://node7:5000"
    monkeypatch.setenv(BROKER_ADDRESS_VARIABLE, "node7")
    with pytest.raises(SetupError, match=BROKER_ADDRESS_VARIABLE):
        folder.wait_for_broker(StopToken(), 0.0)


def test_unreadable_broker_file_counts_as_none(folder: RunFolder) -> None:
    folder.create(RunConfig())
    for text in ("{", "[]", "{}"):
        folder.broker_file.write_text(text)
        assert folder.read_broker() is None


def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_atomically(tmp_path / "file", data)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"two"


def test_json_lines_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "m.jsonl"
    lines = JsonLines(path)
    lines.append({"a": 1, "nan": float("nan"), "t": (1, 2)})
    lines.close()
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    again = JsonLines(path)
    again.append({"b": 2})
    again.close()
    assert read_json_lines(path) == [{"a": 1, "nan": None, "t": [1, 2]}, {"b": 2}]
    assert read_json_lines(tmp_path / "none") == []


def test_timings_give_mean_and_quantiles_of_recent_values() -> None:
    timings = Timings(size=10)
    assert (timings.mean, timings.p50, timings.p90) == (0.0, 0.0, 0.0)
    for value in [1000.0, *range(10)]:
        timings.add(value)
    assert (timings.count, timings.total_s, timings.mean) == (11, 1045.0, 4.5)
    assert (timings.p50, timings.p90) == (5, 9)
    with timings.measure():
        pass
    assert timings.count == 12


def test_rate_counts_over_its_window() -> None:
    clock = ManualClock()
    rate = Rate(10.0, clock=clock)
    assert rate.per_s == 0.0
    for _ in range(4):
        clock.advance(1.0)
        rate.add(2)
    assert rate.per_s == 2.0
    clock.advance(100.0)
    assert (rate.per_s, rate.total) == (0.0, 8.0)


def test_log_lines_carry_what_was_bound_in_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "actor-0.jsonl"
    log.configure(json_file=path)
    try:
        log.bind(role="actor", index=0, incarnation="a")
        thread = threading.Thread(target=lambda: log.get_logger().info("episode.ended", reward=1.0))
        thread.start()
        thread.join()
        log.bind(role="learner", index=0, incarnation="b")
        log.get_logger().debug("too.small")
        log.get_logger().warning("loss.high", incarnation="own")
    finally:
        log.configure()
    first, second = read_json_lines(path)
    assert (first["event"], first["role"], first["reward"], first["level"]) == ("episode.ended", "actor", 1.0, "info")
    assert (second["role"], second["incarnation"]) == ("learner", "own")
