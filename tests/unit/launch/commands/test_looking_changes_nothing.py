"""Commands that look at a run leave every file of its folder as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.common.metrics import read_json_lines
from computerrl.launch.commands.main import cli
from tests.support.data.synthetic_run import write_run


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path): path.lstat() for path in sorted(folder.rglob("*"))}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_mode) for path, stat in found.items()}


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "looked-at"],
        ["trace", "looked-at", "EPISODE", "--out", "one.json"],
        ["logs", "looked-at"],
        ["compare", "looked-at", "other", "--out", "both.html"],
        ["journal", "ls", "looked-at"],
        ["journal", "verify", "looked-at"],
        ["journal", "cat", "looked-at"],
        ["replay", "looked-at", "EPISODE", "--out", "one.html"],
    ],
    ids=" ".join,
)
def test_looking_at_a_run_changes_nothing_in_it(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, _ = write_run(tmp_path / "runs" / "looked-at"), write_run(tmp_path / "runs" / "other")
    path = run / "trajectories" / "episodes.jsonl"
    episodes = [{**record, "started_at": 100.0, "actor": "actor-0"} for record in read_json_lines(path)]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in episodes))
    episode = episodes[0]["trajectory_id"]
    before = contents(run)
    done = CliRunner().invoke(cli, [episode if word == "EPISODE" else word for word in words])
    assert before and contents(run) == before
    written = {words[-1]} if "--out" in words else {"trace-looked-at.json"} if words[0] == "trace" else set()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", *written}, done.output
