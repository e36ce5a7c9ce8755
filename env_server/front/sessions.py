"""Sessions of programs that play on this host's desktops: each is the lease of a desktop and the task on its screen. No HTTP.

    open ──► reset(task, seed) ──► step ... step ──► ended, with its reward ──► reset ...      close, or unused for too long

The methods block until the desktop has answered, and belong into threads. A session takes one call at a time. What a program did
wrong raises `BadRequest`; what an agent did wrong is in the view's ``action_error``.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from computerrl.common import log
from computerrl.common.actions import ACTIONS, FINAL_ACTIONS, ActionSyntaxError, bind_values, parse_action
from computerrl.common.config import RunConfig
from computerrl.common.errors import ComputerRLError, DesktopBroken, HostBroken, LeaseRefused, NoDesktop, PeerTimeout
from computerrl.common.messages import Action, Evaluation, FinalAction, Lease, Observation, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient, family_names
from computerrl.env_server.driver import DesktopDriver, TaskInstance
from computerrl.env_server.drivers.screenshots import RecentScreenshots
from computerrl.env_server.serving.service import DesktopService

T = TypeVar("T")
Call = str | tuple[str, Mapping[str, object]]
"""An action: its text, `click(3)`, or its name and arguments."""


class BadRequest(ComputerRLError):
    """The program asks for something that there is not, or not now; the text says what to do instead."""

    code = "bad_request"


class SessionEnded(ComputerRLError):
    """There is no such session, or not any more."""

    code = "session_ended"


@dataclass(frozen=True, slots=True)
class View:
    """What a program sees after a call."""

    session: str
    task: TaskRef
    instruction: str
    observation: Observation
    screenshot: bytes
    """Encoded as `desktop.screenshot_format`; empty where observations hold none."""
    num_steps: int
    action_error: str = ""
    verdict: Evaluation | None = None
    """Set once the episode has ended."""
    truncated: bool = False
    """Whether `tasks.max_steps` ended it."""


@dataclass(slots=True)
class Session:
    """One lease and its episode."""

    name: str
    client: DesktopClient
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    """None until the first task, and after its desktop broke."""
    view: View | None = None
    used_at: float = field(default_factory=time.monotonic)
    closed: bool = False


class Sessions:
    """All sessions of a service. ``idle_limit_s``: a session that was unused for longer ends. Thread-safe."""

    def __init__(
        self,
        service: DesktopService,
        config: RunConfig,
        *,
        screenshots: RecentScreenshots,
        idle_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.families: Sequence[str] = family_names(config)
        self.actions = config.tasks.actions
        self._service = service
        self._config = config
        self._screenshots = screenshots
        self._idle_limit_s = idle_limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._random = secrets.SystemRandom()

    # --- life

    def open(self) -> str:
        """Begin a session and lease its desktop; returns its name, which is as secret as a token. Raises `NoDesktop`."""
        self.end_unused()
        name = secrets.token_urlsafe(18)
        client = DesktopClient(LocalChannel(self._service.handle, sender=name), config=self._config.desktop)
        session = Session(name, client, used_at=self._clock())
        session.lease = client.lease(name)
        with self._lock:
            self._sessions[name] = session
        return name

    def close(self, name: str) -> None:
        """End a session; the desktop is free. One that has ended already is no error."""
        with self._lock:
            session = self._sessions.pop(name, None)
        if session is not None:
            self._release(session)

    def close_all(self) -> None:
        """End all sessions."""
        for name in tuple(self._sessions):
            self.close(name)

    def end_unused(self) -> int:
        """End the sessions past the limit; returns their number."""
        before = self._clock() - self._idle_limit_s
        with self._lock:
            # A locked session is at work.
            unused = [one for one in self._sessions.values() if one.used_at < before and not one.lock.locked()]
            for session in unused:
                del self._sessions[session.name]
        for session in unused:
            log.get_logger().info("session.unused", idle_limit_s=self._idle_limit_s)
            self._release(session)
        return len(unused)

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, name: str) -> bool:
        return name in self._sessions

    # --- calls

    def reset(self, name: str, task: str | None = None, seed: int | None = None) -> View:
        """Put an instance of family ``task`` on screen; None: one of the families, and a random instance for training.

        Raises `BadRequest`, `TaskFailed`, `NoDesktop`, `DesktopBroken`, `SessionEnded`.
        """
        ref = self._chosen(task, seed)
        with self._using(name) as session:
            session.view = None
            if session.lease is None:
                session.lease = session.client.lease(name, ref)
            started = session.client.reset(session.lease, ref)
            return self._seen(session, View(name, ref, started.instruction, started.observation, b"", 0))

    def step(self, name: str, call: Call) -> View:
        """Carry out an action. A final one, the task's own end, and the last one of `tasks.max_steps` end the episode, and the
        view has the verdict. Raises `BadRequest` without an episode, and as `reset`."""
        with self._using(name) as session:
            view = self._playing(session)
            num_steps = view.num_steps + 1
            observation, error = view.observation, ""
            final: FinalAction = ""
            ends, lease = False, session.lease
            assert lease is not None, "an episode has a lease"
            try:
                action = _action_of(call)
            except ActionSyntaxError as problem:
                error = str(problem)
            else:
                if action.name in FINAL_ACTIONS:
                    ends, final = True, "fail" if action.name == "fail" else "done"
                else:
                    result = session.client.step(lease, action)
                    observation, error, ends = result.observation, result.action_error, result.finished
            truncated = not ends and num_steps >= self._config.tasks.max_steps
            verdict = session.client.evaluate(lease, final) if ends or truncated else None
            return self._seen(
                session, View(name, view.task, view.instruction, observation, b"", num_steps, error, verdict, truncated)
            )

    def look(self, name: str) -> View | None:
        """What the program saw last; None before the first task."""
        with self._using(name) as session:
            return session.view

    # --- without a task

    def clear(self, name: str) -> None:
        """Put an empty desktop in the place of whatever the session's has become. Raises as `reset`."""
        with self._using(name) as session:
            session.view = None
            if session.lease is None:
                session.lease = session.client.lease(name)
            limit_s = self._config.desktop.reset_deadline_s
            self._service.use(session.lease, lambda driver: driver.reset(_NO_TASK), limit_s=limit_s)

    def use(self, name: str, work: Callable[[DesktopDriver], T], *, extra_s: float = 0.0) -> T:
        """What ``work`` returns, run on the session's desktop. An episode ends without a verdict: what is done here is no action
        of an agent's. ``extra_s``: time for it beyond that for one call. Raises as `step`, and `TaskFailed`."""
        with self._using(name) as session:
            session.view = None
            if session.lease is None:
                raise BadRequest("the session's desktop broke: reset first")
            return self._service.use(session.lease, work, limit_s=self._config.desktop.reset_deadline_s + extra_s)

    # --- parts

    def _chosen(self, task: str | None, seed: int | None) -> TaskRef:
        if task is not None and task not in self.families:
            shown = ", ".join(self.families[:6]) + (", ..." if len(self.families) > 6 else "")
            raise BadRequest(f"no task {task!r:.80} here; there are {len(self.families)}: {shown}")
        family = task if task is not None else self._random.choice(self.families)
        tasks = self._config.tasks
        if seed is None:
            first, past_last = tasks.seeds_of("training")
            return TaskRef(family, self._random.randrange(first, past_last), "training")
        split = tasks.split_of(seed)
        if split is None:
            raise BadRequest(f"no instance has seed {seed}; seeds go from 0 to {tasks.evaluation_seeds[1] - 1}")
        return TaskRef(family, seed, split)

    @contextmanager
    def _using(self, name: str) -> Iterator[Session]:
        """The session for one call. Errors that cost it its desktop or its life are noted."""
        self.end_unused()
        with self._lock:
            session = self._sessions.get(name)
        if session is None:
            reason = f"no such session: it was closed, or unused for more than {self._idle_limit_s:g} s"
            raise SessionEnded(f"{reason}; open another one")
        if not session.lock.acquire(blocking=False):
            raise BadRequest("this session is at work on another request; wait for its reply")
        try:
            yield session
        except LeaseRefused as error:
            self._forget(session)
            raise SessionEnded(f"the desktop was taken back: {error}; open another session") from error
        except (DesktopBroken, HostBroken, PeerTimeout):
            session.lease = session.view = None
            raise
        finally:
            session.used_at = self._clock()
            session.lock.release()
            if session.closed:
                self._release(session)

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.name, None)
        session.lease = None

    def _playing(self, session: Session) -> View:
        if session.view is None:
            raise BadRequest("no task is on the screen: reset first")
        if session.view.verdict is not None:
            raise BadRequest("the episode has ended: reset first")
        return session.view

    def _seen(self, session: Session, view: View) -> View:
        ref = view.observation.screenshot
        if ref is not None:
            view = replace(view, screenshot=self._screenshots.get(ref))
        session.view = view
        return view

    def _release(self, session: Session) -> None:
        """Return the desktop; of a session at work, as soon as that is done."""
        session.closed = True
        lease, session.lease = session.lease, None
        if lease is not None:
            with suppress(LeaseRefused, NoDesktop):
                session.client.release(lease)


def _unasked(*_: object) -> NoReturn:
    raise AssertionError("no task, no verdict")


_NO_TASK = TaskInstance(instruction="", setup=(), evaluate=_unasked, demonstrate=_unasked)


def _action_of(call: Call) -> Action:
    """Raises `ActionSyntaxError`."""
    if isinstance(call, str):
        return parse_action(call)
    name, arguments = call
    if name not in ACTIONS:
        raise ActionSyntaxError(f"unknown action {name!r:.80}")
    return bind_values(ACTIONS[name], arguments)
