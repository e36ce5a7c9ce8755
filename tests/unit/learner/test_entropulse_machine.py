"""The trigger of SFT rounds."""

import pytest

from computerrl.common.config import EntropulseConfig
from computerrl.learner.recipe.entropulse import PhaseMachine, slope


def fed(config: EntropulseConfig, readings: list[tuple[float, float]]) -> list[str]:
    """The machine's answer after each (entropy, success)."""
    machine = PhaseMachine(config)
    machine.start_phase(after_sft=False)
    answers = []
    for entropy, success in readings:
        machine.observe(entropy=entropy, success=success)
        answers.append(machine.reason_to_switch())
    return answers


COLLAPSED_AND_FLAT = [(1.0, 0.5)] * 2 + [(0.1, 0.5)] * 12


def test_trigger_entropy_collapsed_and_success_flat_switches() -> None:
    assert any(fed(EntropulseConfig(), COLLAPSED_AND_FLAT))


def test_trigger_entropy_collapsed_while_success_rises_waits() -> None:
    rising = [(entropy, 0.05 * i) for i, (entropy, _) in enumerate(COLLAPSED_AND_FLAT)]
    assert not any(fed(EntropulseConfig(), rising))


def test_trigger_success_flat_while_entropy_stays_waits() -> None:
    assert not any(fed(EntropulseConfig(), [(1.0, 0.5)] * 20))


def test_trigger_before_minimum_dwell_waits() -> None:
    assert not any(fed(EntropulseConfig(min_updates=100), COLLAPSED_AND_FLAT))


def test_trigger_single_collapsed_update_is_not_confirmed() -> None:
    config = EntropulseConfig(confirm_updates=3)
    answers = fed(config, COLLAPSED_AND_FLAT)
    first = next(i for i, answer in enumerate(answers) if answer)
    assert first == next(i for i, answer in enumerate(fed(EntropulseConfig(confirm_updates=1), COLLAPSED_AND_FLAT)) if answer) + 2


def test_trigger_disabled_or_rounds_used_up_never_switches() -> None:
    assert not any(fed(EntropulseConfig(enabled=False), COLLAPSED_AND_FLAT))
    assert not any(fed(EntropulseConfig(max_phases=0), COLLAPSED_AND_FLAT))


def test_trigger_forced_at_fraction_of_budget_switches_once() -> None:
    machine = PhaseMachine(EntropulseConfig(force_after_fraction=0.6))
    machine.observe(entropy=1.0, success=0.1)
    assert machine.reason_to_switch(budget_used=0.59) == ""
    assert "due" in machine.reason_to_switch(budget_used=0.6)
    machine.start_phase(after_sft=True)
    assert machine.reason_to_switch(budget_used=0.69) == ""


def test_trigger_no_entropy_reading_in_batches_without_signal_stays_calm() -> None:
    machine = PhaseMachine(EntropulseConfig())
    for _ in range(20):
        machine.observe(entropy=None, success=1.0)
    assert machine.reason_to_switch() == "" and machine.entropy_ema is None


def test_state_restored_goes_on_as_if_undisturbed() -> None:
    whole, cut = PhaseMachine(EntropulseConfig()), PhaseMachine(EntropulseConfig())
    for i, (entropy, success) in enumerate(COLLAPSED_AND_FLAT):
        whole.observe(entropy=entropy, success=success)
        cut.observe(entropy=entropy, success=success)
        if i == 5:
            state = cut.state()
            cut = PhaseMachine(EntropulseConfig())
            cut.restore(state)
    assert cut.state() == whole.state()


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([3.0], 0.0), ([0, 1, 2, 3], 1.0), ([1, 1, 1], 0.0), ([2, 0], -2.0)])
def test_slope_least_squares(values: list[float], expected: float) -> None:
    assert slope(values) == pytest.approx(expected)


def test_trigger_entropy_that_is_no_number_is_no_reading() -> None:
    with_nan = [COLLAPSED_AND_FLAT[0], (float("nan"), 0.5), (float("inf"), 0.5), *COLLAPSED_AND_FLAT[1:]]
    assert any(fed(EntropulseConfig(), with_nan))
