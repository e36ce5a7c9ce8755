"""Sending of new weights: a snapshot is taken at once, everything else happens beside training.

```
 training thread          control thread                       broadcast thread
 publish(v, tensors) ─┐   WeightJoin ──► parked until          wait: a snapshot, and a receiver parked below it
   copy into buckets  ├─► there is something newer ──────────► gather the live ones, deliver: form the group (a new epoch
   return             ┘   WeightLoaded ──► noted               when membership changed), invite, broadcast bucket by bucket
```

Receivers that are slow, hung or dead cost the broadcast thread a timeout and the other receivers one round; training never waits.
Only the newest version matters, older ones are skipped. The sender knows neither the meaning of the tensors nor their users.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Set
from typing import Literal, cast

import numpy as np
import torch

from computerrl.common import log
from computerrl.common.messages import Ack, BaseModelInvitation, ErrorReply, NothingNewer, WeightJoin, WeightLoaded
from computerrl.common.wire.transport import Request, Server
from computerrl.learner.client import PARK_S
from computerrl.learner.weights.delivery import SEND_AGAIN_S, BroadcastDelivery, Delivered, Delivery, FileDelivery
from computerrl.learner.weights.files import WeightFiles
from computerrl.learner.weights.receivers import Receivers
from computerrl.learner.weights.snapshot import Snapshot, SnapshotMaker

GATHER_S = 0.5
"""Time that a round waits for live receivers that are still busy with the version before. It is longer than an engine's load, so
that one group usually serves all versions."""


class WeightSender:
    """Serves the weight endpoint and sends versions; see the picture at the top of the file."""

    def __init__(
        self,
        server: Server,
        *,
        model_digest: str,
        host: str,
        backend: Literal["gloo", "nccl"] = "gloo",
        timeout_s: float = 3.0,
        files: WeightFiles | None = None,
        by_changes: bool = False,
    ) -> None:
        """``host``: local address of the store and the group; ``backend``: `gloo` or `nccl` (buckets are on the GPU then);
        ``timeout_s``: deadline of a bucket; ``files``: weights travel as files, and ``host`` and ``backend`` are not used;
        ``by_changes``: see `BroadcastDelivery`, takes the memory of another snapshot."""
        self.address = server.address
        self._server = server
        self._model_digest = model_digest
        self._snapshots = SnapshotMaker(model_digest, device=torch.device("cuda" if backend == "nccl" else "cpu"))
        self._delivery: Delivery = (
            BroadcastDelivery(host=host, backend=backend, timeout_s=timeout_s, by_changes=by_changes)
            if files is None
            else FileDelivery(files, timeout_s=timeout_s)
        )
        self._receivers = Receivers()
        self._changed = self._receivers.changed
        """Lock of everything below, too; notified when there is a new snapshot."""
        self._newest: Snapshot | None = None
        self._sending: Snapshot | None = None
        self._stopping = False
        self._broadcast_s = 0.0
        self._broadcast_bytes = 0
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
        """``policy_version`` is the base model itself; a receiver may serve it once its digest matched."""
        self._replace_newest(self._snapshots.base_model(policy_version, probe_logprobs))

    def publish(self, policy_version: int, tensors: Mapping[str, torch.Tensor], *, probe_logprobs: np.ndarray) -> None:
        """Copy ``tensors`` into buckets and return; the broadcast happens in the background."""
        self._replace_newest(self._snapshots.copy(policy_version, tensors, probe_logprobs))

    def _replace_newest(self, snapshot: Snapshot) -> None:
        with self._changed:
            old, self._newest = self._newest, snapshot
            if old is not None and old is not self._sending and old is not self._delivery.base:
                self._snapshots.reuse(old)
            self._changed.notify_all()

    def loaded_versions(self) -> dict[str, int]:
        """Version that each receiver reported to serve."""
        return self._receivers.loaded_versions()

    def metrics(self) -> dict[str, float]:
        """Figures for the learner's heartbeat."""
        with self._changed:
            return {
                "learner/weight_broadcast_s": self._broadcast_s,
                "learner/weight_broadcast_mb": self._broadcast_bytes / 2**20,
                "learner/weight_broadcasts": float(self._num_broadcasts),
                "learner/weight_broadcasts_failed": float(self._num_failed_broadcasts),
                "learner/weight_receivers": float(self._receivers.num_live()),
                "learner/weight_epochs": float(self._delivery.num_epochs),
            }

    def close(self) -> None:
        """Stop both threads; a broadcast that hangs in a collective is left behind with its (daemon) thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)
        self._delivery.close()

    # --- control thread ----------------------------------------------------------------------------------------------

    def _control(self) -> None:
        while not self._stopping:
            for request in self._server.poll(0.1):
                self._handle(request)
            self._dismiss_parked_for(PARK_S)
        self._dismiss_parked_for(0.0)
        self._server.close()

    def _handle(self, request: Request) -> None:
        message = request.message
        if isinstance(message, WeightJoin):
            self._handle_join(request, message)
        elif isinstance(message, WeightLoaded):
            self._receivers.report(message)
            if message.error:
                log.get_logger().warning(
                    "weights.refused", receiver=message.receiver, policy_version=message.policy_version, error=message.error
                )
            request.reply(Ack())
        else:
            request.reply(ErrorReply("protocol_error", f"the weight endpoint takes no {type(message).__name__}"))

    def _handle_join(self, request: Request, message: WeightJoin) -> None:
        if message.model_digest == self._model_digest:
            self._receivers.park(message, request)
            return
        text = (
            f"{message.receiver} has base model {message.model_digest}, the learner has {self._model_digest}: "
            "use the same model folder on both sides"
        )
        log.get_logger().error("weights.model_differs", receiver=message.receiver)
        request.reply(ErrorReply("weight_error", text))

    def _dismiss_parked_for(self, duration_s: float) -> None:
        for parked in self._receivers.take_parked_for(duration_s):
            parked.request.reply(NothingNewer())

    # --- broadcast thread --------------------------------------------------------------------------------------------

    def _broadcast(self) -> None:
        while (snapshot := self._wait_for_work()) is not None:
            base = self._delivery.base
            try:
                self._send(snapshot)
            except Exception as error:  # noqa: BLE001
                # Thread boundary. torch raises RuntimeError subclasses for every dead, slow or hung member. After any error the
                # next round starts with a fresh group.
                if self._delivery.give_up(error, self._receivers):
                    self._num_failed_broadcasts += 1
                else:
                    log.get_logger().error("weights.not_sent", error=f"{type(error).__name__}: {error}"[:500])
                    time.sleep(SEND_AGAIN_S)
            finally:
                self._release({snapshot, base})

    def _wait_for_work(self) -> Snapshot | None:
        """The newest snapshot, once a receiver that lacks it is parked; None when the sender is closed."""
        with self._changed:
            while not self._stopping:
                newest = self._newest
                if newest is not None and self._receivers.is_any_parked_below(newest.policy_version):
                    if newest.buffers and self._delivery.needs_all:
                        self._gather()
                    self._sending = self._newest
                    return self._sending
                self._changed.wait()
        return None

    def _gather(self) -> None:
        """Give live receivers that are not parked yet a moment (the condition is held)."""
        deadline = time.monotonic() + GATHER_S
        while not self._stopping and self._receivers.is_any_live_away():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(timeout=left_s)

    def _send(self, snapshot: Snapshot) -> None:
        if not snapshot.buffers:
            invitation = BaseModelInvitation(snapshot.update())
            for parked in self._receivers.take_below(snapshot.policy_version).values():
                parked.request.reply(invitation)
            return
        delivered = self._delivery.deliver(snapshot, self._receivers)
        if delivered is not None:
            self._note_sent(snapshot, delivered)

    def _note_sent(self, snapshot: Snapshot, delivered: Delivered) -> None:
        self._broadcast_s = delivered.duration_s
        self._broadcast_bytes = delivered.num_bytes
        self._num_broadcasts += 1
        log.get_logger().debug(
            "weights.sent",
            policy_version=snapshot.policy_version,
            epoch=delivered.epoch,
            receivers=delivered.num_receivers,
        )

    def _release(self, used: Set[Snapshot | None]) -> None:
        with self._changed:
            self._sending = None
            for snapshot in used - {None, self._newest, self._delivery.base}:
                self._snapshots.reuse(cast(Snapshot, snapshot))
