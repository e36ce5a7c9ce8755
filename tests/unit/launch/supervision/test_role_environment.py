"""Environment of supervised processes."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from computerrl.common.config import SupervisorConfig
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.supervisor import Outcome, Supervisor

PROGRAM = "import json, os, sys, time; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ))); time.sleep(300)"
LIMIT_S = 120.0


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(None, "/ours"), ("/theirs:/ours:/more", "/ours:/theirs:/more")],
)
def test_search_path_of_a_process_has_the_users_folders_behind_ours(
    theirs: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if theirs is not None:
        monkeypatch.setenv("PYTHONPATH", theirs)
    told = tmp_path / "environment"
    argv = (sys.executable, "-I", "-c", PROGRAM, str(told))
    spec = ProcessSpec("learner", 0, argv, env={"PYTHONPATH": "/ours"}, ends_run=True, stop_signal=signal.SIGTERM)
    deadline = time.monotonic() + LIMIT_S

    def tick() -> Outcome | None:
        assert time.monotonic() < deadline
        return Outcome("stopped", "seen", 0) if told.exists() and told.read_text().endswith("}") else None

    Supervisor([spec], config=SupervisorConfig(), log_folder=tmp_path, notify=print).run(tick=tick, tick_s=0.05)
    assert json.loads(told.read_text())["PYTHONPATH"] == expected
