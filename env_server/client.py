"""What other parts use of the environment side: desktops by request, stored screenshots, family names, room on this host.

The only file here that others import. Starts nothing, retries nothing: a step must not be done twice, so a lost answer is the
caller's `PeerTimeout`, who gives the episode back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from common.config import DesktopConfig, RunConfig
from common.errors import ConfigError, Problem, ProtocolError
from common.messages import (
    Ack,
    Action,
    Demonstration,
    DemonstrationRequest,
    Evaluation,
    EvaluationRequest,
    FinalAction,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Message,
    ScreenshotRef,
    StepRequest,
    StepResult,
    TaskRef,
    TaskReset,
    TaskStarted,
)  # fmt: skip
from common.transport import Channel
from env_server.tasks import FAMILIES

_SLACK_S = 5.0
"""A server answers by its own deadline; the client waits this much longer before it gives the server up."""

_MEMINFO = Path("/proc/meminfo")

T = TypeVar("T")


class DesktopClient:
    """Typed requests to one env_server. Thread-safe when ``channel`` is."""

    def __init__(self, channel: Channel, *, config: DesktopConfig | None = None) -> None:
        config = config or DesktopConfig()
        self._channel = channel
        self._step_timeout_s = config.step_deadline_s + _SLACK_S
        self._reset_timeout_s = config.reset_deadline_s + _SLACK_S

    def lease(self, incarnation: str, wants: str = "", *, timeout_s: float = 15.0) -> Lease:
        """A desktop for playing ``wants`` (a family). Raises `NoDesktop` (after a wait at the server's) or `HostBroken`."""
        return self._ask(LeaseRequest(incarnation=incarnation, wants=wants), Lease, timeout_s)

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted:
        """Put ``task`` on screen. Raises `TaskFailed`, `DesktopBroken`, `LeaseRefused`."""
        return self._ask(TaskReset(lease=lease, task=task), TaskStarted, self._reset_timeout_s)

    def step(self, lease: Lease, action: Action) -> StepResult:
        """Do ``action``. Raises `DesktopBroken`, `LeaseRefused`; the policy's mistakes are in ``action_error``."""
        return self._ask(StepRequest(lease=lease, action=action), StepResult, self._step_timeout_s)

    def demonstrate(self, lease: Lease) -> str:
        """What the scripted demonstrator would do now, in the policy's words."""
        return self._ask(DemonstrationRequest(lease=lease), Demonstration, self._step_timeout_s).action_text

    def evaluate(self, lease: Lease, final_action: FinalAction = "") -> Evaluation:
        """The verdict on the desktop's state after ``final_action``."""
        return self._ask(EvaluationRequest(lease=lease, final_action=final_action), Evaluation, self._step_timeout_s)

    def release(self, lease: Lease) -> None:
        """Give the desktop back. Raises `LeaseRefused` when it was taken back before."""
        self._ask(LeaseRelease(lease=lease), Ack, self._step_timeout_s)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _ask(self, request: Message, kind: type[T], timeout_s: float) -> T:
        answer = self._channel.request(request, timeout_s=timeout_s)
        if not isinstance(answer, kind):
            raise ProtocolError(f"env_server answered {type(request).__name__} with {type(answer).__name__}")
        return answer


def family_names(config: RunConfig) -> tuple[str, ...]:
    """The families this run plays: those named in ``tasks.families``, else all that the driver can play.

    Raises `ConfigError` for names that do not exist or that the driver cannot play.
    """
    driver = config.desktop.driver
    possible = tuple(name for name, family in FAMILIES.items() if driver in family.drivers)
    unknown = [name for name in config.tasks.families if name not in possible]
    if unknown:
        reason = f"no task family {', '.join(map(repr, unknown))} for driver {driver!r}"
        raise ConfigError([Problem("tasks.families", reason, f"choose from {', '.join(possible)}")])
    return config.tasks.families or possible


def read_screenshot(trajectories_folder: Path, ref: ScreenshotRef) -> bytes:
    """The encoded picture (webp, png or jpeg) that ``ref`` names. Raises `FileNotFoundError`, or `ValueError` when cut off."""
    if Path(ref.segment).name != ref.segment:
        raise ValueError(f"segment {ref.segment!r} is no file name")
    with (trajectories_folder / ref.segment).open("rb") as file:
        data = os.pread(file.fileno(), ref.num_bytes, ref.offset)
    if len(data) != ref.num_bytes:
        raise ValueError(f"{ref.segment} ends at {ref.offset + len(data)}, before the end of {ref.content_hash}")
    return data


def memory_problem(config: DesktopConfig, *, available_mb: int | None = None) -> Problem | None:
    """Why this host's memory does not hold the desktops, None when it does; ``available_mb`` None asks the kernel."""
    if config.driver == "scripted":
        return None
    available_mb = _available_mb() if available_mb is None else available_mb
    needed_mb = config.num_desktops * config.memory_per_desktop_mb
    if needed_mb <= available_mb:
        return None
    fitting = available_mb // config.memory_per_desktop_mb
    reason = (
        f"{config.num_desktops} desktops x {config.memory_per_desktop_mb} MB (desktop.memory_per_desktop_mb) = {needed_mb} MB, "
        f"but only {available_mb} MB of memory are available"
    )
    step = f"set desktop.num_desktops to at most {fitting}" if fitting else "free memory, or use a host with more"
    return Problem("desktop.num_desktops", reason, step)


def _available_mb() -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise OSError(f"{_MEMINFO} has no MemAvailable")
