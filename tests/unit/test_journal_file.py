"""The durable log: torn tails, damage, full disks, rewriting."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_data import assignment, core, order, trajectory_for

from broker import records
from broker.events import MessagePersisted, StateRestored
from broker.journal import FileJournal, Journal, MemoryJournal
from common.errors import DiskFull, ResumeError
from common.messages import ConsumptionReport, VersionAnnouncement
from tests.conftest import CheckGolden


def write(journal: Journal, *batches: list[bytes]) -> None:
    for batch in batches:
        for payload in batch:
            journal.append(payload)
        journal.flush()


def reopened(folder: Path) -> list[bytes]:
    journal = FileJournal(folder, fsync=False)
    found = list(journal.replay())
    journal.close()
    return found


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writes beyond ``num_bytes`` fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("fsync", [True, False])
def test_records_come_back_in_order(tmp_path: Path, fsync: bool) -> None:
    journal = FileJournal(tmp_path, fsync=fsync)
    write(journal, [b"a", b""], [b"c" * 100_000], [], [b"d"])
    assert list(journal.replay()) == [b"a", b"", b"c" * 100_000, b"d"]
    assert journal.num_bytes == journal.path.stat().st_size
    journal.close()
    assert reopened(tmp_path) == [b"a", b"", b"c" * 100_000, b"d"]


def test_batch_of_many_records_comes_back(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    payloads = [str(number).encode() for number in range(3000)]
    write(journal, payloads)
    journal.close()
    assert reopened(tmp_path) == payloads


def test_unflushed_records_are_not_in_the_journal(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    write(journal, [b"a"])
    journal.append(b"b")
    journal.close()
    assert reopened(tmp_path) == [b"a"]


def test_tail_torn_at_any_byte_is_cut_off_and_writing_goes_on(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    write(journal, [b"first"])
    good = journal.num_bytes
    write(journal, [b"second", b"third"])
    journal.close()
    data = journal.path.read_bytes()
    for size in range(good, len(data)):
        journal.path.write_bytes(data[:size])
        again = FileJournal(tmp_path, fsync=False)
        assert list(again.replay()) in ([b"first"], [b"first", b"second"])
        write(again, [b"new"])
        again.close()
        assert reopened(tmp_path)[-1] == b"new"


def test_any_damaged_byte_before_acknowledged_data_raises_resume_error_naming_file_and_offset(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    start = journal.num_bytes
    write(journal, [b"first"])
    end_of_first = journal.num_bytes
    write(journal, [b"second"], [b"third"])
    journal.close()
    data = journal.path.read_bytes()
    for place in range(start, end_of_first):
        journal.path.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        with pytest.raises(ResumeError, match=rf"journal-000001\.log is damaged at byte {start}"):
            FileJournal(tmp_path, fsync=False)


def test_damage_inside_the_last_batch_is_a_torn_tail(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    write(journal, [b"first"], [b"second", b"third"])
    journal.close()
    data = journal.path.read_bytes()
    journal.path.write_bytes(data.replace(b"second", b"sec\0\0\0"))
    assert reopened(tmp_path) == [b"first"]


def test_file_of_something_else_raises_resume_error(tmp_path: Path) -> None:
    (tmp_path / "journal-000001.log").write_bytes(b"something else")
    with pytest.raises(ResumeError, match="no journal"):
        FileJournal(tmp_path)


def test_full_disk_raises_disk_full_and_the_next_batch_goes_in_when_space_is_back(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=True)
    write(journal, [b"first"])
    with file_size_limit(journal.num_bytes + 1000):
        for _ in range(3):
            with pytest.raises(DiskFull, match="free space"):
                write(journal, [b"too", b"x" * 5000])
        write(journal, [b"small"])
    assert list(journal.replay()) == [b"first", b"small"]
    write(journal, [b"y" * 5000])
    journal.close()
    assert reopened(tmp_path) == [b"first", b"small", b"y" * 5000]


def test_process_killed_after_a_full_disk_leaves_only_a_torn_tail(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    write(journal, [b"first"])
    with file_size_limit(journal.num_bytes + 1000), pytest.raises(DiskFull):
        write(journal, [b"x" * 100, b"y" * 5000])
    assert reopened(tmp_path)[0] == b"first"


def test_rewrite_replaces_all_records(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"] * 100)
    journal.rewrite([b"new", b"er"])
    write(journal, [b"next"])
    assert list(journal.replay()) == [b"new", b"er", b"next"]
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal-000002.log"]
    assert reopened(tmp_path) == [b"new", b"er", b"next"]


def test_rewrite_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    with file_size_limit(1000), pytest.raises(DiskFull):
        journal.rewrite([b"x" * 5000])
    write(journal, [b"more"])
    assert list(journal.replay()) == [b"old", b"more"]
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal-000001.log"]


def test_killed_before_the_rewritten_file_is_in_place_keeps_the_old_one(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    journal.close()
    (tmp_path / "journal-000002.new").write_bytes(b"half a fi")
    assert reopened(tmp_path) == [b"old"]
    assert [path.name for path in tmp_path.iterdir()] == ["journal-000001.log"]


def test_killed_after_the_rewritten_file_is_in_place_takes_the_new_one(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    old = journal.path.read_bytes()
    journal.rewrite([b"new"])
    journal.close()
    (tmp_path / "journal-000001.log").write_bytes(old)
    assert reopened(tmp_path) == [b"new"]


def test_memory_journal_behaves_like_a_file() -> None:
    journal = MemoryJournal()
    write(journal, [b"a", b"b"], [b"c"])
    assert list(journal.replay()) == [b"a", b"b", b"c"]
    journal.rewrite([b"d"])
    assert list(journal.replay()) == [b"d"]


def test_journal_bytes_are_the_golden_ones(tmp_path: Path, check_golden: CheckGolden) -> None:
    broker = core()
    journal = FileJournal(tmp_path)
    messages = [VersionAnnouncement(0, 0), order(), trajectory_for(assignment()), trajectory_for(assignment(index=1))]
    for message in messages:
        broker.handle(MessagePersisted(None, message), 0.0)
        write(journal, [records.message_record(message)])
    check_golden("journal/plain.log", journal.path.read_bytes())
    broker.handle(MessagePersisted(None, trajectory_for(assignment(number=1))), 0.0)
    journal.rewrite(records.compacted_records(broker))
    write(journal, [records.message_record(ConsumptionReport(1))])
    check_golden("journal/compacted.log", journal.path.read_bytes())
    journal.close()


def test_record_that_is_no_message_raises_resume_error() -> None:
    for payload in (b"M\x01\0\0\0\x05\0\0\0hello", b"M\x01", b"X", b"Kxxxx"):
        with pytest.raises(ResumeError):
            records.event_of(payload)


def test_snapshot_record_is_restored_state() -> None:
    first = next(iter(records.compacted_records(core())))
    assert isinstance(records.event_of(first), StateRestored)
