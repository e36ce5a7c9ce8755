"""Receives new weights into staging buffers beside generation, checks them, and hands them to the engine.

    join ──► invitation ──► form or keep the group ──► bucket, checksum, bucket, checksum ... ──► engine.load ──► report
      ▲                                                                                                     │
      └──────────────────── whatever fails: abandon the group, report, join again ◄──────────────────────────┘

The engine stands still only during its own `load`, which compares its probe log-probs with the learner's: a version is served
(`policy_version`) only after they agree and every checksum was right. Does not generate and does not decide what is played.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from computerrl.common import log
from computerrl.common.errors import ComputerRLError, PeerTimeout, WeightError
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import WeightInvitation
from computerrl.common.metrics import Timings
from computerrl.common.weight_plan import Manifest, WeightPlan
from computerrl.learner.client import PARK_S, BroadcastGroup, WeightClient, join_store, local_host_towards, read_buckets

JOIN_TIMEOUT_S = PARK_S + 4.0
"""The learner answers within `PARK_S`; the rest is for a learner process that is busy with Python work."""

RETRY_S = 0.25
"""Pause after a failure, so that a learner that is away is not asked without end."""

MAX_ATTEMPTS = 5
"""Failures of one version in a row after which `failure` is set: the bytes are right each time, so this engine cannot
take them (it packs its weights in a way `load` does not know), and an actor that cannot follow must not play on. As many
refusals in a row mean that it never can: its base model is another one."""

FORM_GRACE_S = 1.0
"""The learner gives up forming a group this much earlier."""


class Engine(Protocol):
    """The part of `actor.engines.base.PolicyEngine` used here."""

    @property
    def policy_version(self) -> int: ...

    def load(self, version: int, tensors: Mapping[str, torch.Tensor], *, expected_probe: np.ndarray) -> float: ...


class WeightReceiver:
    """Keeps an engine's weights up to date, from its own thread (`start`, `close`)."""

    def __init__(
        self, client: WeightClient, engine: Engine, *, receiver: str, model_digest: str, files: Path, stop: StopToken
    ) -> None:
        """``receiver`` is `actor-<index>:<incarnation>`; ``model_digest`` is `common.weight_plan.folder_digest` of the base;
        ``files`` is where a learner without a network for collectives leaves weights."""
        self._client = client
        self._engine = engine
        self._receiver = receiver
        self._model_digest = model_digest
        self._files = files
        self._stop = stop
        self._version = -1
        self._changed = threading.Condition()
        self._link: BroadcastGroup | None = None
        self._prefix = ""
        self._staging: tuple[WeightPlan, list[torch.Tensor]] | None = None
        self._attempts = 0
        self._failure: ComputerRLError | None = None
        self._complaint = ""
        self._closing = threading.Event()
        self.load_stalls = Timings()
        """How long generation stood still, per update."""
        self.receive_times = Timings()
        """From the invitation to the last checked byte, per update; generation goes on meanwhile."""
        self._thread = threading.Thread(target=self._run, name="weights-receive", daemon=True)

    @property
    def policy_version(self) -> int:
        """Newest version that the engine has and whose probe agreed; -1 before the first and while none does."""
        return self._version

    @property
    def failure(self) -> ComputerRLError | None:
        """Set when this engine proved unable to take a version; the actor should end with it."""
        return self._failure

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait_version(self, policy_version: int, *, timeout_s: float) -> bool:
        """Wait until at least ``policy_version`` is served; False when it did not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version >= policy_version, timeout=timeout_s)

    def close(self) -> None:
        """End the thread; one that hangs in a collective is left behind (it is a daemon)."""
        self._closing.set()
        self._client.close()
        self._thread.join(timeout=1.0)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001
            # Thread boundary: the engine raised something of its own. The actor sees `failure` and ends.
            log.get_logger().exception("weights.receiver_ended")
            self._failure = WeightError(f"the weight receiver ended: {type(error).__name__}: {error}")

    def _loop(self) -> None:
        while not (self._stop.stopped or self._closing.is_set()):
            try:
                self._once()
            except PeerTimeout as error:
                self._complain("weights.learner_away", error)
                self._stop.wait(RETRY_S)
            except ComputerRLError as error:
                # The learner has another base model or speaks another protocol; it may be one that is about to go.
                self._complain("weights.join_refused", error)
                self._count_attempt(error)
                self._stop.wait(4 * RETRY_S)

    def _once(self) -> None:
        invitation = self._client.join(
            self._receiver, loaded_version=self._version, model_digest=self._model_digest, timeout_s=JOIN_TIMEOUT_S
        )
        self._complaint = ""
        if invitation.epoch < 0:
            self._stop.wait(invitation.retry_after_s)
            return
        try:
            stall_s = self._take(invitation)
        except (ComputerRLError, RuntimeError, OSError) as error:
            self._abandon()
            self._report(invitation.policy_version, error=f"{type(error).__name__}: {error}"[:500], load_s=0.0)
            self._note_failure(invitation.policy_version, error)
            self._stop.wait(RETRY_S)
            return
        self._attempts = 0
        with self._changed:
            self._version = invitation.policy_version
            self._changed.notify_all()
        self._report(invitation.policy_version, error="", load_s=stall_s)

    def _take(self, invitation: WeightInvitation) -> float:
        """Receive, check, load, compare; returns how long the engine stood still."""
        manifest = self._read_manifest(invitation)
        started = time.monotonic()
        tensors: dict[str, torch.Tensor] = {}
        if not manifest.is_base_model:
            tensors = self._receive(invitation, manifest)
            self.receive_times.add(time.monotonic() - started)
        try:
            stall_s = self._engine.load(invitation.policy_version, tensors, expected_probe=invitation.probe_logprobs)
        except WeightError:
            # The engine may hold no version any more: ask for everything then, start no episode meanwhile.
            with self._changed:
                self._version = self._engine.policy_version
            raise
        self.load_stalls.add(stall_s)
        return stall_s

    def _read_manifest(self, invitation: WeightInvitation) -> Manifest:
        """Raises `WeightError` unless it describes the invitation's version of our model."""
        manifest = Manifest.from_json(invitation.manifest)
        if manifest.policy_version != invitation.policy_version:
            raise WeightError(f"the manifest is of policy version {manifest.policy_version}, not {invitation.policy_version}")
        if manifest.model_digest != self._model_digest:
            raise WeightError(f"the manifest is of model {manifest.model_digest}, this actor has {self._model_digest}")
        return manifest

    def _receive(self, invitation: WeightInvitation, manifest: Manifest) -> dict[str, torch.Tensor]:
        buffers = self._read(invitation, manifest) if invitation.backend == "file" else self._take_part(invitation, manifest)
        return {
            slot.spec.name: buffers[slot.bucket][slot.offset : slot.offset + slot.spec.num_bytes]
            .view(getattr(torch, slot.spec.dtype))
            .view(slot.spec.shape)
            for slot in manifest.plan.slots
        }

    def _read(self, invitation: WeightInvitation, manifest: Manifest) -> list[torch.Tensor]:
        path = self._files / Path(invitation.store_address).name
        buffers = read_buckets(path, manifest.plan, timeout_s=invitation.timeout_s)
        for i, buffer in enumerate(buffers):
            manifest.verify(i, buffer.numpy())
        return buffers

    def _take_part(self, invitation: WeightInvitation, manifest: Manifest) -> list[torch.Tensor]:
        link = self._group(invitation)
        if self._staging is None or self._staging[0] != manifest.plan:
            device = "cuda" if invitation.backend == "nccl" else "cpu"
            sizes = manifest.plan.bucket_bytes
            self._staging = (manifest.plan, [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes])
        buffers = self._staging[1]
        damaged: WeightError | None = None
        for i in link.broadcast(buffers):
            try:
                manifest.verify(i, buffers[i].cpu().numpy())
            except WeightError as error:
                # Take the rest all the same: leaving in the middle would break the round for the other receivers.
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return buffers

    def _group(self, invitation: WeightInvitation) -> BroadcastGroup:
        """The group of the invitation: the one we have, or a new one."""
        address, _, prefix = invitation.store_address.partition("/")
        if self._link is not None and self._prefix == prefix:
            return self._link
        self._abandon()
        form_timeout_s = invitation.form_timeout_s + FORM_GRACE_S
        store = join_store(address, timeout_s=form_timeout_s)
        self._link = BroadcastGroup(
            store=store,
            prefix=prefix,
            rank=invitation.rank,
            world_size=invitation.world_size,
            backend=invitation.backend,
            host=local_host_towards(address),
            form_timeout_s=form_timeout_s,
            timeout_s=invitation.timeout_s,
        )
        self._prefix = prefix
        return self._link

    def _note_failure(self, policy_version: int, error: Exception) -> None:
        log.get_logger().warning("weights.load_failed", policy_version=policy_version, error=str(error)[:300])
        # A lost group says nothing about this engine; a wrong checksum or probe does.
        if isinstance(error, ComputerRLError):
            self._count_attempt(error)

    def _count_attempt(self, error: ComputerRLError) -> None:
        self._attempts += 1
        if self._attempts >= MAX_ATTEMPTS:
            self._failure = error

    def _report(self, policy_version: int, *, error: str, load_s: float) -> None:
        try:
            self._client.loaded(
                self._receiver, policy_version=policy_version, error=error, load_s=load_s, timeout_s=JOIN_TIMEOUT_S
            )
        except PeerTimeout as timeout:
            self._complain("weights.learner_away", timeout)

    def _abandon(self) -> None:
        if self._link is not None:
            self._link.abandon()
            self._link = None
            self._prefix = ""

    def _complain(self, event: str, error: ComputerRLError) -> None:
        """Log once per cause, not once per retry."""
        if self._complaint != f"{event}{error.code}":
            self._complaint = f"{event}{error.code}"
            log.get_logger().warning(event, error=error.code, reason=str(error))
