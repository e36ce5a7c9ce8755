"""Every type that crosses a process.

A message is a frozen `msgspec.Struct`. The types and bounds of its fields are checked when it is decoded, not when it is built.
Numpy fields travel as raw bytes (see `common.wire.codec`), everything else in the msgpack header. Messages hold no behaviour
beyond small derived properties.

One file per topic defines the messages. This file lists which of them are requests and which are replies, and how large each may
be: the bounds of the types and these sizes limit the memory that one peer can make another one use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import msgspec

from computerrl.common.messages.base import (
    FLOAT32,
    INT32,
    MAX_PLACES,
    SCHEMA_VERSION,
    UINT8,
    EndReason,
    FinalAction,
    OrderKind,
    Role,
    SettledBy,
    ShownImages,
    Split,
)
from computerrl.common.messages.desktops import (
    Action,
    Demonstration,
    DemonstrationRequest,
    Desktops,
    DesktopsRequest,
    DesktopView,
    Element,
    Evaluation,
    EvaluationRequest,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Observation,
    StepRequest,
    StepResult,
    TaskReset,
    TaskStarted,
)
from computerrl.common.messages.engines import CompletionRequest, CompletionResult, EngineQuery, EngineState
from computerrl.common.messages.images import (
    MAX_IMAGES,
    EncodedImage,
    ImageReply,
    ImageRequest,
    ImageSubmission,
    ImagesWanted,
    ScreenshotRequest,
    content_hash,
    submissions_of,
)
from computerrl.common.messages.presence import (
    Ack,
    Directory,
    DirectoryRequest,
    ErrorReply,
    Heartbeat,
    HeartbeatAck,
    Hello,
    PeerEntry,
    Status,
    StatusRequest,
    Welcome,
)
from computerrl.common.messages.trajectories import (
    MAX_IMAGE_BYTES,
    MAX_TRAJECTORIES_PER_BATCH,
    ConsumptionReport,
    ElementTarget,
    GroupRequest,
    NoGroup,
    ReceiptBatch,
    ScreenshotRef,
    Step,
    StepTiming,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    Usage,
    VersionAnnouncement,
    total_usage,
)
from computerrl.common.messages.weights import (
    BaseModelInvitation,
    BroadcastInvitation,
    FileInvitation,
    NothingNewer,
    WeightJoin,
    WeightLoaded,
    WeightUpdate,
)
from computerrl.common.messages.work import (
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    CurriculumPlan,
    GroupDrawn,
    NoAssignment,
    OrderClosure,
    RolloutOrder,
    SlotGivenUp,
    TaskRef,
)

RequestMessage = (
    Hello
    | Heartbeat
    | DirectoryRequest
    | StatusRequest
    | RolloutOrder
    | OrderClosure
    | AssignmentRequest
    | AssignmentReturn
    | Trajectory
    | TrajectoryBatch
    | ImageSubmission
    | GroupRequest
    | ImageRequest
    | ConsumptionReport
    | VersionAnnouncement
    | LeaseRequest
    | TaskReset
    | StepRequest
    | DemonstrationRequest
    | EvaluationRequest
    | LeaseRelease
    | ScreenshotRequest
    | DesktopsRequest
    | WeightJoin
    | WeightLoaded
    | EngineQuery
    | CompletionRequest
)
"""Messages that a server takes. It refuses the other kinds before it unpacks them."""

ReplyMessage = (
    Welcome
    | HeartbeatAck
    | Ack
    | ErrorReply
    | Directory
    | Status
    | Assignment
    | NoAssignment
    | TrajectoryReceipt
    | ReceiptBatch
    | ImagesWanted
    | TrajectoryGroup
    | NoGroup
    | ImageReply
    | Lease
    | TaskStarted
    | StepResult
    | Demonstration
    | Evaluation
    | Desktops
    | NothingNewer
    | BaseModelInvitation
    | FileInvitation
    | BroadcastInvitation
    | EngineState
    | CompletionResult
)

Message = RequestMessage | ReplyMessage | GroupDrawn | SlotGivenUp
"""Every message that may be the top of a frame. The codec's registry is made from this union."""

for _kind in get_args(Message):
    # msgspec learns a type when it first decodes one; two threads that do so at once crash the process.
    msgspec.json.Decoder(_kind)

REQUEST_KINDS = frozenset(cls.__name__ for cls in get_args(RequestMessage))


# --- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """Maximum size of a kind of message on the wire."""

    header_bytes: int
    """Size of frame 0. Unpacking it takes up to 64 times as much memory."""
    total_bytes: int
    """Size of all frames together."""


MAX_PEERS = 2048
"""Maximum number of processes that a broker or a learner remembers at a time."""

DEFAULT_SIZE_LIMIT = SizeLimit(64 << 10, 64 << 10)

_SIZE_LIMITS = {
    # The broker keeps one of each per process, and `MAX_PEERS` of both must fit a `Status`.
    Hello: SizeLimit(8 << 10, 8 << 10),
    Heartbeat: SizeLimit(16 << 10, 16 << 10),
    Directory: SizeLimit(16 << 20, 16 << 20),
    Status: SizeLimit(64 << 20, 64 << 20),
    RolloutOrder: SizeLimit(1 << 20, 1 << 20),
    # 1,000 steps of 4 KB beside their arrays; a group of 64 such episodes of 100 steps.
    Trajectory: SizeLimit(4 << 20, 1 << 30),
    TrajectoryBatch: SizeLimit(4 << 20, 1 << 30),
    TrajectoryGroup: SizeLimit(256 << 20, 1 << 30),
    # One image of the largest size, or many smaller ones.
    ImageSubmission: SizeLimit(64 << 10, 64 << 20),
    ImageReply: SizeLimit(64 << 10, 64 << 20),
    # Text typed into a desktop, and text read from it.
    StepRequest: SizeLimit(1 << 20, 1 << 20),
    Demonstration: SizeLimit(1 << 20, 1 << 20),
    TaskStarted: SizeLimit(16 << 20, 16 << 20),
    StepResult: SizeLimit(16 << 20, 16 << 20),
    Evaluation: SizeLimit(1 << 20, 1 << 20),
    # 4,096 desktops with a text each.
    Desktops: SizeLimit(64 << 20, 64 << 20),
    # Names, shapes and checksums of a large model's tensors.
    BaseModelInvitation: SizeLimit(64 << 20, 64 << 20),
    FileInvitation: SizeLimit(64 << 20, 64 << 20),
    BroadcastInvitation: SizeLimit(64 << 20, 64 << 20),
    # A prompt of a million tokens; the arrays and the text of a completion.
    CompletionRequest: SizeLimit(64 << 10, 4 << 20),
    CompletionResult: SizeLimit(1 << 20, 4 << 20),
}

SIZE_LIMITS = {cls.__name__: limit for cls, limit in _SIZE_LIMITS.items()}
"""Size limit by kind of message; `DEFAULT_SIZE_LIMIT` for kinds that are not listed."""
