"""Snapshots of weights, and the two ways in which they reach receivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from computerrl.common.messages import BroadcastInvitation, FileInvitation, Message, WeightJoin, WeightLoaded
from computerrl.common.weight_plan import Manifest
from computerrl.learner.weight_bytes import apply_changes, checksum
from computerrl.learner.weights import delivery as weight_delivery
from computerrl.learner.weights.delivery import BroadcastDelivery, FileDelivery
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.receivers import Receivers
from computerrl.learner.weights.snapshot import Snapshot, SnapshotMaker

PROBE = np.array([-0.5], dtype=np.float32)
CPU = torch.device("cpu")


class Request:
    """An open request that remembers its reply."""

    def __init__(self) -> None:
        self.replies: list[Message] = []

    def reply(self, message: Message) -> None:
        self.replies.append(message)


def parked(receivers: Receivers, *names: str) -> list[Request]:
    requests: list[Any] = [Request() for _ in names]
    for name, request in zip(names, requests, strict=True):
        receivers.park(WeightJoin(name, 0, "digest"), request)
    return requests


def snapshot(version: int = 1) -> Snapshot:
    return SnapshotMaker("digest", device=CPU).copy(version, {"a": torch.arange(3.0), "b": torch.ones(2, 2)}, PROBE)


def test_snapshot_keeps_the_weights_while_training_changes_them() -> None:
    weights = {"a": torch.arange(3.0)}
    taken = SnapshotMaker("digest", device=CPU).copy(1, weights, PROBE)
    weights["a"].zero_()
    manifest = Manifest.from_json(taken.update().manifest)
    (slot,) = manifest.plan.slots
    found = taken.buffers[slot.bucket][slot.offset : slot.offset + slot.spec.num_bytes].view(torch.float32)
    assert found.tolist() == [0.0, 1.0, 2.0]
    manifest.verify(0, checksum(taken.buffers[0], "xxh3"))
    assert (manifest.policy_version, manifest.model_digest) == (1, "digest")


def test_buckets_are_used_again_only_after_they_were_handed_back() -> None:
    maker, weights = SnapshotMaker("digest", device=CPU), {"a": torch.arange(3.0)}
    first, second = maker.copy(1, weights, PROBE), maker.copy(2, weights, PROBE)
    assert first.buffers[0] is not second.buffers[0]
    maker.reuse(first)
    maker.reuse(maker.base_model(0, PROBE))
    assert maker.copy(3, weights, PROBE).buffers[0] is first.buffers[0]
    assert maker.copy(4, weights, PROBE).buffers


def test_file_reaches_the_receivers_that_lack_the_version(tmp_path: Path) -> None:
    receivers = Receivers()
    (behind,) = parked(receivers, "actor-0:a")
    level: Any = Request()
    receivers.park(WeightJoin("actor-1:a", 1, "digest"), level)
    sent = FileDelivery(WeightFiles(tmp_path), timeout_s=3.0).deliver(snapshot(), receivers)
    assert sent is not None and sent.num_receivers == 1 and level.replies == []
    (invitation,) = behind.replies
    assert isinstance(invitation, FileInvitation) and invitation.timeout_s == 3.0
    assert set(load_file(tmp_path / invitation.file_name)) == {"bucket-0"}


def test_file_that_cannot_be_written_invites_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_delivery, "SEND_AGAIN_S", 0.0)
    receivers = Receivers()
    (request,) = parked(receivers, "actor-0:a")
    (tmp_path / "file").touch()
    delivery = FileDelivery(WeightFiles(tmp_path / "file"), timeout_s=3.0)
    assert delivery.deliver(snapshot(), receivers) is None
    assert request.replies == [] and receivers.is_any_parked_below(1)


class FakeGroup:
    """A process group; ``fails``: as if a member were dead."""

    fails = False
    formed: list[dict[str, Any]] = []  # noqa: RUF012
    num_abandoned = 0

    def __init__(self, **fields: Any) -> None:
        self.formed.append(fields)

    def broadcast(self, buffers: list[torch.Tensor]) -> Any:
        if FakeGroup.fails:
            raise RuntimeError("a member is gone")
        yield from range(len(buffers))

    def abandon(self) -> None:
        FakeGroup.num_abandoned += 1


@pytest.fixture
def broadcasts(monkeypatch: pytest.MonkeyPatch) -> BroadcastDelivery:
    monkeypatch.setattr(weight_delivery, "BroadcastGroup", FakeGroup)
    monkeypatch.setattr(weight_delivery, "serve_store", lambda host: ("store", f"{host}:7"))
    monkeypatch.setattr(FakeGroup, "formed", [])
    monkeypatch.setattr(FakeGroup, "fails", False)
    monkeypatch.setattr(FakeGroup, "num_abandoned", 0)
    return BroadcastDelivery(host="127.0.0.1", backend="gloo", timeout_s=3.0)


def invited(requests: list[Request]) -> list[BroadcastInvitation]:
    found = [request.replies[-1] for request in requests]
    assert all(isinstance(one, BroadcastInvitation) for one in found)
    return found  # type: ignore[return-value]


def test_group_serves_all_updates_of_the_same_members(broadcasts: BroadcastDelivery) -> None:
    receivers = Receivers()
    prefixes = set()
    for version in (1, 2):
        invitations = invited_to(broadcasts, receivers, version, "b", "a")
        assert [(one.rank, one.world_size, one.store_address) for one in invitations] == [
            (2, 3, "127.0.0.1:7"),
            (1, 3, "127.0.0.1:7"),
        ]
        prefixes |= {one.store_prefix for one in invitations}
    assert len(prefixes) == len(FakeGroup.formed) == broadcasts.num_epochs == 1


def invited_to(delivery: BroadcastDelivery, receivers: Receivers, version: int, *names: str) -> list[BroadcastInvitation]:
    requests = parked(receivers, *names)
    assert delivery.deliver(snapshot(version), receivers) is not None
    return invited(requests)


@pytest.mark.parametrize("change", ["another member", "a member that left"])
def test_other_members_or_one_that_left_begin_a_new_group(broadcasts: BroadcastDelivery, change: str) -> None:
    receivers = Receivers()
    (first,) = invited_to(broadcasts, receivers, 1, "a")
    if change == "a member that left":
        receivers.report(WeightLoaded("a", 1, "the probe differs"))
    second = invited_to(broadcasts, receivers, 2, *(["a", "b"] if change == "another member" else ["a"]))
    assert first.store_prefix not in {one.store_prefix for one in second}
    assert (broadcasts.num_epochs, FakeGroup.num_abandoned) == (2, 1)


def test_lost_group_doubles_the_deadlines_until_an_update_arrives(broadcasts: BroadcastDelivery) -> None:
    receivers = Receivers()
    (first,) = invited_to(broadcasts, receivers, 1, "a")
    FakeGroup.fails = True
    parked(receivers, "a")
    with pytest.raises(RuntimeError) as raised:
        broadcasts.deliver(snapshot(2), receivers)
    assert broadcasts.give_up(raised.value, receivers) and receivers.num_live() == 0
    assert not broadcasts.give_up(raised.value, receivers)
    FakeGroup.fails = False
    timeouts = [invited_to(broadcasts, receivers, version, "a")[0].timeout_s for version in (2, 3)]
    assert timeouts == [2 * first.timeout_s, first.timeout_s]


def bf16(version: int, weights: torch.Tensor) -> Snapshot:
    return SnapshotMaker("digest", device=CPU).copy(version, {"a": weights.bfloat16()}, PROBE)


def test_receivers_that_all_hold_the_weights_before_get_their_changes(
    broadcasts: BroadcastDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[torch.Tensor]] = []
    monkeypatch.setattr(FakeGroup, "broadcast", lambda self, buffers: sent.append(buffers) or iter(()))
    delivery = BroadcastDelivery(host="127.0.0.1", backend="gloo", timeout_s=3.0, by_changes=True)
    weights = torch.randn(5000)
    first = bf16(1, weights)
    weights[7] += 1
    second = bf16(2, weights)

    def deliver(one: Snapshot, **held: str) -> BroadcastInvitation:
        receivers, requests = Receivers(), [Request() for _ in held]
        for (name, of), request in zip(held.items(), requests, strict=True):
            receivers.park(WeightJoin(name, 0, "digest", of), request)  # type: ignore[arg-type]
        assert delivery.deliver(one, receivers) is not None
        return invited(requests)[0]

    assert deliver(first, a="", b="").base == "" and sent[-1] == first.buffers and delivery.base is first
    # One that comes late holds nothing: whole weights for all.
    assert deliver(second, a=first.content, b="").base == "" and sent[-1] == second.buffers
    delivery.base = first
    invitation = deliver(second, a=first.content, b=first.content)
    (changed,) = sent[-1]
    assert invitation.base == first.content and invitation.change_bytes == (len(changed),)
    found = first.buffers[0].clone()
    apply_changes(found, changed)
    assert torch.equal(found, second.buffers[0])
    # The same once more, for one whose engine failed with it: nothing travels.
    assert deliver(second, a=second.content).change_bytes == (0,) and sent[-1] == []


def test_broadcast_without_receivers_sends_nothing(broadcasts: BroadcastDelivery) -> None:
    assert broadcasts.deliver(snapshot(), Receivers()) is None
    assert broadcasts.num_epochs == 0
