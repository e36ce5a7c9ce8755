"""What a person sees, from the same records as the report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_run import FAMILIES, write_run

from common.clock import ManualClock
from common.messages import PeerEntry, Status
from common.metrics import read_json_lines
from launch import display
from launch.display import QUIET_S, LineDisplay, duration, line_for, render, sparkline
from launch.run_state import MetricsTail, RunState
from launch.supervisor import ProcessView

STATUS = Status(
    run_id="r",
    policy_version=12,
    counters={"accepted": 40, "rejected/duplicate": 2},
    gauges={"assignments": 4.0, "groups_waiting": 7.0, "journal_bytes": 9e9},
    peers=(PeerEntry("learner", 0, "x", "host", 1, {}, 0.1),),
    notes={"learner-0": "rl-1: waiting for 3 groups"},
    metrics={
        "actor-0": {"actor/env_steps_per_s": 5.5, "actor/step_p50_s": 0.14, "actor/idle_fraction": 0.04},
        "actor-1": {"actor/env_steps_per_s": 4.5, "actor/step_p50_s": 0.18},
        "env_server-0": {"env_server/desktops_ready": 4.0},
    },
)
VIEWS = [ProcessView("broker-0", "running", 1, 0), ProcessView("actor-0", "restarting", None, 2)]


def records(tmp_path: Path, until: str = "rl") -> list[dict[str, object]]:
    return read_json_lines(write_run(tmp_path / "run", until=until) / "metrics.jsonl")


def drawn(state: RunState, *, width: int, notes: tuple[str, ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(state, VIEWS, notes, name="quick", elapsed_s=65.0, now=1_790_000_400.0))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_render_before_anything_is_known_draws_dashes() -> None:
    text = drawn(RunState(), width=100)
    assert "starting" in text
    assert "broker does not answer yet" in text


def test_render_in_rl_shows_what_the_person_looks_for(tmp_path: Path) -> None:
    state = RunState().take_all(records(tmp_path))
    state.status = STATUS
    text = drawn(state, width=120, notes=("actor-0 ended (SIGKILL)",))
    for wanted in (
        "rl-1",
        "policy version",
        "12",
        "success",
        "entropy",
        "policy age",
        "10.0",
        "playing 4",
        "duplicate 2",
        "left about",
        "1:05",
        "actor-0 (2 restarts)",
        "SIGKILL",
        "waiting for 3 groups",
        "1.5/6.0",
        "masked 3% no_signal 3% too_old 1%",
        "2.82 of 2.86 steps",
        "length bias",
        *FAMILIES,
    ):
        assert wanted in text, wanted


def test_render_in_rl_shows_each_familys_share_of_the_rollouts(tmp_path: Path) -> None:
    text = drawn(RunState().take_all(records(tmp_path)), width=120)
    shares = {family: line.split()[-2] for line in text.splitlines() for family in FAMILIES if line.split()[:1] == [family]}
    assert shares == {family: "50%" if family == FAMILIES[0] else "10%" for family in FAMILIES}


@pytest.mark.parametrize("width", [80, 120])
def test_render_fits_an_ordinary_terminal(tmp_path: Path, width: int) -> None:
    state = RunState().take_all(records(tmp_path, until="end"))
    state.status = STATUS
    lines = drawn(state, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24


def test_lines_update_is_one_grepable_line(tmp_path: Path) -> None:
    state = RunState(status=STATUS)
    update = next(record for record in records(tmp_path) if record["event"] == "update")
    line = line_for(update, state=state)
    assert line is not None
    assert "\n" not in line
    for wanted in (
        "update=1",
        "phase=rl-1",
        "version=1",
        "success=0.",
        "entropy=0.",
        "age=0/",
        "env_steps_per_s=",
        "queues=playing:4,groups:7 ",
        "drops=",
        "stall=1.5/6.0 ",
        "length_ks=0.03 ",
        "left=",
    ):
        assert wanted in line, wanted


def test_lines_every_known_event_has_one_and_unknown_ones_none(tmp_path: Path) -> None:
    seen = {record["event"]: line_for(record, state=RunState()) for record in records(tmp_path, until="end")}
    assert seen.pop("summary") is None
    assert all(seen.values())
    assert line_for({"event": "phase", "phase": "rl-1"}, state=RunState()) == "phase=rl-1"
    assert line_for({"event": "new"}, state=RunState()) is None
    assert line_for({"event": "update"}, state=RunState()), "missing fields are dashes, not errors"


def test_line_display_writes_records_and_notes_but_not_ticks() -> None:
    lines: list[str] = []
    with LineDisplay(lines.append) as display:
        display.update(RunState(), VIEWS)
        display.record({"event": "phase", "phase": "bc", "reason": "demonstrations complete"}, RunState())
        display.note("actor-0 ended")
    assert [line.split(" ", 1)[1] for line in lines] == ["phase=bc reason='demonstrations complete'", "note actor-0 ended"]


def test_line_display_says_how_far_a_long_phase_is_when_nothing_else_was_said() -> None:
    lines: list[str] = []
    clock = ManualClock()
    state = RunState(phase="eval-before", status=STATUS)
    with LineDisplay(lines.append, clock=clock) as display:
        for passed_s in (0.0, QUIET_S - 1, 1.0, 1.0, QUIET_S - 1):
            clock.advance(passed_s)
            display.update(state, VIEWS)
        display.note("actor-0 ended")
        clock.advance(QUIET_S - 1)
        display.update(state, VIEWS)
        clock.advance(9 * QUIET_S)
        display.update(RunState(phase=state.learner_note(), status=STATUS), VIEWS)
    said = "progress rl-1: waiting for 3 groups"
    assert [line.split(" ", 1)[1] for line in lines] == [said, said, "note actor-0 ended"]


def test_metrics_tail_reads_only_new_whole_lines_and_notices_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2')
    assert tail.read() == (False, [{"a": 1}])
    with path.open("a") as file:
        file.write("}\nnot json\n")
    assert tail.read() == (False, [{"a": 2}])
    path.write_text('{"a": 1}\n')
    assert tail.read() == (True, [{"a": 1}])


def test_run_state_rates_are_summed_and_medians_averaged() -> None:
    state = RunState(status=STATUS)
    assert state.metric("actor/env_steps_per_s") == 10.0
    assert state.metric("actor/step_p50_s") == pytest.approx(0.16)
    assert state.metric("actor/unknown", 7.0) == 7.0


def test_sparkline_scales_and_leaves_gaps() -> None:
    assert sparkline([0.0, None, 0.5, 1.0, 2.0], low=0.0, high=1.0) == "▁ ▅██"
    assert len(sparkline([0.1] * 99, low=0, high=1)) == display.SPARKLINE_WIDTH


def test_duration_formats() -> None:
    assert [duration(value) for value in (None, 5, 65, 3723)] == ["–", "0:05", "1:05", "1:02:03"]
