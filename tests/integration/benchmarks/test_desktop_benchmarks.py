"""Short versions of the benchmarks of desktops: each plays to its end, measures all that it names, and leaves nothing behind."""

from pathlib import Path

import pytest

from tests.integration.benchmarks.test_fault_benchmarks import ROOT, bench, wait_until_alone

LIMIT_S = 900.0
"""For a busy machine; each takes a minute or two."""
NAMES = sorted(path.stem for path in (ROOT / "benchmarks/env").glob("[a-z]*.py"))


@pytest.mark.release
@pytest.mark.parametrize("name", NAMES)
def test_benchmark_of_desktops_plays_to_its_end(name: str, tmp_path: Path) -> None:
    code, rows = bench(name, tmp_path, limit_s=LIMIT_S)
    assert [row for row in rows.values() if row["value"] is None] == []
    assert {name: row["value"] for name, row in rows.items() if "left" in name and row["target"] == 0 and row["value"]} == {}
    assert code == 0 and rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert wait_until_alone(tmp_path) == []
