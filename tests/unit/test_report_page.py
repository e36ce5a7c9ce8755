"""report.json and report.html from run folders in every state."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import FAMILIES, START, write_run

from common.messages import Status
from launch.charts import Band, Chart, Series, as_json, bars, figure, intervals, library, smooth
from launch.film_strips import choose_pairs, make_strips
from launch.report import _read_status, write_report, write_status
from launch.report_data import ActiveTime, Attempt, EpisodeTotals

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


def test_report_says_how_many_evaluation_episodes_were_given_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["event"] == "evaluation" and record["phase"] == "eval-after-rl":
            record["num_given_up"] = 3
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report, page, _ = report_of(folder)
    assert [report[name]["num_given_up"] for name in REQUIRED[:3]] == [0, 0, 3]
    assert sum("held-out episodes, 3 given up" in word for word in page.words) == 1


def test_report_shows_what_was_lost_for_which_reason_and_how_far_lengths_were_shifted(whole: Report) -> None:
    report, page, text = whole
    assert report["waste"]["lost"]["masked"]["steps"] == 60 and report["stall_s"] == 24 * 1.5
    words = "|".join(word.strip() for word in page.words if word.strip())
    assert "masked: some steps were too old|9|60|600|6.7|0.021|0.004" in words
    assert "submitted|700|2,000|20,000|2.86|–|–" in words
    assert "order closed (at the broker)|5|–" in words
    assert "= what the age bound alone leaves|–|–|–|2.84|0.027|0.008" in words
    assert words.index("order closed (at the broker)") < words.index("= trained|660|1,860")
    assert '"meta":"Lengths of trajectories submitted and trained"' in text


def test_report_of_a_run_without_an_update_says_nothing_about_loss(tmp_path: Path) -> None:
    report, page, _ = report_of(write_run(tmp_path / "run", until="start"))
    assert report["waste"] == {} and "What was trained, and what was lost" not in page.words


def test_report_page_refers_to_nothing_outside_and_is_small(whole: Report) -> None:
    _, page, text = whole
    assert page.references, "film strips hold pictures"
    assert all(reference.startswith("data:image/webp;base64,") for reference in page.references)
    ours = text.replace(library(), "")
    assert len(ours) == len(text) - len(library()) < 3_000_000
    assert not re.search(r"https?://|@import|url\(", ours)


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
        "sft-1",
    ):
        assert wanted in words, wanted
    drawn = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', text)
    assert len(drawn) == 5 + len(FAMILIES) + 3 + 1
    for one in map(json.loads, drawn):
        assert one["layout"]["meta"] and all(len(trace["x"]) == len(trace["y"]) > 0 for trace in one["data"])


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


def test_figures_with_awkward_data_are_whole() -> None:
    series = [Series("x</script>", [(0.0, 5.0)], "s1"), Series("none", [], "s1")]
    awkward = Chart("a <b> & c", series, 0.0, bands=[Band(0, 0, "<", "b")])
    text = as_json(figure(awkward))
    assert "<" not in text
    drawn = json.loads(text)
    assert [trace["mode"] for trace in drawn["data"]] == ["markers"]
    assert drawn["layout"]["shapes"] == [] and drawn["layout"]["xaxis"]["range"] == [0, 1.0]


def test_area_is_between_least_and_greatest_and_bands_name_their_colour() -> None:
    mean, bands = Series("mean", [(0.0, 1.0), (1.0, 2.0)], "s1"), [Band(0, 1, "rl-1", "b-rl")]
    drawn = figure(Chart("age", [mean], 2.0, area=[(0.0, 0.0, 2.0)], bands=bands))
    assert [trace.get("fill") for trace in drawn["data"]] == [None, "tonexty", None]
    assert [(shape["name"], shape["label"]["text"]) for shape in drawn["layout"]["shapes"]] == [("b-rl", "rl-1")]


def test_bars_have_a_line_at_their_limit_and_intervals_may_be_none() -> None:
    assert [shape["x0"] for shape in bars("age", [("0", 3.0), ("1", 1.0)], limit="1")["layout"]["shapes"]] == [1.5]
    assert bars("age", [("0", 3.0)], limit="4")["layout"]["shapes"] == []
    assert intervals("pass@1", [])["data"][0]["x"] == ()
    (trace,) = intervals("pass@1", [("a", 0.5, 0.25, 1.0)])["data"]
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0.5], [0.25])


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
