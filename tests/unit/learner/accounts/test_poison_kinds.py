"""What no policy of the run can have sampled is refused by name, counted and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from computerrl.common.messages import NoGroup, RolloutOrder, Step, TaskRef, Trajectory, TrajectoryGroup
from computerrl.common.metrics import read_json_lines
from computerrl.learner.poison import POISONS, poison_of
from tests.support.loop_fakes import Bench, FakeTrainer, make_config, make_step, make_trajectory

VOCABULARY_SIZE = 100
TASK = TaskRef("click", 1, "training")
BAD_STEPS: dict[str, list[dict[str, Any]]] = {
    "empty": [{"action_tokens": np.array([], np.int32)}, {"prompt_tokens": np.array([], np.int32)}],
    "wrong_length": [
        {"behavior_logprobs": np.zeros(1)},
        {"policy_versions": np.zeros(3, np.int32)},
        {"action_tokens": np.array([4], np.int32)},
    ],
    "not_finite": [{"behavior_logprobs": np.array([-0.5, value])} for value in (np.nan, np.inf, -np.inf)],
    "impossible_logprob": [{"behavior_logprobs": np.array([-0.5, value])} for value in (0.5, -1e4)],
    "outside_vocabulary": [
        {"action_tokens": np.array([4, VOCABULARY_SIZE])},
        {"prompt_tokens": np.array([-1, 4])},
        {"prompt_tokens": np.array([2**31 - 1])},
    ],
    "future_version": [{"policy_versions": np.array([3, 6], np.int32)}, {"policy_versions": np.array([-1, 3], np.int32)}],
}
CASES = [(name, changes) for name, several in BAD_STEPS.items() for changes in several]


def trajectory(*steps: Step, kind: str = "training") -> Trajectory:
    order = RolloutOrder("rl-1", kind, ("click",), None, 2, 0, 1.0, 6, 0)  # type: ignore[arg-type]
    return replace(make_trajectory(order, TASK, 0, 0, success=True, version=5), steps=steps)


def poison(one: Trajectory) -> str | None:
    return poison_of(one, policy_version=5, vocabulary_size=VOCABULARY_SIZE)


def test_every_poison_has_a_case() -> None:
    assert set(BAD_STEPS) | {"picture_missing", "picture_mismatch"} == set(POISONS)  # Pictures: test_vision_policy.


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_one_bad_step_poisons_its_trajectory_by_name(name: str, changes: dict[str, Any]) -> None:
    good = make_step(version=5)
    assert poison(trajectory(good, good)) is None
    assert poison(trajectory(good, replace(good, **changes), good)) == name


def test_evaluation_by_a_server_that_sends_text_alone_has_no_logprobs_but_versions() -> None:
    step = replace(make_step(version=5), behavior_logprobs=np.zeros(0, np.float32))
    assert poison(trajectory(step, kind="evaluation")) is None and poison(trajectory(step)) == "wrong_length"
    without = replace(step, policy_versions=np.zeros(0, np.int32))
    assert poison(trajectory(without, kind="evaluation")) == "wrong_length"


def test_demonstration_has_no_logprobs_but_tokens_of_the_vocabulary() -> None:
    step = make_step(version=-1)
    assert poison(trajectory(step, kind="demonstration")) is None
    bad = replace(step, action_tokens=np.array([VOCABULARY_SIZE]))
    assert poison(trajectory(bad, kind="demonstration")) == "outside_vocabulary"
    bad = replace(step, action_tokens=np.array([], np.int32))
    assert poison(trajectory(bad, kind="demonstration")) == "empty"


def test_trajectory_without_steps_is_no_poison() -> None:
    assert poison(trajectory()) is None


def test_poisoned_trajectories_are_recorded_and_the_rest_of_their_groups_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTrainer, "vocabulary_size", VOCABULARY_SIZE)
    bench = Bench(tmp_path, make_config())
    fetch, seen, poisoned = bench.broker.fetch_group, [], set()

    def fetch_some_poison(group_seq: int) -> TrajectoryGroup | NoGroup:
        group = fetch(group_seq)
        if isinstance(group, NoGroup) or group_seq % 3:
            return group
        changes = CASES[group_seq % len(CASES)][1] if group.kind != "demonstration" else {"action_tokens": np.array([1 << 20])}
        bad = replace(group.trajectories[0], steps=(replace(group.trajectories[0].steps[0], **changes),))
        poisoned.add(bad.trajectory_id)
        return replace(group, trajectories=(bad, *group.trajectories[1:]))

    bench.broker.fetch_group = fetch_some_poison  # type: ignore[method-assign]
    bench_start = bench.start()
    update = bench.trainer.update
    bench.trainer.update = lambda batch: (seen.extend(batch.samples), update(batch))[1]  # type: ignore[method-assign]
    loop = bench.run(bench_start)
    lines = read_json_lines(bench.folder.folder / "ledger.jsonl")
    recorded = {line["trajectory_id"] for line in lines if line["outcome"] in POISONS}
    assert recorded == poisoned and len(poisoned) > 3
    assert len(lines) == len({line["trajectory_id"] for line in lines}) == loop.state.episodes
    assert seen and all(step.action_tokens.max() < VOCABULARY_SIZE for step in seen)
    summary = [line for line in read_json_lines(bench.folder.metrics_path) if line["event"] == "summary"][-1]
    assert summary["num_trajectories_lost"] == 0 and set(summary["drops"]) & set(POISONS)


def test_trajectory_that_shows_no_picture_is_recorded_and_never_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "rl-1/2/0"
    bench = Bench(tmp_path, make_config())
    fetch = bench.broker.fetch_group

    def without_picture(group_seq: int) -> TrajectoryGroup | NoGroup:
        group = fetch(group_seq)
        if isinstance(group, NoGroup) or group.trajectories[0].trajectory_id != bad:
            return group
        first, *others = group.trajectories
        return replace(group, trajectories=(replace(first, steps=(replace(first.steps[0], action_text="blind"),)), *others))

    def check(step: Step) -> str | None:
        return "picture_missing" if step.action_text == "blind" else None

    bench.broker.fetch_group = without_picture  # type: ignore[method-assign]
    monkeypatch.setattr(FakeTrainer, "check_screenshot", staticmethod(check))
    bench.run(bench.start())
    lines = read_json_lines(bench.folder.folder / "ledger.jsonl")
    assert {line["trajectory_id"]: line["outcome"] for line in lines}[bad] == "picture_missing"
    assert [line["outcome"] for line in lines].count("picture_missing") == 1
