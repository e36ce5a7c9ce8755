"""The staleness study: its task, who plays which step of a walk, its statistics, and a short run of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from computerrl.benchmarks.studies import staleness
from computerrl.benchmarks.studies._walks import FIRST_CELL, FIRST_DISTANCE, MAX_STEPS, SIDE, WalkPolicy, moved, play
from computerrl.common.errors import ConfigError
from computerrl.launch.commands.measure import run_study, texts

TINY = staleness.Settings(
    lr=6e-3, num_seeds=1, num_updates=3, num_groups=4, group_size=4, num_minibatches=2, evaluate_every=2, etas=(0, 2)
)


@pytest.mark.parametrize(
    ("cell", "direction", "distance", "expected"),
    [((0, 0), 0, 2, (2, 0)), ((1, 3), 1, 3, (0, 3)), ((2, 2), 2, 1, (2, 3)), ((4, 4), 2, 1, (4, 4)), ((3, 1), 3, 1, (3, 0))],
)
def test_moved_stops_at_the_edge(cell: tuple[int, int], direction: int, distance: int, expected: tuple[int, int]) -> None:
    action = np.array([[direction, FIRST_DISTANCE + distance - 1]])
    assert moved(np.array([cell[0] * SIDE + cell[1]]), action).tolist() == [expected[0] * SIDE + expected[1]]


def test_logprobs_of_sampled_tokens_are_those_of_sampling() -> None:
    torch.manual_seed(0)
    policy = WalkPolicy()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    prompts = torch.randint(FIRST_CELL, FIRST_CELL + SIDE * SIDE, (50, 2))
    tokens, sampled = policy.sample(prompts, torch.Generator().manual_seed(1))
    logprobs, entropy = policy.logprobs(prompts, tokens)
    torch.testing.assert_close(logprobs.detach(), sampled)
    assert (entropy > 0).all()


def test_play_records_which_version_sampled_each_step_and_checks_the_goal() -> None:
    torch.manual_seed(0)
    plan = staleness.step_plan(64, np.random.default_rng(0))
    groups = play(
        [WalkPolicy(), WalkPolicy()],
        plan,
        versions=[3, 5],
        group_size=8,
        tasks=np.random.default_rng(0),
        sampling=torch.Generator().manual_seed(0),
    )
    walks = [walk for group in groups for walk in group.trajectories]
    assert len(walks) == 64
    for walk, planned in zip(walks, plan, strict=True):
        versions = [int(step.policy_versions[0]) for step in walk.steps]
        assert versions == [(3, 5)[which] for which in planned[: len(versions)]]
        goal = walk.steps[0].prompt_tokens[1]
        last = walk.steps[-1]
        end = moved(np.array([last.prompt_tokens[0] - FIRST_CELL]), last.action_tokens[None])[0] + FIRST_CELL
        assert walk.success == (end == goal)
        assert walk.success or len(walk.steps) == MAX_STEPS
    assert {int(step.policy_versions[0]) for walk in walks for step in walk.steps} == {3, 5}
    assert all(len({tuple(walk.steps[0].prompt_tokens) for walk in group.trajectories}) == 1 for group in groups)


def test_train_on_policy_variants_are_the_same() -> None:
    naive, decoupled = (staleness.train(variant, 0, 0, TINY) for variant in ("naive", "decoupled"))
    assert naive.curve == decoupled.curve
    assert naive.mean_age == 0.0


def test_train_with_delay_ages_reach_eta_and_no_further() -> None:
    aged = staleness.train("naive", 2, 0, TINY)
    assert 0 < aged.mean_age <= 2
    assert aged.curve != staleness.train("decoupled", 2, 0, TINY).curve


@pytest.mark.release
def test_train_learns() -> None:
    settings = staleness.Settings(num_updates=40, evaluate_every=20)
    curve = staleness.train("decoupled", 0, 0, settings).curve
    assert curve[-1][1] > 2 * curve[0][1]


@pytest.mark.release
def test_run_writes_data_table_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "QUICK", TINY)
    run_study("staleness", folder=tmp_path / "out", quick=True, num_seeds=None)
    data = json.loads((tmp_path / "out" / "data.json").read_text())
    with (tmp_path / "out" / "data.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(data["cells"]) == len(lines) == len(TINY.etas) * len(staleness.VARIANTS)
    assert {line["variant"] for line in lines} == set(staleness.VARIANTS)
    assert (tmp_path / "out" / "table.md").read_text().count("| 0 | 0.0 |") == 1
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "What this does not show" in (tmp_path / "out" / "README.md").read_text()


def test_run_study_unknown_name_lists_those_there_are() -> None:
    assert {"staleness", "asynchrony"} < texts("study").keys()
    with pytest.raises(ConfigError, match="staleness"):
        run_study("stale", folder=None, quick=True, num_seeds=None)
