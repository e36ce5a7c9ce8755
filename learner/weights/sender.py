"""Broadcast of new weights: a snapshot is taken at once, everything else happens beside training.

```
 training thread          control thread                       broadcast thread
 publish(v, tensors) ─┐   WeightJoin ──► parked until          wait: a snapshot, and somebody parked below it
   copy into buckets  ├─► there is something newer ──────────► gather the live ones, form the group (new epoch when
   return             ┘   WeightLoaded ──► noted               membership changed), invite, broadcast bucket by bucket
```

Receivers that are slow, hung or dead cost the broadcast thread a timeout and the others one round; training never waits.
Only the newest version matters, older ones are skipped. Does not know what the tensors mean, nor who generates with them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from computerrl.common import log
from computerrl.common.messages import MAX_PEERS, Ack, ErrorReply, Message, WeightInvitation, WeightJoin, WeightLoaded
from computerrl.common.weight_plan import Manifest, TensorSpec, WeightPlan, checksum, plan_buckets
from computerrl.learner.client import PARK_S, BroadcastGroup, serve_store
from computerrl.learner.weights.files import WeightFiles

GATHER_S = 0.5
"""How long a round waits for live receivers that are still busy with the version before: longer than an engine's load, so that
one group usually serves all versions."""

FORM_TIMEOUT_S = 2.0
"""A live receiver is in the group milliseconds after its invitation; one that died in between costs the others this."""

MAX_PATIENCE = 16
"""Both deadlines double after each group that was lost, for machines and networks that are slower, up to so many times."""

SEND_AGAIN_S = 1.0
"""Pause after weights that could not be sent at all, or not written to their file."""

LIVE_S = 3 * PARK_S
"""A receiver not heard of for this long is not waited for."""


class Request(Protocol):
    """The part of `common.wire.transport.Request` used here."""

    message: Message
    sender: str

    def reply(self, message: Message) -> None: ...


class Server(Protocol):
    """The part of `common.wire.transport.Server` used here."""

    address: str

    def poll(self, timeout_s: float) -> list[Any]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Snapshot:
    """One version, packed."""

    policy_version: int
    plan: WeightPlan
    buffers: list[torch.Tensor]
    """Per bucket, uint8."""
    probe_logprobs: np.ndarray
    manifest: Manifest | None = None
    """Made by the broadcast thread: checksums are not the training thread's work."""


@dataclass(slots=True)
class _Parked:
    """A receiver waiting for an invitation."""

    request: Request
    loaded_version: int
    since: float


@dataclass(slots=True)
class _Group:
    """The process group in use and who is in it."""

    epoch: int
    members: tuple[str, ...]
    prefix: str
    link: BroadcastGroup | None = None
    """None until formed."""


@dataclass(slots=True)
class _State:
    """Everything the three threads share, guarded by one condition."""

    newest: _Snapshot | None = None
    sending: _Snapshot | None = None
    free: list[list[torch.Tensor]] = field(default_factory=list)
    parked: dict[str, _Parked] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    """Receiver -> when it was last heard of."""
    loaded: dict[str, int] = field(default_factory=dict)
    """Receiver -> version it reported to serve."""
    left_group: set[str] = field(default_factory=set)
    """Receivers that reported a failure: they have let go of the group, which is of no use to the others either."""
    stopping: bool = False


class WeightSender:
    """Serves the weight endpoint and broadcasts versions; see the picture at the top of the file."""

    def __init__(
        self,
        server: Server,
        *,
        model_digest: str,
        host: str,
        backend: str = "gloo",
        timeout_s: float = 3.0,
        files: WeightFiles | None = None,
    ) -> None:
        """``host``: local address for the store and the group; ``backend``: `gloo` or `nccl` (buffers then live on the GPU);
        ``timeout_s``: for a bucket; ``files``: weights go through these, and ``backend`` is of no use."""
        self.address = server.address
        self._server = server
        self._model_digest = model_digest
        self._host = host
        self._backend = backend
        self._device = torch.device("cuda") if backend == "nccl" else torch.device("cpu")
        self._timeout_s = timeout_s
        self._patience = 1
        self._files = files
        self._store, self._store_address = serve_store(host)
        self._plan: WeightPlan | None = None
        self._group: _Group | None = None
        self._next_epoch = 0
        self._state = _State()
        self._changed = threading.Condition()
        self._broadcast_s = 0.0
        self._num_broadcasts = 0
        self._num_failed_broadcasts = 0
        self._threads = [
            threading.Thread(target=self._control, name="weights-control", daemon=True),
            threading.Thread(target=self._broadcast, name="weights-broadcast", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- training thread ---------------------------------------------------------------------------------------------

    def publish_base(self, policy_version: int, *, probe_logprobs: np.ndarray) -> None:
        """``policy_version`` is the base model itself; receivers may serve it once their digest matched."""
        snapshot = _Snapshot(policy_version, WeightPlan((), ()), [], np.asarray(probe_logprobs, np.float32))
        with self._changed:
            self._replace_newest(snapshot)

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: np.ndarray) -> None:
        """Copy ``tensors`` into buckets and return; the broadcast happens in the background."""
        if self._plan is None:
            specs = [TensorSpec(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()]
            self._plan = plan_buckets(specs)
        with self._changed:
            buffers = self._state.free.pop() if self._state.free else None
        if buffers is None:
            buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in self._plan.bucket_bytes]
        _pack(self._plan, tensors, buffers)
        if self._backend == "nccl":
            torch.cuda.current_stream().synchronize()
        with self._changed:
            self._replace_newest(_Snapshot(policy_version, self._plan, buffers, np.asarray(probe_logprobs, np.float32)))

    def _replace_newest(self, snapshot: _Snapshot) -> None:
        old = self._state.newest
        self._state.newest = snapshot
        if old is not None and old.buffers and old is not self._state.sending:
            self._state.free.append(old.buffers)
        self._changed.notify_all()

    def loaded_versions(self) -> dict[str, int]:
        """Receiver -> the version it serves, as far as reported."""
        with self._changed:
            return dict(self._state.loaded)

    def metrics(self) -> dict[str, float]:
        """Figures for the learner's heartbeat."""
        with self._changed:
            live = [r for r, seen in self._state.seen.items() if time.monotonic() - seen < LIVE_S]
            return {
                "learner/weight_broadcast_s": self._broadcast_s,
                "learner/weight_broadcasts": float(self._num_broadcasts),
                "learner/weight_broadcasts_failed": float(self._num_failed_broadcasts),
                "learner/weight_receivers": float(len(live)),
                "learner/weight_epochs": float(self._next_epoch),
            }

    def close(self) -> None:
        """Stop both threads; a broadcast that hangs in a collective is left behind with its (daemon) thread."""
        with self._changed:
            self._state.stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)
        if self._files is not None:
            self._files.clear()

    # --- control thread ----------------------------------------------------------------------------------------------

    def _control(self) -> None:
        while not self._state.stopping:
            for request in self._server.poll(0.1):
                self._answer(request)
            self._send_away_parked(older_than_s=PARK_S)
        self._send_away_parked(older_than_s=0.0)
        self._server.close()

    def _answer(self, request: Request) -> None:
        message = request.message
        if isinstance(message, WeightJoin):
            self._park(request, message)
        elif isinstance(message, WeightLoaded):
            with self._changed:
                self._note_seen(message.receiver, time.monotonic())
                if message.error:
                    self._state.left_group.add(message.receiver)
                else:
                    self._state.loaded[message.receiver] = message.policy_version
            if message.error:
                log.get_logger().warning(
                    "weights.refused", receiver=message.receiver, policy_version=message.policy_version, error=message.error
                )
            request.reply(Ack())
        else:
            request.reply(ErrorReply("protocol_error", f"the weight endpoint takes no {type(message).__name__}"))

    def _park(self, request: Request, message: WeightJoin) -> None:
        if message.model_digest != self._model_digest:
            text = (
                f"{message.receiver} has base model {message.model_digest}, the learner has {self._model_digest}: "
                "use the same model folder on both sides"
            )
            log.get_logger().error("weights.model_differs", receiver=message.receiver)
            request.reply(ErrorReply("weight_error", text))
            return
        now = time.monotonic()
        with self._changed:
            self._note_seen(message.receiver, now)
            self._state.parked[message.receiver] = _Parked(request, message.loaded_version, now)
            self._changed.notify_all()

    def _note_seen(self, receiver: str, now: float) -> None:
        """Under the lock. So many are remembered; then the one not heard of for longest is forgotten."""
        seen = self._state.seen
        seen.pop(receiver, None)
        seen[receiver] = now
        if len(seen) > MAX_PEERS:
            oldest = next(iter(seen))
            del seen[oldest]
            self._state.loaded.pop(oldest, None)
            self._state.left_group.discard(oldest)

    def _send_away_parked(self, *, older_than_s: float) -> None:
        limit = time.monotonic() - older_than_s
        with self._changed:
            gone = [name for name, parked in self._state.parked.items() if parked.since <= limit]
            leaving = [self._state.parked.pop(name) for name in gone]
        for parked in leaving:
            parked.request.reply(_nothing_new(parked.loaded_version))

    # --- broadcast thread --------------------------------------------------------------------------------------------

    def _broadcast(self) -> None:
        while True:
            snapshot = self._wait_for_work()
            if snapshot is None:
                return
            try:
                if not snapshot.buffers:
                    self._invite_to_base(snapshot)
                elif self._files is not None:
                    self._hand_out(snapshot, self._files)
                else:
                    self._round(snapshot)
            except Exception as error:  # noqa: BLE001
                # Thread boundary. torch raises RuntimeError subclasses for every dead, slow or hung member; whatever else it
                # is, the next round starts with a fresh group.
                self._give_up_group(error)
            finally:
                self._release(snapshot)

    def _wait_for_work(self) -> _Snapshot | None:
        """The newest snapshot, once somebody who lacks it is waiting."""
        state = self._state
        with self._changed:
            while not state.stopping:
                newest = state.newest
                if newest is not None and any(p.loaded_version < newest.policy_version for p in state.parked.values()):
                    if newest.buffers and self._files is None:
                        self._gather()
                    state.sending = state.newest
                    return state.sending
                self._changed.wait()
        return None

    def _gather(self) -> None:
        """Give live receivers that are not parked yet a moment (the condition is held)."""
        deadline = time.monotonic() + GATHER_S
        while not self._state.stopping:
            now = time.monotonic()
            missing = [r for r, seen in self._state.seen.items() if now - seen < LIVE_S and r not in self._state.parked]
            if not missing or now >= deadline:
                return
            self._changed.wait(timeout=deadline - now)

    def _take_members(self, snapshot: _Snapshot) -> dict[str, _Parked]:
        with self._changed:
            names = [n for n, parked in self._state.parked.items() if parked.loaded_version < snapshot.policy_version]
            return {name: self._state.parked.pop(name) for name in sorted(names)}

    def _manifest_of(self, snapshot: _Snapshot) -> Manifest:
        if snapshot.manifest is None:
            sums = tuple(checksum(buffer.cpu().numpy()) for buffer in snapshot.buffers)
            snapshot.manifest = Manifest(snapshot.policy_version, self._model_digest, snapshot.plan, sums)
        return snapshot.manifest

    def _invite(self, members: Mapping[str, _Parked], snapshot: _Snapshot, **fields: Any) -> None:
        manifest = self._manifest_of(snapshot).to_json()
        for rank, parked in enumerate(members.values(), start=1):
            invitation = WeightInvitation(
                **{
                    "epoch": 0,
                    "policy_version": snapshot.policy_version,
                    "rank": rank,
                    "world_size": len(members) + 1,
                    "store_address": "",
                    "backend": "gloo",
                    "manifest": manifest,
                    "probe_logprobs": snapshot.probe_logprobs,
                    "retry_after_s": 0.0,
                    **self._deadlines(),
                    **fields,
                }
            )
            parked.request.reply(invitation)

    def _deadlines(self) -> dict[str, float]:
        return {"form_timeout_s": self._patience * FORM_TIMEOUT_S, "timeout_s": self._patience * self._timeout_s}

    def _invite_to_base(self, snapshot: _Snapshot) -> None:
        self._invite(self._take_members(snapshot), snapshot)

    def _hand_out(self, snapshot: _Snapshot, files: WeightFiles) -> None:
        """Tell everybody who waits for it the file of one version."""
        started = time.monotonic()
        try:
            name = files.write(snapshot.policy_version, snapshot.buffers)
        except OSError as error:
            log.get_logger().error(
                "weights.not_written",
                policy_version=snapshot.policy_version,
                error=str(error),
                next_step="make room in the run folder; actors play on with the version before",
            )
            time.sleep(SEND_AGAIN_S)
            return
        members = self._take_members(snapshot)
        self._invite(members, snapshot, store_address=name, backend="file")
        self._note_sent(snapshot, started, epoch=0, num_receivers=len(members))

    def _round(self, snapshot: _Snapshot) -> None:
        """Send one version to everybody who waits for it."""
        self._manifest_of(snapshot)  # Before anybody waits for its first bucket.
        members = self._take_members(snapshot)
        if not members:
            return
        started = time.monotonic()
        group = self._group_of(tuple(members))
        address = f"{self._store_address}/{group.prefix}"
        self._invite(members, snapshot, epoch=group.epoch, store_address=address, backend=self._backend)
        if group.link is None:
            group.link = BroadcastGroup(
                store=self._store,
                prefix=group.prefix,
                rank=0,
                world_size=len(members) + 1,
                backend=self._backend,
                host=self._host,
                **self._deadlines(),
            )
        for _ in group.link.broadcast(snapshot.buffers):
            pass  # Each one that is done makes room for the next.
        self._patience = 1
        self._note_sent(snapshot, started, epoch=group.epoch, num_receivers=len(members))

    def _note_sent(self, snapshot: _Snapshot, started: float, *, epoch: int, num_receivers: int) -> None:
        self._broadcast_s = time.monotonic() - started
        self._num_broadcasts += 1
        log.get_logger().debug("weights.sent", policy_version=snapshot.policy_version, epoch=epoch, receivers=num_receivers)

    def _group_of(self, members: tuple[str, ...]) -> _Group:
        with self._changed:
            broken = bool(self._state.left_group)
            self._state.left_group.clear()
        if self._group is None or self._group.members != members or broken:
            if self._group is not None and self._group.link is not None:
                self._group.link.abandon()
            self._group = _Group(self._next_epoch, members, prefix=f"{self._next_epoch}-{secrets.token_hex(16)}")
            self._next_epoch += 1
        return self._group

    def _give_up_group(self, error: Exception) -> None:
        """After a round that failed, in the group or before there was one."""
        group, self._group = self._group, None
        if group is None:
            log.get_logger().error("weights.not_sent", error=f"{type(error).__name__}: {error}"[:500])
            time.sleep(SEND_AGAIN_S)
            return
        self._num_failed_broadcasts += 1
        self._patience = min(2 * self._patience, MAX_PATIENCE)
        log.get_logger().warning("weights.group_lost", epoch=group.epoch, members=list(group.members), error=str(error)[:200])
        with self._changed:
            for member in group.members:
                self._state.seen.pop(member, None)  # Nobody waits for it until it says something again.
        if group.link is not None:
            group.link.abandon()

    def _release(self, snapshot: _Snapshot) -> None:
        with self._changed:
            self._state.sending = None
            if snapshot.buffers and snapshot is not self._state.newest:
                self._state.free.append(snapshot.buffers)


def _pack(plan: WeightPlan, tensors: Mapping[str, torch.Tensor], buffers: list[torch.Tensor]) -> None:
    """Copy every tensor's bytes to its place."""
    for slot in plan.slots:
        source = tensors[slot.spec.name].detach().reshape(-1).view(torch.uint8)
        target = buffers[slot.bucket][slot.offset : slot.offset + slot.spec.num_bytes]
        if source.device.type == "cpu" and target.device.type == "cpu":
            # One plain memcpy: torch's parallel copy waits for all its threads, which takes 20 times as long on a busy machine.
            np.copyto(target.numpy(), source.numpy())
        else:
            target.copy_(source)


def _nothing_new(loaded_version: int) -> WeightInvitation:
    return WeightInvitation(
        epoch=-1,
        policy_version=loaded_version,
        rank=-1,
        world_size=0,
        store_address="",
        backend="gloo",
        manifest="",
        probe_logprobs=np.zeros(0, np.float32),
        retry_after_s=0.0,
        form_timeout_s=0.0,
        timeout_s=0.0,
    )
