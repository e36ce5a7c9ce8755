"""Cross-policy sampling: who samples what, and how far the older weights fall behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch

from computerrl.actor.engines import make_engine
from computerrl.actor.engines.base import NO_VERSION, Completion, GenerationRequest
from computerrl.actor.engines.cross_policy import CrossPolicyEngine
from computerrl.common.config import ActorConfig, ModelConfig, RunConfig, load_config
from computerrl.common.errors import ConfigError, WeightError
from computerrl.learner.model_store import ensure_model


class FakeEngine:
    """Answers with its version."""

    def __init__(self) -> None:
        self.policy_version = NO_VERSION
        self.probed = 0.0
        self.closed = False

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        done: Future[Completion] = Future()
        versions = np.array([self.policy_version], dtype=np.int32)
        done.set_result(Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), versions, "", "stop", 0.0, 0.0))
        return done

    def load(
        self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: Sequence[float] | np.ndarray | None = None
    ) -> float:
        self.policy_version = version if expected_probe is None or expected_probe[0] == self.probed else NO_VERSION
        if self.policy_version == NO_VERSION:
            raise WeightError("another probe")
        return 1.0

    def probe(self) -> np.ndarray:
        return np.array([self.probed], np.float32)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.closed = True


def make() -> CrossPolicyEngine:
    return CrossPolicyEngine(FakeEngine(), FakeEngine(), refresh_every=4, seed=0)


def versions(engine: CrossPolicyEngine, *, may_be_older: bool = True, count: int = 200) -> list[int]:
    request = GenerationRequest(np.zeros(1, np.int32), 1.0, 1, frozenset(), may_be_older)
    return [int(engine.submit(request).result().policy_versions[0]) for _ in range(count)]


def test_older_weights_follow_when_they_are_too_far_behind() -> None:
    engine = make()
    held = []
    stalls = []
    for version in (0, 1, 2, 3, 4, 4, 5, 9, 10):
        stalls.append(engine.load(version, {}))
        held.append(engine.older_version)
        assert engine.policy_version == version
    # A version that is loaded again, after a probe that was wrong, goes where it went.
    assert held == [0, 0, 0, 0, 4, 4, 4, 9, 9]
    assert stalls == [2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 2.0, 1.0]


def test_engine_whose_older_weights_went_wrong_has_no_version_and_asks_only_the_present_ones() -> None:
    present, older = FakeEngine(), FakeEngine()
    engine = CrossPolicyEngine(present, older, refresh_every=2, seed=0)
    engine.load(0, {}, expected_probe=[0.0])
    older.probed = 7.0
    engine.load(1, {}, expected_probe=[0.0])
    with pytest.raises(WeightError):
        engine.load(2, {}, expected_probe=[0.0])
    assert engine.policy_version == NO_VERSION
    assert set(versions(engine)) == {2}
    older.probed = 0.0
    engine.load(2, {}, expected_probe=[0.0])
    assert engine.policy_version == engine.older_version == 2


def test_half_of_what_may_be_older_is() -> None:
    engine = make()
    for version in range(3):
        engine.load(version, {})
    found = versions(engine)
    assert set(found) == {0, 2}
    assert 60 < found.count(0) < 140
    assert set(versions(engine, may_be_older=False)) == {2}


def test_closes_both() -> None:
    present, older = FakeEngine(), FakeEngine()
    CrossPolicyEngine(present, older, refresh_every=2, seed=0).close()
    assert present.closed and older.closed


def test_real_engines_sample_by_different_weights(tmp_path: Path) -> None:
    config = RunConfig(
        run_dir=str(tmp_path), model=ModelConfig(name="tiny-random", dtype="float32"), actor=ActorConfig(older_policy_every=2)
    )
    folder = ensure_model("tiny-random")
    engine = make_engine(config, folder, decode=lambda _: "")
    try:
        norm = torch.ones(16)
        engine.load(0, {"model.norm.weight": norm})
        before = engine.probe()
        engine.load(1, {"model.norm.weight": 3 * norm})
        assert np.abs(engine.probe() - before).max() > 0.1
        prompt = np.arange(5, 25, dtype=np.int32)
        for may_be_older, expected in ((False, {1}), (True, {0, 1})):
            request = GenerationRequest(prompt, 1.0, 4, frozenset(), may_be_older)
            seen = [engine.submit(request).result(60) for _ in range(20)]
            assert {int(version) for one in seen for version in one.policy_versions} == expected
    finally:
        engine.close()


def test_weights_that_would_be_older_than_the_bound_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: cross\n")
    with pytest.raises(ConfigError, match=r"learner\.max_age 4"):
        load_config(path, overrides=["learner.max_age=4", "actor.older_policy_every=5", "broker.eta=1"])
