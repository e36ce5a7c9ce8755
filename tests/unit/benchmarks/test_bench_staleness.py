"""Simulated trajectories with heavy-tailed lengths through the real broker, pacing, masking and ledger."""

from __future__ import annotations

import pytest

from computerrl.benchmarks.simulation.staleness import ETA, GROUPS_PER_BATCH, MAX_AGE, Accounts, simulate

MODES = ("admit", "mask", "pace")
FEW, MANY = 6_000, 34_000
"""Trajectories in each mode."""


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.release)])
def runs(request: pytest.FixtureRequest) -> dict[str, Accounts]:
    return {mode: simulate(mode, num_trajectories=request.param) for mode in MODES}


def num_lost(run: Accounts) -> int:
    return sum(amount["steps"] for amount in run.waste["lost"].values())


def test_straggling_with_a_bound_no_step_beyond_it_is_trained(runs: dict[str, Accounts]) -> None:
    for mode in ("mask", "pace"):
        assert runs[mode].waste["submitted"]["trajectories"] >= FEW
        assert max(runs[mode].ages) == MAX_AGE  # The bound is reached, so it is what holds.


def test_straggling_admission_alone_trains_older_steps(runs: dict[str, Accounts]) -> None:
    assert max(runs["admit"].ages) > MAX_AGE + 2
    assert num_lost(runs["admit"]) == 0


def test_straggling_pace_loses_a_tenth_of_what_mask_loses_at_most(runs: dict[str, Accounts]) -> None:
    assert 0 < 10 * num_lost(runs["pace"]) < num_lost(runs["mask"])


def test_straggling_pace_biases_lengths_and_families_less_than_mask(runs: dict[str, Accounts]) -> None:
    mask, pace = (runs[mode].waste["within_bound"] for mode in ("mask", "pace"))
    assert 5 * pace["length_ks"] < mask["length_ks"]
    assert 5 * pace["family_tv"] < mask["family_tv"]
    submitted = runs["mask"].waste["submitted"]["mean_length"]
    assert mask["mean_length"] < 0.95 * submitted  # Long episodes are lost more than short ones.


def test_straggling_batches_grow_in_pace_only_and_no_further_than_admission_allows(runs: dict[str, Accounts]) -> None:
    for mode in ("admit", "mask"):
        assert set(runs[mode].batch_sizes) == {GROUPS_PER_BATCH} and runs[mode].stall_s == 0
    sizes = runs["pace"].batch_sizes
    assert GROUPS_PER_BATCH == min(sizes) < max(sizes) <= (ETA + 1) * GROUPS_PER_BATCH
    assert runs["pace"].stall_ends["arrived"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_straggling_ledger_counts_as_trained_what_the_algorithm_trained(runs: dict[str, Accounts], mode: str) -> None:
    trained = runs[mode].waste["trained"]
    assert trained["steps"] == trained["action_tokens"] == runs[mode].ages.total()
