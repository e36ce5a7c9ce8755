"""Screenshots are checked by threads: the control thread goes on, order and accounts stay."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from computerrl.common.messages import NoGroup, Step, TrajectoryGroup
from computerrl.common.metrics import read_json_lines
from computerrl.learner.accounts.intake import MAX_CHECKING
from tests.support.loop_fakes import Bench, FakeTrainer, make_config

SLOW, BROKEN = "rl-1/0/1", "rl-1/1/0"


def marked(group: TrajectoryGroup | NoGroup) -> TrajectoryGroup | NoGroup:
    """Every step tells whose it is."""
    if isinstance(group, NoGroup):
        return group
    trajectories = (
        replace(one, steps=tuple(replace(step, action_text=one.trajectory_id) for step in one.steps))
        for one in group.trajectories
    )
    return replace(group, trajectories=tuple(trajectories))


def test_slow_read_does_not_stop_the_control_thread_and_a_broken_image_poisons_only_its_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, make_config())
    fetch, is_read, begun, threads = bench.broker.fetch_group, threading.Event(), threading.Event(), set()

    def check(step: Step) -> str | None:
        threads.add(threading.current_thread())
        if step.action_text == SLOW:
            begun.set()
            assert is_read.wait(60)
        return "picture_missing" if step.action_text == BROKEN else None

    bench.broker.fetch_group = lambda group_seq: marked(fetch(group_seq))  # type: ignore[method-assign]
    monkeypatch.setattr(FakeTrainer, "check_screenshot", staticmethod(check))
    loop = bench.start()
    for _ in range(10_000):
        bench.clock.advance(1.0)
        loop.tick()
        if begun.wait(0.001):
            break
    assert loop.state.phase == "rl-1"
    cursor = loop.state.cursor
    # Ticks end, with nothing to do, while the first group is read; groups after it are taken from the broker, and wait.
    assert [loop.tick() for _ in range(20)] == [False] * 20
    assert loop.state.cursor == cursor and len(bench.broker.groups) == cursor + MAX_CHECKING
    is_read.set()
    bench.run(loop)
    assert threading.current_thread() not in threads
    lines = read_json_lines(bench.folder.folder / "ledger.jsonl")
    assert [line["trajectory_id"] for line in lines if line["outcome"] == "picture_missing"] == [BROKEN]
    assert len(lines) == len({line["trajectory_id"] for line in lines}) == loop.state.episodes
    numbers = [line["group_seq"] for line in lines]
    assert numbers == sorted(numbers)
    summary = [line for line in read_json_lines(bench.folder.metrics_path) if line["event"] == "summary"][-1]
    assert summary["num_trajectories_lost"] == 0


def test_error_of_a_check_that_is_no_poison_ends_the_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(step: Step) -> str | None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(FakeTrainer, "check_screenshot", staticmethod(check))
    bench = Bench(tmp_path, make_config())
    loop = bench.start()
    with pytest.raises(RuntimeError, match="a defect"):
        bench.run(loop)


def test_learners_killed_while_screenshots_are_checked_count_every_trajectory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTrainer, "check_screenshot", staticmethod(lambda step: None))
    bench = Bench(tmp_path, make_config())
    bench.kill_often(random.Random(5), most_ticks=60)
    loop = bench.run(bench.start())
    lines = read_json_lines(bench.folder.folder / "ledger.jsonl")
    assert len(lines) == len({line["trajectory_id"] for line in lines}) == loop.state.episodes
