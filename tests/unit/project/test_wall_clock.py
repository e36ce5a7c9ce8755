"""The wall clock may jump by hours: only monotonic clocks decide, and durations in records do not follow it. It is read in the
files named here."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computerrl.common import clock
from computerrl.launch.report.report_data import ActiveTime, Attempt

ROOT = Path(__file__).parents[3]
PACKAGES = ("actor", "broker", "common", "env_server", "launch", "learner")
READS = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.now|\bdate\.today|\butcnow")
WHY = {
    "actor/engines/vllm_engine.py": "part of a request of vLLM's; for its statistics",
    "common/clock.py": "the date at which an attempt began, for its records",
    "common/endpoint.py": "a server that is to be asked again at a date, and within a minute at the latest",
    "common/lifecycle.py": "part of an incarnation's name; its random part is what makes it another",
    "env_server/live/recorder.py": "when a demonstration was recorded",
    "env_server/tasks/osworld/getters/values.py": "tasks that ask for a date relative to today",
    "env_server/tasks/osworld/steps.py": "a browser history of some days ago",
    "launch/cluster/checks.py": "compared with a file server's clock",
    "launch/web/controls.py": "when a control was used, for the log",
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


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    read = time.time
    monkeypatch.setattr(time, "time", lambda: read() + seconds)


@pytest.fixture
def anchored(monkeypatch: pytest.MonkeyPatch) -> str:
    """The anchor of an attempt that begins now; its variable goes with the test."""
    monkeypatch.setenv("COMPUTERRL_CLOCK", "")
    return clock.anchor_clock()


@pytest.mark.parametrize("jump_s", [-3600.0, 7200.0])
def test_durations_of_records_do_not_follow_a_wall_clock_that_is_set(
    anchored: str, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    before = clock.unix_now()
    jump(monkeypatch, jump_s)
    assert 0 <= clock.unix_now() - before < 600
    assert 0 <= clock.unix_now(anchored) - before < 600  # As a page in another process asks.
    script = "from computerrl.common.clock import unix_now; print(unix_now())"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 0 <= float(child.stdout) - before < 600


def test_next_attempt_has_the_date_that_the_wall_clock_shows_then(anchored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.unix_now(anchored)
    jump(monkeypatch, 7200.0)
    clock.anchor_clock()
    assert 7200 <= clock.unix_now() - before < 7800


@pytest.mark.parametrize("anchor", ["another-boot 5.0", "5.0", ""])
def test_anchor_of_another_machine_means_nothing_here(anchored: str, anchor: str) -> None:
    clock._offset.cache_clear()
    assert abs(clock.unix_now(anchor) - time.time()) < 600


def test_attempt_that_was_killed_before_the_clock_was_set_back_has_no_negative_time() -> None:
    active = ActiveTime([Attempt(5000.0, None), Attempt(1000.0, 1100.0)], last_record=1050.0)
    assert active.total_s == 100.0
