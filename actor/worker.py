"""The actor process: threads that ask for an assignment, play it, hand the trajectory in, and ask again.

    broker ──assignment──► slot thread ──► episode ──► slot thread ──trajectory──► broker
                              (num_episodes of them)        │ ▲
    weight receiver ──load──► engine thread ◄──requests─────┘ └── env_servers

While one slot waits for the engine or the broker, the others keep their desktops busy. The engine starts in the background;
until it has loaded a version of the learner, slots play demonstrations (policy version -1). An actor waits for the learner only
where the broker demands it (staleness bound, version on its way), and that time is counted separately. After a `ComputerRLError`
the assignment is returned; any other error ends the process, which the supervisor starts again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Protocol

from computerrl.actor.activity import ActivityMeter
from computerrl.actor.agents.base import Agent
from computerrl.actor.choosing import EpisodeSetting
from computerrl.actor.desktops import DesktopSource
from computerrl.actor.engines.base import NO_VERSION, Sampler, Versions
from computerrl.actor.episode import EpisodeAborted, play_episode
from computerrl.actor.live_images import EpisodeImages, LiveImages
from computerrl.actor.prompts.builder import PromptBuilder
from computerrl.common import log
from computerrl.common.config import ActorConfig
from computerrl.common.errors import ComputerRLError, ConfigError, PeerTimeout
from computerrl.common.lifecycle import StopToken
from computerrl.common.messages import Assignment, NoAssignment, Trajectory, TrajectoryReceipt
from computerrl.common.metrics import Rate, Timings

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
"""First and longest pause of a slot after a `ComputerRLError`; it doubles in between, until an episode succeeds."""

MAX_VERSION_WAIT_S = 0.5
"""Longest wait for a new version before the broker is asked again: orders may have changed without one."""

JOIN_S = 1.2
"""Time at a stop for slots to end at their next step and return their desktops, before connections are cut."""

CUT_JOIN_S = 0.5
"""Time for slots to end after their connections are cut."""


class AssignmentBroker(Protocol):
    """The part of `broker.client.BrokerClient` used here."""

    def request_assignment(self, incarnation: str, policy_version: int) -> Assignment | NoAssignment: ...

    def return_assignment(self, assignment_id: str, *, incarnation: str, reason: str) -> None: ...

    def submit(self, trajectory: Trajectory, images: Mapping[str, bytes]) -> TrajectoryReceipt: ...


class ActorWorker:
    """Plays episodes, from its own threads (`start`, `close`) or one at a time (`run_episode_once`)."""

    def __init__(
        self,
        config: ActorConfig,
        *,
        broker: AssignmentBroker,
        desktops: DesktopSource,
        player: PromptBuilder | Agent,
        actor: str,
        incarnation: str,
        stop: StopToken,
        images: LiveImages | None = None,
        teacher: Agent | None = None,
        teacher_name: str = "",
    ) -> None:
        """``actor`` is `actor-<index>:<incarnation>`. Without `use_engine` only demonstrations are played. ``player``: prompts
        for that engine, or an agent. ``images``: where the prompts read the images that they show; None: they show none.
        ``teacher``: plays the demonstrations, recorded as ``teacher_name``; None: the tasks' demonstrators do."""
        self._config = config
        self._broker = broker
        self._desktops = desktops
        self._player = player
        self._incarnation = incarnation
        self._stop = stop
        self._images = images
        self._engine: Sampler | None = None
        self._versions: Versions | None = None
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None
        self._last_error = ""
        self.activity = ActivityMeter(config.num_episodes)
        self._setting = EpisodeSetting(
            actor=actor,
            incarnation=incarnation,
            max_new_tokens=config.max_new_tokens,
            max_invalid_actions=config.max_invalid_actions,
            require_done=config.require_done,
            stopped=lambda: self._stop.stopped,
            during=self.activity.during,
            teacher=teacher,
            teacher_name=teacher_name,
        )
        self._steps = Rate()
        self._episodes = Rate()
        self._num_returned = 0
        self._timings = {name: Timings() for name in ("step", "reset", "generate")}

    # --- engine ------------------------------------------------------------------------------------------------------

    def use_engine(self, engine: Sampler, versions: Versions | None = None) -> None:
        """Play all kinds of episodes from now on. ``versions``: versions that may be served; None: the version in the engine."""
        self._versions = versions
        self._engine = engine

    @property
    def policy_version(self) -> int:
        """Version that new episodes are played with."""
        engine, versions = self._engine, self._versions
        if engine is None:
            return NO_VERSION
        return engine.policy_version if versions is None else versions.policy_version

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start playing in ``num_episodes`` threads."""
        for slot in range(self._config.num_episodes):
            thread = threading.Thread(target=self._run_slot, args=(slot,), name=f"episode-{slot}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End all slots; call it after the stop token is set. Desktops are returned where that is quick."""
        self._join(JOIN_S)
        self._desktops.close()
        self._join(CUT_JOIN_S)

    @property
    def failure(self) -> Exception | None:
        """Error that ended a slot unexpectedly; the process should end with it."""
        return self._failure

    def _join(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    # --- playing -----------------------------------------------------------------------------------------------------

    def run_episode_once(self) -> bool:
        """Request one assignment and play it (serial mode). Returns False when the broker has none now.

        Raises the error that broke the episode, after the assignment was returned.
        """
        asked = time.perf_counter()
        reply = self._broker.request_assignment(self._incarnation, self.policy_version)
        if isinstance(reply, NoAssignment):
            return False
        self._play(reply, asked_s=time.perf_counter() - asked)
        return True

    def _run_slot(self, slot: int) -> None:
        backoff_s = FIRST_BACKOFF_S
        try:
            while not self._stop.stopped:
                try:
                    self._once()
                    backoff_s = FIRST_BACKOFF_S
                except EpisodeAborted:
                    return
                except ConfigError as error:  # no later episode would fare better
                    self._failure = error
                    self._stop.stop(str(error))
                except ComputerRLError as error:
                    self._complain(error)
                    self._stop.wait(backoff_s)
                    backoff_s = min(MAX_BACKOFF_S, 2 * backoff_s)
        except Exception as error:  # noqa: BLE001
            # Thread boundary: a fault of this program. The process must not go on with fewer slots than it reports.
            log.get_logger().exception("actor.slot_failed", slot=slot)
            self._failure = error
            self._stop.stop(f"episode slot {slot} failed: {type(error).__name__}: {error}")

    def _once(self) -> None:
        asked = time.perf_counter()
        version = self.policy_version
        reply = self._broker.request_assignment(self._incarnation, version)
        if isinstance(reply, NoAssignment):
            self._wait(reply, version)
        else:
            self._play(reply, asked_s=time.perf_counter() - asked)

    def _wait(self, reply: NoAssignment, version: int) -> None:
        if reply.reason not in ("staleness_bound", "policy_version"):
            with self.activity.during("no_work"):
                self._stop.wait(reply.retry_after_s)
            return
        with self.activity.during("bound_wait"):
            versions = self._versions
            if versions is None:
                self._stop.wait(reply.retry_after_s)
            else:
                versions.wait_version(version + 1, timeout_s=max(reply.retry_after_s, MAX_VERSION_WAIT_S))

    def _play(self, assignment: Assignment, *, asked_s: float) -> None:
        try:
            if self._images is None:
                self._submit(self._episode(assignment, None, asked_s=asked_s), {})
            else:
                with self._images.episode() as images:
                    trajectory = self._episode(assignment, images, asked_s=asked_s)
                    self._submit(trajectory, images.of(trajectory))
        except ComputerRLError as error:
            self._return(assignment, error)
            raise

    def _episode(self, assignment: Assignment, images: EpisodeImages | None, *, asked_s: float) -> Trajectory:
        with self._desktops.pick(assignment) as desktops:
            seen = desktops if images is None else images.see(desktops)
            trajectory = play_episode(assignment, seen, self._engine, self._player, setting=self._setting, asked_s=asked_s)
        self._count(trajectory)
        return trajectory

    def _return(self, assignment: Assignment, error: ComputerRLError) -> None:
        self._num_returned += 1
        try:
            self._broker.return_assignment(assignment.assignment_id, incarnation=self._incarnation, reason=error.code)
        except ComputerRLError as second:
            # The broker releases the slot by itself after its time limit; the first error is the one to act on.
            log.get_logger().warning("assignment.return_failed", assignment_id=assignment.assignment_id, error=second.code)

    def _submit(self, trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
        """Submit the trajectory, with the bytes of its ``images``, until there is a receipt; the broker drops duplicates."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                receipt = self._broker.submit(trajectory, images)
                break
            except PeerTimeout as error:
                self._complain(error)
                if self._stop.wait(backoff_s):
                    raise EpisodeAborted("the actor is stopping; the trajectory was not acknowledged") from error
                backoff_s = min(MAX_BACKOFF_S, 2 * backoff_s)
        if not receipt.accepted:
            log.get_logger().info("trajectory.rejected", trajectory_id=trajectory.trajectory_id, reason=receipt.reason)

    def _count(self, trajectory: Trajectory) -> None:
        self._episodes.add()
        self._steps.add(len(trajectory.steps))
        self._timings["reset"].add(trajectory.reset_s)
        for step in trajectory.steps:
            self._timings["step"].add(step.timing.desktop_s)
            if trajectory.kind != "demonstration":
                self._timings["generate"].add(step.timing.generate_s)

    def _complain(self, error: ComputerRLError) -> None:
        # One line per error, not one per retry of every slot.
        if self._last_error != str(error):
            self._last_error = str(error)
            log.get_logger().warning("episode.given_back", error=error.code, reason=str(error))

    # --- meters ------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Figures for heartbeats, see docs/reference/metrics.md."""
        fractions = {f"actor/{kind}_fraction": value for kind, value in self.activity.fractions().items()}
        engine = self._engine
        of_agent = {} if isinstance(self._player, PromptBuilder) else self._player.metrics()
        return {
            **of_agent,
            "actor/env_steps_total": self._steps.total,
            "actor/env_steps_per_s": self._steps.per_s,
            "actor/episodes_total": self._episodes.total,
            "actor/returned_total": float(self._num_returned),
            **fractions,
            "actor/step_p50_s": self._timings["step"].p50,
            "actor/step_p90_s": self._timings["step"].p90,
            "actor/reset_p50_s": self._timings["reset"].p50,
            "actor/generate_p50_s": self._timings["generate"].p50,
            "actor/image_bytes": float(0 if self._images is None else self._images.num_bytes),
            "actor/engine_version": float(NO_VERSION if engine is None else engine.policy_version),
        }
