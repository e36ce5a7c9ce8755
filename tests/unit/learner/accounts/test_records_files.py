"""The learner's append-only files over restarts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.accounts.records import LEDGER_FILE, Records


def lines(folder: RunFolder) -> list[int]:
    return [line["n"] for line in read_json_lines(folder.folder / LEDGER_FILE)]


def test_lines_after_the_checkpoint_are_gone_and_those_before_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = Records(folder, positions={})
    first.ledger_line({"n": 1})
    positions = first.positions()
    first.ledger_line({"n": 2})
    first.close()
    second = Records(folder, positions=positions)
    second.ledger_line({"n": 3})
    second.close()
    assert lines(folder) == [1, 3]


def test_a_learner_replaced_in_its_sleep_writes_where_nobody_reads(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    frozen = Records(folder, positions={})
    frozen.ledger_line({"n": 1})
    newer = Records(folder, positions=frozen.positions())
    frozen.ledger_line({"n": 2})
    newer.ledger_line({"n": 3})
    frozen.ledger_line({"n": 4})
    assert lines(folder) == [1, 3]
    for records in (frozen, newer):
        records.close()
    assert not list(folder.folder.glob(".*"))


def test_a_file_shorter_than_the_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    logger = SimpleNamespace(error=lambda event, **fields: said.append((event, fields)))
    monkeypatch.setattr("computerrl.learner.accounts.records.log.get_logger", lambda: logger)
    folder = RunFolder(tmp_path)
    records = Records(folder, positions={})
    records.ledger_line({"n": 1})
    records.close()
    Records(folder, positions={"ledger": 1000}).close()
    path = folder.folder / LEDGER_FILE
    assert said == [("records.shorter_than_checkpoint", {"path": str(path), "size": 8, "expected": 1000})]
    assert lines(folder) == [1]
