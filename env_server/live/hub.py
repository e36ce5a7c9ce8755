"""Commands of pages to the session, changes of the session to all pages. Knows no HTTP.

    page ──► submit(message) ──► worker: one thread that blocks ──► session
                                                                       │ changed
    page ◄── state, elements, log (JSON) ◄── publish ◄─────────────────┘
    page ◄── picture (header + WebP of the changed part) ◄── feed ◄── screen, read several times a second while a page is open

Each page is fed at its own pace: a slow one receives fewer and larger parts.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from computerrl.common import log
from computerrl.common.actions import ACTIONS, ActionSpec, render_action
from computerrl.common.messages import Action
from computerrl.env_server.live import commands, pointing
from computerrl.env_server.live.picture import changed_box, encode_part
from computerrl.env_server.live.session import Entry, LiveSession
from computerrl.env_server.tasks import FAMILIES

QUICK_S, SLOW_S = 0.06, 0.25
"""Time between two reads of the screen: while it is active, and after `_ACTIVE_S` without activity."""
_ACTIVE_S = 3.0
_QUIET_S = 0.4
"""Time without change after which a screen that changed by itself is observed again."""
_HEALTH_PERIOD_S = 2.0
_MAX_PENDING = 40
"""Maximum number of commands waiting for the desktop; more are refused, because they would be carried out far too late."""
_CLOSE_LIMIT_S = 1.8


class Socket(Protocol):
    """A page's connection."""

    async def send_str(self, data: str) -> None: ...

    async def send_bytes(self, data: bytes) -> None: ...


@dataclass(eq=False)
class _Viewer:
    """A page, and the state that it has received."""

    socket: Socket
    log: list[Entry] | None = None
    num_entries: int = 0
    observation: object = field(default_factory=object)
    frame: np.ndarray | None = None


class SerialWorker:
    """Runs blocking work in order, in a daemon thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="page-worker", daemon=True).start()

    def submit(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``work`` after all work submitted before."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((work, done))
        return done

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                work()
            except Exception:  # noqa: BLE001
                # Thread boundary: a mistake in the code of one command must not end the page.
                log.get_logger().exception("command.failed")
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_set_done, done)


def _set_done(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class Hub:
    """All pages of one session. Everything, the constructor included, is called in one event loop."""

    def __init__(self, session: LiveSession, *, recordings: str) -> None:
        self._session = session
        self._recordings = recordings
        self._worker = SerialWorker()
        self._viewers: list[_Viewer] = []
        self._has_viewers = asyncio.Event()
        self._num_pending = 0
        self._changed = asyncio.Condition()
        self._frame: np.ndarray | None = None
        self._num_frames = 0
        self._num_frames_read = 0
        """Number of frames at the latest observation."""
        self._changed_at = self._acted_at = 0.0
        self._choice = ("", 0)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, family: str, seed: int) -> None:
        """Start the desktop with that task."""
        self._choice = (family, seed)
        self._spawn(self._watch_screen())
        self._spawn(self._watch_health())
        self._enqueue(partial(self._session.start, family, seed))

    async def close(self) -> None:
        """End the desktop; waits for it up to a time limit."""
        for task in self._tasks:
            task.cancel()
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._session.close()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=end, name="page-close", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _CLOSE_LIMIT_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- pages

    async def welcome(self, socket: Socket) -> Callable[[], None]:
        """Send a new page everything, and pictures until the returned function is called."""
        viewer = _Viewer(socket)
        await socket.send_str(json.dumps(self._hello()))
        await self._send_news(viewer)
        self._viewers.append(viewer)
        self._has_viewers.set()
        feeding = asyncio.get_running_loop().create_task(self._feed(viewer))
        self._tasks.add(feeding)

        def leave() -> None:
            feeding.cancel()
            self._tasks.discard(feeding)
            self._viewers.remove(viewer)
            if not self._viewers:
                self._has_viewers.clear()

        return leave

    def submit(self, message: str) -> str:
        """Submit a page's command; returns the reason of a refusal, empty when the command will be carried out."""
        try:
            command = commands.parse_command(message)
        except ValueError as error:
            return str(error)
        if self._num_pending >= _MAX_PENDING:
            return "the desktop cannot keep up: wait until it has done what was asked before"
        if isinstance(command, commands.Choose):
            if command.family not in FAMILIES:
                return f"there is no task family {command.family!r:.80}"
            self._choice = (command.family, command.seed)
        self._enqueue(partial(self._do, command))
        return ""

    def _do(self, command: commands.Command) -> None:
        """Carry out a command; runs in the worker."""
        session = self._session
        match command:
            case commands.Choose(family=family, seed=seed):
                session.choose(family, seed)
            case commands.Score():
                session.score()
            case commands.Save():
                session.save()
            case commands.Restart():
                session.restart(*self._choice)
            case commands.Act(text=text):
                session.act(text)
            case commands.Type(text=text, enter=enter):
                session.act(render_action(Action(name="type", args={"text": text, "enter": enter})))
            case commands.Key(keys=keys):
                session.act(render_action(Action(name="key", args={"keys": keys})))
            case commands.Click() | commands.Hover() | commands.Scroll() | commands.Drag():
                # The element under the pointer is known only when the command's turn has come.
                session.act(lambda: self._pointed(command), pointed=commands.pixels_of(command))

    def _pointed(self, command: commands.Click | commands.Hover | commands.Scroll | commands.Drag) -> Action:
        elements = self._session.episode.elements
        match command:
            case commands.Click(x=x, y=y, button=button, count=count, exact=exact):
                return pointing.click(elements, x, y, button=button, count=count, exact=exact)
            case commands.Hover(x=x, y=y, exact=exact):
                return pointing.hover(elements, x, y, exact=exact)
            case commands.Scroll(x=x, y=y, direction=direction, exact=exact):
                return pointing.scroll(elements, x, y, direction=direction, exact=exact)
            case commands.Drag(x=x, y=y, to_x=to_x, to_y=to_y, exact=exact):
                return pointing.drag(elements, (x, y), (to_x, to_y), exact=exact)

    # --- news

    def _enqueue(self, work: Callable[[], None]) -> None:
        self._num_pending += 1
        self._acted_at = asyncio.get_running_loop().time()
        self._spawn(self._finish(self._worker.submit(work)))

    async def _finish(self, done: asyncio.Future[None]) -> None:
        await self._publish()
        await done
        self._num_pending -= 1
        await self._take_frame()
        self._num_frames_read = self._num_frames
        await self._publish()

    async def _publish(self) -> None:
        for viewer in list(self._viewers):
            with suppress(ConnectionError):  # the page is leaving; its own handler notices
                await self._send_news(viewer)

    async def _send_news(self, viewer: _Viewer) -> None:
        """Send a page everything that it lacks. The state comes last, so that it never runs ahead of elements and log."""
        state = {"kind": "state", "busy": self._num_pending > 0, "choice": self._choice, **self._session.state()}
        episode = self._session.episode
        if viewer.observation is not episode.observation:
            viewer.observation = episode.observation
            await viewer.socket.send_str(json.dumps({"kind": "screen", **episode.screen()}))
        entries, fresh = episode.entries, viewer.log is not episode.entries
        if fresh or len(entries) > viewer.num_entries:
            news = entries[0 if fresh else viewer.num_entries :]
            viewer.log, viewer.num_entries = entries, len(entries)
            lines = [asdict(entry) for entry in news]
            await viewer.socket.send_str(json.dumps({"kind": "log", "fresh": fresh, "entries": lines}))
        await viewer.socket.send_str(json.dumps(state))

    def _hello(self) -> dict[str, Any]:
        session = self._session
        return {
            "kind": "hello",
            "width": session.config.screen_width,
            "height": session.config.screen_height,
            "demonstration_seeds": session.tasks.demonstration_seeds,
            "recordings": self._recordings,
            "actions": [{"name": spec.name, "signature": signature(spec), "help": spec.help} for spec in ACTIONS.values()],
            "families": [
                {"name": family.name, "app": family.app, "description": family.description}
                for family in FAMILIES.values()
                if session.config.driver in family.drivers
            ],
        }

    # --- pictures

    async def _feed(self, viewer: _Viewer) -> None:
        with suppress(ConnectionError):
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._frame is not viewer.frame)
                frame = self._frame
                box = None if frame is None else changed_box(viewer.frame, frame)
                if frame is not None and box is not None:
                    await viewer.socket.send_bytes(await asyncio.to_thread(encode_part, frame, box))
                viewer.frame = frame

    async def _take_frame(self) -> None:
        frame = self._session.frame()
        if frame is None or (self._frame is not None and np.array_equal(frame, self._frame)):
            return
        self._frame = frame
        self._num_frames += 1
        self._changed_at = asyncio.get_running_loop().time()
        async with self._changed:
            self._changed.notify_all()

    async def _watch_screen(self) -> None:
        while True:
            await self._has_viewers.wait()
            await self._take_frame()
            now = asyncio.get_running_loop().time()
            unread = self._num_frames != self._num_frames_read
            if unread and not self._num_pending and now - self._changed_at > _QUIET_S:
                acted_at = self._acted_at
                self._enqueue(self._session.observe)
                self._acted_at = acted_at  # an observation is no activity
            active = now - max(self._changed_at, self._acted_at) < _ACTIVE_S
            await asyncio.sleep(QUICK_S if active else SLOW_S)

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(_HEALTH_PERIOD_S)
            if not self._num_pending and self._session.phase == "ready":
                await self._worker.submit(self._session.check)
                await self._publish()


def signature(spec: ActionSpec) -> str:
    """`click(target, y=None, button="left")`: how an action is written."""
    parts = []
    for param in spec.params:
        parts.append(param.name if param.default is ... else f"{param.name}={_written(param.default)}")
    return f"{spec.name}({', '.join(parts)})"


def _written(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
