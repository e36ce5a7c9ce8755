"""An agent that is a program of somebody else's: `actor.agent.kind: program`, `actor.agent.command: [python, agent.py]`.

The command is started for each episode, and finds in its environment where to look and to act:

    COMPUTERRL_DESKTOP_URL, COMPUTERRL_DESKTOP_KEY    GET: the screen. POST {"action": "click(3)"}: the next one
    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL     the run's policy, in a run that trains it

It may be in any language, with any library, and has the rights of the user who started the run. It ends when it has nothing more
to do; what is left of it after its episode is killed.
"""

from __future__ import annotations

import base64
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import IO

from computerrl.actor.agents.base import Answer, Conversation, Sight
from computerrl.actor.agents.desk import Desk
from computerrl.actor.agents.module_agent import answer_of, demonstrate_of, observation_of
from computerrl.actor.agents.policy_endpoint import MODEL, Demonstrate, PolicySession
from computerrl.actor.agents.server import Access, AgentServer
from computerrl.actor.engines.base import Sampler
from computerrl.common import log
from computerrl.common.config import AgentConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.messages import Action, Assignment

END_S = 2.0
"""Time for a program to end by itself after its episode."""
_KEPT_LINES, _KEPT_CHARS = 20, 300
"""Of a program's output, for the log."""
_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Has the kernel kill the program with this process: PR_SET_PDEATHSIG outlives exec."""


class ProgramAgent:
    """See `actor.agents.base.Agent`."""

    def __init__(self, config: AgentConfig, server: AgentServer) -> None:
        """``server`` is closed with the agent. Raises as `check_program` and `demonstrate_of`."""
        check_program(config)
        self._config = config
        self._server = server
        self._demonstrate = demonstrate_of(config)
        # The kernel's signal comes when the thread that started a program ends, so one thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="program-start")
        self._lock = threading.Lock()
        self._running: set[_Program] = set()

    def begin(self, instruction: str, *, assignment: Assignment, engine: Sampler | None) -> Conversation:
        session = None
        if self._server.policy is not None:
            session = PolicySession(engine, assignment, max_calls=self._config.max_calls)
        desk = Desk()
        key = self._server.open(Access(session, desk))
        environment = {"COMPUTERRL_DESKTOP_URL": self._server.desktop_url, "COMPUTERRL_DESKTOP_KEY": key}
        if session is not None:
            environment |= {"OPENAI_BASE_URL": self._server.url, "OPENAI_API_KEY": key, "OPENAI_MODEL": MODEL}
        try:
            program = self._starter.submit(_Program, self._config.command, {**os.environ, **environment}).result()
        except BaseException:
            self._server.end(key)
            raise
        with self._lock:
            self._running.add(program)

        def end() -> None:
            desk.end()
            self._server.end(key)
            threading.Thread(target=self._finish, args=(program,), name="program-end", daemon=True).start()

        return _Episode(
            instruction, desk, program, session, limit_s=self._config.timeout_s, demonstrate=self._demonstrate, end=end
        )

    def _finish(self, program: _Program) -> None:
        program.finish(END_S)
        with self._lock:
            self._running.discard(program)

    def metrics(self) -> dict[str, float]:
        return self._server.metrics()

    def close(self) -> None:
        self._server.close()
        self._starter.shutdown()
        with self._lock:
            running = tuple(self._running)
        for program in running:
            program.finish(0.0)


def check_program(config: AgentConfig) -> None:
    """Raise `ConfigError` for a command that cannot be found."""
    from shutil import which

    name = config.command[0]
    if which(name) is None:
        step = "install it, or give its path; the command is started in the folder of the run's command"
        raise ConfigError([Problem("actor.agent.command", f"there is no program {name!r}", step)])


class _Program:
    """A running program, in a process group of its own. Thread-safe."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), name="program-output", daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        with output, suppress(ValueError):
            while line := output.readline(1 << 16):
                self._lines.append(log.on_one_line(line.decode(errors="replace").rstrip())[:_KEPT_CHARS])

    @property
    def has_ended(self) -> bool:
        with self._lock:
            return self._popen.returncode is not None or bool(select.select([self._pidfd], [], [], 0)[0])

    def finish(self, limit_s: float) -> int:
        """Wait for the end, and kill what is left after ``limit_s``; gives the exit status. May be called again."""
        if self._popen.returncode is None:
            select.select([self._pidfd], [], [], limit_s)
        with self._lock:
            if self._popen.returncode is None:
                # Before the leader is reaped, so that the group's number is still its own.
                with suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.wait()
                os.close(self._pidfd)
        self._reader.join(END_S)
        return self._popen.returncode

    def last_words(self) -> list[str]:
        """The last lines of its output."""
        return list(self._lines)


class _Episode:
    """See `actor.agents.base.Conversation`."""

    def __init__(
        self,
        instruction: str,
        desk: Desk,
        program: _Program,
        session: PolicySession | None,
        *,
        limit_s: float,
        demonstrate: Demonstrate | None,
        end: Callable[[], None],
    ) -> None:
        self._instruction, self._desk, self._program, self._session = instruction, desk, program, session
        self._limit_s, self._demonstrate, self._end = limit_s, demonstrate, end

    def act(self, sight: Sight, *, shown: str = "") -> Answer:
        if self._session is not None:
            self._session.see(sight.observation)
            if shown:
                self._session.demonstrate(self._demonstrate, shown)
        seen = observation_of(sight)
        if sight.screenshot is not None:
            seen["screenshot"] = base64.b64encode(sight.screenshot).decode()
        self._desk.show({"instruction": self._instruction, **seen})
        answer = self._answer()
        if self._session is None:
            return answer
        calls, failure = self._session.take_calls()
        return replace(answer, calls=calls, failure=failure or answer.failure)

    def _answer(self) -> Answer:
        deadline = time.monotonic() + self._limit_s
        said = self._desk.next_action(is_over=lambda: self._program.has_ended or time.monotonic() > deadline)
        if said is not None:
            return answer_of(said)
        if not self._program.has_ended:
            return Answer("", None, failure=f"the program has posted no action within {self._limit_s:g} s")
        status = self._program.finish(0.0)
        if status == 0:
            return Answer("done()", Action("done", {}))
        words = self._program.last_words()
        log.get_logger().warning("agent.failed", exit_status=status, output=words)
        return Answer("", None, failure=f"the program ended with exit status {status}: {''.join(words[-1:])}")

    def close(self) -> None:
        self._end()
