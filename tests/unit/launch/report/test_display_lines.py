"""What a person sees, from the same records as the report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from computerrl.common.messages import PeerEntry, Status
from computerrl.common.metrics import read_json_lines
from computerrl.launch.supervision.role_process import ProcessView
from computerrl.launch.watch import display_frame
from computerrl.launch.watch.display import QUIET_S, LineDisplay, LiveDisplay, line_for
from computerrl.launch.watch.display_frame import Ending, View, duration, ending_of, render, sparkline
from computerrl.launch.watch.run_state import MetricsTail, RunState, phase_title
from computerrl.launch.watch.start_up import WAITING_S, StartUp
from tests.support.clock import ManualClock
from tests.support.data.synthetic_run import FAMILIES, write_run

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


def drawn(
    state: RunState,
    *,
    width: int,
    views: list[ProcessView] = VIEWS,
    notes: tuple[str, ...] = (),
    address: str = "",
    ending: Ending | None = None,
) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    view = View("quick", state, views, 1_790_000_400.0, 65.0, notes, address, ending)
    console.print(render(view, width=width))
    return console.file.getvalue().replace("\N{NO-BREAK SPACE}", " ")  # type: ignore[attr-defined]


def test_render_before_anything_is_known_says_what_is_waited_for() -> None:
    text = drawn(RunState(), width=100)
    assert "starting" in text
    assert "does not answer" not in text
    assert "waiting for broker-0 (importing libraries), actor-0 (restarting)" in text


def test_render_of_a_broker_that_went_away_later_has_no_yet(tmp_path: Path) -> None:
    text = drawn(RunState().take_all(records(tmp_path)), width=100)
    assert "the broker does not answer" in text and "yet" not in text


def test_render_in_rl_shows_what_the_person_looks_for(tmp_path: Path) -> None:
    state = RunState().take_all(records(tmp_path))
    state.status = STATUS
    text = drawn(state, width=120, notes=("actor-0 ended (SIGKILL)",))
    for wanted in (
        "RL 1",
        "newest policy version",
        "12",
        "success in training",
        "entropy",
        "policy age",
        "10.0 a second",
        "duplicate 2",
        "left about",
        "1:05",
        "actor-0 (2 restarts)",
        "SIGKILL",
        "waiting for 3 groups",
        "masked 3% no signal 3% too old 1%",
        "mean over families",
        *FAMILIES,
    ):
        assert wanted in text, wanted


def test_render_in_rl_shows_each_familys_share_of_the_rollouts(tmp_path: Path) -> None:
    text = drawn(RunState().take_all(records(tmp_path)), width=120)
    shares = {family: line.split()[-2] for line in text.splitlines() for family in FAMILIES if line.split()[:1] == [family]}
    assert shares == {family: "50%" if family == FAMILIES[0] else "10%" for family in FAMILIES}


@pytest.mark.parametrize("until", ["start", "rl", "end"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_render_fits_an_ordinary_terminal_and_cuts_no_label(tmp_path: Path, width: int, until: str) -> None:
    state = RunState().take_all(records(tmp_path, until=until) if until != "start" else [])
    state.status = STATUS
    address = f"http://127.0.0.1:45555/{'t' * 32}/"
    text = drawn(state, width=width, address=address)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 25
    if until != "start":
        for label in ("newest policy version", "success in training", "desktop actions", "not trained", "playing"):
            assert label in text, label
        assert "mean over families" in text and all(family in text for family in FAMILIES)
    assert address in text.replace("\n", "")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_render_of_a_finished_run_looks_finished(tmp_path: Path, width: int) -> None:
    state = RunState().take_all(records(tmp_path, until="end"))
    views = [ProcessView(view.name, "ended", None, 0) for view in VIEWS]
    ending = ending_of("finished", ended=1_790_000_400.0, took_s=1454.0)
    text = drawn(state, width=width, views=views, ending=ending, address="http://127.0.0.1:1/t/")
    assert "finished" in text and "took 24:14" in text and "after RL" in text
    assert "✓ broker-0  ✓ actor-0" in text
    for unwanted in ("●", "✗", "yet", "does not answer", "left about", "playing", "dashboard", "– of –"):
        assert unwanted not in text, unwanted


def test_render_of_a_run_that_failed_shows_no_ticks(tmp_path: Path) -> None:
    views = [ProcessView(view.name, "ended", None, 0) for view in VIEWS]
    text = drawn(RunState().take_all(records(tmp_path)), width=80, views=views, ending=Ending("failed 06:04, took 1:00", False))
    assert "✗ broker-0" in text and "✓" not in text and "failed 06:04" in text


def test_live_display_shows_the_address_once_above_and_always_below() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    address = f"http://127.0.0.1:45555/{'t' * 32}/"
    with LiveDisplay(console, name="quick") as live:
        live.update(RunState(), VIEWS)
        live.dashboard(address, "")
        live.update(RunState(), VIEWS)
        live.update(RunState(), VIEWS, ending=Ending("finished 06:04, took 1:00", True))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"dashboard: {address}" in text
    assert address not in text.rpartition("finished 06:04")[2]


def test_start_up_names_each_part_once_and_what_is_waited_for() -> None:
    views = [ProcessView(name, "running", 1, 0) for name in ("broker-0", "env_server-0", "actor-0", "learner-0")]
    start = StartUp()

    def look(elapsed_s: float, ready: float = 0.0, **notes: str) -> list[str]:
        named = {name.replace("_0", "-0"): note for name, note in notes.items()}
        metrics = {"env_server-0": {"env_server/desktops_ready": ready}}
        status = Status("r", 0, {}, {}, (), metrics, named) if notes else None
        return [*start.look(RunState(status=status), views, elapsed_s=elapsed_s)] + [
            line for line in [start.overdue(RunState(status=status), views, elapsed_s=elapsed_s)] if line
        ]

    assert look(0.4) == []
    assert look(WAITING_S)[0].startswith("waiting for broker-0 (importing libraries)")
    assert look(6.0, env_server_0="desktops: 2 starting") == ["broker-0 up after 6.0 s"]
    assert look(7.0, 1.0, env_server_0="desktops: 1 idle, 1 starting") == ["1 of 2 desktops up after 7.0 s"]
    assert look(8.0, 2.0, env_server_0="desktops: 2 idle", actor_0="starting transformers") == ["2 of 2 desktops up after 8.0 s"]
    assert look(14.0, 2.0, env_server_0="desktops: 2 idle", actor_0="starting transformers", learner_0="loading the model") == [
        "waiting for actor-0 (starting transformers), learner-0 (loading the model)"
    ]
    everything = {"env_server_0": "desktops: 2 leased", "actor_0": "playing", "learner_0": "eval-before"}
    assert look(15.0, 2.0, **everything) == ["actor-0 up after 15.0 s", "learner-0 up after 15.0 s"]
    assert look(99.0, 2.0, **everything) == []


def test_phases_have_names_in_words() -> None:
    titles = [phase_title(phase) for phase in ("rl-1", "sft-2", "bc", "eval-after-rl", "done", "", "new")]
    assert titles == ["RL 1", "Entropulse 2", "cloning", "evaluation after RL", "finished", "", "new"]


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
    views = [ProcessView("learner-0", "running", 1, 0)]
    with LineDisplay(lines.append, clock=clock) as display:
        for passed_s in (0.0, QUIET_S - 1, 1.0, 1.0, QUIET_S - 1):
            clock.advance(passed_s)
            display.update(state, views)
        display.note("actor-0 ended")
        clock.advance(QUIET_S - 1)
        display.update(state, views)
        clock.advance(9 * QUIET_S)
        display.update(RunState(phase=state.learner_note(), status=STATUS), views)
    said = "progress rl-1: waiting for 3 groups"
    start = ["start learner-0 up after 0.0 s", "start 4 of 4 desktops up after 0.0 s"]
    assert [line.split(" ", 1)[1] for line in lines] == [*start, said, said, "note actor-0 ended"]


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
    assert len(sparkline([0.1] * 99, low=0, high=1)) == display_frame.SPARKLINE_WIDTH


def test_duration_formats() -> None:
    assert [duration(value) for value in (None, 5, 65, 3723)] == ["–", "0:05", "1:05", "1:02:03"]
