"""Messages for tests: one example of every kind, trajectories that fill given assignments, and a desk that asks a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from msgspec.structs import replace

from computerrl.broker.core import BrokerCore
from computerrl.broker.events import MessagePersisted, MessageReceived, Persist, Reply, TimePassed
from computerrl.common.messages import (
    Ack,
    Action,
    Assignment,
    AssignmentRequest,
    AssignmentReturn,
    BaseModelInvitation,
    BroadcastInvitation,
    CompletionRequest,
    CompletionResult,
    ConsumptionReport,
    CurriculumPlan,
    Demonstration,
    DemonstrationRequest,
    Desktops,
    DesktopsRequest,
    DesktopView,
    Directory,
    DirectoryRequest,
    Element,
    EncodedImage,
    EngineQuery,
    EngineState,
    ErrorReply,
    Evaluation,
    EvaluationRequest,
    FileInvitation,
    GroupDrawn,
    GroupRequest,
    Heartbeat,
    HeartbeatAck,
    Hello,
    ImageReply,
    ImageRequest,
    ImageSubmission,
    ImagesWanted,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Message,
    NoAssignment,
    NoGroup,
    NothingNewer,
    Observation,
    OrderClosure,
    PeerEntry,
    ReceiptBatch,
    RolloutOrder,
    ScreenshotRef,
    ScreenshotRequest,
    SlotGivenUp,
    Status,
    StatusRequest,
    Step,
    StepRequest,
    StepResult,
    StepTiming,
    TaskRef,
    TaskReset,
    TaskStarted,
    Trajectory,
    TrajectoryBatch,
    TrajectoryGroup,
    TrajectoryReceipt,
    VersionAnnouncement,
    WeightJoin,
    WeightLoaded,
    WeightUpdate,
    Welcome,
)

TASK = TaskRef("web-click-button", 100_000, "training")
SCREENSHOT = ScreenshotRef("c0ffee", "segment-1-0.bin", 0, 4096, 800, 600)


def step(*, num_prompt: int = 4, num_action: int = 3, policy_version: int = 2) -> Step:
    return Step(
        prompt_tokens=np.arange(num_prompt, dtype=np.int32),
        action_tokens=np.arange(num_action, dtype=np.int32),
        behavior_logprobs=np.linspace(-1.0, -0.5, num_action, dtype=np.float32),
        policy_versions=np.full(num_action, policy_version, dtype=np.int32),
        action_text="click(1)",
        format_ok=True,
        action_error="",
        screenshot=SCREENSHOT,
        settled_by="quiet",
        timing=StepTiming(0.25, 0.125, 0.0625),
    )


def trajectory_for(
    assignment: Assignment, *, steps: Sequence[Step] | None = None, actor: str = "actor-0:a", success: bool = True
) -> Trajectory:
    """What an actor hands in for ``assignment``."""
    return Trajectory(
        trajectory_id=assignment.assignment_id,
        group_id=assignment.group_id,
        index=assignment.index,
        order_id=assignment.order_id,
        kind=assignment.kind,
        task=assignment.task,
        instruction="Click the button.",
        steps=tuple(steps if steps is not None else [step()]),
        reward=float(success),
        success=success,
        end_reason="task_finished",
        final_screenshot=None,
        actor=actor,
        shown_by="",
        started_at=1_700_000_000.0,
        duration_s=1.5,
        reset_s=0.5,
        wait_s=0.25,
    )


def order(order_id: str = "rl-1", **changes: object) -> RolloutOrder:
    base = RolloutOrder(order_id, "training", ("web-click-button", "calc-set-cell"), None, 2, 100_000, 1.0, 6, 0)
    return replace(base, **changes)


def assignment(order_id: str = "rl-1", number: int = 0, index: int = 0) -> Assignment:
    """As the broker grants for `order`."""
    family = order().families[number % 2]
    task = TaskRef(family, 100_000 + number // 2, "training")
    group_id = f"{order_id}/{number}"
    return Assignment(f"{group_id}/{index}", group_id, index, order_id, "training", task, 1.0, 6, 120.0)


def core(**changes: float) -> BrokerCore:
    """B = 2 groups of 2, eta 1."""
    values = {"eta": 1, "groups_per_batch": 2, "max_assignment_s": 120.0, "peer_timeout_s": 15.0, **changes}
    return BrokerCore(run_id="run-1", **values)  # type: ignore[arg-type]


def examples() -> list[Message]:
    """One message of every kind, with every field filled."""
    element = Element(1, "button", "ok", 10, 20, 30, 40, ("focused",))
    observation = Observation("chromium", "Page", (element,), SCREENSHOT, 800, 600, "quiet", 0.0625, "42")
    lease = Lease(0, 3)
    peer = PeerEntry("env_server", 0, "i1", "node1", 11, {"desktops": "tcp://127.0.0.1:5001"}, 0.5)
    trajectory = trajectory_for(assignment(), steps=[step(), step(num_action=1)])
    tokens = np.arange(3, dtype=np.int32)
    update = WeightUpdate(4, "{}", np.array([-0.5, -0.25], dtype=np.float32))
    found: list[Message] = [
        Hello("actor", 0, "i1", "node1", 12, {"x": "tcp://127.0.0.1:5002"}),
        Welcome(3),
        Heartbeat("actor", 0, "i1", {"actor/env_steps_per_s": 4.5}, "playing"),
        HeartbeatAck(1.5),
        Ack(),
        ErrorReply("no_desktop", "all are leased"),
        DirectoryRequest("env_server"),
        Directory((peer,)),
        order(curriculum=CurriculumPlan("success_band", {"calc-set-cell": 2.0}, min_group_size=2, max_group_size=4)),
        OrderClosure("rl-1"),
        GroupDrawn("rl-1", 3, TASK, 4),
        SlotGivenUp("rl-1", 3, 1, "task_failed"),
        AssignmentRequest("i1", 3, "r1"),
        replace(assignment(), next_task=TASK),
        NoAssignment("staleness_bound", 0.1),
        AssignmentReturn("rl-1/0/0", "i1", "desktop_broken"),
        trajectory,
        TrajectoryReceipt("rl-1/0/0", accepted=False, reason="duplicate"),
        TrajectoryBatch((trajectory, replace(trajectory, trajectory_id="rl-1/0/1", index=1))),
        ReceiptBatch((TrajectoryReceipt("rl-1/0/0", accepted=True, reason=""),)),
        ImageSubmission((EncodedImage.of(b"an image"), EncodedImage.of(b"of odd size"))),
        ImagesWanted(("0123456789abcdef" * 2,)),
        ImageRequest(("0123456789abcdef" * 2,)),
        ImageReply((EncodedImage.of(b"an image"),)),
        ScreenshotRequest(SCREENSHOT),
        GroupRequest(7),
        TrajectoryGroup(7, "rl-1/0", "rl-1", "training", TASK, (trajectory,)),
        NoGroup((2, 5)),
        ConsumptionReport(7),
        VersionAnnouncement(4, 12),
        StatusRequest(),
        Status("run-1", 4, {"received": 1}, {"held": 1.0}, (peer,), {"actor-0": {"a": 1.0}}, {"actor-0": "playing"}),
        LeaseRequest("i1", TaskRef("web-click-button", 7, "training"), TaskRef("calc-set-cell", 8, "training")),
        lease,
        TaskReset(lease, TASK),
        TaskStarted("Click the button.", observation),
        StepRequest(lease, Action("click", {"number": 1, "text": "ok", "points": [1, 2]}), "I click it."),
        StepResult(observation, "no element 9", finished=False),
        DemonstrationRequest(lease),
        Demonstration("click(100, 50)", "script", 20, 10),
        EvaluationRequest(lease),
        Evaluation(1.0, success=True, detail="cell B2 holds 42"),
        LeaseRelease(lease),
        DesktopsRequest(0),
        Desktops(
            (DesktopView(0, "leased", "", "actor-0:i1", TASK, "Click.", 1, "click(1)", "click(1)", "", None, None),),
            observation.elements,
        ),
        WeightJoin("actor-0:i1", -1, "d1", "c1"),
        NothingNewer(),
        BaseModelInvitation(update),
        FileInvitation(update, "00000004-ab12.safetensors", 5.0),
        BroadcastInvitation(update, 1, 2, "127.0.0.1:5003", "0-ab12", "gloo", 2.0, 5.0, "c1", (12, 0, -1)),
        WeightLoaded("actor-0:i1", 4, ""),
        EngineQuery(-1),
        EngineState(4),
        CompletionRequest(tokens, 0.7, 32, tokens[:1], may_be_older=True, images=(SCREENSHOT,)),
        CompletionResult(tokens, np.full(3, -0.5, np.float32), np.full(3, 4, np.int32), "click(1)", "stop", 0.25, 0.5),
    ]
    assert {type(message) for message in found} == set(get_args(Message))
    return found


class Desk:
    """Asks a core as a process would, and persists at once what it wants persisted."""

    def __init__(self, broker: BrokerCore | None = None) -> None:
        self.core = broker if broker is not None else core()
        self.now = 0.0

    def ask(self, message: Message, *, sender: str = "actor-0:a") -> Message:
        effects = self.core.handle(MessageReceived(0, message, sender), self.now)
        while records := [effect for effect in effects if isinstance(effect, Persist)]:
            (record,) = records
            effects = self.core.handle(MessagePersisted(0, record.message, record.context), self.now)
        (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
        self.check()
        return reply.message

    def check(self) -> None:
        counters = self.core.counters
        assert counters["received"] == counters["delivered"] + counters["held"] + counters["rejected"]

    def assign(self, incarnation: str = "a", *, policy_version: int = 0, request_id: str = "") -> Message:
        return self.ask(AssignmentRequest(incarnation, policy_version, request_id), sender=f"actor-0:{incarnation}")

    def play(self, count: int = 1, *, policy_version: int = 0) -> list[Assignment]:
        """Take and submit ``count`` assignments."""
        played = []
        for _ in range(count):
            granted = self.assign(policy_version=policy_version)
            assert isinstance(granted, Assignment), granted
            receipt = self.ask(trajectory_for(granted))
            assert receipt == TrajectoryReceipt(granted.assignment_id, accepted=True, reason="")
            played.append(granted)
        return played

    def assign_all(self, *, policy_version: int = 0) -> tuple[list[Assignment], str]:
        """Take assignments until there are none, and why there are none."""
        granted: list[Assignment] = []
        while isinstance(answer := self.assign(policy_version=policy_version), Assignment):
            granted.append(answer)
        assert isinstance(answer, NoAssignment)
        return granted, answer.reason

    def pass_time(self, duration_s: float) -> None:
        self.now += duration_s
        self.core.handle(TimePassed(), self.now)
        self.check()

    def hello(self, incarnation: str = "a", *, index: int = 0) -> Message:
        hello = Hello("actor", index, incarnation, "node1", 1, {})
        return self.ask(hello, sender=f"actor-{index}:{incarnation}")

    def beat(self, incarnation: str = "a", *, index: int = 0) -> Message:
        beat = Heartbeat("actor", index, incarnation, {"actor/x": 1.0}, "playing")
        return self.ask(beat, sender=f"actor-{index}:{incarnation}")
