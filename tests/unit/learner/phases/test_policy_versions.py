"""Policy versions: announced before they are published, never given twice, and with ages along the lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.contracts import Neighbours
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.recipe.lineage import Lineage
from computerrl.learner.recipe.state import LoopState
from tests.support.loop_fakes import FakeBroker, FakeTrainer, FakeWeights, make_config, make_step


class Engines(FakeWeights):
    """Asserts that the broker heard of a version first."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__()
        self._broker = broker

    def publish(self, policy_version: int, tensors: Any, *, probe_logprobs: Any) -> None:
        assert self._broker.version == policy_version
        super().publish(policy_version, tensors, probe_logprobs=probe_logprobs)


def versions_of(folder: Path, state: LoopState, lineage: Lineage | None = None) -> tuple[PolicyVersions, FakeBroker, FakeWeights]:
    broker = FakeBroker()
    weights = Engines(broker)
    around = Neighbours(
        broker=broker,
        trainer=FakeTrainer(make_config()),
        weights=weights,
        folder=RunFolder(folder),
        checkpoints=CheckpointStore(folder / "checkpoints", num_kept=1),
    )
    return PolicyVersions(state, around, lineage=lineage or Lineage()), broker, weights


@pytest.mark.parametrize(("first", "published"), [(0, None), (3, 0.0)])
def test_first_version_is_sent_unless_it_is_the_base_model(first: int, published: float | None, tmp_path: Path) -> None:
    versions, broker, weights = versions_of(tmp_path, LoopState(policy_version=first))
    versions.publish_first()
    assert (broker.announced, weights.published) == ([first], {first: published})


def test_versions_are_announced_each_and_sent_when_asked_and_the_latest_once(tmp_path: Path) -> None:
    state = LoopState(policy_version=0)
    versions, broker, weights = versions_of(tmp_path, state)
    versions.publish_first()
    for publish in (False, True, False):
        versions.advance(publish=publish)
    assert (state.policy_version, broker.announced, list(weights.published)) == (3, [0, 1, 2, 3], [0, 2])
    for _ in range(2):
        versions.publish_latest()
    assert list(weights.published) == [0, 2, 3]


def test_ages_are_those_of_the_present_version_along_the_lineage(tmp_path: Path) -> None:
    lineage = Lineage().resumed(base=10, resumed_at=15)
    state = LoopState(policy_version=15)
    versions, _, _ = versions_of(tmp_path, state, lineage)
    assert versions.ages().of(make_step(version=9)).tolist() == [1, 1]
    versions.publish()
    versions.advance(publish=False)
    assert versions.ages().of(make_step(version=9)).tolist() == [2, 2]
    assert versions.ages().of(make_step(version=15)).tolist() == [1, 1]
