"""The contract of a phase's work, and the time that phases take.

Each kind of phase has a class of its own (`rollouts.RolloutWork`, `sft.SftWork`, `rl.RlWork`), whose objects live for one phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from computerrl.common.clock import Clock
from computerrl.learner.recipe import recipe
from computerrl.learner.recipe.state import LoopState


@dataclass(frozen=True, slots=True)
class Ended:
    """The phase is over."""

    reason: str
    sft_round: bool = False
    """RL pauses for a supervised round."""


Tick = bool | Ended
"""Result of a unit of work. True: something was done. False: there was nothing to do. `Ended`: the phase was ended by it."""


class PhaseWork(Protocol):
    """The work of one phase."""

    note: str
    """State of the work in a few words, for the heartbeat, whose thread reads it."""

    def tick(self) -> Tick:
        """Do one bounded unit of work."""
        ...

    def close(self) -> bool:
        """Settle whatever is undecided when the phase is left. True: its orders have to be closed at the broker."""
        ...


class NoWork:
    """The work before the first phase and after the last."""

    def __init__(self, note: str = "") -> None:
        self.note = note

    def tick(self) -> Tick:
        return False

    def close(self) -> bool:
        return False


class PhaseTimer:
    """Counts the time of a run and of its phases into its state."""

    def __init__(self, state: LoopState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._last_s = clock()
        self.began_s = state.run_s
        """`LoopState.run_s` when the present phase began, or was resumed."""

    def count(self, kind: recipe.PhaseKind) -> None:
        """Count the time since the last call for the present phase, which is of ``kind``."""
        state, now_s = self._state, self._clock()
        passed_s, self._last_s = now_s - self._last_s, now_s
        state.run_s += passed_s
        is_round = state.phase.startswith("sft-") or recipe.is_check(state.phase)
        if kind == "rl" or is_round:
            state.rl_s += passed_s
            state.round_s += passed_s if is_round else 0.0

    def end_phase(self) -> None:
        """Note the time spent in the present phase; the next one begins."""
        state = self._state
        if state.phase:
            spent_s = state.phase_seconds.get(state.phase, 0.0) + state.run_s - self.began_s
            state.phase_seconds[state.phase] = round(spent_s, 3)
        self.began_s = state.run_s
