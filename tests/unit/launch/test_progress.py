"""Progress of long commands: the estimate of the time left, the line, when a plain line is due, and that each command has one."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computerrl.env_server.tasks.bundles.imported import Index
from computerrl.env_server.tasks.osworld.check import Report
from computerrl.launch import progress
from computerrl.launch.commands.main import cli
from computerrl.launch.plan.run_names import CONFIG_FILE
from computerrl.launch.progress import FIRST_S, LINE_EVERY_S, SILENCE_S, WIDTH, Pace, Progress, in_words, is_due, tracked

# --- the estimate ----------------------------------------------------------------------------------------------------


def test_pace_is_unknown_until_a_part_is_done_and_then_falls_with_the_clock() -> None:
    pace = Pace(100.0, total=4)
    assert pace.left_s(130.0) is None and pace.share == 0
    pace.at(1, 4, now=110.0)
    assert pace.left_s(110.0) == 30.0 and pace.share == 0.25
    assert pace.left_s(115.0) == 25.0
    pace.at(2, 4, now=120.0)
    assert pace.left_s(120.0) == 20.0
    assert pace.left_s(141.0) is None  # The third part already takes longer than both that are left should.
    pace.at(4, 4, now=150.0)
    assert pace.left_s(999.0) == 0.0 and pace.share == 1


def test_pace_does_not_count_parts_that_were_there_before() -> None:
    pace = Pace(0.0, done=90, total=100)
    assert pace.left_s(50.0) is None
    pace.at(91, 100, now=50.0)
    assert pace.left_s(50.0) == 9 * 50.0


def test_pace_without_a_number_of_parts_is_unknown() -> None:
    pace = Pace(0.0)
    pace.at(3, None, now=1.0)
    assert pace.left_s(1.0) is None and pace.share is None


@given(st.integers(1, 1000), st.floats(0.01, 1e4))
def test_pace_of_equal_parts_is_right_whenever_one_has_ended(total: int, part_s: float) -> None:
    pace = Pace(0.0, total=total)
    for done in range(1, total + 1):
        pace.at(done, total, now=done * part_s)
        assert pace.left_s(done * part_s) == pytest.approx((total - done) * part_s)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200), st.integers(0, 10**7), st.floats(0, 1e6))
def test_line_fits_a_narrow_terminal(what: str, done: int, now: float) -> None:
    pace = Pace(0.0, total=10**7)
    pace.at(done, 10**7, now=now)
    assert len(in_words(what, pace, unit="trajectories", now=now)) < WIDTH


@pytest.mark.parametrize(
    ("done", "total", "unit", "line"),
    [
        (0, 20, "parts", "work: 0%, 0 of 20 parts, 1:30 min, time left unknown"),
        (5, 20, "parts", "work: 25%, 5 of 20 parts, 1:30 min, about 4:30 min left"),
        (5, None, "rows", "work: 5 rows, 1:30 min, time left unknown"),
        (0.5, 1.0, "", "work: 50%, 1:30 min, about 1:30 min left"),
    ],
)
def test_line_has_share_count_time_and_time_left(done: float, total: float | None, unit: str, line: str) -> None:
    pace = Pace(0.0, total=total)
    pace.at(done, total, now=90.0)
    assert in_words("work", pace, unit=unit, now=90.0) == line


@pytest.mark.parametrize(
    ("elapsed_s", "printed", "now", "share", "due"),
    [
        (FIRST_S / 2, None, 0.0, 0.9, False),
        (FIRST_S, None, 0.0, 0.0, True),
        (99.0, (0.0, 0.0), LINE_EVERY_S - 1, 0.9, False),
        (99.0, (0.0, 0.11), LINE_EVERY_S, 0.19, False),
        (99.0, (0.0, 0.11), LINE_EVERY_S, 0.2, True),
        (99.0, (0.0, 0.0), SILENCE_S, 0.0, True),
    ],
)
def test_plain_line_is_due(elapsed_s: float, printed: tuple[float, float] | None, now: float, share: float, due: bool) -> None:
    assert is_due(elapsed_s, printed, now=now, share=share) is due


# --- where it is shown -----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_redraws_one_line_on_a_terminal_and_leaves_a_piped_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(sys, "stdout", piped := io.StringIO())
    with Progress("work", unit="parts") as shown:
        for _ in tracked(range(3), shown, total=3):
            print("result")
    drawn = terminal.getvalue()
    assert "work: 0 parts, 0 s, time left unknown" in drawn
    assert drawn.count("\n") == 1 and drawn.endswith("\x1b[1A\x1b[2K")  # One line, which is gone at the end.
    assert piped.getvalue() == "result\n" * 3


def test_progress_of_quick_work_prints_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("work", total=1) as shown:
        shown._entered = shown._clock() + 1e6  # No machine is so slow that the first line were due.
        shown(1, 1)
    assert capsys.readouterr() == ("", "")


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_S", "LINE_EVERY_S", "SILENCE_S"):
        monkeypatch.setattr(progress, name, 0.0)


def _told(*_: object, **options: Any) -> SimpleNamespace:
    """Work of two parts."""
    for done in range(3):
        options["tell"](done, 2)
    return SimpleNamespace(table=lambda: "", as_json=lambda out: "{}")


def _proofs(*_: object, **__: object) -> Iterator[Any]:
    figures = {"is_proven": True}
    for seed in range(3):
        task = SimpleNamespace(family="x", seed=seed)
        yield SimpleNamespace(task=task, is_proven=True, as_json=lambda: figures, in_words=lambda: "right")


def _recorded(*_: object, **options: Any) -> SimpleNamespace:
    _told(**options)
    return SimpleNamespace(paths=[Path("x")], refused={}, num_actions_left_out=0, num_screens_missing=0)


def _rows(quick: bool) -> Iterator[Mapping[str, object]]:
    yield {"name": "a", "value": 1.0}
    yield {"name": "b", "value": 2.0}


def _verified(*_: object, **options: Any) -> SimpleNamespace:
    _told(**options)
    return SimpleNamespace(problems=[], num_bytes=0, num_records=0, counters={})


def _checked(*_: object, **options: Any) -> Report:
    _told(**options)
    return Report(())


def _imported(*_: object, **options: Any) -> Index:
    _told(**options)
    return Index(1, "cua-gym", ())


LONG = {
    "export": ("export {run} {out}", "computerrl.learner.checkpoints.export.export_model", _told, "parts"),
    "export-trajectories": (
        "export-trajectories {run} {out} --json",
        "computerrl.launch.export.write.export_trajectories",
        _told,
        "trajectories",
    ),
    "report": ("report {run}", "computerrl.launch.report.write.write_report", _told, "parts"),
    "compare": ("compare {run} {run} --out {out}", "computerrl.launch.report.compare.write_comparison", _told, "runs"),
    "record": ("record {run} {out} --json", "computerrl.launch.run.record.record", _recorded, "episodes"),
    "bundle": ("bundle {out}", "computerrl.launch.setup.bundle.make_bundle", _told, "parts"),
    "bundle --gpu-check": (
        "bundle {out} --gpu-check",
        "computerrl.launch.setup.gpu_bundle.make_gpu_bundle",
        _told,
        "packages",
    ),
    "tasks prove": (
        "tasks prove files-move --json",
        "computerrl.env_server.serving.play_tasks.proofs",
        _proofs,
        "instances",
    ),
    "tasks check": ("tasks check {run}", "computerrl.env_server.tasks.osworld.check.check_folder", _checked, "task files"),
    "tasks import": (
        "tasks import cua-gym {run} {out}",
        "computerrl.env_server.tasks.bundles.imported.import_bundles",
        _imported,
        "bundles",
    ),
    "journal verify": ("journal verify {run} --json", "computerrl.broker.journal.audit.verify", _verified, "segments"),
    "bench": ("bench broker", "computerrl.benchmarks.broker.broker.run", _rows, "rows"),
}
"""Long command -> its words, its work, a fake of that, and the word for its parts. Studies, set-up and simulations are
tested with their work."""


@pytest.mark.parametrize("name", LONG)
def test_long_command_shows_its_progress_on_standard_error_alone(
    name: str, every_line: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, work, fake, unit = LONG[name]
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / CONFIG_FILE).write_text("{}\n")
    (run / "journal").mkdir()
    (run / "journal" / "journal-0.log").touch()
    monkeypatch.setattr(work, fake)
    monkeypatch.setattr("computerrl.launch.plan.run_names.find_checkpoint", lambda source: (run, None))
    monkeypatch.setattr("computerrl.launch.commands.status.is_running", lambda run: False)
    line = words.format(run=run, out=tmp_path / "out")
    done = CliRunner().invoke(cli, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"{unit}, " in done.stderr and "left" in done.stderr
    assert " left" not in done.stdout
