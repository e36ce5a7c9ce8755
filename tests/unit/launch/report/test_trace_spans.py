"""Spans of episodes: in their places, linked, and of the lengths that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from computerrl.common.errors import ConfigError
from computerrl.launch.report.trace import trace_events
from computerrl.launch.report.trace_file import completed_groups, write_trace


def episode(name: str, *, start: float, actor: str = "actor-0:i1", duration_s: float = 3.0) -> dict[str, Any]:
    timing = {"generate_s": 0.5, "desktop_s": 0.25, "settle_s": 0.1}
    return {
        "trajectory_id": name,
        "group_id": name.rpartition("/")[0],
        "family": "calc",
        "actor": actor,
        "started_at": start,
        "duration_s": duration_s,
        "reset_s": 1.0,
        "steps": [{"action_text": "click(1)", "timing": timing}] * 2,
        "reward": 1.0,
    }


LEDGER = [
    {"trajectory_id": "rl-1/0/0", "outcome": "trained", "update": 3},
    {"trajectory_id": "e/0/0", "outcome": "evaluated", "update": 3},
]
UPDATE = {"update": 3, "time": 120.0, "train_s": 5.0, "wait_s": 2.0}


def spans(events: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in events if event["ph"] == "X"]


def test_episode_is_followed_from_its_reset_to_the_update_that_used_it() -> None:
    events = trace_events([episode("rl-1/0/0", start=100.0)], ledger=LEDGER, updates=[UPDATE], completed={"rl-1/0": 105.0})
    found = spans(events)
    actor = [("reset", 100.0, 1.0), ("generate 1", 101.0, 0.5), ("desktop 1", 101.5, 0.25), ("generate 2", 101.75, 0.5)]
    actor += [("desktop 2", 102.25, 0.25), ("between", 102.5, 0.5), ("calc rl-1/0/0", 100.0, 3.0)]
    assert set(actor) <= set(found)
    assert ("update 3", 115.0, 5.0) in found and ("waits for groups", 113.0, 2.0) in found
    waits = [(event["name"], event["ts"] / 1e6) for event in events if event["ph"] == "b"]
    assert waits == [("waits for its group", 103.0), ("waits for the learner", 105.0)]
    (start,), (end,) = ([event for event in events if event["ph"] == kind] for kind in "sf")
    assert start["id"] == end["id"] == "rl-1/0/0" and start["ts"] < end["ts"] == 115.0 * 1e6
    parents = {event["args"]["span_id"]: event["args"].get("parent_id") for event in events if event["ph"] == "X"}
    assert all(parent in parents for span, parent in parents.items() if parent and not span.startswith("update"))


def test_episodes_that_overlap_have_lines_of_their_own_and_evaluations_lead_to_no_update() -> None:
    played = [episode("e/0/0", start=1.0), episode("e/0/1", start=2.0), episode("e/1/0", start=4.5)]
    played.append(episode("e/2/0", start=2.0, actor="actor-1:i"))
    events = trace_events(played, ledger=LEDGER, updates=[UPDATE], completed={})
    whole = [event for event in events if event["ph"] == "X" and event["name"].startswith("calc")]
    lines = {event["args"]["span_id"]: event["tid"] for event in whole}
    assert lines["e/0/0"] == lines["e/1/0"] != lines["e/0/1"]
    assert lines["e/2/0"] not in (lines["e/0/0"], lines["e/0/1"])
    assert not [event for event in events if event["ph"] in "sfbe"]


def test_trace_file_of_a_run_says_what_it_holds_and_names_an_unknown_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trajectories").mkdir()
    lines = [json.dumps(episode("rl-1/0/0", start=100.0)), '{"trajectory_id": "old"}', '{"torn']
    (tmp_path / "trajectories" / "episodes.jsonl").write_text("\n".join(lines))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"event": "update", **UPDATE}) + "\n")
    (tmp_path / "ledger.jsonl").write_text("\n".join(map(json.dumps, LEDGER)) + "\n")
    log = tmp_path / "logs" / "1" / "broker-0.log"
    log.parent.mkdir(parents=True)
    completed = {"event": "group.completed", "group_id": "rl-1/0", "timestamp": "1970-01-01T00:01:45Z"}
    log.write_text(f'noise\n{json.dumps(completed)}\n{{"event": "group.completed"}}\n')
    assert completed_groups(tmp_path / "logs") == {"rl-1/0": 105.0}
    assert "1 episodes, 1 updates" in write_trace(tmp_path, episode=None, last=10, out=None)
    lines.append(json.dumps(episode("rl-1/0/1", start=110.0)))
    (tmp_path / "trajectories" / "episodes.jsonl").write_text("\n".join(lines[:1] + lines[3:]))
    told = write_trace(tmp_path, episode=None, last=1, out=tmp_path / "one.json")
    assert "1 episodes (the newest; 1 older ones are left out" in told
    tree = json.loads((tmp_path / f"trace-{tmp_path.name}.json").read_text())
    assert ("update 3", 115.0, 5.0) in spans(tree["traceEvents"])
    with pytest.raises(ConfigError, match=r"no 'rl-9/0/0'"):
        write_trace(tmp_path, episode="rl-9/0/0", last=10, out=None)
