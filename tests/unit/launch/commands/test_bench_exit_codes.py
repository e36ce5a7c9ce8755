"""`computerrl bench`: a benchmark whose targets are guarantees fails the command when one is missed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from computerrl import benchmarks
from computerrl.benchmarks.studies._catalogue import DESIGNS
from computerrl.launch.commands import measure as bench
from computerrl.launch.commands.main import cli

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
