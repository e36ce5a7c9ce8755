"""The conductor's state: everything besides tensors and episodes that a resumed learner needs. Plain values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgspec

from computerrl.common.messages import RolloutOrder, Trajectory

SUCCESS_DECAY = 0.8
"""Share of the old value in the training success EMA, about the last five updates."""


@dataclass
class Tally:
    """Successes and episodes by family."""

    families: dict[str, list[int]] = field(default_factory=dict)
    """Family -> [successes, episodes]."""
    num_given_up: int = 0
    """Episodes that could not be played."""
    off_demonstration: dict[str, int] = field(default_factory=dict)
    """Family -> episodes whose demonstrator did what the prompt's format cannot say."""

    def add(self, family: str, *, success: bool, is_off_demonstration: bool = False) -> None:
        """One episode."""
        entry = self.families.setdefault(family, [0, 0])
        entry[0] += int(success)
        entry[1] += 1
        if is_off_demonstration:
            self.off_demonstration[family] = self.off_demonstration.get(family, 0) + 1

    @property
    def num_episodes(self) -> int:
        return sum(episodes for _, episodes in self.families.values())

    @property
    def success(self) -> float:
        """Mean over families of their success rates; 0 when empty."""
        rates = list(self.rates().values())
        return sum(rates) / len(rates) if rates else 0.0

    def rates(self) -> dict[str, float]:
        """Family -> success rate."""
        return {name: successes / episodes for name, (successes, episodes) in sorted(self.families.items()) if episodes}


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of an evaluation: it takes ``ramp_s``, and ``episode_s`` for each episode."""

    episode_s: float
    """Wall-clock seconds per episode while as many play as can."""
    ramp_s: float
    """Extra seconds at beginning and end, where fewer episodes play."""

    def of(self, num_episodes: int) -> float:
        """Seconds that an evaluation of so many takes."""
        return self.ramp_s + num_episodes * self.episode_s


@dataclass
class LoopState:
    """The conductor's part of a checkpoint."""

    phase: str = ""
    cursor: int = 0
    """First group whose outcome is not recorded."""
    update: int = 0
    """RL updates so far."""
    policy_version: int = -1
    run_s: float = 0.0
    """Seconds since the run was started, with start-up, without pauses between attempts; `max_run_s` limits it."""
    start_s: float = 0.0
    """Seconds of ``run_s`` before the learner's first unit of work."""
    pace: Pace | None = None
    """Pace of the newest evaluation; None before the first."""
    ends_s: list[float] = field(default_factory=list)
    """End of each episode of the present evaluation, in seconds since its start."""
    sft_sample_s: float | None = None
    """Seconds per step of a supervised round, from the newest one; None before the first."""
    sft_done: int = 0
    """Minibatches of the present supervised round that the weights were trained on."""
    sft_max_samples: int | None = None
    """Steps that the present Entropulse round has time for; None: any number."""
    before_round: int | None = None
    """Checkpoint from before the newest supervised round, while the round may still be taken back."""
    planned: dict[str, int] = field(default_factory=dict)
    """Evaluation -> episodes per family that the budget gave it."""
    rl_s: float = 0.0
    """Seconds of ``run_s`` in RL phases and their SFT rounds; `max_rl_s` limits it."""
    round_s: float = 0.0
    """Seconds of ``rl_s`` in SFT rounds and their checks."""
    env_steps: int = 0
    """Desktop steps in all trajectories taken."""
    rl_env_steps: int = 0
    """Steps of ``env_steps`` in training trajectories; `max_rl_env_steps` limits it."""
    episodes: int = 0
    next_seed: int = 0
    """First training seed that no order has played."""
    recorded: dict[str, list[int]] = field(default_factory=dict)
    """`common.run_files.recordings.recorded_seeds` when the run began: later recordings are for later runs."""
    success_ema: float | None = None
    latest_success: dict[str, float] = field(default_factory=dict)
    """Family -> success rate of its rollouts in the newest update that had any."""
    aids: list[str] = field(default_factory=list)
    """Orders of demonstrations that RL asked for (`learner.phases.aids`)."""
    stall_s: float = 0.0
    """Time that updates waited for steps in flight (`learner.recipe.pacing`)."""
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Orders of the present phase as they were placed: placing one again must say the same."""
    old_orders: list[str] = field(default_factory=list)
    """Orders of earlier phases that had to be closed."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """Order -> results, of demonstrations and evaluations."""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Finished evaluations: phase -> success and families."""
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Phase -> time spent in it."""
    entropulse: dict[str, Any] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    """`learner.accounts.records.Records.positions` at this point."""

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Count trajectories whose outcome is decided."""
        self.episodes += len(trajectories)
        self.env_steps += sum(len(trajectory.steps) for trajectory in trajectories)
        self.rl_env_steps += sum(len(trajectory.steps) for trajectory in trajectories if trajectory.kind == "training")

    def note_success(self, tally: Tally) -> None:
        """One update's rollouts."""
        old, new = self.success_ema, tally.success
        self.success_ema = new if old is None else SUCCESS_DECAY * old + (1 - SUCCESS_DECAY) * new
        self.latest_success |= tally.rates()

    def order_messages(self) -> list[RolloutOrder]:
        """The present phase's orders."""
        return [msgspec.convert(order, RolloutOrder) for order in self.orders.values()]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> LoopState:
        """Back from `to_json`."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in tree.items() if key in known}
        values["pace"] = Pace(**tree["pace"]) if tree.get("pace") else None
        values["tallies"] = {name: Tally(**tally) for name, tally in tree["tallies"].items()}
        return cls(**values)
