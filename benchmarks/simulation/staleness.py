"""Staleness modes: heavy-tailed simulated episodes through the real broker, pacing, masking and ledger; the losses of each mode.

Slots play episodes whose lengths follow a Pareto law; every step takes the same time and is sampled by the newest version. An
update takes a fixed time, during which episodes go on. `launch.simulation` plays them; each batch goes through the algorithm's
masking and the ledger as in a run. The three modes play the same law from the same seed. Times are simulated, so every figure is
the same on every machine. The peer of `admit` and `pace` is `mask`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from computerrl.common.config import RunConfig
from computerrl.common.messages import Step, Trajectory, TrajectoryGroup
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.learner import Batch
from computerrl.launch.simulation.loop import Simulation
from computerrl.launch.simulation.workload import ParetoWorkload
from computerrl.learner.accounts.ledger import AgeSpan, Ledger
from computerrl.learner.algorithms import PolicyAges, make_algorithm

GROUP_SIZE, GROUPS_PER_BATCH = 4, 8
ETA, MAX_AGE = 2, 4
STALL_BUDGET_S = 60.0
WORKLOAD = ParetoWorkload({"short": 1, "long": 3}, tail=1.3, max_steps=40, step_s=4.0)
CLUSTER = Cluster(
    num_desktops=48, num_actors=1, train_fixed_s=12.0, train_step_s=0.0, overhead_s=0.0, weight_s=0.0, load_stall_s=0.0
)
_NUM_TRAJECTORIES, _NUM_QUICK = 340_000, 34_000
"""Trajectories in each mode; a million in all."""


def config_of(mode: str) -> RunConfig:
    """A batch of 32 trajectories; ages up to 4 are trained."""
    learner = {
        "group_size": GROUP_SIZE,
        "groups_per_batch": GROUPS_PER_BATCH,
        "max_age": MAX_AGE,
        "staleness": {"mode": mode, "stall_budget_s": STALL_BUDGET_S},
    }
    return RunConfig.model_validate({"broker": {"eta": ETA}, "learner": learner})


class Accounts:
    """Ages trained, trajectories lost and time waited in one simulated run."""

    def __init__(self, config: RunConfig) -> None:
        self.ages: Counter[int] = Counter()
        """Age -> steps that the algorithm let train at it."""
        self.batch_sizes: Counter[int] = Counter()
        """Number of groups -> batches of that size."""
        self.stall_ends: Counter[str] = Counter()
        self.stall_s = 0.0
        self.run_s = 0.0
        """Simulated duration of the run."""
        self.num_trajectories = 0
        self._algorithm = make_algorithm(config.learner, seed=config.seed)
        self._age_bound = config.learner.age_bound
        self._ledger = Ledger(lambda line: None)

    @property
    def waste(self) -> dict[str, Any]:
        """See `learner.accounts.waste.Waste.figures`."""
        return self._ledger.waste.figures()

    def take(self, batch: Batch) -> None:
        """Mask and record ``batch`` as the learner does."""
        self.batch_sizes[batch.cut.num_groups] += 1
        self.stall_ends[batch.cut.stall_end] += 1
        self.stall_s += batch.cut.stall_s
        groups = [_with_all_steps(group, batch.steps_by_version) for group in batch.groups]
        prepared = self._algorithm.prepare(groups, ages=PolicyAges(batch.version))
        self.ages.update(Counter(_age(step, batch.version) for step in prepared.samples))
        for group in groups:
            for trajectory in group.trajectories:
                self._record(trajectory, group.group_seq, batch.version)
                self.num_trajectories += 1

    def _record(self, trajectory: Trajectory, group_seq: int, version: int) -> None:
        ages = [_age(step, version) for step in trajectory.steps]
        masked = sum(age > self._age_bound for age in ages)
        self._ledger.record(
            trajectory,
            "too_old" if masked == len(ages) else "trained",
            group_seq=group_seq,
            update=version,
            policy_version=version,
            ages=AgeSpan(min(ages), max(ages), masked, masked),
        )


def _with_all_steps(group: TrajectoryGroup, steps_by_version: Mapping[str, Counter[int]]) -> TrajectoryGroup:
    """``group`` with every step of its trajectories; the simulation's messages hold one for each policy version."""
    whole = []
    for trajectory in group.trajectories:
        counts = steps_by_version[trajectory.trajectory_id]
        steps = tuple(step for step in trajectory.steps for _ in range(counts[_version(step)]))
        whole.append(msgspec.structs.replace(trajectory, steps=steps))
    return msgspec.structs.replace(group, trajectories=tuple(whole))


def _version(step: Step) -> int:
    return int(step.policy_versions[0])


def _age(step: Step, version: int) -> int:
    return version - _version(step)


def simulate(mode: str, *, num_trajectories: int, seed: int = 0) -> Accounts:
    """A run in staleness mode ``mode`` until the batch with the trajectory ``num_trajectories`` is taken."""
    config = config_of(mode)
    accounts = Accounts(config)
    simulation = Simulation(config, CLUSTER, WORKLOAD, seed=seed, on_batch=accounts.take)
    simulation.play(math.inf, is_done=lambda: accounts.num_trajectories >= num_trajectories)
    accounts.run_s = simulation.now
    return accounts


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows of design section 6."""
    num_trajectories = _NUM_QUICK if quick else _NUM_TRAJECTORIES
    runs = {mode: simulate(mode, num_trajectories=num_trajectories) for mode in ("admit", "mask", "pace")}
    return [row for mode, accounts in runs.items() for row in _rows(mode, accounts, mask=runs["mask"])]


def _rows(mode: str, accounts: Accounts, *, mask: Accounts) -> list[dict[str, Any]]:
    bound = 0 if mode != "admit" else None
    beyond = sum(number for age, number in accounts.ages.items() if age > MAX_AGE)
    rows = [
        _row(f"{mode}: steps trained beyond age {MAX_AGE}", beyond, "steps", "lower", target=bound),
        _row(f"{mode}: oldest step trained", max(accounts.ages), "versions", "lower"),
        _row(f"{mode}: mean age trained", _mean_age(accounts), "versions", "lower"),
    ]
    compared = (
        ("steps lost", _share_lost, "share", "lower"),
        ("length bias (KS)", lambda one: one.waste["within_bound"]["length_ks"], "0..1", "lower"),
        ("family bias (TV)", lambda one: one.waste["within_bound"]["family_tv"], "0..1", "lower"),
        ("mean length trained, by submitted", _length_ratio, "ratio", "higher"),
        ("trajectories per simulated hour", _per_hour, "1/h", "higher"),
    )
    for name, figure, unit, better in compared:
        row = _row(f"{mode}: {name}", figure(accounts), unit, better)
        rows.append(row if mode == "mask" else {**row, "peer": "mask", "peer_value": figure(mask)})
    if mode == "pace":
        rows.append(_row("pace: time spent waiting", accounts.stall_s / accounts.run_s, "share", "lower"))
        rows.append(_row("pace: largest batch, by groups_per_batch", _growth(accounts), "ratio", "lower"))
    return rows


def _mean_age(accounts: Accounts) -> float:
    return sum(age * number for age, number in accounts.ages.items()) / accounts.ages.total()


def _share_lost(accounts: Accounts) -> float:
    return sum(amount["steps"] for amount in accounts.waste["lost"].values()) / accounts.waste["submitted"]["steps"]


def _length_ratio(accounts: Accounts) -> float:
    return accounts.waste["trained"]["mean_length"] / accounts.waste["submitted"]["mean_length"]


def _per_hour(accounts: Accounts) -> float:
    return accounts.waste["submitted"]["trajectories"] / accounts.run_s * 3600


def _growth(accounts: Accounts) -> float:
    return max(accounts.batch_sizes) / min(accounts.batch_sizes)


def _row(name: str, value: float, unit: str, better: str, *, target: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "better": better, "target": target}


if __name__ == "__main__":
    for line in run(quick=True):
        print(line)
