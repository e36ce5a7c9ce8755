"""Process plumbing: stop token, signals, death with the parent, incarnations, heartbeat.

Decides nothing about the run: who is restarted is the supervisor's business, who counts as dead the broker's.
"""

from __future__ import annotations

import ctypes
import gc
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from computerrl.common import log
from computerrl.common.errors import ComputerRLError, Superseded, UnknownPeer
from computerrl.common.messages import Heartbeat, HeartbeatAck, Hello, Role
from computerrl.common.wire.channel import Channel

_PR_SET_PDEATHSIG = 1

SUPERVISOR_VARIABLE = "COMPUTERRL_SUPERVISOR_PID"
"""Environment variable with the pid of this process's supervisor. A role whose parent is another process was orphaned before it
could ask to die with its parent."""


class StopToken:
    """Set once, seen by all threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""

    def stop(self, reason: str) -> None:
        """Ask everything to end; the first reason stays."""
        if not self._event.is_set():
            self._reason = reason
        self._event.set()

    @property
    def stopped(self) -> bool:
        return self._event.is_set()

    @property
    def reason(self) -> str:
        """Why, empty while not stopped."""
        return self._reason

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the stop; True when it came."""
        return self._event.wait(timeout_s)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Signals by which a person, a system or a lost terminal ends a command. SIGHUP is none of them for one that was started with
    it ignored, as `nohup` does; SIGINT, which shells ignore for what a script starts with `&`, always is."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if is_nohup else (signal.SIGHUP,)))


def stop_on_signals(stop: StopToken) -> None:
    """SIGINT and SIGTERM set ``stop``; one that is ignored when the process starts stays so. Call once, from the main thread.

    The handler only writes to a pipe: setting an event inside a signal handler can deadlock with a main thread that is just
    about to wait on it.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def watch() -> None:
        while number := os.read(reader, 1):
            stop.stop(f"signal {signal.Signals(number[0]).name}")

    threading.Thread(target=watch, name="signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _frame: os.write(writer, bytes([received])) and None)


def die_with_parent(number: signal.Signals | None = None) -> None:
    """Have the kernel send ``number`` to this process when the thread that started it ends; None: SIGTERM, or SIGINT where that
    is ignored.

    Start such processes from a thread that lives as long as the supervisor: its main thread.
    """
    if number is None:
        number = signal.SIGINT if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN else signal.SIGTERM
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


@contextmanager
def gc_paused() -> Iterator[None]:
    """While libraries are imported and models are made, hardly anything is garbage, and to look through it all again and again is
    a fifth of a learner's start. So that is left until the end, and what there is then is not looked through any more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        if was_enabled:
            gc.enable()


_AUTOGROUP_PERIOD_S = 0.11
"""Users other than root may set one autogroup's niceness in a tenth of a second, all together."""


def set_session_nice(pid: int, nice: int) -> None:
    """Set the niceness of the session of ``pid`` among sessions; unlike a process's own, its user may take it back.

    Where the kernel groups processes by session, as on most desktop systems, sessions share a core evenly however nice their
    processes are (autogroups, sched(7)). Elsewhere there is nothing to set, and nothing happens; so for processes that ended and
    for those of the kernel's first session.
    """
    for _ in range(10):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
        except BlockingIOError:
            time.sleep(_AUTOGROUP_PERIOD_S)
        except OSError:
            return
        else:
            return


def new_incarnation() -> str:
    """Identifies one start of a process."""
    return f"{int(time.time()):x}-{secrets.token_hex(4)}"


CLOSE_LIMIT_S = 0.2
"""Maximum wait for the heartbeat thread at the end. A heartbeat takes a millisecond; a stopping process has three seconds in all
and must not wait for a dead broker."""


_FIRST_PERIOD_S = 1.0
"""Period of the heartbeat until the broker sets another one."""


class HeartbeatThread:
    """Sends `Hello`, then heartbeats with the period that the broker sets, from its own thread. Never raises.

    It sends `Hello` again when the broker does not know this process, because the broker restarted. The thread starts at once;
    end it with `close`, or use it in `with`.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        role: Role,
        index: int,
        incarnation: str,
        endpoints: dict[str, str] | None = None,
        metrics: Callable[[], dict[str, float]] = dict,
        note: Callable[[], str] = str,
        stop: StopToken | None = None,
    ) -> None:
        """``metrics`` and ``note`` are called in the heartbeat's thread. ``stop`` is set when a newer process has replaced
        this one."""
        self._channel = channel
        self._hello = Hello(role, index, incarnation, socket.gethostname(), os.getpid(), dict(endpoints or {}))
        self._metrics = metrics
        self._note = note
        self._stop = stop
        self._period_s = _FIRST_PERIOD_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. A thread that waits for a dead broker is left behind and ends when its channel is closed."""
        self._ended.set()
        self._thread.join(timeout=CLOSE_LIMIT_S)

    def __enter__(self) -> HeartbeatThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        known = False
        while not self._ended.is_set():
            try:
                known = self._beat(known)
            except Superseded as error:
                log.get_logger().error("peer.superseded", reason=str(error))
                if self._stop is not None:
                    self._stop.stop("superseded by a newer process")
                return
            except ComputerRLError as error:
                if self._ended.is_set():
                    return
                # A broker that comes back needs to hear from all processes soon.
                known, self._period_s = False, _FIRST_PERIOD_S
                log.get_logger().warning("heartbeat.failed", error=error.code, reason=str(error))
            except Exception:  # noqa: BLE001
                # Thread boundary: a metrics callback that raises must not make this process look dead.
                log.get_logger().exception("heartbeat.failed", error="internal")
            self._ended.wait(self._period_s)

    def _beat(self, known: bool) -> bool:
        if not known:
            self._channel.request(self._hello, timeout_s=10.0)
        hello = self._hello
        heartbeat = Heartbeat(hello.role, hello.index, hello.incarnation, self._metrics(), self._note())
        try:
            reply = self._channel.request(heartbeat, timeout_s=10.0)
        except UnknownPeer:
            self._period_s = _FIRST_PERIOD_S
            return False
        if isinstance(reply, HeartbeatAck):
            self._period_s = reply.period_s
        return True
