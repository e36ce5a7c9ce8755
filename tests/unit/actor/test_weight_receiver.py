"""What a receiver does with invitations and with an engine that refuses; no network, since a base model travels as no bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from computerrl.actor.serving import weight_receiver
from computerrl.actor.serving.weight_receiver import MAX_ATTEMPTS, WeightReceiver
from computerrl.common.errors import EngineFailed, PeerTimeout, WeightError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import BaseModelInvitation, NothingNewer, WeightUpdate
from computerrl.common.weight_plan import Manifest, WeightPlan

PROBE = np.zeros(31, dtype=np.float32)


class FakeClient:
    """Invites to ``version`` as long as the receiver has not got it, by a manifest of ``manifest_version`` and ``digest``."""

    def __init__(self, *, manifest_version: int = 3, digest: str = "mine") -> None:
        self.manifest = Manifest(manifest_version, digest, WeightPlan((), ()), ()).to_json()
        self.asked_with: list[int] = []
        self.reports: list[str] = []
        self.reported = threading.Semaphore(0)

    def join(
        self, receiver: str, *, loaded_version: int, model_digest: str, held: str, timeout_s: float
    ) -> BaseModelInvitation | NothingNewer:
        self.asked_with.append(loaded_version)
        if loaded_version < 3:
            return BaseModelInvitation(WeightUpdate(3, self.manifest, PROBE))
        time.sleep(0.01)  # The learner, too, does not say so at once.
        return NothingNewer()

    def loaded(self, receiver: str, *, policy_version: int, error: str, timeout_s: float) -> None:
        self.reports.append(error)
        self.reported.release()

    def close(self) -> None: ...


class FakeEngine:
    """Raises ``errors`` one after the other, then takes what it is given."""

    def __init__(self, *errors: Exception, keeps: int = -1) -> None:
        self.errors = list(errors)
        self.policy_version = keeps
        self._keeps = keeps
        self.num_loads = 0

    def load(self, version: int, tensors: Mapping[str, Any], *, expected_probe: np.ndarray) -> float:
        self.num_loads += 1
        assert expected_probe.tolist() == PROBE.tolist()
        if self.errors:
            self.policy_version = self._keeps
            raise self.errors.pop(0)
        self.policy_version = version
        return 0.001


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_receiver, "RETRY_S", 0.0)


def play(client: FakeClient, engine: FakeEngine, *, num_reports: int) -> WeightReceiver:
    receiver = WeightReceiver(
        client,
        engine,
        receiver="actor-0:1",
        model_digest="mine",
        files=Path("weights"),
        stop=StopToken(),  # type: ignore[arg-type]
    )
    receiver.start()
    for _ in range(num_reports):
        assert client.reported.acquire(timeout=120)
    receiver.close()
    return receiver


def test_receiver_serves_what_the_engine_took() -> None:
    client = FakeClient()
    receiver = play(client, FakeEngine(), num_reports=1)
    assert (receiver.policy_version, client.reports[0]) == (3, "")


@pytest.mark.parametrize(
    ("client", "reason"),
    [(FakeClient(manifest_version=4), "policy version 4, not 3"), (FakeClient(digest="other"), "model other, this actor")],
)
def test_receiver_refuses_a_manifest_of_something_else_before_the_engine_sees_it(client: FakeClient, reason: str) -> None:
    engine = FakeEngine()
    receiver = play(client, engine, num_reports=2)
    assert all(reason in report for report in client.reports)
    assert (receiver.policy_version, engine.num_loads) == (-1, 0)


@pytest.mark.parametrize("error", [WeightError("the probe differs"), EngineFailed("the engine broke"), RuntimeError("no memory")])
def test_receiver_reports_any_failure_of_the_engine_and_asks_for_everything_again(error: Exception) -> None:
    client = FakeClient()
    receiver = play(client, FakeEngine(error), num_reports=2)
    assert str(error) in client.reports[0] and client.reports[1] == ""
    assert client.asked_with[:2] == [-1, -1]
    assert receiver.policy_version == 3 and receiver.failure is None


def test_receiver_whose_engine_refused_before_anything_changed_still_serves_the_version_before() -> None:
    client, engine = FakeClient(), FakeEngine(WeightError("no tensor 'x'"), keeps=2)
    receiver = play(client, engine, num_reports=2)
    assert client.asked_with[:2] == [-1, 2] and receiver.policy_version == 3


def test_receiver_that_the_learner_refuses_again_and_again_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()

    def refuse(receiver: str, **fields: Any) -> NothingNewer:
        client.asked_with.append(fields["loaded_version"])
        client.reported.release()
        raise WeightError("actor-0:1 has base model mine, the learner has theirs")

    monkeypatch.setattr(client, "join", refuse)
    receiver = play(client, FakeEngine(), num_reports=MAX_ATTEMPTS + 1)
    assert isinstance(receiver.failure, WeightError) and "the learner has theirs" in str(receiver.failure)


@pytest.mark.parametrize("error", [WeightError, EngineFailed])
def test_receiver_whose_engine_can_never_take_a_version_has_failed(error: type[Exception]) -> None:
    client = FakeClient()
    receiver = play(client, FakeEngine(*[error("no") for _ in range(MAX_ATTEMPTS + 5)]), num_reports=MAX_ATTEMPTS + 1)
    assert isinstance(receiver.failure, error)


@pytest.mark.parametrize(("away_s", "levels"), [(float("inf"), ["info"]), (0.0, ["warning"])])
def test_receiver_warns_of_a_learner_that_stays_away_and_notes_one_that_has_just_left(
    away_s: float, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()

    def leave(receiver: str, **_: Any) -> NothingNewer:
        client.reported.release()
        raise PeerTimeout("the learner broke the connection")

    monkeypatch.setattr(client, "join", leave)
    monkeypatch.setattr(weight_receiver, "AWAY_S", away_s)
    with capture_logs() as logs:
        play(client, FakeEngine(), num_reports=4)
    assert [line["log_level"] for line in logs if line["event"] == "weights.learner_away"] == levels
