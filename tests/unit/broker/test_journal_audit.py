"""`computerrl journal`: what lies where, and whether all of it is whole, without touching it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.broker.journal import audit
from computerrl.broker.journal.file import FileJournal
from computerrl.broker.service import BrokerService
from computerrl.common.config import RunConfig
from computerrl.common.messages import ConsumptionReport, VersionAnnouncement
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.launch.commands.main import cli
from tests.support.data.broker_data import assignment, core, order, trajectory_for


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose journal has three segments, of which the first is needed and the second is not."""
    config = RunConfig(run_dir=str(tmp_path))
    RunFolder(config.folder).create(config)
    journal = FileJournal(config.folder / "journal")
    service = BrokerService(core(), journal, segment_bytes=2_000)
    service(order(), "learner-0:l")
    service(trajectory_for(assignment(number=1)), "actor-0:a")
    for version in range(60):
        service(VersionAnnouncement(version, 0), "learner-0:l")
    service.close()
    return config.folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def journal(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["journal", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_ls_lists_segments_with_their_records_and_verify_finds_them_whole(run: Path) -> None:
    before = contents(run / "journal")
    numbers = [segment.number for segment in audit.describe(run / "journal")]
    assert numbers[0] == 1 and len(numbers) == 2 and numbers[1] > 2
    code, text = journal("ls", str(run))
    assert code == 0 and "1 Trajectory" in text and "1 Snapshot" in text
    code, text = journal("verify", str(run))
    assert code == 0 and "whole" in text and "held 1" in text
    assert contents(run / "journal") == before


def test_ls_and_verify_print_the_same_as_json(run: Path) -> None:
    code, text = journal("ls", str(run), "--json")
    rows = json.loads(text)
    assert code == 0 and [row["segment"] for row in rows] == [one.number for one in audit.describe(run / "journal")]
    assert rows[0]["records"]["Trajectory"] == 1 and rows[0]["num_bytes"] > 0 == rows[0]["num_tail_bytes"]
    code, text = journal("verify", str(run), "--json")
    tree = json.loads(text)
    assert code == 0 and tree["problems"] == [] and tree["trajectories"]["held"] == 1
    min((run / "journal").glob("*.log")).unlink()
    code, text = journal("verify", str(run), "--json")
    assert code == 1 and "missing" in json.loads(text)["problems"][0]


def test_cat_prints_records_by_kind_and_id_in_order(run: Path) -> None:
    code, text = journal("cat", str(run), "--kind", "Trajectory", "--full")
    (line,) = text.splitlines()
    record = json.loads(line)
    assert code == 0 and (record["segment"], record["record"], record["trajectory_id"]) == (1, "Trajectory", "rl-1/1/0")
    assert record["steps"][0]["prompt_tokens"] == [0, 1, 2, 3]
    _, text = journal("cat", str(run), "--kind", "VersionAnnouncement")
    versions = [json.loads(line)["policy_version"] for line in text.splitlines()]
    assert versions == sorted(versions) and versions[-1] == 59
    assert journal("cat", str(run), "--id", "rl-1/9/9") == (1, "")


@pytest.mark.parametrize("segment", [0, -1])
def test_verify_of_a_damaged_segment_names_file_and_byte_and_fails(run: Path, segment: int) -> None:
    path = sorted((run / "journal").glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    code, text = journal("verify", str(run))
    assert code == 1 and path.name in text and "damaged at byte 8" in text


def test_torn_end_is_told_apart_from_damage(run: Path) -> None:
    old, newest = sorted((run / "journal").glob("*.log"))
    newest.write_bytes(newest.read_bytes() + b"\xc7RL half")
    assert journal("verify", str(run))[0] == 0
    assert "bytes behind its last record" in journal("ls", str(run))[1]
    old.write_bytes(old.read_bytes() + b"\xc7RL half")
    code, text = journal("verify", str(run))
    assert code == 1 and "only the newest" in text


def test_verify_names_a_segment_that_is_missing_though_needed(run: Path) -> None:
    min((run / "journal").glob("*.log")).unlink()
    code, text = journal("verify", str(run))
    assert code == 1 and "missing" in text


def test_run_without_a_journal_is_a_clear_error(tmp_path: Path) -> None:
    config = RunConfig(run_dir=str(tmp_path))
    RunFolder(config.folder).create(config)
    result = CliRunner().invoke(cli, ["journal", "ls", str(config.folder)])
    assert "holds no journal" in str(result.exception)


def test_every_consumed_trajectory_leaves_the_journal_with_the_next_segment(run: Path) -> None:
    service = BrokerService(core(), FileJournal(run / "journal"), segment_bytes=2_000)
    service(trajectory_for(assignment(number=1, index=1)), "actor-0:a")
    service(ConsumptionReport(1), "learner-0:l")
    for version in range(60, 90):
        service(VersionAnnouncement(version, 0), "learner-0:l")
    service.close()
    assert len(audit.describe(run / "journal")) == 1
