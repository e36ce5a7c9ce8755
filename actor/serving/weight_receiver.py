"""Receives new weights into staging buffers beside generation, checks them, and hands them to the engine.

    join ──► invitation ──► form or keep the group ──► bucket, checksum, bucket, checksum ... ──► engine.load ──► report
      ▲                                                                                                     │
      └────────────────── after any failure: abandon the group, report, join again ◄─────────────────────────┘

The engine stands still only during its own `load`, which compares its probe log-probs with the learner's: a version is served
(`policy_version`) only after they agree and every checksum was right. Does not generate and does not decide what is played.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from computerrl.actor.engines.base import NO_VERSION, WeightHolder
from computerrl.common import log
from computerrl.common.errors import ComputerRLError, PeerTimeout, WeightError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import BroadcastInvitation, FileInvitation, NothingNewer, WeightUpdate
from computerrl.common.metrics import Timings
from computerrl.common.weight_plan import Manifest, WeightPlan
from computerrl.learner.client import (
    PARK_S,
    BroadcastGroup,
    Invitation,
    WeightClient,
    apply_changes,
    checksum,
    join_store,
    local_host_towards,
    make_buckets,
    read_buckets,
)

JOIN_TIMEOUT_S = PARK_S + 4.0
"""Deadline for the learner's reply. The learner replies within `PARK_S`; the rest is for one that is busy with Python work."""

RETRY_S = 0.25
"""Pause after a failure, so that a learner that is away is not asked without end."""

MAX_ATTEMPTS = 5
"""Number of failures of one version in a row after which `failure` is set. The bytes are right each time, so this engine cannot
load them (it packs its weights in a way that `load` does not know), and an actor that cannot follow must not play on. As many
refusals in a row mean that the receiver can never join: its base model is another one."""

AWAY_S = 10.0
"""Seconds without a reply of the learner after which a warning is logged. At a run's orderly end the learner is the first to
leave, and a restart of it is in the supervisor's log."""

FORM_GRACE_S = 1.0
"""Time by which the learner gives up forming a group earlier than a receiver."""


class BroadcastReceiver:
    """Receives buckets as a member of process groups. The group and the buffers are kept from update to update."""

    def __init__(self) -> None:
        self._group: BroadcastGroup | None = None
        self._prefix = ""
        """`BroadcastInvitation.store_prefix` of the group."""
        self._staging: tuple[WeightPlan, list[torch.Tensor]] | None = None
        self.held = ""
        """`Manifest.content` of what the buffers hold; empty where they hold nothing whole."""

    def receive(self, invitation: BroadcastInvitation, manifest: Manifest) -> list[torch.Tensor]:
        """Buckets of ``manifest``, uint8 [bytes] each; the next update overwrites them. Raises RuntimeError when the group
        breaks, and `WeightError` for a wrong checksum."""
        group = self._group_of(invitation)
        sizes = self._change_sizes(invitation, manifest.plan)
        buffers = self._buffers_for(manifest.plan, device="cuda" if invitation.backend == "nccl" else "cpu")
        self.held = ""
        coming = [(i, buffers[i] if size < 0 else buffers[i].new_empty(size)) for i, size in enumerate(sizes) if size]
        damaged: WeightError | None = None
        for number in group.broadcast([tensor for _, tensor in coming]):
            i, tensor = coming[number]
            try:
                if tensor is not buffers[i]:
                    apply_changes(buffers[i], tensor)
                manifest.verify(i, checksum(buffers[i], manifest.summed_by))
            except WeightError as error:
                # Receive the rest all the same: leaving in the middle would break the round for the other receivers.
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        for i in [i for i, size in enumerate(sizes) if not size]:
            manifest.verify(i, checksum(buffers[i], manifest.summed_by))
        self.held = manifest.content
        return buffers

    def _change_sizes(self, invitation: BroadcastInvitation, plan: WeightPlan) -> Sequence[int]:
        """`BroadcastInvitation.change_bytes`. Raises `WeightError` where they do not fit to what the buffers hold."""
        if not invitation.base:
            return [-1] * len(plan.bucket_bytes)
        if invitation.base != self.held:
            held = self.held or "none"
            raise WeightError(f"the learner sends changes of weights {invitation.base}, this receiver holds {held}")
        sizes, wholes = invitation.change_bytes, plan.bucket_bytes
        if len(sizes) != len(wholes) or any(size > whole for size, whole in zip(sizes, wholes, strict=True)):
            raise WeightError(f"the learner sends changes of {sizes} bytes for buckets of {wholes}")
        return sizes

    def abandon(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._group.abandon()
            self._group = None
            self._prefix = ""

    def _group_of(self, invitation: BroadcastInvitation) -> BroadcastGroup:
        """The group of the invitation: the present one, or a new one."""
        if self._group is not None and self._prefix == invitation.store_prefix:
            return self._group
        self.abandon()
        form_timeout_s = invitation.form_timeout_s + FORM_GRACE_S
        store = join_store(invitation.store_address, timeout_s=form_timeout_s)
        self._group = BroadcastGroup(
            store=store,
            prefix=invitation.store_prefix,
            rank=invitation.rank,
            world_size=invitation.world_size,
            backend=invitation.backend,
            host=local_host_towards(invitation.store_address),
            form_timeout_s=form_timeout_s,
            timeout_s=invitation.timeout_s,
        )
        self._prefix = invitation.store_prefix
        return self._group

    def _buffers_for(self, plan: WeightPlan, *, device: str) -> list[torch.Tensor]:
        if self._staging is None or self._staging[0] != plan:
            self.held = ""
            self._staging = (plan, make_buckets(plan.bucket_bytes, device))
        return self._staging[1]


class WeightReceiver:
    """Keeps an engine's weights up to date, from its own thread (`start`, `close`). A `Versions`."""

    def __init__(
        self, client: WeightClient, engine: WeightHolder, *, receiver: str, model_digest: str, files: Path, stop: StopToken
    ) -> None:
        """``receiver``: name of this receiver, `actor-<index>:<incarnation>`; ``model_digest``: `weight_plan.folder_digest` of
        the base model; ``files``: folder of weight files, for a learner without a network for collectives."""
        self._client = client
        self._engine = engine
        self._receiver = receiver
        self._model_digest = model_digest
        self._files = files
        self._stop = stop
        self._broadcasts = BroadcastReceiver()
        self._version = NO_VERSION
        self._changed = threading.Condition()
        self._num_failures = 0
        self._failure: ComputerRLError | None = None
        self._complaint = ""
        self._away_since: float | None = None
        """`time.monotonic` of the first request without a reply since the last reply."""
        self._closing = threading.Event()
        self.load_stalls = Timings()
        """Time for which generation stood still, per update."""
        self.receive_times = Timings()
        """Time from the invitation to the last checked byte, per update; generation goes on meanwhile."""
        self._thread = threading.Thread(target=self._run, name="weights-receive", daemon=True)

    @property
    def policy_version(self) -> int:
        """Newest version that the engine has and whose probe agreed; -1 before the first and while none does."""
        return self._version

    @property
    def failure(self) -> ComputerRLError | None:
        """Error that shows that this engine cannot load a version; the process should end with it."""
        return self._failure

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
        """Wait until at least ``policy_version`` is served; False when it did not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version >= policy_version, timeout=timeout_s)

    def close(self) -> None:
        """End the thread. A thread that hangs in a collective is left behind (it is a daemon)."""
        self._closing.set()
        self._client.close()
        self._thread.join(timeout=1.0)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001
            # Thread boundary: the engine raised an error of its own. The actor sees `failure` and ends.
            log.get_logger().exception("weights.receiver_ended")
            self._failure = WeightError(f"the weight receiver ended: {type(error).__name__}: {error}")

    def _loop(self) -> None:
        while not (self._stop.stopped or self._closing.is_set()):
            try:
                self._join_once()
            except PeerTimeout as error:
                self._note_away(error)
                self._stop.wait(RETRY_S)
            except ComputerRLError as error:
                # The learner has another base model or another schema version. It may be one that is about to end.
                self._complain("weights.join_refused", error)
                self._count_failure(error)
                self._stop.wait(4 * RETRY_S)

    def _join_once(self) -> None:
        """Ask for one update and load it."""
        invitation = self._client.join(
            self._receiver,
            loaded_version=self._version,
            model_digest=self._model_digest,
            held=self._broadcasts.held,
            timeout_s=JOIN_TIMEOUT_S,
        )
        self._complaint = ""
        self._away_since = None
        if isinstance(invitation, NothingNewer):
            return
        policy_version = invitation.update.policy_version
        try:
            self._load(invitation.update, self._receive(invitation))
        except (ComputerRLError, RuntimeError, OSError) as error:
            self._broadcasts.abandon()
            self._report(policy_version, error=f"{type(error).__name__}: {error}"[:500])
            log.get_logger().warning("weights.load_failed", policy_version=policy_version, error=str(error)[:300])
            # A lost group does not concern this engine; a wrong checksum or probe does.
            if isinstance(error, ComputerRLError):
                self._count_failure(error)
            self._stop.wait(RETRY_S)
            return
        self._num_failures = 0
        self._set_version(policy_version)
        self._report(policy_version, error="")

    def _receive(self, invitation: Invitation) -> dict[str, torch.Tensor]:
        """Tensors of the update by name, checked; none for the base model. Raises `WeightError`, `OSError`, RuntimeError."""
        manifest = self._manifest_of(invitation.update)
        started = time.monotonic()
        if isinstance(invitation, BroadcastInvitation):
            buffers = self._broadcasts.receive(invitation, manifest)
        elif isinstance(invitation, FileInvitation):
            buffers = self._read(invitation, manifest)
        else:
            return {}
        self.receive_times.add(time.monotonic() - started)
        return {
            slot.spec.name: buffers[slot.bucket][slot.offset : slot.offset + slot.spec.num_bytes]
            .view(getattr(torch, slot.spec.dtype))
            .view(slot.spec.shape)
            for slot in manifest.plan.slots
        }

    def _manifest_of(self, update: WeightUpdate) -> Manifest:
        """Raises `WeightError` unless the manifest describes the update's version of our base model."""
        manifest = Manifest.from_json(update.manifest)
        if manifest.policy_version != update.policy_version:
            raise WeightError(f"the manifest is of policy version {manifest.policy_version}, not {update.policy_version}")
        if manifest.model_digest != self._model_digest:
            raise WeightError(f"the manifest is of model {manifest.model_digest}, this actor has {self._model_digest}")
        return manifest

    def _read(self, invitation: FileInvitation, manifest: Manifest) -> list[torch.Tensor]:
        path = self._files / Path(invitation.file_name).name
        buffers = read_buckets(path, manifest.plan, timeout_s=invitation.timeout_s)
        for i, buffer in enumerate(buffers):
            manifest.verify(i, checksum(buffer, manifest.summed_by))
        return buffers

    def _load(self, update: WeightUpdate, tensors: dict[str, torch.Tensor]) -> None:
        try:
            stall_s = self._engine.load(update.policy_version, tensors, expected_probe=update.probe_logprobs)
        except WeightError:
            # The engine may hold no version any more: then request a full update and start no episode meanwhile.
            self._set_version(self._engine.policy_version)
            raise
        self.load_stalls.add(stall_s)

    def _set_version(self, policy_version: int) -> None:
        with self._changed:
            self._version = policy_version
            self._changed.notify_all()

    def _count_failure(self, error: ComputerRLError) -> None:
        self._num_failures += 1
        if self._num_failures >= MAX_ATTEMPTS:
            self._failure = error

    def _report(self, policy_version: int, *, error: str) -> None:
        try:
            self._client.loaded(self._receiver, policy_version=policy_version, error=error, timeout_s=JOIN_TIMEOUT_S)
        except PeerTimeout as timeout:
            self._note_away(timeout)

    def _note_away(self, error: PeerTimeout) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        self._complain("weights.learner_away", error, level=logging.WARNING if now - self._away_since >= AWAY_S else logging.INFO)

    def _complain(self, event: str, error: ComputerRLError, *, level: int = logging.WARNING) -> None:
        """Log once per cause and level, not once per retry."""
        complaint = f"{event} {error.code} {level}"
        if self._complaint != complaint:
            self._complaint = complaint
            log.get_logger().log(level, event, error=error.code, reason=str(error))
