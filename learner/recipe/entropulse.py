"""When does RL pause for a round of SFT? The Entropulse trigger as a pure state machine (ComputerRL section 3.4).

RL collapses entropy: the policy stops exploring while success is flat. An SFT round on the run's own successes, drawn from
all versions, lifts entropy at unchanged success, and RL can go on. The paper does not publish its trigger; this one is
ours: entropy EMA below a fraction of the phase's first value AND success no longer rising, both for a few updates in a row,
never before a minimum dwell, never more often than `max_phases`. Readings in, decisions out; no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from computerrl.common.config import EntropulseConfig

ENTROPY_DECAY = 0.7
"""Share of the old value in the entropy EMA: single batches are noisy, but a collapse takes only a handful of updates."""

RELEASE_FACTOR = 1.1
"""Hysteresis: entropy must rise this far above the threshold before the count of confirming updates starts again."""

NUM_FIRST_READINGS = 2
"""The phase's first entropy is the mean of this many readings, so that one odd batch does not set the threshold."""

LAST_START = 0.7
"""Share of the RL budget after which no round begins. One right before the last evaluation cost what RL had gained (success 0.93
before it, 0.82 after, in a family 18 of 20 before and 6 of 20 after)."""


@dataclass
class PhaseReadings:
    """Readings of one RL phase so far; saved in checkpoints."""

    num_updates: int = 0
    first_entropies: list[float] = field(default_factory=list)
    entropy_ema: float | None = None
    successes: list[float] = field(default_factory=list)
    """The last `slope_window` readings."""
    num_confirmed: int = 0
    """Updates in a row in which both conditions held."""


class PhaseMachine:
    """Decides after each update whether the RL phase should give way to SFT."""

    def __init__(self, config: EntropulseConfig) -> None:
        self._config = config
        self._num_rounds = 0
        self._readings = PhaseReadings()

    @property
    def num_rounds(self) -> int:
        """SFT rounds begun so far."""
        return self._num_rounds

    @property
    def entropy_ema(self) -> float | None:
        """Smoothed entropy of this phase, None before its first reading."""
        return self._readings.entropy_ema

    @property
    def threshold(self) -> float | None:
        """Entropy below which the phase counts as collapsed, None until there are enough first readings."""
        first = self._readings.first_entropies
        if len(first) < NUM_FIRST_READINGS:
            return None
        return self._config.entropy_fraction * sum(first) / len(first)

    def observe(self, *, entropy: float | None, success: float) -> None:
        """One update: mean token entropy of its batch (None when nothing was trained) and its success rate.

        An entropy that is not finite, of a step that was skipped for it, is no reading: it would never leave the average.
        """
        readings = self._readings
        readings.num_updates += 1
        readings.successes = [*readings.successes, success][-self._config.slope_window :]
        if entropy is not None and math.isfinite(entropy):
            if len(readings.first_entropies) < NUM_FIRST_READINGS:
                readings.first_entropies.append(entropy)
            old = readings.entropy_ema
            readings.entropy_ema = entropy if old is None else ENTROPY_DECAY * old + (1 - ENTROPY_DECAY) * entropy
        self._count_confirmations()

    def _count_confirmations(self) -> None:
        readings, threshold = self._readings, self.threshold
        if threshold is None or readings.entropy_ema is None:
            return
        flat = len(readings.successes) >= self._config.slope_window and slope(readings.successes) < self._config.success_slope
        if readings.entropy_ema < threshold and flat:
            readings.num_confirmed += 1
        elif readings.entropy_ema > RELEASE_FACTOR * threshold or not flat:
            readings.num_confirmed = 0

    def reason_to_switch(self, *, budget_used: float = 0.0) -> str:
        """Why an SFT round should start now, in words; empty to go on. ``budget_used`` is the used fraction of RL."""
        config, readings = self._config, self._readings
        if not config.enabled or self._num_rounds >= config.max_phases:
            return ""
        if budget_used > LAST_START:
            return ""
        if config.force_after_fraction is not None:
            due = config.force_after_fraction * (self._num_rounds + 1) / config.max_phases
            if budget_used >= due:
                return f"{budget_used:.0%} of the RL budget used, round {self._num_rounds + 1} is due at {due:.0%}"
        if readings.num_updates < config.min_updates or readings.num_confirmed < config.confirm_updates:
            return ""
        return (
            f"entropy {readings.entropy_ema:.3f} below {self.threshold:.3f} and success rising by "
            f"{slope(readings.successes):+.4f} per update (less than {config.success_slope}), "
            f"{readings.num_confirmed} updates in a row"
        )

    def start_phase(self, *, after_sft: bool) -> None:
        """A new RL phase begins; readings of the old one do not count for it."""
        self._num_rounds += int(after_sft)
        self._readings = PhaseReadings()

    def state(self) -> dict[str, Any]:
        """JSON-ready; `restore` takes it back."""
        return {"num_rounds": self._num_rounds, "readings": asdict(self._readings)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._num_rounds = int(state["num_rounds"])
        self._readings = PhaseReadings(**state["readings"])


def slope(values: Sequence[float]) -> float:
    """Least-squares slope of ``values`` over 0, 1, 2, ...; 0 for fewer than two."""
    count = len(values)
    if count < 2:
        return 0.0
    mean_x, mean_y = (count - 1) / 2, sum(values) / count
    covariance = sum((i - mean_x) * (value - mean_y) for i, value in enumerate(values))
    return covariance / sum((i - mean_x) ** 2 for i in range(count))
