"""The tutorials, block by block as they are printed, in an empty folder, on real desktops.

Of a desktop's tutorial the program is run here, the command with its page for people in test_desktop_page. The first job of
Slurm's is planned here, and done on a cluster in test_cluster_jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.data.chat_server import Answer, chat_server

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.release, pytest.mark.timeout(3000)]
BLOCK = re.compile(r"^```(bash|python|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"Write this to `([\w./-]+)`")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    file: str | None
    """The file that the paragraph before it names."""


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        paragraph = text[: found.start()].rstrip().rpartition("\n\n")[2]
        named = NAMED.search(paragraph.replace("\n", " "))
        yield Block(found[1], found[2], named[1] if named else None)


def play(page: str, folder: Path, **environment: str) -> str:
    """Write the page's files and run its commands and programs in ``folder``; what they print."""
    printed = []
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        assert block.language in ("bash", "python"), block
        printed.append(run(block.text, block.language, folder, **environment))
    return "\n".join(printed)


def run(text: str, language: str, folder: Path, **environment: str) -> str:
    """Run ``text`` in ``folder``; what it prints."""
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": commands, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **environment}
    command = ["bash", "-e", "-c", text] if language == "bash" else [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=2400)
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_task_of_one_s_own_is_proven_and_trained(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("task") if block.file == "sorted_words.py"]
    assert (ROOT / "examples" / "sorted_words.py").read_text(encoding="utf-8").endswith(block.text)
    said = play("task", tmp_path)
    assert "2 of 2 instances are proven" in said
    report = json.loads((tmp_path / "runs" / "words" / "report.json").read_text())
    assert "sorted_words:SORTED_WORDS" in json.dumps(report)


def test_algorithm_of_one_s_own_is_trained_and_compared(tmp_path: Path) -> None:
    play("algorithm", tmp_path)
    assert "HardTasks" in (tmp_path / "compare.html").read_text(encoding="utf-8")


def test_vision_run_has_its_report_and_an_episode_with_its_picture(tmp_path: Path) -> None:
    play("vision", tmp_path)
    assert "data:image/" in (tmp_path / "look.html").read_text(encoding="utf-8")
    assert (tmp_path / "runs" / "look" / "report.html").exists()


def solve(body: dict[str, Any]) -> Answer:
    """The scripted model: a call that sets the cell, then one that says done."""
    said = sum(message["role"] == "assistant" for message in body["messages"])
    told = json.dumps(body["messages"], ensure_ascii=False)
    put, set_to = re.search(r"Put (\w+) into cell (\w+)\.", told), re.search(r"Set cell (\w+) to (\w+)\.", told)
    if put is None and set_to is None:  # the server is tried before the evaluation
        message = {"role": "assistant", "content": "ok"}
    else:
        value, cell = put.groups() if put else set_to.groups()[::-1]
        arguments = {"cell": cell, "value": value}
        name, given = ("calc_set_cell", arguments) if said == 0 else ("done", {})
        call = {"id": f"c{said}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        message = {"role": "assistant", "content": "Next.", "tool_calls": [call]}
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def test_model_behind_an_endpoint_is_evaluated(tmp_path: Path) -> None:
    with chat_server(solve) as server:
        said = play("evaluate", tmp_path, OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")
    found = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert found["all"]["num_rollouts"] == 2 and found["all"]["pass@1"]["mean"] == 1.0
    assert "calc.set_cell" in (tmp_path / "theirs.html").read_text(encoding="utf-8")


def test_task_file_is_checked_and_played(tmp_path: Path) -> None:
    said = play("osworld", tmp_path)
    assert "1 of 1 tasks can be run" in said
    found = json.loads((tmp_path / "runs" / "eval-noter" / "evaluation.json").read_text())
    assert found["all"]["pass@1"]["mean"] == 1.0


def test_run_is_read_with_every_command_of_its_page(tmp_path: Path) -> None:
    said = play("read-a-run", tmp_path)
    assert "Counter({" in said and "'demonstrated'" in said
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "episode.html").stat().st_size > 10_000


def test_program_of_the_desktop_tutorial_solves_its_task(tmp_path: Path) -> None:
    (program,) = [block.text for block in blocks("desktop") if block.language == "python"]
    assert run(program, "python", tmp_path).splitlines()[-1].startswith("1.0 ")


def test_first_job_of_the_slurm_tutorial_is_planned_as_printed(tmp_path: Path) -> None:
    lines = [line for block in blocks("slurm") if block.language == "bash" for line in block.text.splitlines()]
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (copy,) = [line for line in lines if line.startswith("cp ")]
    run(copy, "bash", tmp_path)
    (plan,) = [line for line in lines if line.startswith("computerrl plan configs/")]
    (submit,) = [line.partition("#")[0] for line in lines if line.startswith("computerrl submit configs/")]
    for line in (plan, f"{submit} --dry-run"):
        said = run(line, "bash", tmp_path)
        assert "# processes" in said and "#SBATCH" in said and "computerrl job runs/smoke" in said
    assert not (tmp_path / "runs").exists()
