"""Journal and core together: what is answered is on disk, also when the disk is full; the port; serial mode."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from test_journal_file import file_size_limit

from computerrl.broker import process as broker_server
from computerrl.broker.client import BrokerClient
from computerrl.broker.journal.file import FileJournal, MemoryJournal, Position
from computerrl.broker.process import make_service, run_broker
from computerrl.broker.service import BrokerService
from computerrl.common.config import BrokerConfig, RunConfig
from computerrl.common.errors import ChannelClosed, ConfigError, DiskFull, PeerTimeout, ProtocolError, ResumeError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import (
    Ack,
    Assignment,
    GroupRequest,
    Message,
    NoAssignment,
    NoGroup,
    StatusRequest,
    TrajectoryGroup,
    TrajectoryReceipt,
)
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.wire import transport
from computerrl.common.wire.transport import LocalChannel
from tests.support.data.broker_data import assignment, core, order, step, trajectory_for


class CountingJournal(MemoryJournal):
    """Remembers how many records each sync made durable."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def flush(self) -> list[Position]:
        self.batches.append(len(self._batch))
        return super().flush()


def test_requests_that_arrive_together_are_synced_once() -> None:
    journal = CountingJournal()
    service = BrokerService(core(), journal)
    service(order(), "learner-0:l")
    journal.batches.clear()
    requests: list[Message] = [trajectory_for(assignment(number=number)) for number in range(5)]
    answers = service.answer_all([(request, "actor-0:a") for request in [*requests, StatusRequest()]])
    assert journal.batches == [5]
    assert all(isinstance(answer, TrajectoryReceipt) and answer.accepted for answer in answers[:5])


def test_full_disk_refuses_submissions_serves_the_rest_and_recovers(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    client = BrokerClient(LocalChannel(BrokerService(core(), journal)))
    client.place_order(order())
    client.submit(trajectory_for(assignment()))
    big = trajectory_for(assignment(index=1), steps=[step(num_prompt=10_000)])
    with file_size_limit(journal.num_bytes + 2000):
        for _ in range(2):
            with pytest.raises(DiskFull):
                client.submit(big)
        assert isinstance(client.request_assignment("a", 0), Assignment)
        assert client.fetch_group(0) == NoGroup((0, 2))
        assert client.status().counters["rejected/disk_full"] == 2
    assert client.submit(big).accepted
    journal.close()
    again = BrokerService(core(), FileJournal(tmp_path))
    assert isinstance(again(GroupRequest(0), "learner-0:l"), TrajectoryGroup)
    again.close()


def test_segments_keep_what_is_needed_and_forget_the_rest(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    service = BrokerService(core(eta=100), journal, segment_bytes=100_000)
    client = BrokerClient(LocalChannel(service))
    client.place_order(order())
    sizes = []
    for seq in range(60):
        for _ in range(2):
            granted = client.request_assignment("a", 0)
            assert isinstance(granted, Assignment)
            client.submit(trajectory_for(granted, steps=[step(num_prompt=5000)]))
        assert isinstance(client.fetch_group(seq), TrajectoryGroup)
        client.report_consumption(max(0, seq - 1))
        sizes.append(journal.num_bytes)
    assert max(sizes) < 300_000
    before = client.status()
    service.close()
    again = BrokerClient(LocalChannel(BrokerService(core(), FileJournal(tmp_path))))
    with pytest.raises(ProtocolError, match=r"group 57.*below 58"):
        again.fetch_group(57)
    for seq in (58, 59):
        group = again.fetch_group(seq)
        assert isinstance(group, TrajectoryGroup) and group.group_seq == seq
    assert again.status().counters["received"] == before.counters["received"] == 120
    assert again.status().counters["delivered"] == 120


def config_in(folder: Path, **broker: object) -> RunConfig:
    config = RunConfig(run_dir=str(folder), broker=BrokerConfig(**broker))  # type: ignore[arg-type]
    RunFolder(config.folder).create(config)
    return config


def test_serial_mode_service_works_in_memory_and_on_disk(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    for in_memory in (True, False):
        client = BrokerClient(LocalChannel(make_service(config, in_memory=in_memory)))
        client.place_order(order())
        assert isinstance(client.request_assignment("a", 0), Assignment)


def test_port_taken_raises_config_error_naming_field_port_and_next_step(tmp_path: Path) -> None:
    taken = transport.Server("tcp://127.0.0.1:0", keys=transport.generate_keys(), sender="x-0:x")
    port = int(taken.address.rpartition(":")[2])
    with pytest.raises(ConfigError) as caught:
        run_broker(config_in(tmp_path, port=port), stop=StopToken())
    (problem,) = caught.value.problems
    assert problem.field == "broker.port" and str(port) in problem.reason and "broker.port" in problem.next_step
    taken.close()


def test_damaged_journal_raises_resume_error(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    (RunFolder(config.folder).journal / "journal-000001.log").write_bytes(b"something else entirely")
    with pytest.raises(ResumeError):
        run_broker(config, stop=StopToken())


def test_restarted_broker_takes_the_same_port_and_run_id(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    folder = RunFolder(config.folder)
    seen = []
    for _ in range(2):
        stop = StopToken()
        thread = threading.Thread(target=run_broker, args=(config,), kwargs={"stop": stop})
        thread.start()
        address = folder.wait_for_broker(stop, 10)
        client = BrokerClient(transport.Client(address, keys=folder.load_keys(), sender="learner-0:l"))
        client.place_order(order())
        assert client.status().gauges["orders_open"] == 1
        client.close()
        stop.stop("test over")
        thread.join()
        seen.append(folder.read_broker())
    assert seen[0] == seen[1] is not None


def test_resumed_run_takes_another_port_when_somebody_else_has_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_server, "_REBIND_S", 0.0)
    config = config_in(tmp_path)
    folder = RunFolder(config.folder)
    taken = transport.Server("tcp://127.0.0.1:0", keys=transport.generate_keys(), sender="x-0:x")
    folder.write_broker(address=taken.address, run_id="r")
    stop = StopToken()
    thread = threading.Thread(target=run_broker, args=(config,), kwargs={"stop": stop})
    thread.start()
    deadline = time.monotonic() + 30
    while (found := folder.read_broker()) is not None and found["address"] == taken.address and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is not None and found["address"] != taken.address and found["run_id"] == "r"
    stop.stop("test over")
    thread.join()
    taken.close()


class FlakyChannel:
    """Times out a few times, then answers."""

    def __init__(self, failures: int, answer: Message) -> None:
        self.failures, self.answer = failures, answer
        self.requests: list[Message] = []

    def request(self, message: Message, *, timeout_s: float) -> Message:
        self.requests.append(message)
        if len(self.requests) <= self.failures:
            raise PeerTimeout("gone")
        return self.answer

    def close(self) -> None:
        pass


def test_client_asks_again_with_the_same_request_until_it_is_answered() -> None:
    channel = FlakyChannel(2, NoAssignment("no_order", 0.1))
    assert BrokerClient(channel).request_assignment("a", 0) == channel.answer
    assert len(channel.requests) == 3 and len(set(map(str, channel.requests))) == 1


def test_client_gives_up_at_its_deadline() -> None:
    with pytest.raises(PeerTimeout):
        BrokerClient(FlakyChannel(10**6, Ack()), deadline_s=0.3).place_order(order())


def test_client_does_not_ask_again_after_stop_or_on_a_closed_channel() -> None:
    stop = StopToken()
    stop.stop("test")
    channel = FlakyChannel(10**6, Ack())
    with pytest.raises(PeerTimeout):
        BrokerClient(channel, stop=stop).close_order("x")
    assert len(channel.requests) == 1

    client = transport.Client("tcp://127.0.0.1:1", keys=transport.generate_keys(), sender="x-0:x")
    client.close()
    with pytest.raises(ChannelClosed):
        BrokerClient(client).status()


def test_client_refuses_an_answer_of_the_wrong_kind() -> None:
    with pytest.raises(ProtocolError, match="NoGroup"):
        BrokerClient(FlakyChannel(0, NoGroup())).place_order(order())


def test_poll_turn_is_shorter_than_a_heartbeat() -> None:
    # Deadlines are looked at once a turn.
    assert broker_server._POLL_S < 1.0
