"""report.json and report.html from run folders in every state."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from PIL import Image

from computerrl.common.messages import Status
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.launch.report.charts import Band, Chart, Series, bars, figure, intervals, smooth, thinned, ticks
from computerrl.launch.report.evaluation_figures import wilson_interval
from computerrl.launch.report.film_strips import choose_pairs, make_strips
from computerrl.launch.report.headline import headline
from computerrl.launch.report.report_data import EVALUATIONS, ActiveTime, Attempt, EpisodeTotals, closing_line
from computerrl.launch.report.write import _read_status, write_report, write_status
from tests.support.data.synthetic_run import FAMILIES, START, write_run

REQUIRED = (
    "success_before",
    "success_after_bc",
    "success_after_rl",
    "wall_s",
    "env_steps",
    "env_steps_per_s",
    "num_updates",
    "num_entropulse_phases",
    "driver",
    "num_trajectories_lost",
    "max_policy_age_trained",
)


SVG_NAMESPACE = "http://www.w3.org/2000/svg"


def charts_in(page: str) -> list[ElementTree.Element]:
    """The charts of a page, parsed."""
    found = []
    for part in page.split(f'<svg xmlns="{SVG_NAMESPACE}"')[1:]:
        # A chart holds one inner picture at most.
        end = part.index("</svg>")
        end = part.index("</svg>", end + 1) if "<svg" in part[:end] else end
        found.append(ElementTree.fromstring(f'<svg xmlns="{SVG_NAMESPACE}"{part[:end]}</svg>'))
    return found


def tag(element: ElementTree.Element) -> str:
    return element.tag.removeprefix(f"{{{SVG_NAMESPACE}}}")


def shapes(drawn: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [one for one in drawn.iter() if tag(one) == kind]


class Page(HTMLParser):
    """What a page refers to and says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def report_of(folder: Path) -> tuple[dict[str, Any], Page, str]:
    page = write_report(folder)
    text = page.read_text()
    return json.loads((folder / "report.json").read_text()), Page(text), text


Report = tuple[dict[str, Any], Page, str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a finished run, for tests that only read it."""
    return report_of(write_run(tmp_path_factory.mktemp("whole") / "run"))


def test_report_finished_run_has_every_field(whole: Report) -> None:
    report, _, _ = whole
    assert all(report[name] is not None for name in REQUIRED)
    assert report["finished"] is True
    after = report["success_after_rl"]
    assert isinstance(after, dict)
    assert after["families"][FAMILIES[0]]["episodes"] == 20
    assert after["mean"] == pytest.approx(sum(item["successes"] / 20 for item in after["families"].values()) / len(FAMILIES))
    assert report["env_steps"] == 5210
    assert (report["num_updates"], report["num_entropulse_phases"], report["driver"]) == (24, 1, "apptainer")
    assert report["restarts"] == {"actor-0": 1}
    assert report["step_p50_s"] == pytest.approx(0.13)
    assert report["reset_p50_s"] == pytest.approx(0.42)


def test_report_begins_with_its_headline_and_names_the_command_that_replays_each_film(whole: Report) -> None:
    report, page, text = whole
    words = " ".join(" ".join(page.words).split())
    assert headline(report) in words.partition("environment steps per second")[0]
    commands = re.findall(r"computerrl replay (\S+) (\S+)", words)
    assert len(commands) == text.count('class="film"') > 0
    orders = ("eval-before", "eval-after-rl")
    assert set(commands) == {(report["name"], f"{order}/{family}:10000000/0") for order in orders for family in FAMILIES}


def test_report_has_the_interval_of_every_familys_success(whole: Report) -> None:
    report, page, _ = whole
    words = " ".join(" ".join(page.words).split())
    families = [counts for name in EVALUATIONS for counts in (report[name] or {"families": {}})["families"].values()]
    assert len(families) > 3
    for counts in families:
        low, high = wilson_interval(counts["success"], counts["episodes"])
        assert f"{counts['successes']}/{counts['episodes']} {100 * low:.0f}–{100 * high:.0f}%" in words


def test_report_of_a_policy_that_sees_compares_wrong_screens_with_an_agent_that_sees_none(tmp_path: Path, whole: Report) -> None:
    folder = write_run(tmp_path / "run")
    controls = {"eval-blank-images": 3, "eval-foreign-images": 0}
    with (folder / "metrics.jsonl").open("a") as file:
        for phase, successes in controls.items():
            families = {FAMILIES[0]: {"successes": successes, "episodes": 4}}
            record = {"event": "evaluation", "time": START + 1.0, "phase": phase, "success": successes / 4, "families": families}
            file.write(json.dumps(record) + "\n")
    with (folder / "trajectories" / "episodes.jsonl").open("a") as file:
        file.write("\n")  # The file ends within a line.
        for seed in range(4):
            step = {"target": [100 + 50 * (seed % 2), 100, 40, 40, 400, 400], "timing": {}}
            told = {"family": FAMILIES[0], "seed": 7_000_000 + seed, "instruction": "Click it.", "steps": [step]}
            file.write(json.dumps({"trajectory_id": f"seen/{seed}/0", "kind": "training", **told}) + "\n")
    report, page, text = report_of(folder)
    assert report["chances"] == {FAMILIES[0]: {"random": 0.01, "blind": 0.0, "num_targets": 4}}
    assert "<th>random click</th><th>blind click</th>" in text
    words = " ".join(" ".join(page.words).split())
    expected = "3 of 4 succeeded, where that agent expects 0; it has as many or more with probability below 0.001."
    assert f"With black images: {expected}" in words
    assert "With other screens: 0 of 4 succeeded" in words
    assert "random click" not in whole[2], "of a run without such controls"


def test_report_says_of_which_instances_an_evaluation_was_and_how_many_episodes_were_given_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["event"] == "evaluation" and record["phase"] == "eval-after-rl":
            record |= {"num_given_up": 3, "split": "tuning"}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report, page, _ = report_of(folder)
    assert [report[name]["num_given_up"] for name in REQUIRED[:3]] == [0, 0, 3]
    assert sum("tuning episodes, 3 given up" in word for word in page.words) == 1
    assert sum(word.endswith("held-out episodes") for word in page.words) == 2


def test_report_shows_what_was_lost_for_which_reason_and_how_far_lengths_were_shifted(whole: Report) -> None:
    report, page, text = whole
    assert report["waste"]["lost"]["masked"]["steps"] == 60 and report["stall_s"] == 24 * 1.5
    words = "|".join(word.strip() for word in page.words if word.strip())
    assert "masked: some steps were too old|9|60|600|6.7|0.021|0.004" in words
    assert "submitted|700|2,000|20,000|2.86|–|–" in words
    assert "order closed (at the broker)|5|–" in words
    assert "= what the age bound alone leaves|–|–|–|2.84|0.027|0.008" in words
    assert words.index("order closed (at the broker)") < words.index("= trained|660|1,860")
    assert 'aria-label="Lengths of trajectories submitted and trained"' in text


def test_report_shows_rewards_where_others_count_and_warns_of_a_judge_at_odds_with_the_evaluator(
    tmp_path: Path, whole: Report
) -> None:
    assert whole[0]["rewards"] == {} and "What episodes earned" not in whole[1].words
    folder = write_run(tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [record for record in records if record["event"] == "update"]
    for number, record in enumerate(updates):
        record |= {"reward_evaluator": 0.5, "reward_judge": 0.75, "rewards_unknown": 1.0, "judge_tokens": 100.0 * number}
        record |= {"judge_agreement": 0.5, "judge_false_success": 0.75, "judge_alarm": float(number == len(updates) - 1)}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report, page, _ = report_of(folder)
    assert report["rewards"] == {
        "means": {"evaluator": 0.5, "judge": 0.75},
        "unknown": len(updates),
        "agreement": 0.5,
        "false_success": 0.75,
        "tokens": 100.0 * (len(updates) - 1),
        "alarm": True,
    }
    words = " ".join(" ".join(page.words).split())
    assert "The judge is at odds with the evaluator: it agreed in 50% of the latest episodes." in words
    assert "The judge called failures a success 75%" in words


def test_report_of_a_run_without_an_update_says_nothing_about_loss(tmp_path: Path) -> None:
    report, page, _ = report_of(write_run(tmp_path / "run", until="start"))
    assert report["waste"] == {} and "What was trained, and what was lost" not in page.words


def test_report_page_refers_to_nothing_outside_and_is_small(whole: Report) -> None:
    _, page, text = whole
    assert page.references, "film strips hold pictures"
    assert all(reference.startswith("data:image/webp;base64,") for reference in page.references)
    assert len(text) < 1_000_000 and "script" not in page.tags
    assert not re.search(r"https?://|@import|url\(", text.replace(SVG_NAMESPACE, ""))


def test_report_page_shows_families_strips_and_phases(whole: Report) -> None:
    _, page, text = whole
    words = " ".join(page.words)
    for wanted in (
        *FAMILIES,
        "after RL",
        "reward 1",
        "Write <Lisbon> into cell B2",
        'type(4, "Lisbon")',
        "not an action",
        "Entropulse 1",
    ):
        assert wanted in words, wanted
    drawn = charts_in(text)
    assert len(drawn) == 5 + len(FAMILIES) + 3 + 1
    assert all(one.get("aria-label") and shapes(one, "polyline") for one in drawn)


def test_report_run_killed_in_rl_says_so_and_knows_what_was_recorded(tmp_path: Path) -> None:
    report, page, _ = report_of(write_run(tmp_path / "run", until="rl"))
    assert report["finished"] is False
    assert report["success_after_rl"] is None
    assert report["num_updates"] == 12
    assert float(str(report["wall_s"])) > 200
    assert "This run has not finished" in " ".join(page.words)


def test_report_run_stopped_before_anything_was_recorded_is_written(tmp_path: Path) -> None:
    report, page, _ = report_of(write_run(tmp_path / "run", until="start"))
    assert all(name in report for name in REQUIRED)
    assert "No update was made yet." in " ".join(page.words)
    assert "stopped by SIGINT" in " ".join(page.words)


def test_report_written_twice_is_the_same_but_for_the_date(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    first, _, page = report_of(folder)
    second, _, again = report_of(folder)
    for report in (first, second):
        report.pop("written_at")
        report.pop("machine")
    assert first == second
    assert len(page) == pytest.approx(len(again), abs=20)


def test_active_time_leaves_out_pauses_between_attempts() -> None:
    active = ActiveTime([Attempt(START, START + 100), Attempt(START + 1000, None)], last_record=START + 1050)
    assert active.total_s == 150
    assert [active.at(START + moment) for moment in (50, 500, 1010)] == [50, 100, 110]


def test_active_time_of_a_killed_attempt_ends_when_the_next_begins() -> None:
    active = ActiveTime([Attempt(START, None), Attempt(START + 60, START + 90)], last_record=START + 80)
    assert active.total_s == 90


def test_episode_totals_shares_add_up_to_one() -> None:
    totals = EpisodeTotals()
    timing = {"desktop_s": 1.0, "generate_s": 2.0, "settle_s": 0.5}
    totals.add({"duration_s": 10.0, "reset_s": 1.0, "steps": [{"timing": timing}, {"timing": timing}]})
    assert totals.shares() == {"desktop": 0.3, "generation": 0.4, "waiting": 0.3}


def test_choose_pairs_prefers_the_seed_that_failed_before_and_succeeds_after() -> None:
    def episode(order: str, seed: int, *, success: bool) -> dict[str, object]:
        return {"kind": "evaluation", "family": "f", "order_id": order, "seed": seed, "success": success, "steps": []}

    episodes = [
        episode("eval-before", 1, success=True),
        episode("eval-after-rl", 1, success=True),
        episode("eval-before", 2, success=False),
        episode("eval-after-rl", 2, success=True),
        episode("eval-before", 3, success=False),
        episode("eval-after-rl", 3, success=False),
        {**episode("rl-1", 2, success=True), "kind": "training"},
    ]
    [(before, after)] = choose_pairs(episodes)
    assert (before["seed"], after["seed"], after["order_id"]) == (2, 2, "eval-after-rl")


def test_choose_pairs_with_one_evaluation_shows_it_alone() -> None:
    episode = {"kind": "evaluation", "family": "f", "order_id": "eval-after-bc", "seed": 1, "success": True, "steps": []}
    assert choose_pairs([episode]) == [(episode,)]


def test_film_strip_shows_the_call_of_an_answer_that_has_a_thought(tmp_path: Path) -> None:
    answers = ["click(1)\n", "<think>\nWhy.\n</think>\n```python\nAgent.wait()\n```", "<hm>", ""]
    steps = [{"action_text": answer, "screenshot": None} for answer in answers]
    episode = {"kind": "evaluation", "family": "f", "order_id": "eval-after-bc", "seed": 1, "success": True, "steps": steps}
    [strip] = make_strips([episode], trajectories=tmp_path)
    assert [frame.action for frame in strip.films[0].frames] == ["click(1)", "Agent.wait()", "<hm>", ""]


def test_film_strip_shows_where_the_action_pointed(tmp_path: Path) -> None:
    store = ScreenshotStore(tmp_path, picture_format="png", incarnation="x")
    ref = asdict(store.put(np.full((600, 800, 3), 128, np.uint8)))
    store.close()
    steps = [{"action_text": "click(1)", "screenshot": ref, "places": places} for places in ([], [400, 150])]
    episode = {"kind": "evaluation", "family": "f", "order_id": "eval-after-bc", "seed": 1, "success": True, "steps": steps}
    [strip] = make_strips([episode], trajectories=tmp_path)
    shades = []
    for frame in strip.films[0].frames:
        with Image.open(io.BytesIO(base64.b64decode(frame.picture.partition(",")[2]))) as picture:
            shades.append(picture.convert("RGB").getpixel((180, 68)))
    (plain, marked) = shades
    assert abs(plain[0] - plain[1]) < 10 and marked[0] - marked[1] > 60  # type: ignore[index, operator]


AWKWARD = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, 1e-300, 1e300]))
POINTS = st.lists(st.tuples(st.floats(0, 1e6), AWKWARD), max_size=30).map(sorted)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=20)


@given(title=TEXTS, label=TEXTS, points=POINTS, x_end=st.floats(0, 1e6), dots=st.booleans(), percent=st.booleans())
def test_charts_of_any_data_are_whole_and_escaped(
    title: str, label: str, points: list[tuple[float, float]], x_end: float, dots: bool, percent: bool
) -> None:
    area = [(x, min(y, 0.0), max(y, 0.0)) for x, y in points]
    bands = [Band(0.0, x_end, label, "b-rl"), Band(x_end, x_end, label, "b-rl")]
    chart = Chart(title, [Series(label, points, "s1", dots=dots)], x_end, percent=percent, bands=bands, area=area)
    values = [(label, abs(y)) for _, y in points if math.isfinite(y)]
    for drawn in (figure(chart), bars(title, values, limit=label), intervals(title, [(label, 0.5, 0.25, 1.0)])):
        svg = ElementTree.fromstring(drawn)
        assert svg.get("aria-label") == title.replace("\t", " ")
        assert {tag(one) for one in svg.iter()} <= {"svg", "g", "rect", "line", "text", "title", "circle", "polyline", "polygon"}
        assert not re.search("nan|inf|<script", str(drawn).replace(label, "").replace(title, ""), re.IGNORECASE)


def test_chart_escapes_what_looks_like_markup() -> None:
    bad = '</svg><script>alert("x")</script>'
    for drawn in (
        figure(Chart(bad, [Series(bad, [(0.0, 1.0)], "s1")], 1.0, bands=[Band(0, 1, bad, "b-rl")])),
        bars(bad, [(bad, 1.0)]),
        intervals(bad, [(bad, 0.5, 0.2, 0.8)]),
    ):
        assert "<script" not in drawn


def test_chart_draws_lines_dots_areas_and_bands_where_they_belong() -> None:
    series = [Series("mean", [(0.0, 1.0), (2.0, 2.0)], "s1"), Series("evaluation", [(1.0, 2.0)], "s2"), Series("none", [], "s3")]
    chart = Chart("age", series, 4.0, area=[(0.0, 0.0, 2.0)], bands=[Band(0, 2, "RL 1", "b-rl")], height=100)
    drawn = ElementTree.fromstring(figure(chart))
    (line,) = shapes(drawn, "polyline")
    assert (line.get("points"), line.get("stroke")) == ("0,50 500,0", "var(--s1)")
    (dot,) = shapes(drawn, "circle")
    assert (dot.get("cx"), float(dot.get("cy") or -1), dot.get("fill")) == ("25%", 0.0, "var(--s2)")
    assert len(shapes(drawn, "polygon")) == 1
    assert [one.get("width") for one in shapes(drawn, "rect") if one.get("fill") == "var(--b-rl)"] == ["50%"]
    assert "RL 1" in [one.text for one in shapes(drawn, "text")]
    said = [one.text or "" for one in shapes(drawn, "title")]
    assert said[1] == "1 minutes\nRL 1\nevaluation: 2"


def test_band_without_room_for_its_name_is_a_colour_alone() -> None:
    drawn = figure(Chart("age", [], 100.0, bands=[Band(0, 5, "evaluation before", "b-eval")]))
    assert "var(--b-eval)" in drawn and "evaluation before" not in drawn


def test_bars_have_a_line_at_their_limit_and_intervals_may_be_none() -> None:
    drawn = ElementTree.fromstring(bars("age", [("0", 3.0), ("1", 1.0)], limit="0"))
    assert [one.get("x1") for one in shapes(drawn, "line") if one.get("stroke") == "var(--bad)"] == ["50%"]
    assert "var(--bad)" not in bars("age", [("0", 3.0)], limit="4")
    assert not shapes(ElementTree.fromstring(intervals("pass@1", [])), "circle")
    drawn = ElementTree.fromstring(intervals("pass@1", [("a", 0.5, 0.25, 1.0)]))
    assert [one.get("cx") for one in shapes(drawn, "circle")] == ["50%"]
    assert ("25%", "75%") in [(one.get("x"), one.get("width")) for one in shapes(drawn, "rect")]


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_reach_the_top(high: float) -> None:
    found = ticks(high)
    assert found[0] == 0 and found[-1] >= high * 0.999 and found[-2] < high and 3 <= len(found) <= 7


@given(st.lists(st.floats(-1e6, 1e6), max_size=2000), st.integers(10, 100))
def test_thinned_points_are_few_and_keep_the_extremes(values: list[float], most: int) -> None:
    points = [(float(index), value) for index, value in enumerate(values)]
    kept = thinned(points, most=most)
    assert len(kept) <= most or kept == points
    assert kept == sorted(kept) and set(kept) <= set(points)
    if points:
        assert {min(values), max(values)} <= {value for _, value in kept} and kept[0] == points[0] and kept[-1] == points[-1]


def test_closing_line_tells_what_the_run_achieved(tmp_path: Path) -> None:
    report, _, _ = report_of(write_run(tmp_path / "run"))
    assert closing_line(report) == "success 8% -> 38% (cloned) -> 91% (RL), 11 min 45 s"
    report, _, _ = report_of(write_run(tmp_path / "none", until="start"))
    assert closing_line(report) == "no evaluation was completed, 2 s"


def test_smooth_keeps_length_and_follows() -> None:
    smoothed = smooth([(float(index), float(index > 5)) for index in range(20)])
    assert len(smoothed) == 20
    assert smoothed[-1][1] > 0.95


def test_status_with_a_metric_that_is_no_number_is_read_again(tmp_path: Path) -> None:
    status = Status("run-1", 3, {"received": 5}, {}, (), {"learner-0": {"learner/loss": float("nan")}}, {})
    write_status(tmp_path, status)
    found = _read_status(tmp_path)
    assert found is not None and found.counters == {"received": 5}
    assert math.isnan(found.metrics["learner-0"]["learner/loss"])
