"""The part of the environment side that other folders may use: desktops by request, stored screenshots, names of task families,
and memory of this host.

The only file of this folder that other folders import. It starts nothing and repeats no request: a step must not be done twice,
so a lost reply raises `PeerTimeout`, after which the actor returns the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from computerrl.common.config import DesktopConfig, RunConfig, TasksConfig
from computerrl.common.errors import ConfigError, PictureError, Problem, ProtocolError
from computerrl.common.messages import (
    Ack,
    Action,
    Demonstration,
    DemonstrationRequest,
    Desktops,
    DesktopsRequest,
    Evaluation,
    EvaluationRequest,
    FinalAction,
    ImageReply,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Message,
    ScreenshotRef,
    ScreenshotRequest,
    StepRequest,
    StepResult,
    TaskRef,
    TaskReset,
    TaskStarted,
    content_hash,
)
from computerrl.common.wire.transport import Channel
from computerrl.env_server.drivers import memory
from computerrl.env_server.drivers.screenshots import read_screenshot as read_screenshot
from computerrl.env_server.judging.judge import LONGEST_S
from computerrl.env_server.judging.untouched import reset_limit_s
from computerrl.env_server.tasks import advice, families_of, foreign_families, is_shown_by_hand
from computerrl.env_server.tasks.family import Family

_SLACK_S = 5.0
"""Time by which the client's deadline exceeds the server's own."""

_ONLY_IN_FULL = frozenset({"impress", "vlc", "gimp", "thunderbird", "terminal"})
"""Applications that image core lacks."""
_OFFICE = frozenset({"calc", "writer", "impress"})
"""Applications of the one office process, which starts with Calc's window."""

_NUM_EXAMPLES = 6
"""Number of families that an error names as examples."""

T = TypeVar("T")


class DesktopClient:
    """Typed requests to one env_server. Thread-safe when ``channel`` is."""

    def __init__(self, channel: Channel, *, config: DesktopConfig | None = None) -> None:
        config = config or DesktopConfig()
        self._channel = channel
        self._step_timeout_s = config.step_deadline_s + _SLACK_S
        self._config = config
        self._evaluate_timeout_s = config.reset_deadline_s + LONGEST_S + _SLACK_S

    def lease(
        self, incarnation: str, task: TaskRef | None = None, *, next_task: TaskRef | None = None, timeout_s: float = 15.0
    ) -> Lease:
        """Lease a desktop for playing ``task``. ``next_task``: the probable next task, which a spare desktop prepares.

        Raises `NoDesktop`, after the server has waited for a free one, or `HostBroken`.
        """
        return self._ask(LeaseRequest(incarnation, task, next_task), Lease, timeout_s)

    def reset(self, lease: Lease, task: TaskRef) -> TaskStarted:
        """Put ``task`` on the screen. Raises `TaskFailed`, `DesktopBroken`, `LeaseRefused`."""
        timeout_s = reset_limit_s(self._config, task) + _SLACK_S
        return self._ask(TaskReset(lease=lease, task=task), TaskStarted, timeout_s)

    def step(self, lease: Lease, action: Action, *, completion: str = "") -> StepResult:
        """Do ``action``, which was parsed from ``completion``. Raises `DesktopBroken`, `LeaseRefused`; a mistake of the policy is
        in ``action_error``."""
        return self._ask(StepRequest(lease=lease, action=action, completion=completion), StepResult, self._step_timeout_s)

    def demonstrate(self, lease: Lease) -> Demonstration:
        """The scripted demonstrator's next action."""
        return self._ask(DemonstrationRequest(lease=lease), Demonstration, self._step_timeout_s)

    def evaluate(self, lease: Lease, final_action: FinalAction = "", *, goes_on: bool = False) -> Evaluation:
        """Verdict on the desktop's state after ``final_action``. ``goes_on``: see `EvaluationRequest.goes_on`."""
        request = EvaluationRequest(lease=lease, final_action=final_action, goes_on=goes_on)
        return self._ask(request, Evaluation, self._evaluate_timeout_s)

    def screenshot(self, ref: ScreenshotRef) -> bytes:
        """The encoded bytes of a screenshot of an observation. Raises `PictureError` for bytes of another hash or size than
        ``ref`` names, and `RemoteError` when the server cannot read it."""
        images = self._ask(ScreenshotRequest(ref), ImageReply, self._step_timeout_s).images
        data = images[0].data.tobytes() if images else b""
        if len(data) != ref.num_bytes or content_hash(data) != ref.content_hash:
            raise PictureError(f"env_server sent {len(data)} other bytes than screenshot {ref.content_hash} has", mismatch=True)
        return data

    def look(self, *, elements_of: int = -1) -> Desktops:
        """Views of all desktops, with the elements of desktop ``elements_of``; changes nothing."""
        return self._ask(DesktopsRequest(elements_of), Desktops, self._step_timeout_s)

    def release(self, lease: Lease) -> None:
        """Return the desktop. Raises `LeaseRefused` when the lease has ended already."""
        self._ask(LeaseRelease(lease=lease), Ack, self._step_timeout_s)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _ask(self, request: Message, kind: type[T], timeout_s: float) -> T:
        reply = self._channel.request(request, timeout_s=timeout_s)
        if not isinstance(reply, kind):
            raise ProtocolError(f"env_server answered {type(request).__name__} with {type(reply).__name__}")
        return reply


def impossible_families(tasks: TasksConfig) -> frozenset[str]:
    """Families of which no instance can be done: an agent that says so succeeds. Raises `ConfigError` as `foreign_families`."""
    return frozenset(name for name, family in foreign_families(tasks).items() if not family.can_be_done)


def family_names(config: RunConfig) -> tuple[str, ...]:
    """Families that this run plays: those in ``tasks.families``, else the default ones that the driver can play.

    Raises `ConfigError` for names that do not exist, that the driver or the image cannot play, or that the recipe orders
    demonstrations of although they have no demonstrator.
    """
    driver = config.desktop.driver
    known = families_of(config.tasks)
    possible = {name: family for name, family in known.items() if driver in family.drivers}
    default = tuple(foreign_families(config.tasks)) or tuple(name for name, family in possible.items() if family.is_default)
    names = config.tasks.families or default
    problems = [
        Problem(
            "tasks.families",
            f"no task family {name!r} for driver {driver!r}; {advice(name, config.tasks)}",
            f"`computerrl tasks list` lists them all; here for example {', '.join(default[:_NUM_EXAMPLES])}",
        )
        for name in names
        if name not in possible
    ]
    recipe = config.learner.recipe
    # Families that exist but are not played are allowed: a configuration may be narrowed to some of its families.
    problems += [
        Problem(f"learner.recipe.demos_of_family.{name}", f"no task family {name!r}; {advice(name, config.tasks)}", "remove it")
        for name in sorted(recipe.demos_of_family.keys() - known.keys())
    ]
    for name in names:
        if name in possible and (problem := image_problem(possible[name], config.desktop)):
            problems.append(problem)
        number = recipe.demos_of_family.get(name, recipe.demos_per_family)
        if name in possible and number > 0 and not possible[name].has_demonstrator:
            reason = f"{number} demonstrations of {name!r} are asked for, which has no demonstrator"
            problems.append(Problem(f"learner.recipe.demos_of_family.{name}", reason, "set it to 0, or leave the family out"))
        elif name in possible and number > 0 and config.tasks.actions == "gui" and not is_shown_by_hand(possible[name]):
            reason = f"{name!r} is demonstrated by calls of applications alone, which tasks.actions gui refuses"
            problems.append(Problem("tasks.families", reason, "leave the family out, or ask for no demonstrations of it"))
    if problems:
        raise ConfigError(problems)
    return names


def image_problem(family: Family, desktop: DesktopConfig) -> Problem | None:
    """Problem when ``family`` cannot be played in the desktop's image, else None."""
    if desktop.driver != "apptainer":
        return None
    lacking = family.apps & _ONLY_IN_FULL if desktop.image == "core" else frozenset()
    if family.needs_tools and desktop.image in ("core", "full"):
        reason, image = f"{family.name!r} needs programs that image {desktop.image} lacks", "osworld"
    elif lacking:
        reason, image = f"{family.name!r} is played in {', '.join(sorted(lacking))}, which image core lacks", "full"
    else:
        return None
    return Problem("desktop.image", reason, f"make setup IMAGE={image}, then set desktop.image: {image}")


def needed_desktop(config: RunConfig) -> DesktopConfig:
    """``config.desktop`` for the run's families, see `with_needed_apps`. Raises `ConfigError` like `family_names`."""
    families = families_of(config.tasks)
    return with_needed_apps(config.desktop, [families[name] for name in family_names(config)])


def with_needed_apps(desktop: DesktopConfig, families: Iterable[Family]) -> DesktopConfig:
    """``desktop`` with only those warm applications that ``families`` need; the others are still opened on demand."""
    needed = {"calc" if app in _OFFICE else app for family in families for app in family.apps}
    return desktop.model_copy(update={"apps": tuple(app for app in desktop.apps if app in needed)})


def without_demonstrator(config: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the families ``names`` that have no demonstrator."""
    families = families_of(config.tasks)
    return tuple(name for name in names if not families[name].has_demonstrator)


def without_facts(config: RunConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the families ``names`` whose evaluators count no facts."""
    families = families_of(config.tasks)
    return tuple(name for name in names if not families[name].counts_facts)


def memory_problem(config: DesktopConfig, *, available_mb: int | None = None) -> Problem | None:
    """Problem when this host's memory does not hold the desktops, else None. ``available_mb``: None measures it."""
    if config.driver == "scripted":
        return None
    available_mb = memory.available_mb() if available_mb is None else available_mb
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
