"""Trajectories that travel together: judged one by one, written and answered together; and the client that puts them together."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_journal_file import file_size_limit

from computerrl.broker.client import BrokerClient
from computerrl.broker.client_batches import Submissions
from computerrl.broker.journal.file import FileJournal, MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.errors import DiskFull
from computerrl.common.messages import (
    ConsumptionReport,
    ErrorReply,
    GroupRequest,
    ReceiptBatch,
    StatusRequest,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
)
from computerrl.common.wire.transport import LocalChannel
from tests.support.data.broker_data import assignment, core, order, step, trajectory_for

SENDER = "actor-0:a"


def episodes(*slots: tuple[int, int]) -> tuple[Trajectory, ...]:
    return tuple(trajectory_for(assignment(number=number, index=index)) for number, index in slots)


def served(journal: MemoryJournal | FileJournal, **changes: int) -> BrokerService:
    service = BrokerService(core(), journal, clock=lambda: 0.0, **changes)
    service(order(), "learner-0:l")
    return service


def reasons(answer: object) -> list[str]:
    assert isinstance(answer, ReceiptBatch), answer
    return ["" if receipt.accepted else receipt.reason for receipt in answer.receipts]


def test_batch_is_one_record_and_one_answer_with_a_receipt_for_each_in_order() -> None:
    journal = MemoryJournal()
    service = served(journal)
    together = episodes((1, 1), (0, 0), (0, 1))
    before = len(list(journal.replay()))
    answer = service(TrajectoryBatch(together), SENDER)
    assert isinstance(answer, ReceiptBatch)
    assert [receipt.trajectory_id for receipt in answer.receipts] == [one.trajectory_id for one in together]
    assert reasons(answer) == ["", "", ""] and len(list(journal.replay())) == before + 1
    group = service(GroupRequest(0), "learner-0:l")
    assert isinstance(group, TrajectoryGroup) and group.group_id == "rl-1/0"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_wrong_one_in_a_batch_is_rejected_alone_and_a_restart_finds_the_same(place: int) -> None:
    journal = MemoryJournal()
    service = served(journal)
    together = list(episodes((0, 0), (0, 1), (1, 0)))
    together[place] = replace(together[place], reward=7.0)
    expected = ["", "", ""]
    expected[place] = "malformed"
    assert reasons(service(TrajectoryBatch(tuple(together)), SENDER)) == expected
    again = BrokerService(core(), journal, clock=lambda: 0.0).core
    assert again.counters["accepted"] == again.counters["held"] == 2
    assert sorted(one.trajectory_id for one in again.held()) == sorted(one.trajectory_id for one in service.core.held())


def test_copies_within_a_batch_and_the_batch_sent_again_count_once() -> None:
    service = served(MemoryJournal())
    (one,) = episodes((0, 0))
    batch = TrajectoryBatch((one, one))
    assert reasons(service(batch, SENDER)) == ["", "duplicate"]
    assert reasons(service(batch, SENDER)) == ["duplicate", "duplicate"]
    assert service.core.counters["accepted"] == 1


def test_full_disk_refuses_the_whole_batch_and_takes_it_when_there_is_space(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    service = served(journal)
    batch = TrajectoryBatch(tuple(replace(one, steps=(step(num_prompt=3000),)) for one in episodes((0, 0), (0, 1))))
    with file_size_limit(journal.num_bytes + 2000):
        answer = service(batch, SENDER)
        assert isinstance(answer, ErrorReply) and answer.code == DiskFull.code
        assert service.core.counters["accepted"] == 0
    assert reasons(service(batch, SENDER)) == ["", ""]


def test_part_of_a_batch_that_is_still_held_is_found_in_an_older_segment(tmp_path: Path) -> None:
    service = served(FileJournal(tmp_path, fsync=False), segment_bytes=4_000)
    service(TrajectoryBatch(episodes((0, 0), (0, 1), (1, 1))), SENDER)
    service(ConsumptionReport(1), "learner-0:l")
    for version in range(60):
        service(VersionAnnouncement(version, 1), "learner-0:l")
    service.close()
    again = BrokerService(core(), FileJournal(tmp_path, fsync=False), clock=lambda: 0.0)
    assert [one.trajectory_id for one in again.core.held()] == ["rl-1/1/1"]
    assert reasons(again(TrajectoryBatch(episodes((1, 0), (1, 1))), SENDER)) == ["", "duplicate"]
    group = again(GroupRequest(1), "learner-0:l")
    assert isinstance(group, TrajectoryGroup) and len(group.trajectories) == 2
    again.close()


class SlowBroker:
    """Notes what was sent together."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sizes: list[int] = []
        self.error = error

    def send(self, trajectories: Sequence[Trajectory]) -> list[TrajectoryReceipt]:
        self.sizes.append(len(trajectories))
        time.sleep(0.02)
        if self.error is not None:
            raise self.error
        return [TrajectoryReceipt(one.trajectory_id, accepted=True, reason="") for one in trajectories]


def submit_all(broker: SlowBroker, trajectories: Sequence[Trajectory]) -> list[object]:
    """What each thread got, or the error it met."""
    submissions = Submissions()
    results: list[object] = [None] * len(trajectories)

    def run(number: int) -> None:
        try:
            results[number] = submissions.submit(trajectories[number], broker.send)
        except DiskFull as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(trajectories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return results


def test_threads_that_submit_at_once_travel_together_and_each_gets_its_own_receipt() -> None:
    broker = SlowBroker()
    trajectories = episodes(*((number, index) for number in range(20) for index in range(2)))
    results = submit_all(broker, trajectories)
    assert [getattr(result, "trajectory_id", result) for result in results] == [one.trajectory_id for one in trajectories]
    assert sum(broker.sizes) == 40 and len(broker.sizes) < 20


def test_error_of_a_message_reaches_every_thread_whose_trajectory_was_in_it() -> None:
    broker = SlowBroker(DiskFull("no space"))
    results = submit_all(broker, episodes(*((number, 0) for number in range(12))))
    assert all(isinstance(result, DiskFull) for result in results) and sum(broker.sizes) == 12


def test_large_trajectories_go_alone() -> None:
    broker = SlowBroker()
    large = tuple(replace(one, steps=(step(num_prompt=20_000),)) for one in episodes(*((number, 0) for number in range(6))))
    submit_all(broker, large)
    assert broker.sizes == [1] * 6


def test_client_that_nobody_holds_is_gone_at_once() -> None:
    # Its sockets must not wait for the garbage collector, which would end their context first and wait for ever.
    client = BrokerClient(LocalChannel(served(MemoryJournal())))
    gone = weakref.ref(client)
    client.submit(episodes((0, 0))[0])
    del client
    assert gone() is None


def test_client_whose_threads_submit_at_once_fills_groups() -> None:
    service = served(MemoryJournal())
    client = BrokerClient(LocalChannel(service))
    slots = [(number, index) for number in range(2) for index in range(2)]
    results: list[TrajectoryReceipt] = []
    threads = [threading.Thread(target=lambda one=one: results.append(client.submit(one))) for one in episodes(*slots)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(results) == 4 and all(receipt.accepted for receipt in results)
    status = service(StatusRequest(), "x-0:x")
    assert getattr(status, "counters", {})["groups_completed"] == 2
