"""DevTools over a pipe: starting a Chromium whose descriptors 3 and 4 lead here, and calling it. No port, so nobody else can."""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..processes import Program


class ChromiumGone(RuntimeError):
    """The browser does not answer or is dead."""


class CommandRefused(ChromiumGone):
    """The browser answered that it cannot do this."""


class DevTools:
    """The pipe to one browser."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._to = self._from = -1
        self._next_id = 0
        self._received = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._sessions: dict[str, str] = {}
        """Target of every watched page -> the session with it, empty before it was asked the first time."""
        self._silent: dict[str, int] = {}
        """Sessions with pages that have not answered yet -> the number of what they were asked."""
        self._untold: set[int] = set()
        """Numbers of commands whose answers nobody waits for."""
        self._paused: list[dict[str, Any]] = []
        """Requests of pages that wait for an answer, as ``Fetch.requestPaused`` describes them."""
        self.on_paused: Callable[[], object] | None = None
        """Called after messages have come while requests wait; it takes them with `take_paused`, and may not wait for answers."""

    def fileno(self) -> int:
        """For poll."""
        return self._from

    def start(self) -> None:
        """Start the browser, the old one's end included."""
        self.close()
        self._program.kill()
        read_commands, self._to = os.pipe()
        self._from, write_answers = os.pipe()
        try:
            self._start_with_pipe(read_commands, write_answers)
        finally:
            os.close(read_commands)
            os.close(write_answers)
        os.set_blocking(self._from, False)
        self._received = b""
        for known in (self._answers, self._sessions, self._silent, self._untold, self._paused):
            known.clear()

    def close(self) -> None:
        """Forget the pipe of a browser that is gone."""
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1

    def pages(self, *, deadline: float) -> list[dict[str, Any]]:
        """Open pages as DevTools describes them. Raises `ChromiumGone`."""
        targets = self.call("Target.getTargets", deadline=deadline)["targetInfos"]
        return [target for target in targets if target["type"] == "page"]

    def wait_for_page(self, *, deadline: float) -> dict[str, Any]:
        """The first page of a browser that was just started. Raises `ChromiumGone`."""
        while True:
            pages = self.pages(deadline=deadline)
            if pages:
                return pages[0]
            if time.monotonic() > deadline:
                raise ChromiumGone("no page in time")
            select.select([self._from], [], [], 0.05)

    def close_page(self, target: str, *, deadline: float) -> None:
        """Close a page; one that is gone already is closed. Raises `ChromiumGone`."""
        try:
            self.call("Target.closeTarget", {"targetId": target}, deadline=deadline)
        except CommandRefused:
            # A close is answered before the page is gone: a second one can be for a page that the list still had.
            if any(page["targetId"] == target for page in self.pages(deadline=deadline)):
                raise

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline: float, session: str | None = None
    ) -> dict[str, Any]:
        """One command; its result. Raises `ChromiumGone`, as `CommandRefused` where the browser said no."""
        request = self.send(method, params or {}, session=session)
        while request not in self._answers:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._from], [], [], remaining)[0]:
                raise ChromiumGone(f"{method} was not answered in time")
            self._pump()
        answer = self._answers.pop(request)
        if "error" in answer:
            raise CommandRefused(f"{method}: {answer['error'].get('message')}")
        return dict(answer["result"])

    def send(self, method: str, params: Mapping[str, Any], *, session: str | None = None) -> int:
        """One command, not waited for; its number for `has_answered`."""
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise ChromiumGone(f"DevTools pipe: {error}") from error
        return self._next_id

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """One command whose answer, if there is any, means nothing. Raises `ChromiumGone`."""
        self._untold.add(self.send(method, params))

    def take_paused(self) -> list[dict[str, Any]]:
        """The requests that wait now, which is the caller's to answer."""
        taken, self._paused = self._paused, []
        return taken

    def take_messages(self) -> None:
        """Take what has come, without waiting. Raises `ChromiumGone`."""
        self._pump()

    def answer(self, request: int) -> dict[str, Any] | None:
        """The answer to the command of this number, once; None: there is none yet."""
        self._pump()
        return self._answers.pop(request, None)

    def watch_pages(self, *, deadline: float) -> None:
        """Be told of every page, present and future. Raises `ChromiumGone`."""
        self.call("Target.setDiscoverTargets", {"discover": True}, deadline=deadline)

    def ask_pages(self, expression: str, *, deadline: float) -> dict[str, int]:
        """Ask every watched page; gives what `answers_of` takes. Raises `ChromiumGone`.

        A page that has not answered the last time is left alone until it has: its script may never end.
        """
        self._pump()
        self._silent = {session: sent for session, sent in self._silent.items() if self._answers.pop(sent, None) is None}
        params = {"expression": expression, "returnByValue": True}
        # Attached to at its beginning, a window that a page opens would have another title.
        for target in [target for target, session in self._sessions.items() if not session]:
            how = {"targetId": target, "flatten": True}
            self._sessions[target] = self.call("Target.attachToTarget", how, deadline=deadline)["sessionId"]
        left = self._sessions.values() - self._silent.keys()
        asked = {session: self.send("Runtime.evaluate", params, session=session) for session in left}
        self._silent |= asked
        return asked

    def answers_of(self, asked: Mapping[str, int], *, deadline: float) -> list[Any]:
        """What each of these pages that answers in time says. Raises `ChromiumGone`."""
        self._pump()
        # A page that has closed meanwhile is in neither.
        while (remaining := deadline - time.monotonic()) > 0 and asked.keys() & self._silent.keys() - self._answered(asked):
            if select.select([self._from], [], [], remaining)[0]:
                self._pump()
        done = self._answered(asked)
        for session in done:
            self._silent.pop(session, None)
        return [value_of(self._answers.pop(asked[session])) for session in done]

    def _answered(self, asked: Mapping[str, int]) -> set[str]:
        return {session for session, request in asked.items() if request in self._answers}

    def _start_with_pipe(self, read_commands: int, write_answers: int) -> None:
        # DevTools wants exactly the descriptors 3 and 4. Moved high first, so that neither overwrites the other.
        high_in = fcntl.fcntl(read_commands, fcntl.F_DUPFD_CLOEXEC, 100)
        high_out = fcntl.fcntl(write_answers, fcntl.F_DUPFD_CLOEXEC, 100)
        saved = [(fd, _duplicate(fd)) for fd in (3, 4)]
        try:
            os.dup2(high_in, 3, inheritable=True)
            os.dup2(high_out, 4, inheritable=True)
            self._program.start(pass_fds=(3, 4))
        finally:
            for fd, copy in saved:
                if copy is None:
                    os.close(fd)
                else:
                    os.dup2(copy, fd, inheritable=False)
                    os.close(copy)
            os.close(high_in)
            os.close(high_out)

    def _pump(self) -> None:
        while True:
            try:
                chunk = os.read(self._from, 1 << 18)
            except BlockingIOError:
                break
            except OSError as error:
                raise ChromiumGone(f"DevTools pipe: {error}") from error
            if not chunk:
                raise ChromiumGone(f"the browser closed its pipe: {self._program.log_tail()}")
            self._received += chunk
        *messages, self._received = self._received.split(b"\0")
        for raw in messages:
            message = json.loads(raw)
            if "id" in message:
                if message["id"] in self._untold:
                    self._untold.remove(message["id"])
                else:
                    self._answers[message["id"]] = message
            elif message["method"] == "Target.targetCreated" and message["params"]["targetInfo"]["type"] == "page":
                self._sessions[message["params"]["targetInfo"]["targetId"]] = ""
            elif message["method"] == "Target.targetDestroyed":
                self._silent.pop(self._sessions.pop(message["params"]["targetId"], ""), None)
            elif message["method"] == "Fetch.requestPaused":
                self._paused.append(message["params"])
        if self._paused and self.on_paused is not None:
            self.on_paused()


def value_of(answer: dict[str, Any]) -> Any:
    """What an expression gave, by the answer to ``Runtime.evaluate``; None where it failed."""
    return answer.get("result", {}).get("result", {}).get("value")


def _duplicate(fd: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
    except OSError:
        return None
