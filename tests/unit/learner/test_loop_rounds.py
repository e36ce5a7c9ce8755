"""Supervised rounds with checkpoints of their own: killed anywhere they train what an undisturbed one does, and what is needed to
take a round back stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from computerrl.common.metrics import read_json_lines
from computerrl.learner.phases import sft
from tests.support.loop_fakes import Bench, make_config

RECIPE = {"demos_per_family": 4, "bc_batch_size": 1, "bc_epochs": 2}


@pytest.fixture(autouse=True)
def often_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "SAVE_EVERY_S", 0.0)


def steps_of(bench: Bench, phase: str) -> list[int]:
    lines = read_json_lines(bench.folder.metrics_path)
    return [line["step"] for line in lines if line["event"] == "sft" and line["phase"] == phase]


def play(bench: Bench, loop, *, until) -> None:  # type: ignore[no-untyped-def]
    while not until(loop.state):
        bench.clock.advance(1000.0)
        loop.tick()
        bench.checkpoints.wait()


@pytest.mark.parametrize("phase", ["bc", "sft-1"])
def test_round_whose_learner_dies_again_and_again_trains_what_an_undisturbed_one_does(tmp_path: Path, phase: str) -> None:
    config = make_config(recipe=RECIPE, entropulse={"force_after_fraction": 0.5, "max_phases": 1, "warmup_steps": 3})
    undisturbed = Bench(tmp_path / "undisturbed", config)
    undisturbed.run(undisturbed.start())
    num_steps = len(steps_of(undisturbed, phase))
    assert num_steps >= 5

    bench = Bench(tmp_path / "killed", config)
    loop = bench.start()
    for done in (0, 1, num_steps // 2, num_steps - 1):
        play(bench, loop, until=lambda state, done=done: state.phase == phase and state.sft_done >= done)
        killed_at = loop.state.sft_done
        loop = bench.start()
        assert loop.state.phase == phase and killed_at - 1 <= loop.state.sft_done <= killed_at
    play(bench, loop, until=lambda state: state.phase == "done")
    loop.close()
    for name in ("bc", "sft-1"):
        assert steps_of(bench, name) == steps_of(undisturbed, name) == list(range(1, len(steps_of(bench, name)) + 1))
    assert float(bench.trainer.weight) == float(undisturbed.trainer.weight)


@pytest.mark.parametrize("harms", [True, False])
def test_checkpoint_from_before_a_checked_round_outlives_those_of_the_round_and_no_longer(tmp_path: Path, harms: bool) -> None:
    rounds = {"force_after_fraction": 0.5, "max_phases": 1, "check_episodes_per_family": 2}
    bench = Bench(tmp_path, make_config(entropulse=rounds, recipe=RECIPE))
    bench.broker.success = lambda order, group, index: not (harms and order.order_id.endswith("-after"))
    loop = bench.start()
    weights: dict[str, float] = {}

    def note(phase: str) -> None:
        play(bench, loop, until=lambda state: state.phase == phase)
        weights[phase] = float(bench.trainer.weight)

    for phase in ("check-1-before", "check-1-after"):
        note(phase)
    number = loop.state.before_round
    assert number is not None and bench.checkpoints.next_number > number + 4, "the round saved more often than checkpoints stay"
    note("rl-2")
    assert weights["rl-2"] == weights["check-1-before" if harms else "check-1-after"]
    play(bench, loop, until=lambda state: state.phase == "done")
    loop.close()
    kept = sorted(path.name for path in bench.folder.checkpoints.glob("checkpoint-*"))
    assert len(kept) == 2 and f"checkpoint-{number:06d}" not in kept


def test_short_round_makes_no_checkpoint_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    bench = Bench(tmp_path, make_config(recipe=RECIPE))
    loop = bench.start()
    while loop.state.phase != "bc":
        loop.tick()
    number = bench.checkpoints.next_number
    while loop.state.phase == "bc":
        bench.clock.advance(0.01)
        loop.tick()
    assert bench.checkpoints.next_number == number + 1, "that of the phase after it"
    loop.close()
