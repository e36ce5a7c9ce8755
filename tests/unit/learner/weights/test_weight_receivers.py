"""The learner's table of receivers: which wait, which count as alive, which have left their group."""

from __future__ import annotations

from typing import Any

import pytest

from computerrl.common.messages import WeightJoin, WeightLoaded
from computerrl.learner.weights import receivers as weight_receivers
from computerrl.learner.weights.receivers import Receivers


class OpenRequest:
    """A request that nobody replies to."""

    def __init__(self, name: str) -> None:
        self.name = name


def park(receivers: Receivers, name: str, version: int) -> Any:
    request: Any = OpenRequest(name)
    receivers.park(WeightJoin(name, version, "digest"), request)
    return request


def test_receivers_below_a_version_are_taken_once_in_the_order_of_their_names() -> None:
    receivers = Receivers()
    for name, version in (("b", 1), ("a", 0), ("c", 2)):
        park(receivers, name, version)
    assert receivers.is_any_parked_below(2)
    assert list(receivers.take_below(2)) == ["a", "b"]
    assert not receivers.is_any_parked_below(2) and receivers.take_below(2) == {}
    assert [parked.loaded_version for parked in receivers.take_parked_for(0.0)] == [2]


def test_receiver_that_asks_again_waits_once_with_its_new_request() -> None:
    receivers = Receivers()
    park(receivers, "a", 1)
    newer = park(receivers, "a", 2)
    assert [parked.request for parked in receivers.take_below(9).values()] == [newer]


def test_receiver_is_not_dismissed_before_its_time() -> None:
    receivers = Receivers()
    park(receivers, "a", 1)
    assert receivers.take_parked_for(60.0) == []
    assert len(receivers.take_parked_for(0.0)) == 1


def test_live_receiver_that_is_not_parked_is_waited_for_until_it_is_presumed_dead() -> None:
    receivers = Receivers()
    park(receivers, "a", 1)
    assert not receivers.is_any_live_away()
    receivers.take_below(9)
    assert receivers.is_any_live_away() and receivers.num_live() == 1
    receivers.presume_dead(["a"])
    assert not receivers.is_any_live_away() and receivers.num_live() == 0


def test_receiver_that_is_silent_for_long_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    receivers = Receivers()
    receivers.report(WeightLoaded("a", 1, ""))
    monkeypatch.setattr(weight_receivers, "LIVE_S", 0.0)
    assert receivers.num_live() == 0
    assert receivers.loaded_versions() == {"a": 1}


def test_failure_of_a_receiver_is_reported_once_and_changes_no_version() -> None:
    receivers = Receivers()
    receivers.report(WeightLoaded("a", 1, ""))
    receivers.report(WeightLoaded("a", 2, "the probe differs"))
    assert receivers.loaded_versions() == {"a": 1}
    assert receivers.take_left() and not receivers.take_left()
