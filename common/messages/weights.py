"""Weight updates: which receiver takes part in which update, and how the weights travel. The tensors themselves do not travel in
messages."""

from __future__ import annotations

from typing import Literal

from computerrl.common.messages.base import FLOAT32, FloatArray, Id, Line, Version, Wire, cut_lines, take_arrays


class WeightJoin(Wire, frozen=True):
    """A receiver's request for the next weight update, sent to the learner by an actor or an engine process.

    The reply is `NothingNewer`, `BaseModelInvitation`, `FileInvitation` or `BroadcastInvitation`.
    """

    receiver: Id
    """Name of the receiver, `actor-<index>:<incarnation>` or `engine-<index>:<incarnation>`."""
    loaded_version: Version
    """Policy version that the receiver serves; -1: none, it needs a full update."""
    model_digest: Id
    """Digest of the base model's tensor names, shapes and dtypes; it must equal the learner's."""
    held: Id = ""
    """`Manifest.content` of the weights whose bytes the receiver still has, for an update by changes; empty: none."""


class NothingNewer(Wire, frozen=True):
    """The receiver serves the newest policy version already. The learner sends this after a while, not at once."""


class WeightUpdate(Wire, frozen=True):
    """Description of the weights of one policy version."""

    policy_version: int
    manifest: str
    """Manifest of `common.weight_plan` as JSON: buckets, names, shapes, dtypes, checksums."""
    probe_logprobs: FloatArray
    """Log-probs of the fixed probe prompt, computed by the learner at this version. An engine serves the version only after its
    own agree within the noise of bf16; the checksums of the manifest are exact."""

    def __post_init__(self) -> None:
        take_arrays(self, {"probe_logprobs": FLOAT32})


class BaseModelInvitation(Wire, frozen=True):
    """The newest policy version is the base model, which every receiver has. No bytes follow."""

    update: WeightUpdate


class FileInvitation(Wire, frozen=True):
    """The weights are in a file, for sites without a network for collectives."""

    update: WeightUpdate
    file_name: str
    """Name of the file in the run folder's folder for weights."""
    timeout_s: float
    """Seconds to wait for the file to appear: shared file systems show new names late."""


class BroadcastInvitation(Wire, frozen=True):
    """The weights come by a broadcast in a process group, of which the learner is rank 0."""

    update: WeightUpdate
    rank: int
    """Rank of the receiver in the group."""
    world_size: int
    store_address: str
    """Address `host:port` of the store where the group meets."""
    store_prefix: str
    """Prefix of the group's keys in the store. It names the group: an unchanged prefix keeps the group of the last update."""
    backend: Literal["gloo", "nccl"]
    form_timeout_s: float
    """Deadline for forming the group, in seconds."""
    timeout_s: float
    """Deadline of a bucket in seconds. A receiver that waits longer leaves the group, so that no receiver waits for one that
    hangs."""
    base: Id = ""
    """`WeightJoin.held` of the members, against which buckets travel by their changes; empty: all buckets travel whole."""
    change_bytes: tuple[int, ...] = ()
    """Bytes of the changes of each bucket (`learner.weight_bytes`), where there is a base; 0: it is as it was, and nothing
    travels; -1: it travels whole."""


class WeightLoaded(Wire, frozen=True):
    """A receiver's report of the version that it serves now, or of the error with which it failed. The reply is `Ack`."""

    receiver: Id
    policy_version: Version
    error: Line
    """Error of the failed update; empty after a successful one."""

    def __post_init__(self) -> None:
        cut_lines(self, "error")
