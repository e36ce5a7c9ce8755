"""Versions along the surviving line, and the ledger's balance."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from computerrl.learner.accounts.ledger import AgeSpan, Ledger
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.recipe import rl_phase
from tests.support.loop_fakes import FakeBroker, make_config, make_step


def test_lineage_without_restart_is_the_version_itself() -> None:
    assert [Lineage().position(version) for version in (0, 3, 9)] == [0, 3, 9]


def test_lineage_resumed_from_checkpoint_counts_surviving_updates() -> None:
    lineage = Lineage().resumed(base=10, resumed_at=15)
    assert [lineage.position(v) for v in (9, 10, 14, 15, 16)] == [9, 10, 14, 10, 11]
    assert lineage.position(15) - lineage.position(9) == 1


def test_lineage_resumed_twice_adds_up_and_is_the_same_from_its_file(tmp_path: Path) -> None:
    lineage = Lineage().resumed(base=10, resumed_at=15).resumed(base=17, resumed_at=20)
    assert [lineage.position(v) for v in (15, 17, 19, 20)] == [10, 12, 14, 12]
    lineage.store(tmp_path / "lineage.json")
    assert Lineage.load(tmp_path / "lineage.json").breaks == lineage.breaks
    assert Lineage.load(tmp_path / "none.json").breaks == ()


def test_lineage_resumed_twice_from_the_same_checkpoint_knows_the_versions_in_between() -> None:
    lineage = Lineage().resumed(base=10, resumed_at=15).resumed(base=10, resumed_at=17)
    assert [lineage.position(v) for v in (10, 14, 15, 16, 17, 18)] == [10, 14, 10, 11, 10, 11]


def test_ages_of_tokens_are_counted_along_the_lineage() -> None:
    lineage = Lineage().resumed(base=10, resumed_at=15).resumed(base=17, resumed_at=20)
    versions = np.array([9, 10, 14, 15, 17, 19, 20], np.int32)
    step = replace(make_step(version=9), policy_versions=versions)
    for version in (20, 22):
        ages = lineage.ages(version)
        assert ages.of(step).tolist() == [lineage.position(version) - lineage.position(int(one)) for one in versions]
        assert (ages.version, ages.position) == (version, lineage.position(version))
        assert ages.oldest(step) == ages.of(step).max()
    # Version 14 was discarded two updates after those that 20 continues from.
    assert lineage.ages(20).of(step).tolist() == [3, 2, -2, 2, 0, -2, 0]


def test_ages_without_a_restart_are_differences_of_versions() -> None:
    step = replace(make_step(version=3), policy_versions=np.array([7, 3, 5], np.int32))
    assert Lineage().ages(7) == PolicyAges(7)
    assert PolicyAges(7).of(step).tolist() == [0, 4, 2] and PolicyAges(7).oldest(step) == 4
    assert PolicyAges(7).oldest(make_step(version=-1)) == 8, "a step without versions is older than any other"


def test_ages_of_a_step_that_only_discarded_weights_sampled_are_not_negative_for_the_bound() -> None:
    assert Lineage().resumed(base=10, resumed_at=15).ages(15).oldest(make_step(version=14)) == 0


def test_ledger_records_counts_and_restores() -> None:
    broker = FakeBroker()
    config = make_config()
    broker.place_order(rl_phase(config, 1, first_seed=0, temperature=1.0).orders[0].to_message(config, ("a",), policy_version=0))
    trajectories = broker.fetch_group(0).trajectories
    lines: list[dict] = []
    ledger = Ledger(lines.append)
    ledger.record(trajectories[0], "trained", group_seq=0, update=1, policy_version=3, ages=AgeSpan(0, 2, 1, 2))
    ledger.record(trajectories[1], "too_old", group_seq=0, update=1, policy_version=3, ages=AgeSpan(5, 6, 2, 4))
    ledger.record(trajectories[2], "phase_closed", group_seq=0, update=1, policy_version=3, ages=None)
    ledger.note_age_trained(2)
    ledger.note_age_trained(1)
    assert ledger.drops == {"too_old": 1, "phase_closed": 1}
    assert lines[0]["age_max"] == 2 and "age_max" not in lines[2]
    assert ledger.num_lost({"delivered": 4}) == 1
    waste = ledger.waste.figures()
    assert waste["submitted"]["steps"] == 6 and waste["trained"]["steps"] == 1
    lost = {reason: (one["trajectories"], one["steps"], one["action_tokens"]) for reason, one in waste["lost"].items()}
    assert lost == {"masked": (1, 1, 2), "too_old": (1, 2, 4), "phase_closed": (1, 2, 4)}
    again = Ledger(lines.append)
    again.restore(ledger.state())
    assert again.waste.figures() == waste
    assert (again.counts, again.max_age_trained, again.num_steps_masked) == (ledger.counts, 2, 3)
