"""Two ways in which a snapshot reaches the receivers that wait for it: a broadcast in a process group, or a file.

A delivery runs on the sender's broadcast thread and may block there. It decides neither which version is sent nor when.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from computerrl.common import log
from computerrl.common.messages import BroadcastInvitation, FileInvitation
from computerrl.learner.client import BroadcastGroup, serve_store
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.receivers import Parked, Receivers
from computerrl.learner.weights.snapshot import Snapshot

FORM_TIMEOUT_S = 2.0
"""Deadline for forming a group. A live receiver joins within milliseconds of its invitation; one that died in between delays the
others by this much."""

MAX_PATIENCE = 16
"""Maximum factor on both deadlines. It doubles after each lost group, for slower machines and networks."""

SEND_AGAIN_S = 1.0
"""Pause after weights could not be sent at all, or not be written to their file."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A finished delivery, for log and metrics."""

    num_receivers: int
    duration_s: float
    num_bytes: int
    """That each receiver got."""
    epoch: int = 0
    """Number of the process group; 0 for a file."""


class Delivery(Protocol):
    """A way to the receivers."""

    num_epochs: int
    """Number of process groups so far."""
    base: Snapshot | None
    """The snapshot that was delivered last, where the next one may travel by its changes; its buckets are still needed."""
    needs_all: bool
    """Whether a delivery goes to all its receivers together, so that waiting a moment for a busy one saves a delivery."""

    def deliver(self, snapshot: Snapshot, receivers: Receivers) -> Delivered | None:
        """Take the receivers that wait for ``snapshot``, invite them, and send it. None: nothing was sent. Any error may come."""

    def give_up(self, error: Exception, receivers: Receivers) -> bool:
        """Clean up after `deliver` raised ``error``. Returns whether a process group was lost."""

    def close(self) -> None:
        """Remove everything that receivers no longer need."""


class FileDelivery:
    """Weights through the run folder: every receiver reads the same file."""

    num_epochs = 0
    base: Snapshot | None = None
    needs_all = False

    def __init__(self, files: WeightFiles, *, timeout_s: float) -> None:
        """``timeout_s``: time that a receiver waits for the file to appear."""
        self._files = files
        self._timeout_s = timeout_s

    def deliver(self, snapshot: Snapshot, receivers: Receivers) -> Delivered | None:
        """See `Delivery`."""
        started = time.monotonic()
        try:
            name = self._files.write(snapshot.policy_version, snapshot.buffers)
        except OSError as error:
            log.get_logger().error(
                "weights.not_written",
                policy_version=snapshot.policy_version,
                error=str(error),
                next_step="make room in the run folder; actors play on with the version before",
            )
            time.sleep(SEND_AGAIN_S)
            return None
        invitation = FileInvitation(snapshot.update(), name, self._timeout_s)
        members = receivers.take_below(snapshot.policy_version)
        for parked in members.values():
            parked.request.reply(invitation)
        return Delivered(len(members), time.monotonic() - started, snapshot.num_bytes)

    def give_up(self, error: Exception, receivers: Receivers) -> bool:
        """See `Delivery`."""
        return False

    def close(self) -> None:
        """See `Delivery`."""
        self._files.clear()


@dataclass(slots=True)
class _Group:
    """A process group and its members besides the learner."""

    epoch: int
    members: tuple[str, ...]
    prefix: str
    """Prefix of its keys in the store, which no other group ever had."""
    link: BroadcastGroup | None = None
    """None until formed."""


class BroadcastDelivery:
    """Weights through torch.distributed: one group serves all updates while its members stay the same and nothing fails."""

    needs_all = True

    def __init__(self, *, host: str, backend: Literal["gloo", "nccl"], timeout_s: float, by_changes: bool = False) -> None:
        """``host``: local address of store and group; ``timeout_s``: deadline of a bucket; ``by_changes``: receivers that hold
        the weights before get what has changed since."""
        self._host = host
        self._backend = backend
        self._timeout_s = timeout_s
        self._by_changes = by_changes
        self.base: Snapshot | None = None
        self._store, self._store_address = serve_store(host)
        self._group: _Group | None = None
        self._patience = 1
        self.num_epochs = 0

    def deliver(self, snapshot: Snapshot, receivers: Receivers) -> Delivered | None:
        """See `Delivery`. Raises RuntimeError when a member is dead, slow or hangs."""
        # Checksums and changes are computed before a receiver waits for its first bucket.
        snapshot.update()
        if self.base is not None:
            snapshot.changes_since(self.base)
        members = receivers.take_below(snapshot.policy_version)
        if not members:
            return None
        started = time.monotonic()
        group = self._group_of(tuple(members), is_broken=receivers.take_left())
        base = self.base if self.base is not None and all(one.held == self.base.content for one in members.values()) else None
        payloads = _payloads(snapshot, base)
        self._invite(members, snapshot, group, base=base, payloads=payloads)
        if group.link is None:
            group.link = BroadcastGroup(
                store=self._store,
                prefix=group.prefix,
                rank=0,
                world_size=len(members) + 1,
                backend=self._backend,
                host=self._host,
                form_timeout_s=self._form_timeout_s,
                timeout_s=self._bucket_timeout_s,
            )
        for _ in group.link.broadcast([payload for payload in payloads if len(payload)]):
            pass  # Each bucket that arrived makes room for the next.
        self._patience = 1
        if self._by_changes:
            self.base = snapshot
        return Delivered(len(members), time.monotonic() - started, sum(map(len, payloads)), group.epoch)

    def give_up(self, error: Exception, receivers: Receivers) -> bool:
        """See `Delivery`."""
        group, self._group = self._group, None
        if group is None:
            return False
        self._patience = min(2 * self._patience, MAX_PATIENCE)
        log.get_logger().warning("weights.group_lost", epoch=group.epoch, members=list(group.members), error=str(error)[:200])
        receivers.presume_dead(group.members)
        if group.link is not None:
            group.link.abandon()
        return True

    def close(self) -> None:
        """See `Delivery`. A broadcast that hangs in a collective is left to its thread."""

    def _group_of(self, members: tuple[str, ...], *, is_broken: bool) -> _Group:
        """The present group if it has these members, else a new one that is not formed yet."""
        if self._group is None or self._group.members != members or is_broken:
            if self._group is not None and self._group.link is not None:
                self._group.link.abandon()
            self._group = _Group(self.num_epochs, members, prefix=f"{self.num_epochs}-{secrets.token_hex(16)}")
            self.num_epochs += 1
        return self._group

    def _invite(
        self,
        members: Mapping[str, Parked],
        snapshot: Snapshot,
        group: _Group,
        *,
        base: Snapshot | None,
        payloads: list[torch.Tensor],
    ) -> None:
        pairs = zip(payloads, snapshot.buffers, strict=True)
        change_bytes = tuple(-1 if payload is bucket else len(payload) for payload, bucket in pairs)
        for rank, parked in enumerate(members.values(), start=1):
            invitation = BroadcastInvitation(
                update=snapshot.update(),
                rank=rank,
                world_size=len(members) + 1,
                store_address=self._store_address,
                store_prefix=group.prefix,
                backend=self._backend,
                form_timeout_s=self._form_timeout_s,
                timeout_s=self._bucket_timeout_s,
                base=base.content if base is not None else "",
                change_bytes=change_bytes if base is not None else (),
            )
            parked.request.reply(invitation)

    @property
    def _form_timeout_s(self) -> float:
        return self._patience * FORM_TIMEOUT_S

    @property
    def _bucket_timeout_s(self) -> float:
        return self._patience * self._timeout_s


def _payloads(snapshot: Snapshot, base: Snapshot | None) -> list[torch.Tensor]:
    """What travels for each bucket."""
    if base is None:
        return snapshot.buffers
    pairs = zip(snapshot.changes_since(base), snapshot.buffers, strict=True)
    return [bucket if changed is None else changed for changed, bucket in pairs]
