"""`computerrl bench`: a benchmark whose targets are guarantees fails the command when one is missed."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl import benchmarks
from computerrl.benchmarks.studies._catalogue import DESIGNS
from computerrl.launch.commands import measure as bench
from computerrl.launch.commands.main import cli
from computerrl.launch.plan import machine

MODULE = """
GUARANTEED = {guaranteed}
def run(quick):
    return [{{"name": "lost", "value": {value}, "unit": "", "target": 0, "better": "lower"}}]
"""


@pytest.mark.parametrize(
    ("name", "guaranteed", "value", "code"),
    [("kept", True, 0, 0), ("broken", True, 1, 1), ("missing", True, None, 0), ("slow", False, 1, 0)],
)
def test_bench_exit_code_is_1_only_when_a_guarantee_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, guaranteed: bool, value: int | None, code: int
) -> None:
    folder = tmp_path / "benchmarks"
    area = folder / f"area_{name}"
    area.mkdir(parents=True)
    (area / f"{name}.py").write_text(MODULE.format(guaranteed=guaranteed, value=value))
    monkeypatch.setattr(bench, "PACKAGE", tmp_path)
    monkeypatch.setattr(bench, "BENCHMARKS", folder)
    monkeypatch.setattr(benchmarks, "__path__", [str(folder)])
    assert bench.run_bench(name, json_file=None, quick=True) == code


BATTERY = """
def run(quick, *, gpus=1):
    yield {{"name": "speed", "value": 1.0, "unit": "s", "target": 0.5, "better": "lower"}}
    yield {{"name": "check", "value": 2.0, "better": "lower", "state": "{state}", "reason": f"of {{gpus}} GPUs"}}
    if {breaks}:
        raise KeyboardInterrupt
"""


@pytest.fixture
def battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a benchmark whose rows come one by one, and returns its name."""

    def write(state: str, *, breaks: bool = False) -> str:
        name = f"battery_{state.replace(' ', '_')}_{breaks}".lower()
        area = tmp_path / "benchmarks" / f"area_{name}"
        area.mkdir(parents=True)
        (area / f"{name}.py").write_text(BATTERY.format(state=state, breaks=breaks))
        return name

    monkeypatch.setattr(bench, "PACKAGE", tmp_path)
    monkeypatch.setattr(bench, "BENCHMARKS", tmp_path / "benchmarks")
    monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path / "benchmarks")])
    return write


@pytest.mark.parametrize(("state", "code"), [("passed", 0), ("failed", 1), ("not run", 0)])
def test_bench_exit_code_is_1_when_a_check_failed_and_the_reason_is_printed(
    battery: Callable[..., str], capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    assert bench.run_bench(battery(state), json_file=None, quick=False, options={"gpus": 3}) == code
    printed = capsys.readouterr().out
    assert f"check: 2 {state}, of 3 GPUs" in printed and f"{state}: check: of 3 GPUs" in printed and f"1 {state}" in printed


def test_bench_writes_rows_one_by_one_below_machine_commit_date_and_command(
    battery: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["computerrl", "bench", "battery", "--json", "my file"])
    file = tmp_path / "folder" / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        bench.run_bench(battery("failed", breaks=True), json_file=file, quick=False)
    tree = json.loads(file.read_text())
    assert [row["name"] for row in tree["rows"]] == ["speed", "check"] and tree["rows"][1]["state"] == "failed"
    assert tree["command"] == "computerrl bench battery --json 'my file'" and len(tree["commit"]) == 40
    assert datetime.fromisoformat(tree["date"]).tzinfo is not None
    assert {"gpus", "gpu_driver", "cuda", "versions"} <= set(tree["machine"])
    assert {"torch", "transformers"} <= set(tree["machine"]["versions"])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 13.2", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023", "535.54.03"),
        ("", ""),
    ],
)
def test_driver_of_gpus_is_read(text: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_fact", lambda path: text)
    monkeypatch.setenv("PATH", "")
    assert machine.gpu_driver() == version


def test_every_benchmark_and_study_has_a_text_and_a_name_of_its_own() -> None:
    files = list(bench.BENCHMARKS.glob("*/*.py"))
    public = [path.stem for path in files if not path.stem.startswith("_") and path.parent != bench.STUDIES]
    assert sorted(public) == list(bench.texts("benchmark")), "two of one name"
    assert {"broker", "faults", "soak_desktops", "staleness"} < set(public) and not list(bench.BENCHMARKS.glob("[!_]*.py"))
    assert not {path.stem for path in bench.STUDIES.glob("*.py")} & DESIGNS.keys()
    for text in (*bench.texts("benchmark").values(), *bench.texts("study").values()):
        assert text.partition("\n")[0].endswith(".") and len(text) > 80


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["study", "asynchrony"], "AReaL (arXiv 2505.24298)"), (["study", "scale"], "Density"), (["bench", "broker"], "fdatasync")],
)
def test_help_beside_a_name_has_the_text_of_that_benchmark_or_study(words: list[str], shown: str) -> None:
    with_name, without = (CliRunner().invoke(cli, [*line, "--help"]).output for line in (words, words[:1]))
    assert shown in with_name and shown not in without and "--quick" in with_name


def test_bench_table_names_missed_targets_and_gives_the_spread_in_few_digits(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "fast", "value": 2.0, "unit": "s", "spread": [1.2345678, 2.3456789], "target": 3.0, "better": "lower"},
        {"name": "slow", "value": 4.0, "unit": "s", "spread": None, "target": 3.0, "better": "lower"},
    ]
    bench.print_rows("speeds", [bench.complete(row) for row in rows], took_s=1.0, quick=False)
    fast, slow = capsys.readouterr().out.splitlines()[2:4]
    assert "1.235..2.346" in fast and "missed" not in fast
    assert "<= 3 missed" in slow
