"""The files in examples/ that play on a desktop, on a real one. The task family of one's own is played in test_tutorials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]


def test_notebook_s_cells_play_a_task_and_show_its_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    display = types.ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    notebook = json.loads((EXAMPLES / "desktop.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["reward"] == 1.0 and names["terminated"] is True, names["info"]
    before, after = shown
    assert before.size == after.size == (800, 600) and before.tobytes() != after.tobytes()


def test_agent_of_one_s_own_is_evaluated(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "first_button.py", tmp_path)
    words = ["eval", "first_button", "--agent", "first_button:Agent", "--config", "smoke", "--tasks", "web-click-button"]
    done = subprocess.run(
        [sys.executable, "-m", "computerrl", *words, "--episodes", "2", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout[done.stdout.index("{") :])
    assert figures["all"]["num_rollouts"] == 2 and figures["all"]["pass@1"]["mean"] == 1.0
