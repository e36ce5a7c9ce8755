"""The host's side of a real desktop: starts a guest through a launcher, sends it requests, reads its screen.

How the guest is contained is the launcher's business (`env_server.drivers.apptainer`, `env_server.drivers.local`). Requests
travel over an anonymous socket pair; pictures are read straight out of Xvfb's frame buffer, whose open file the guest hands over.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from computerrl.common import lifecycle
from computerrl.common.actions.targets import find_target
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken, HostBroken, TaskFailed
from computerrl.common.messages import Action, Element, Observation, ScreenshotRef, StepResult
from computerrl.env_server.driver import GetterKind, TaskInstance
from computerrl.env_server.drivers import guest_answers
from computerrl.env_server.drivers.containment import Findings
from computerrl.env_server.drivers.guest_answers import GuestAnswer
from computerrl.env_server.drivers.guest_log import GuestLog
from computerrl.env_server.drivers.observation import Numbering, TreeNode, linearise
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.guest.wire import MAX_FRAME_BYTES, MAX_OBSERVATION_BYTES, Wire, WireClosed, WireTimeout
from computerrl.env_server.image.apptainer_install import clean_environment

START_LIMIT_S = 120.0
"""Until all applications of a desktop can be used; many desktops may start at once on few cores."""
STARTING_NICE = 2
"""Of a desktop among all that computes, until it is ready."""
_HEALTH_LIMIT_S = 0.9
_GRACE_S = 1.0
"""The guest's own deadlines end this much before the host gives it up."""
_END_LIMIT_S = 2.0
_LOG_LIMIT_S = 0.5
"""For the last words of a start that failed."""
_TARGETS = frozenset({"click", "double_click", "triple_click", "hover", "scroll"})
_MAX_DRAG_POINTS = 100


class Launcher(Protocol):
    """Starts a guest process."""

    def command(self, settings: dict[str, Any]) -> Sequence[str]:
        """The command line. Its standard input is the life line (ends when the host does), its output the guest's connection."""

    def explain(self, log: str) -> str:
        """What a failed start's output means and what to do; empty when unknown."""

    def differences(self, found: Findings) -> Sequence[str]:
        """What a guest found around itself and should not have."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The guest's answer to a request that observes."""

    observation: Observation
    action_error: str
    finished: bool


class GuestDriver:
    """One real desktop; see `env_server.driver.DesktopDriver`. One call at a time; `healthy` and `close` from any thread."""

    def __init__(
        self, launcher: Launcher, config: DesktopConfig, *, index: int, folder: Path, screenshots: ScreenshotStore | None
    ) -> None:
        self._config = config
        self._index = index
        self._screenshots = screenshots if config.observation != "tree" else None
        self._numbering = Numbering()
        self._elements: tuple[Element, ...] = ()
        """Of the last observation: what targets refer to."""
        self._tree = 0
        """The guest's number of the tree they come from; 0: none."""
        self._picture: tuple[int, ScreenshotRef] | None = None
        """The guest's count of changes on screen, and the picture taken at it."""
        self._lock = threading.Lock()
        self._closed = False
        self._screen: BinaryIO | None = None
        self._folder = folder
        self._life_line: int | None = None
        self._wire: Wire | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(launcher)
        except BaseException:
            self.close()
            raise

    def _start(self, launcher: Launcher) -> None:
        settings = {
            "width": self._config.screen_width,
            "height": self._config.screen_height,
            "apps": list(self._config.apps),
            "max_processes": self._config.max_processes,
            "settle_quiet_s": self._config.settle_quiet_s,
            "settle_deadline_s": self._config.settle_deadline_s,
            "start_deadline_s": START_LIMIT_S - _GRACE_S,
        }
        ours, theirs = socket.socketpair()
        life_line, self._life_line = os.pipe()
        command = launcher.command(settings)
        self._log = GuestLog(self._folder, self._index)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=life_line,
                stdout=theirs.fileno(),
                stderr=self._log.writer,
                start_new_session=True,
                cwd="/",
                env=clean_environment(),
            )
        except OSError as error:
            raise HostBroken(f"cannot start {command[0]!r}: {error}") from error
        finally:
            theirs.close()
            os.close(life_line)
            self._log.begin()
        # Desktops that are being used, generation and training go first.
        lifecycle.set_session_nice(self._process.pid, STARTING_NICE)
        self._wire = Wire(ours)
        try:
            answer = guest_answers.decode(self._receive(START_LIMIT_S, MAX_OBSERVATION_BYTES), index=self._index)
        except (WireClosed, WireTimeout) as error:
            raise self._start_failure(launcher, str(error)) from error
        if not answer.ready:
            raise self._start_failure(launcher, answer.message)
        found = guest_answers.findings_of(answer.found, index=self._index)
        wrong = launcher.differences(found)
        if wrong:
            raise HostBroken(f"the desktop is not cut off from this host as it should be: {'; '.join(wrong)}")
        lifecycle.set_session_nice(self._process.pid, 0)
        self._take_screen()

    def _start_failure(self, launcher: Launcher, reason: str) -> DesktopBroken | HostBroken:
        tail = self._log.tail(wait_s=_LOG_LIMIT_S)[-3000:]
        explained = launcher.explain(tail)
        if explained:
            return HostBroken(explained)
        last = " | ".join(tail.strip().splitlines()[-4:])
        return DesktopBroken(f"desktop {self._index} did not start: {reason}; {last} (log: {self._log.path})")

    @property
    def pid(self) -> int | None:
        """The outermost process of the desktop; all others are below it."""
        return self._process.pid if self._process else None

    # --- DesktopDriver ---

    def reset(self, task: TaskInstance) -> tuple[str, Observation]:
        """See `DesktopDriver`."""
        setup = [{"kind": step.kind, "args": step.args} for step in task.setup]
        self._numbering, self._elements, self._tree = Numbering(), (), 0
        answer = self._observe({"request": "reset", "setup": setup}, self._config.reset_deadline_s)
        if task.prepare is not None:
            task.prepare(self.get)
            answer = self._observe({"request": "observe", "settle": True}, self._config.step_deadline_s)
        instruction = task.instruction
        if instruction is None:
            instruction = str(self.get("web_page")["fields"]["utterance"])
        return instruction, answer.observation

    def step(self, action: Action) -> StepResult:
        """See `DesktopDriver`."""
        try:
            args = self._resolved(action)
        except LookupError as error:
            answer = self._observe({"request": "observe"}, self._config.step_deadline_s)
            return StepResult(observation=answer.observation, action_error=str(error.args[0]), finished=answer.finished)
        request = {"request": "step", "action": action.name, "args": args}
        answer = self._observe(request, self._config.step_deadline_s)
        return StepResult(observation=answer.observation, action_error=answer.action_error, finished=answer.finished)

    def observe(self) -> Observation:
        """See `DesktopDriver`."""
        return self._observe({"request": "observe"}, self._config.step_deadline_s).observation

    def get(self, kind: GetterKind, **args: Any) -> Any:
        """See `DesktopDriver`."""
        # A call of a task file may start a program, as a reset does, or be a command that says itself how long it may take.
        limit_s = self._config.reset_deadline_s if kind == "osworld" else self._config.step_deadline_s
        limit_s += float(args.get("timeout_s", 0.0))
        answer = self._ask({"request": "get", "kind": kind, "args": args}, limit_s)
        return guest_answers.value_of(answer.value, index=self._index)

    def healthy(self) -> bool:
        """See `DesktopDriver`. A desktop busy with a call within its deadline counts as healthy."""
        if self._closed or self._process is None or self._process.poll() is not None:
            return False
        if not self._lock.acquire(timeout=_HEALTH_LIMIT_S / 3):
            return True
        try:
            return not self._exchange({"request": "ping"}, _HEALTH_LIMIT_S / 2).error
        except DesktopBroken:
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """See `DesktopDriver`."""
        self._closed = True
        if self._life_line is not None:
            os.close(self._life_line)
            self._life_line = None
        process = self._process
        if process is not None:
            try:
                process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._wire is not None:
            self._wire.close()

    # --- requests ---

    def _observe(self, request: dict[str, Any], limit_s: float) -> _Answer:
        request |= {"with_tree": self._config.observation != "screenshot", "known_tree": self._tree}
        answer = self._ask(request, limit_s)
        if answer.picture is None:
            raise DesktopBroken(f"desktop {self._index} sent no observation")
        if answer.nodes is not None:
            self._elements = self._linearise(guest_answers.tree_of(answer.nodes, index=self._index), answer.app)
        self._tree = answer.tree
        observation = self._observation(answer, self._elements, num_changes=answer.picture)
        return _Answer(observation, answer.action_error, answer.finished)

    def _linearise(self, nodes: Sequence[TreeNode], app: str) -> tuple[Element, ...]:
        return linearise(
            nodes,
            app=app,
            width=self._config.screen_width,
            height=self._config.screen_height,
            max_elements=self._config.max_elements,
            numbering=self._numbering,
        )

    def _observation(self, answer: GuestAnswer, elements: tuple[Element, ...], *, num_changes: int) -> Observation:
        return Observation(
            app=answer.app,
            window_title=answer.title,
            elements=elements,
            screenshot=self._take_screenshot(num_changes),
            screen_width=self._config.screen_width,
            screen_height=self._config.screen_height,
            settled_by=answer.settled_by,
            settle_s=answer.settle_s,
            tree_age_s=answer.tree_age_s,
            result=answer.result,
        )

    def _ask(self, request: dict[str, Any], limit_s: float) -> GuestAnswer:
        with self._lock:
            answer = self._exchange(request, limit_s)
        if answer.error == "task":
            raise TaskFailed(answer.message)
        if answer.error:
            raise DesktopBroken(f"desktop {self._index}: {answer.message}")
        return answer

    def _exchange(self, request: dict[str, Any], limit_s: float) -> GuestAnswer:
        if self._closed or self._wire is None:
            raise DesktopBroken(f"desktop {self._index} is closed")
        max_bytes = MAX_FRAME_BYTES if request["request"] == "get" else MAX_OBSERVATION_BYTES
        try:
            self._wire.send({**request, "limit_s": max(0.1, limit_s - _GRACE_S)}, timeout_s=limit_s)
            return guest_answers.decode(self._receive(limit_s, max_bytes), index=self._index)
        except (WireClosed, WireTimeout) as error:
            # After a time-out the late answer would be taken for the next request's: the connection is of no use any more.
            self._wire.close()
            raise DesktopBroken(f"desktop {self._index} did not answer {request['request']}: {error}") from error

    def _receive(self, limit_s: float, max_bytes: int) -> bytes:
        assert self._wire is not None
        return self._wire.receive_frame(timeout_s=limit_s, max_bytes=max_bytes)

    def _resolved(self, action: Action) -> dict[str, Any]:
        """The action's arguments with elements turned into pixels; `LookupError` with a message for the agent."""
        args = dict(action.args)
        if action.name in _TARGETS:
            y = args.pop("y", None)
            target = args.pop("target")
            args["x"], args["y"] = self._place_or_pixel(target, y)
            args.setdefault("button", "left")
        elif action.name == "drag":
            args["x"], args["y"] = self._place(args.pop("source"))
            args["to_x"], args["to_y"] = self._place(args.pop("target"))
        elif action.name == "drag_pixels":
            args["path"] = self._drag_path(args["path"])
        elif action.name == "type":
            args.setdefault("enter", False)
            args.setdefault("overwrite", False)
            y, target = args.pop("y", None), args.pop("target", None)
            # Where to click first; None: type where the focus is.
            args["x"], args["y"] = (None, None) if target is None else self._place_or_pixel(target, y)
        return args

    def _place_or_pixel(self, target: int | str, y: int | None) -> tuple[int, int]:
        return self._place(target) if y is None else self._pixel(target, y)

    def _place(self, target: int | str) -> tuple[int, int]:
        element = find_target(self._elements, target)
        return element.x, element.y

    def _drag_path(self, path: list[int]) -> list[int]:
        if len(path) % 2 or not 4 <= len(path) <= 2 * _MAX_DRAG_POINTS:
            raise LookupError(f"a path is x, y, x, y, ...: 2 to {_MAX_DRAG_POINTS} pixels, not {len(path)} numbers")
        for x, y in zip(path[::2], path[1::2], strict=True):
            self._pixel(x, y)
        return path

    def _pixel(self, x: int | str, y: int) -> tuple[int, int]:
        if isinstance(x, str):
            raise LookupError(f"{x!r:.80} is no pixel column: give x and y as numbers, or the text alone")
        if not (0 <= x < self._config.screen_width and 0 <= y < self._config.screen_height):
            raise LookupError(f"({x}, {y}) is not on the screen")
        return x, y

    # --- the screen ---

    def _take_screen(self) -> None:
        """Keep the open file of the frame buffer. It is the guest's: it is read, never mapped, and may be shorter at any time."""
        assert self._wire is not None
        try:
            self._wire.send({"request": "screen"})
            descriptor = self._wire.receive_descriptor(timeout_s=self._config.step_deadline_s)
        except (WireClosed, WireTimeout) as error:
            raise DesktopBroken(f"desktop {self._index} did not hand over its screen: {error}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DesktopBroken(f"desktop {self._index} handed over no frame buffer")
        self._screen = os.fdopen(descriptor, "rb", buffering=0)
        header = struct.unpack(">25I", self._read_screen(100, offset=0))
        num_header_bytes, num_colors, width, height, bits = header[0], header[19], header[4], header[5], header[11]
        if bits != 32 or (width, height) != (self._config.screen_width, self._config.screen_height):
            raise DesktopBroken(f"desktop {self._index}: a frame buffer of {width}x{height} with {bits} bits per pixel")
        self._first_pixel = num_header_bytes + num_colors * 12
        self._pixels()

    def _read_screen(self, num_bytes: int, *, offset: int) -> bytes:
        assert self._screen is not None
        try:
            data = os.pread(self._screen.fileno(), num_bytes, offset)
        except OSError as error:
            raise DesktopBroken(f"desktop {self._index}: its frame buffer cannot be read: {error}") from error
        if len(data) < num_bytes:
            raise DesktopBroken(f"desktop {self._index}: its frame buffer was cut")
        return data

    def _pixels(self) -> np.ndarray:
        """[height, width, 4] uint8, a copy: blue, green, red, and a byte that may be anything."""
        width, height = self._config.screen_width, self._config.screen_height
        data = self._read_screen(width * height * 4, offset=self._first_pixel)
        return np.frombuffer(data, dtype=np.uint8).reshape(height, width, 4)

    def frame(self) -> np.ndarray:
        """See `LiveScreen`. After `close` it shows what was there last."""
        screen = self._pixels()
        pixels = np.empty((*screen.shape[:2], 3), np.uint8)
        # One channel at a time takes a third of the time of turning each pixel around.
        for channel in range(3):
            pixels[:, :, channel] = screen[:, :, 2 - channel]
        return pixels

    def _take_screenshot(self, num_changes: int) -> ScreenshotRef | None:
        if self._screenshots is None:
            return None
        # The count was read before the pixels: they may be newer than it, never older.
        if self._picture is None or self._picture[0] != num_changes:
            pixels = (self._pixels().view("<u4") & 0xFFFFFF).view(np.uint8)
            self._picture = (num_changes, self._screenshots.put(pixels))
        return self._picture[1]
