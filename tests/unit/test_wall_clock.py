"""The wall clock may jump by hours: only monotonic clocks decide. It is read for records, in the files named here."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("actor", "broker", "common", "env_server", "launch", "learner")
READS = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.now|\bdate\.today|\butcnow")
WHY = {
    "actor/engines/vllm_engine.py": "part of a request of vLLM's; for its statistics",
    "actor/episode.py": "when an episode began, for its record",
    "common/lifecycle.py": "part of an incarnation's name; its random part is what makes it another",
    "env_server/live/recorder.py": "when a demonstration was recorded",
    "env_server/tasks/osworld/getters/values.py": "tasks that ask for a date relative to today",
    "env_server/tasks/osworld/steps.py": "a browser history of some days ago",
    "launch/display.py": "shown",
    "launch/doctor_cluster.py": "compared with a file server's clock",
    "launch/local.py": "when an attempt began and ended, for the report",
    "launch/status.py": "shown",
    "launch/web/controls.py": "when a control was used, for the log",
    "launch/web/server.py": "where the curves of a live run end",
    "learner/records.py": "when a line was written",
}
"""File -> what it wants the wall clock for."""


def readers(root: Path) -> set[str]:
    """Host-side files below ``root`` that read the wall clock."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    names = {path.relative_to(root).as_posix() for path in files if READS.search(path.read_text())}
    return {name for name in names if not name.startswith("env_server/guest/")}


def test_wall_clock_is_read_for_records_only() -> None:
    assert readers(ROOT) == set(WHY)


@pytest.mark.parametrize("line", ["now = time.time()", "first = time.time_ns() // 1000", "datetime.now(UTC)"])
def test_wall_clock_read_by_a_decision_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "core.py").write_text(line)
    assert readers(tmp_path) == {"broker/core.py"}
