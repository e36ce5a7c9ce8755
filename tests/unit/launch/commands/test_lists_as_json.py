"""`--json` of the commands that print a list or a plan, and where it goes with nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl.launch.commands.main import cli
from computerrl.launch.commands.measure import texts

SITE = str(Path(__file__).resolve().parents[4] / "configs" / "sites" / "gpu-and-cpu.yaml")


def told(*words: str) -> object:
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_studies_and_benchmarks_are_listed_with_their_texts(tmp_path: Path) -> None:
    assert told("study", "--json") == [{"name": name, "text": text} for name, text in texts("study").items()]
    done = CliRunner().invoke(cli, ["bench", "--json", str(tmp_path / "all.json")])
    assert done.exit_code == 0 and "broker" in done.stdout
    assert {one["name"] for one in json.loads((tmp_path / "all.json").read_text())} == set(texts("benchmark"))


def test_families_are_listed_as_tasks_list_does() -> None:
    assert told("desktop", "--list", "--json") == told("tasks", "list", "--json")


def test_dry_run_of_a_job_is_its_plan() -> None:
    words = ("quickstart", "--site", SITE, "--json")
    assert told("submit", *words, "--dry-run") == told("plan", *words)


WORDS = (("study", "faults"), ("desktop",), ("submit", "quickstart", "--site", SITE))


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_json_where_there_is_no_list_is_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 2, done.output
