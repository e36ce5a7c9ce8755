"""The durable log: torn tails, damage, full disks, segments."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from computerrl.broker.events import MessagePersisted, StateRestored, TrajectoryRestored
from computerrl.broker.journal import records
from computerrl.broker.journal.file import FileJournal, Journal, MemoryJournal, Position
from computerrl.common.errors import DiskFull, ResumeError
from computerrl.common.messages import SCHEMA_VERSION, ConsumptionReport, VersionAnnouncement
from computerrl.common.wire import codec
from tests.conftest import CheckGolden
from tests.support.data.broker_data import assignment, core, order, trajectory_for


def write(journal: Journal, *batches: list[bytes]) -> list[Position]:
    positions = []
    for batch in batches:
        for payload in batch:
            journal.append(payload)
        positions += journal.flush()
    return positions


def payloads_of(journal: Journal) -> list[bytes]:
    return [payload for _, payload in journal.replay()]


def reopened(folder: Path) -> list[bytes]:
    journal = FileJournal(folder, fsync=False)
    found = payloads_of(journal)
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
    assert payloads_of(journal) == [b"a", b"", b"c" * 100_000, b"d"]
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
        assert payloads_of(again) in ([b"first"], [b"first", b"second"])
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
    assert payloads_of(journal) == [b"first", b"small"]
    write(journal, [b"y" * 5000])
    journal.close()
    assert reopened(tmp_path) == [b"first", b"small", b"y" * 5000]


def test_process_killed_after_a_full_disk_leaves_only_a_torn_tail(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    write(journal, [b"first"])
    with file_size_limit(journal.num_bytes + 1000), pytest.raises(DiskFull):
        write(journal, [b"x" * 100, b"y" * 5000])
    assert reopened(tmp_path)[0] == b"first"


def both_journals(folder: Path) -> list[Journal]:
    return [FileJournal(folder, fsync=False), MemoryJournal()]


def test_record_given_in_pieces_is_one_record(tmp_path: Path) -> None:
    for journal in both_journals(tmp_path):
        journal.append(b"a", b"", b"bc")
        journal.flush()
        assert payloads_of(journal) == [b"abc"]


def test_flush_says_where_each_record_lies_also_after_further_segments(tmp_path: Path) -> None:
    for journal in both_journals(tmp_path):
        wanted = [b"a", b"b" * 1000, b"c"]
        positions = write(journal, wanted[:2], wanted[2:])
        journal.begin_segment(b"snapshot")
        positions += write(journal, [b"d"])
        assert [journal.read(position) for position in positions] == [*wanted, b"d"]
        assert [position for position, _ in journal.replay()][1:] == positions[3:]
    again = FileJournal(tmp_path, fsync=False)
    assert [again.read(position) for position in [Position(1, 8), Position(1, 29)]] == [b"a", b"b" * 1000]


def test_new_segment_begins_with_its_snapshot_and_old_ones_go_when_nobody_needs_them(tmp_path: Path) -> None:
    for journal in both_journals(tmp_path):
        write(journal, [b"one"])
        for number in (2, 3):
            journal.begin_segment(f"snapshot {number}".encode())
            write(journal, [f"in {number}".encode()])
        assert payloads_of(journal) == [b"snapshot 3", b"in 3"]
        all_bytes = journal.num_bytes
        journal.drop_segments({1})
        assert journal.newest_bytes < journal.num_bytes < all_bytes
        journal.drop_segments(set())
        assert journal.num_bytes == journal.newest_bytes
        assert payloads_of(journal) == [b"snapshot 3", b"in 3"]
    assert [path.name for path in tmp_path.glob("*.log")] == ["journal-000003.log"]
    assert reopened(tmp_path) == [b"snapshot 3", b"in 3"]


def test_file_of_a_segment_that_nobody_needs_becomes_that_of_a_later_one(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old record"] * 500)
    old = journal.path.stat()
    for number in (2, 3):
        journal.begin_segment(f"snapshot {number}".encode())
        journal.drop_segments(set())
        write(journal, [b"in it"])
    assert journal.path.stat().st_ino == old.st_ino and journal.path.stat().st_size == old.st_size
    assert payloads_of(journal) == [b"snapshot 3", b"in it"] and journal.num_bytes == journal.newest_bytes < 200
    # Killed here: what is left of the old segment is neither a record nor damage.
    assert reopened(tmp_path) == [b"snapshot 3", b"in it"]


def test_record_of_the_segment_before_at_the_place_of_the_next_one_is_not_read(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, *[[b"sixteen bytes..."]] * 50)
    for _ in range(2):
        journal.begin_segment(b"sixteen bytes...")
        journal.drop_segments(set())
    assert journal.path.stat().st_size > 50 * 16
    write(journal, *[[b"sixteen bytes..."]] * 5)
    journal.close()
    assert reopened(tmp_path) == [b"sixteen bytes..."] * 6


def test_files_kept_for_later_segments_are_few(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    for number in range(8):
        journal.begin_segment(str(number).encode())
    journal.drop_segments(set())
    assert len(list(tmp_path.iterdir())) == 5
    (tmp_path / "journal-000099.spare").touch()
    journal.close()
    reopened(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_new_segment_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    with file_size_limit(1000), pytest.raises(DiskFull):
        journal.begin_segment(b"x" * 5000)
    write(journal, [b"more"])
    assert payloads_of(journal) == [b"old", b"more"]
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal-000001.log"]


def test_segment_that_ended_with_a_failed_batch_is_whole_to_its_last_byte(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    size = journal.num_bytes
    with file_size_limit(1000), pytest.raises(DiskFull):
        write(journal, [b"x" * 100, b"y" * 5000])
    journal.begin_segment(b"snapshot")
    assert (tmp_path / "journal-000001.log").stat().st_size == size


def test_killed_before_the_new_segment_is_in_place_goes_on_in_the_old_one(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    journal.close()
    (tmp_path / "journal-000002.new").write_bytes(b"half a fi")
    assert reopened(tmp_path) == [b"old"]
    assert [path.name for path in tmp_path.iterdir()] == ["journal-000001.log"]


def test_new_segment_without_a_readable_snapshot_raises_resume_error(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    write(journal, [b"old"])
    journal.begin_segment(b"snapshot")
    journal.close()
    path = tmp_path / "journal-000002.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ResumeError, match=r"journal-000002\.log.*snapshot"):
        FileJournal(tmp_path)


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_needed_record_of_an_old_segment_that_is_damaged_raises_resume_error(tmp_path: Path, damage: str) -> None:
    journal = FileJournal(tmp_path)
    _, position = write(journal, [b"one", b"two"])
    path = journal.path
    journal.begin_segment(b"snapshot")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"two", b"tow") if damage == "changed" else path.read_bytes()[:-1])
    with pytest.raises(ResumeError, match=r"journal-000001\.log"):
        journal.read(position)


def test_journal_bytes_are_the_golden_ones(tmp_path: Path, check_golden: CheckGolden) -> None:
    broker = core()
    journal = FileJournal(tmp_path)
    messages = [VersionAnnouncement(0, 0), order(), *(trajectory_for(assignment(index=index)) for index in range(2))]
    messages.append(trajectory_for(assignment(number=1)))
    positions = {}
    for message in messages:
        broker.handle(MessagePersisted(None, message), 0.0)
        journal.append(*records.message_record(message))
        (position,) = journal.flush()
        positions[getattr(message, "trajectory_id", "")] = position
    check_golden("journal/first-segment.log", journal.path.read_bytes())
    held = [positions[trajectory.trajectory_id] for trajectory in broker.held()]
    journal.begin_segment(records.snapshot_record(broker, b"".join(map(records.packed, held)), images={}))
    write(journal, [b"".join(records.message_record(ConsumptionReport(1)))])
    check_golden("journal/second-segment.log", journal.path.read_bytes())
    kinds = [type(event) for _, event in records.events(journal)]
    assert kinds == [StateRestored, TrajectoryRestored, TrajectoryRestored, TrajectoryRestored, MessagePersisted]
    journal.close()


@pytest.mark.parametrize("payload", [b"M\x01\0\0\0\x05\0\0\0hello", b"M\x01", b"X", b"Kxxxx", b"S{", b"S\2\0\0\0{}12345678"])
def test_record_that_is_no_message_raises_resume_error(payload: bytes) -> None:
    journal = MemoryJournal()
    write(journal, [payload])
    with pytest.raises(ResumeError):
        list(records.events(journal))


def test_snapshot_that_points_at_no_trajectory_raises_resume_error() -> None:
    journal = MemoryJournal()
    journal.append(*records.message_record(VersionAnnouncement(0, 0)))
    (position,) = journal.flush()
    journal.begin_segment(records.snapshot_record(core(), records.packed(position), images={}))
    with pytest.raises(ResumeError, match="VersionAnnouncement"):
        list(records.events(journal))


def test_record_of_another_schema_version_raises_resume_error_that_names_both() -> None:
    (frame,) = codec.encode(ConsumptionReport(1), sender="journal", message_id=0)
    header = msgpack.packb({**msgpack.unpackb(frame), "schema": SCHEMA_VERSION - 1})
    payload = b"".join(records.message_record(ConsumptionReport(1), frames=[header]))
    with pytest.raises(ResumeError, match=f"schema {SCHEMA_VERSION - 1}, this side speaks {SCHEMA_VERSION}"):
        records.message_of(payload)
