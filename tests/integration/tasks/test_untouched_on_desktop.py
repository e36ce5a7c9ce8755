"""Task files on a real desktop before any agent: what pays untouched is refused, by `tasks check --play` and in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from computerrl.env_server.judging import untouched
from computerrl.launch.commands.main import cli

pytestmark = pytest.mark.timeout(600)

_CONFIG = "desktop: {image: core, num_desktops: 1, apps: [files], observation: tree, reset_deadline_s: 120}\n"


def prints(command: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": command, "shell": True}


def write(folder: Path, name: str, *config: Any, result: Any, postconfig: Any = ()) -> None:
    expected = {"type": "rule", "rules": {"include": ["yes"], "exclude": []}}
    evaluator = {"postconfig": list(postconfig), "func": "check_include_exclude", "result": result, "expected": expected}
    task = {"id": name, "instruction": f"Do {name}.", "config": list(config), "evaluator": evaluator}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(task))


def shell(command: str) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": command, "shell": True}}


def test_tasks_that_pay_untouched_are_refused_and_the_others_start_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "cache_folder", lambda: tmp_path / "cache")
    folder, report, config = tmp_path / "tasks", tmp_path / "report.json", tmp_path / "run.yaml"
    config.write_text(_CONFIG)
    # Its own set-up fails on a desktop that has been judged and not been set up anew.
    marks = shell("touch ~/judged")
    fresh = {
        "type": "execute_with_verification",
        "parameters": {"command": ["true"], "max_wait_time": 0, "verification": {"command_success": "test ! -e ~/judged"}},
    }
    write(folder, "nothing", fresh, result=prints("test -e ~/made && echo yes"), postconfig=[marks])
    write(folder, "pays", shell("touch ~/made"), result=prints("test -e ~/made && echo yes"))
    write(folder, "pays-after", result=prints("cat ~/said"), postconfig=[shell("echo yes > ~/said")])
    write(folder, "no-window", {"type": "activate_window", "parameters": {"window_name": "Nowhere"}}, result=prints("true"))
    arguments = ["tasks", "check", str(folder), "--play", "--config", str(config), "--json", str(report)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert "run      nothing.json" in lines and "1 of 4 tasks can be run" in lines
    for name in ("pays", "pays-after"):
        reason = lines[lines.index(f"refused  {name}.json") + 1]
        assert reason.strip() == "pays untouched: evaluator: score 1 for doing nothing"
    assert "no window 'Nowhere'" in lines[lines.index("refused  no-window.json") + 1]
    assert "played 4 of 4: " in result.stderr
    assert json.loads(report.read_text())["reasons"] == {"fails": 1, "pays untouched": 2}
    assert len(list((tmp_path / "cache" / "untouched").iterdir())) == 3
