"""What people ask of a run: kept in files, honoured by whoever it is for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import AdmissionSet, MessageReceived, Reply
from computerrl.common.messages import AssignmentRequest, NoAssignment, Status, StatusRequest
from computerrl.common.run_files import requests
from computerrl.launch.run.local import BY_A_PERSON, _asked_to_end
from tests.support.data.broker_data import order


def test_request_is_there_until_withdrawn_and_the_newest_counts(tmp_path: Path) -> None:
    assert requests.asked(tmp_path, "end") is None
    requests.ask(tmp_path, "end", "drain")
    requests.ask(tmp_path, "end", "stop")
    assert requests.asked(tmp_path, "end") == "stop"
    assert requests.asked(tmp_path, "pause") is None
    requests.withdraw(tmp_path, "end")
    requests.withdraw(tmp_path, "end")
    assert requests.asked(tmp_path, "end") is None
    assert list(tmp_path.iterdir()) == []


def test_paused_broker_starts_nothing_new_and_goes_on_afterwards() -> None:
    core = BrokerCore(run_id="r", eta=1, groups_per_batch=4, max_assignment_s=60, peer_timeout_s=10)
    core.orders.place(order())

    def answer(message: object) -> object:
        effects = core.handle(MessageReceived(1, message, "actor-0:i1"), 0.0)  # type: ignore[arg-type]
        return next(effect.message for effect in effects if isinstance(effect, Reply))

    core.handle(AdmissionSet(is_paused=True), 0.0)
    refused = answer(AssignmentRequest("i1", 3, "r1"))
    assert isinstance(refused, NoAssignment) and refused.reason == "paused"
    status = answer(StatusRequest())
    assert isinstance(status, Status) and status.gauges["paused"] == 1.0
    core.handle(AdmissionSet(is_paused=False), 0.0)
    later = answer(AssignmentRequest("i1", 3, "r2"))
    assert not (isinstance(later, NoAssignment) and later.reason == "paused")


class Supervisor:
    def __init__(self) -> None:
        self.drained: list[str] = []

    def drain(self, reason: str) -> None:
        self.drained.append(reason)


@pytest.mark.parametrize(("wish", "drained", "ends"), [("drain", [BY_A_PERSON], False), ("stop", [], True), ("dance", [], False)])
def test_supervisor_ends_as_it_is_asked_to(tmp_path: Path, wish: str, drained: list[str], *, ends: bool) -> None:
    supervisor = Supervisor()
    requests.ask(tmp_path, "end", wish)
    outcome = _asked_to_end(tmp_path, supervisor)  # type: ignore[arg-type]
    assert supervisor.drained == drained
    assert (outcome is not None) == ends


def test_two_who_ask_at_once_leave_one_whole_request(tmp_path: Path) -> None:
    threads = [threading.Thread(target=requests.ask, args=(tmp_path, "phase", name)) for name in ("sft", "finish") * 20]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert requests.asked(tmp_path, "phase") in ("sft", "finish")
