"""What studies share: results that are kept, statistics, and what records of runs say."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from computerrl.benchmarks.studies import _arms, _policies, _published, _runs, _statistics, scale
from computerrl.benchmarks.studies._catalogue import DESIGNS
from computerrl.benchmarks.studies._designs import Arm, Comparison, Generalist
from computerrl.benchmarks.studies._statistics import (
    against,
    by_arm,
    greatest,
    markdown,
    mean_and_error,
    means,
    total,
    with_error,
)
from computerrl.benchmarks.studies._study import Page, Study, restore
from computerrl.common.errors import ConfigError, SetupError
from computerrl.env_server.tasks import FAMILIES


def make_page() -> Page:
    def draw(path: Path) -> None:
        path.write_bytes(b"picture")

    return Page("A title", "What is asked?", markdown(["arm"], [["one"]]), draw, ["the rest"])


def test_cell_is_made_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[int] = []

    def make() -> dict[str, object]:
        made.append(1)
        return {"value": 7, "rows": [{"share": 1 / 3}, 2]}

    for _ in range(2):
        study = Study(tmp_path / "out", name="x", settings={"lr": 1e-4, "pair": (1, 2)})
        cell = study.cell("a/b, seed 0", make, of=2, show=lambda found: f"value {found['value']}")
        assert cell["value"] == 7 and cell["cell"] == "a/b, seed 0"
    assert len(made) == 1
    assert re.search(r"1 of 2: a/b, seed 0: value 7 \(\d+ s; about \d+ s left\)", capsys.readouterr().out)
    study.write(make_page(), [cell], quick=True)
    head, line = (tmp_path / "out" / "data.csv").read_text().splitlines()
    assert head == "cell,value,took_s,commit,cpu,date" and re.match(r'"a/b, seed 0",7,[\d.]+,', line)
    page = (tmp_path / "out" / "README.md").read_text()
    for text in ("# A title", "What is asked?", "quick form", "- the rest", "| one |", "torch", "- lr: 0.0001"):
        assert text in page
    written = (tmp_path / "out" / "data.json").read_text()
    data = json.loads(written)
    assert '\n{"cell": "a/b, seed 0", ' in written  # a line for each
    assert data["cells"] == [{**cell, "rows": [{"share": 0.333333}, 2]}]
    assert data["machine"]["num_cores"] >= 1 and data["versions"]["commit"]


def test_study_that_begins_with_results_prints_them_in_a_line_and_its_table_after_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def play() -> list[str]:
        study = Study(tmp_path, name="x", settings={})
        cells = []
        for number in range(1, num_results + 1):
            cells.append(study.cell(str(number), dict, of=num_results))
            study.write(make_page(), cells, quick=False, is_last=number == num_results)
        return [line for line in capsys.readouterr().out.splitlines() if line]

    num_results = 2
    lines = play()
    assert not any("begins with" in line for line in lines) and sum("| one |" in line for line in lines) == 2
    head, *table, end = play()
    assert head == f"begins with 2 of 2 results: {tmp_path}" and table == [] and end.startswith("2 results: ")
    num_results = 3
    head, *lines = play()
    assert head == f"begins with 2 of 3 results: {tmp_path}" and sum("| one |" in line for line in lines) == 1
    assert lines[0].startswith("3 of 3: 3:")


def test_page_names_where_else_results_are_from(tmp_path: Path) -> None:
    study = Study(tmp_path, name="x", settings={})
    cells = [study.cell(name, dict, of=2) for name in ("a", "b")]
    study.write(make_page(), cells, quick=False)
    assert "Some results" not in (tmp_path / "README.md").read_text()
    study.write(make_page(), [cells[0], {**cells[1], "commit": "0123456789", "cpu": "another"}], quick=False)
    assert "Some results are of commit 0123456789 on another." in (tmp_path / "README.md").read_text()


def test_results_made_elsewhere_are_begun_with(tmp_path: Path) -> None:
    there = Study(tmp_path / "there", name="x", settings={"lr": 1e-4})
    there.write(make_page(), [there.cell(key, lambda: {"value": 1}, of=2) for key in ("a/b", "c")], quick=False)
    here = Study(tmp_path / "here", name="x", settings={"lr": 1e-4})
    here.cell("c", lambda: {"value": 2}, of=2)
    restore(here.folder, tmp_path / "there" / "data.json", name="x")
    assert [(here.kept(key) or {})["value"] for key in ("a/b", "c")] == [1, 2]
    with pytest.raises(ConfigError, match=r"holds results of study x, not of y"):
        restore(tmp_path / "other", tmp_path / "there" / "data.json", name="y")
    Study(tmp_path / "differs", name="x", settings={"lr": 1e-5})
    with pytest.raises(ConfigError, match=r"holds results of other settings \(lr\)"):
        restore(tmp_path / "differs", tmp_path / "there" / "data.json", name="x")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        restore(tmp_path / "other", tmp_path / "nothing.json", name="x")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"study": "x", "settings": {}, "cells": [1]}'])
def test_file_that_is_not_of_a_study_is_not_begun_with(tmp_path: Path, content: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(ConfigError, match=r"data\.json: is not the data\.json of a study"):
        restore(tmp_path / "out", tmp_path / "data.json", name="x")
    assert not (tmp_path / "out").exists()


def test_cell_that_fails_is_not_kept(tmp_path: Path) -> None:
    study = Study(tmp_path, name="x", settings={})
    with pytest.raises(ZeroDivisionError):
        study.cell("a", lambda: {"value": 1 // 0}, of=1)
    assert study.kept("a") is None


def test_folder_of_other_settings_is_refused_and_says_which(tmp_path: Path) -> None:
    Study(tmp_path, name="x", settings={"lr": 1e-4, "steps": 5})
    with pytest.raises(ConfigError, match=r"other settings \(lr\)[\s\S]*--out"):
        Study(tmp_path, name="x", settings={"lr": 1e-5, "steps": 5})


def test_folder_that_cannot_be_made_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="--out"):
        Study(tmp_path / "file", name="x", settings={})


def test_mean_and_error_is_the_standard_error() -> None:
    assert mean_and_error([1.0, 2.0, 3.0]) == pytest.approx((2.0, 1.0 / 3**0.5))
    assert mean_and_error([0.5]) == (0.5, 0.0)
    assert (with_error([1.0, None, 2.0]), with_error([0.25], ".0%"), with_error([None])) == ("1.500 ± 0.500", "25%", "–")
    assert with_error([1.0, 2.0], "+.1f") == "+1.5 ± 0.5"


def test_table_by_arm_has_a_line_for_each_arm_with_results() -> None:
    cells = [{"arm": "one", "x": 1.0}, {"arm": "one", "x": 3.0}, {"arm": "two", "x": None}]
    columns = {"mean": means("x", ".1f"), "number": lambda mine, cells: f"{len(mine)} of {len(cells)}"}
    assert by_arm(["two", "one", "three"], cells, columns).splitlines() == [
        "| arm | mean | number |",
        "| --- | --- | --- |",
        "| two | – | 1 of 3 |",
        "| one | 2.0 ± 1.0 | 2 of 3 |",
    ]


def test_equal_time_is_when_the_fastest_of_a_seed_was_done() -> None:
    def run(seed: int, *times: float) -> dict:
        return {"seed": seed, "rl_s": times[-1], "updates": [{"rl_s": at, "success": at / 10, "age": None} for at in times]}

    fast, slow, other = run(0, 1.0, 2.0), run(0, 1.5, 3.0), run(1, 5.0)
    success = _statistics.at_equal_time([fast, slow, other])
    assert [success(cell) for cell in (fast, slow, other)] == pytest.approx([0.15, 0.15, 0.5])
    assert (_statistics.mean_of(slow, "success"), _statistics.mean_of(slow, "age")) == (pytest.approx(0.225), 0.0)


def episode(group: str, success: bool, *actions: str, seconds: float = 1.0) -> dict:
    steps = [{"action_text": text, "timing": {"generate_s": seconds, "desktop_s": seconds / 2}} for text in actions]
    return {"group_id": group, "success": success, "steps": steps, "reset_s": 0.5}


def test_different_solutions_count_within_groups_of_two_successes_or_more() -> None:
    played = [
        episode("a", True, "x", "done()"),
        episode("a", True, "x", "done()"),
        episode("a", True, "y", "done()"),
        episode("a", False, "z"),
        episode("b", True, "x"),
        episode("c", True, "x"),
        episode("c", True, "y"),
    ]
    assert _runs.distinct_solutions(played) == pytest.approx((2 / 3 + 1) / 2)
    assert _runs.distinct_solutions(played[3:5]) is None
    assert _runs.steps_per_success(played[:5]) == pytest.approx((2 + 2 + 2 + 1) / 4)
    assert _runs.steps_per_success(played[3:4]) is None


def test_shares_of_time_are_of_all_slots() -> None:
    found = _runs.shares([{"train_s": 2.0}], [episode("a", True, "x", "y")], rl_s=10.0, num_slots=2)
    assert found == pytest.approx(
        {
            "learner_training": 0.2,
            "learner_waiting": 0.8,
            "slots_generating": 0.1,
            "slots_on_desktop": 0.075,
            "slots_waiting": 0.825,
        }
    )


def test_curve_smooths_and_leaves_out_what_is_unknown() -> None:
    updates = [{"x": 1, "y": 0.0}, {"x": 2, "y": None}, {"x": 3, "y": 1.0}, {"x": 4, "y": 1.0}]
    assert _statistics.curve(updates, "x", "y", window=2) == ([1.0, 3.0, 4.0], [0.0, 0.5, 1.0])
    assert [_statistics.at(updates, "x", "y", where, window=2) for where in (0, 2, 3.5, 9)] == [None, 0.0, 0.5, 1.0]


def test_slim_keeps_records_and_reports_alone(tmp_path: Path) -> None:
    for name in ("checkpoints", "trajectories", "logs"):
        (tmp_path / name).mkdir()
    for name in ("report.json", "metrics.jsonl", "config.yaml", "journal.log"):
        (tmp_path / name).write_text("")
    _runs.slim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "report.json", "metrics.jsonl", "config.yaml"}


def test_run_that_fails_shows_the_end_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(_runs.RunFailed, match=r"max_stepz[\s\S]*goes on where it ended"):
        _runs.train(tmp_path, "a", {"tasks.max_stepz": 1})
    assert f"a begins; to watch it: computerrl dashboard {tmp_path / 'runs' / 'a'}" in capsys.readouterr().out


def test_comparison_is_written_up_after_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(folder: Path, arm: Arm, seed: int, settings: object, *, how: object) -> dict[str, object]:
        if seed == 1:
            raise _runs.RunFailed("the power went")
        return {"arm": arm.name, "seed": seed, "success": 0.5, "num_updates": 3, "rl_env_steps": 9}

    monkeypatch.setattr(_runs, "play", play)
    comparison = Comparison(
        name="x",
        title="A title",
        question="?",
        arms=(Arm("one"), Arm("two")),
        num_seeds=2,
        table=lambda cells: ", ".join(f"{cell['arm']} {cell['seed']}" for cell in cells),
        draw=lambda path, cells: None,
        limits=(),
    )
    with pytest.raises(_runs.RunFailed):
        _arms.run(comparison, tmp_path, quick=True, num_seeds=2)
    assert "one 0, two 0" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", [name for name, design in DESIGNS.items() if isinstance(design, Comparison)])
def test_comparison_of_the_catalogue_makes_a_table_and_a_plot_of_results(name: str, tmp_path: Path) -> None:
    design = DESIGNS[name]
    assert isinstance(design, Comparison)
    arms = [arm.name for arm in design.arms]
    cells = [result(arm, seed) for seed in (0, 1) for arm in arms]
    head, _, *lines = _arms.table(design, cells).splitlines()[: 2 + len(arms)]
    assert head == f"| {' | '.join(['arm', *design.columns])} |"
    assert [line.split(" | ")[0] for line in lines] == [f"| {arm}" for arm in arms]
    _arms._draw(design, cells, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def result(arm: str, seed: int) -> dict[str, object]:
    """A result with every figure that a run has."""
    updates = [
        {"update": number, "phase": "rl-1", "rl_s": 10.0 * number, "rl_env_steps": 100 * number, "success": 0.5, "entropy": 1.0}
        for number in range(1, 6)
    ]
    figures = ("success", "success_cloned", "demonstration_steps", "steps_per_success", "distinct_solutions", "run_took_s")
    shares = ("learner_training", "learner_waiting", "slots_generating", "slots_on_desktop", "slots_waiting")
    counts = ("num_updates", "max_policy_age_trained", "num_kills", "num_trajectories_lost", "num_recorded_twice")
    return {
        **dict.fromkeys((*figures, *shares), 0.5 + seed / 4),
        **dict.fromkeys(counts, 3),
        "arm": arm,
        "seed": seed,
        "rl_s": 50.0,
        "rl_env_steps": 500,
        "families": {"calc-set-cell": 0.5},
        "updates": updates,
    }


def test_difference_to_an_arm_is_taken_seed_by_seed() -> None:
    cells = [{"arm": arm, "seed": seed, "x": x} for arm, seed, x in (("a", 0, 1.0), ("a", 1, 5.0), ("b", 0, 2.0), ("b", 1, 8.0))]
    column = against("a", lambda cell, other: cell["x"] - other["x"], "+.1f")
    assert column(cells[2:], cells) == "+2.0 ± 1.0" and column(cells[:1], cells) == "+0.0"
    assert (total("x")(cells[2:], cells), greatest("x")(cells, cells)) == ("10.0", "8.0")


def test_families_of_a_policy_are_expanded_in_their_order() -> None:
    design = DESIGNS["many_tasks"]
    assert isinstance(design, Generalist)
    families = _policies.expand(design.families)
    assert len(families) == len(set(families)) == 94 and set(families) <= set(FAMILIES)
    assert families[0].startswith("forge-") and families[-1] == "web-simple-arithmetic"
    assert _policies.expand(["b", "web-*", "a"])[:2] == ("b", next(name for name in FAMILIES if name.startswith("web-")))


def test_rates_leave_out_warming_up_and_the_end() -> None:
    """One episode of two steps ends each second for 100 s; the processor is busy from second 15 to second 85."""
    played = [
        {
            "started_at": float(second),
            "duration_s": 1.0,
            "reset_s": 0.25,
            "steps": [{"timing": {"desktop_s": 0.1}}, {"timing": {"desktop_s": 0.0}}],
        }
        for second in range(100)
    ]
    samples = [(float(second), float(15 < second <= 85), 3.0 + second / 100) for second in range(100)]
    # The fifteenth ends at 15 s, the eighty-fifth at 85 s; those that end before and after are slower in what they do.
    for episode in played[:15]:
        episode["reset_s"] = 9.0
    found = scale.rates(played, samples, since=5.0, warm=10, last=15)
    assert found["steps_per_s"] == pytest.approx(2.0) and found["episodes_per_s"] == pytest.approx(1.0)
    assert (found["step_p50_s"], found["reset_p50_s"], found["processor_busy"]) == (0.1, 0.25, 1.0)
    assert found["memory_gb"] == pytest.approx(3.99) and found["num_episodes"] == 70
    with pytest.raises(_runs.RunFailed, match="90 episodes after the last desktop's start are too few to measure"):
        scale.rates(played, samples, since=10.0, warm=80, last=10)


def test_measuring_begins_when_the_last_desktop_is_up(tmp_path: Path) -> None:
    lines = [
        {"event": "desktop.started", "level": "info", "desktop": number % 3, "timestamp": f"2026-01-01T00:00:0{number}Z"}
        for number in range(4)
    ]
    (tmp_path / "logs" / "latest").mkdir(parents=True)
    (tmp_path / "logs" / "latest" / "env_server-0.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    # The fourth start is that of a desktop that broke.
    assert scale.all_started(tmp_path, 3) == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC).timestamp()
    with pytest.raises(_runs.RunFailed, match="only 4 of 5 desktops started"):
        scale.all_started(tmp_path, 5)


def test_stages_are_pooled_over_families_and_seeds_with_intervals() -> None:
    cells = [
        {"stage": stage, "seed": seed, "mean": 0.5, "counts": {"a": [seed + 1, 4], "b": [0, 4], "new": [1, 2]}}
        for stage in _policies.STAGES
        for seed in (0, 1)
    ]
    cells = [{**cell, "num_given_up": 1} for cell in cells]
    assert _policies.pooled(cells, "cloned", ["a", "b"]) == (3, 16)
    others = {"others": {"b": 0.5, "new": 1.0}}
    text = _policies.table(cells, families=["a", "b"], unseen=["new"], published=others, note="From a paper.")
    assert "| families trained on (2) | 0.188 (0.066 to 0.430; 16 episodes) |" in text
    assert "| families never trained on (1) | 0.500 (0.150 to 0.850; 4 episodes) |" in text
    assert "(Wilson); 6 evaluation episodes given up;" in text
    assert "| a | 3/8 | 3/8 | 3/8 |  |" in text and "| b | 0/8 | 0/8 | 0/8 | 0.50 |" in text
    # Ours: 0 of 8 and 2 of 4 on the two that others have figures of.
    assert "| mean of the 2 with figures of others | 0.17 | 0.17 | 0.17 | 0.75 |\n\nFrom a paper.\n" in text


def test_evaluations_under_other_settings_have_rows_and_failures_are_counted() -> None:
    stages = (*_policies.STAGES, "cloned, unseen words", "trained, unseen words")
    cells = [
        {"stage": stage, "seed": 0, "mean": 0.5, "counts": {"a": [number, 4], "new": [0, 2]}, "num_given_up": 0}
        for number, stage in enumerate(stages)
    ]
    for cell in cells[2:]:
        cell["failed_by"] = {"trained on": {"step_limit": 1}, "never trained on": {"done_action": 2}}
    text = _policies.table(cells, families=["a"], unseen=["new"], published={}, shifts=["unseen words"])
    assert (
        "| families trained on, unseen words (1) | – | 0.750 (" in text
        and "| families never trained on, unseen words (1) | – | 0.000" in text
    )
    first = text.partition("\n\n")[0].partition("\nWith")[0].splitlines()
    assert len({line.count("|") for line in first}) == 1 and first[4].endswith("; 4 episodes) | 1 | 0 | 0 |"), first
    assert "| failed episodes by their end | done action | step limit |" in text
    assert "| trained, unseen words, families never trained on | 2 | 0 |" in text


def test_study_of_generalisation_names_families_that_there_are_once() -> None:
    design = DESIGNS["generalisation"]
    assert isinstance(design, Generalist)
    names = [*_policies.expand(design.families), *design.unseen]
    assert len(names) == len(set(names)) and set(names) <= set(FAMILIES)


def test_figures_of_others_are_of_families_that_there_are() -> None:
    assert all(0 <= score <= 1 for of in _published.MINIWOB.values() for score in of.values())
    assert {name for of in _published.MINIWOB.values() for name in of} <= set(FAMILIES)


def test_pooled_curve_is_the_mean_over_whole_windows_of_the_families_asked_for() -> None:
    played = [{"a": 0.0, "b": 1.0}, {"c": 0.5}, {"a": 1.0}, None, None, {"b": 0.25}]
    updates = [{"rl_env_steps": number, "success_by_family": found} for number, found in enumerate(played)]
    assert _statistics.pooled_curve(updates, ["a", "b"], window=2) == ([1.0, 2.0, 3.0, 5.0], [0.5, 1.0, 1.0, 0.25])
    assert _statistics.pooled_curve(updates, ["a", "b", "c"], window=3) == ([2.0, 3.0, 4.0, 5.0], [0.625, 0.75, 1.0, 0.25])
    assert _statistics.pooled_curve(updates, ["a"], window=7) == ([], [])


def test_study_with_another_model_has_it_in_both_forms_and_refuses_where_there_is_none_to_replace(tmp_path: Path) -> None:
    from computerrl.benchmarks.studies._catalogue import GROUNDING
    from computerrl.launch.commands.measure import run_study

    changed = GROUNDING.with_model("mine")
    assert changed.settings["model.name"] == changed.quick["model.name"] == "mine"
    assert GROUNDING.settings["model.name"] == "tiny-vision" and changed.arms == GROUNDING.arms
    for name in ("language_model", "staleness"):
        with pytest.raises(ConfigError, match="does not compare arms"):
            run_study(name, folder=tmp_path, quick=True, num_seeds=None, model="mine")
