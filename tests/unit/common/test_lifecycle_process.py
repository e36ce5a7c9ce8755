"""Stop token, signals, death with the parent, heartbeat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from computerrl.broker.journal.file import MemoryJournal
from computerrl.broker.service import BrokerService
from computerrl.common.errors import PeerTimeout, Superseded
from computerrl.common.lifecycle import HeartbeatThread, StopToken, new_incarnation
from computerrl.common.messages import Heartbeat, HeartbeatAck, Hello, Message
from computerrl.common.wire.transport import LocalChannel
from tests.support.clock import ManualClock
from tests.support.data.broker_data import core

ROOT = Path(__file__).parents[3]


def test_stop_token_keeps_its_first_reason() -> None:
    stop = StopToken()
    assert not stop.wait(0.0) and not stop.stopped and stop.reason == ""
    stop.stop("first")
    stop.stop("second")
    assert stop.wait(None) and stop.stopped and stop.reason == "first"


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(100)}) == 100


def test_pause_leaves_the_collector_as_it_was_and_does_not_look_again_at_what_was_loaded() -> None:
    code = """
import gc
from computerrl.common.lifecycle import gc_paused

class Loop: pass

for enabled in (True, False):
    gc.enable() if enabled else gc.disable()
    frozen = gc.get_freeze_count()
    try:
        with gc_paused():
            assert not gc.isenabled()
            kept, waste = [[] for _ in range(1000)], Loop()
            waste.itself = waste
            del waste
            with gc_paused():
                pass
            assert not gc.isenabled()
            raise ImportError
    except ImportError:
        pass
    assert gc.isenabled() is enabled
    assert gc.get_freeze_count() >= frozen + 1000
    assert not any(isinstance(thing, Loop) for thing in gc.get_objects())
    gc.unfreeze()
    assert not any(isinstance(thing, Loop) for thing in gc.get_objects())
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stderr == ""


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=ROOT)


def test_signals_set_the_stop_token_of_a_main_thread_that_waits_on_it() -> None:
    code = """
from computerrl.common.lifecycle import StopToken, stop_on_signals
stop = StopToken()
stop_on_signals(stop)
print("ready", flush=True)
stop.wait()
print(stop.reason)
"""
    for number in (signal.SIGINT, signal.SIGTERM):
        with python(code) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.stdout.read() == f"signal {number.name}\n"
        assert process.returncode == 0


def test_child_dies_with_its_parent() -> None:
    code = """
import os, subprocess, sys
child = '''
import os, sys, time
from computerrl.common.lifecycle import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(100)
'''
subprocess.Popen([sys.executable, "-c", child]).wait()
"""
    with python(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()
        os.kill(process.pid, signal.SIGKILL)
        # The pipe ends when the last of both is gone, which is long before the child's sleep is over.
        assert process.stdout.read() == ""


class Recorder:
    """A channel to a broker service that can be replaced; remembers requests and wakes who waits for one."""

    def __init__(self) -> None:
        self.restart()
        self.requests: list[Message] = []
        self.broken = False
        self.condition = threading.Condition()

    def restart(self) -> None:
        self.channel = LocalChannel(BrokerService(core(), MemoryJournal(), clock=ManualClock()))

    def request(self, message: Message, *, timeout_s: float) -> Message:
        with self.condition:
            self.requests.append(message)
            self.condition.notify_all()
        if self.broken:
            raise PeerTimeout("gone")
        answer = self.channel.request(message, timeout_s=timeout_s)
        return replace(answer, period_s=0.01) if isinstance(answer, HeartbeatAck) else answer

    def wait_for(self, kind: type, count: int) -> None:
        def seen() -> bool:
            return sum(isinstance(message, kind) for message in self.requests) >= count

        with self.condition:
            assert self.condition.wait_for(seen, timeout=120)


def beating(recorder: Recorder, **options: object) -> HeartbeatThread:
    metrics: Callable[[], dict[str, float]] = lambda: {"actor/x": 1.0}  # noqa: E731
    defaults: dict[str, object] = {"endpoints": {"desktops": "tcp://x:1"}, "metrics": metrics}
    merged = {**defaults, **options}
    return HeartbeatThread(recorder, role="actor", index=0, incarnation="a", **merged)  # type: ignore[arg-type]


def test_heartbeat_says_hello_and_then_beats() -> None:
    recorder = Recorder()
    with beating(recorder):
        recorder.wait_for(Heartbeat, 3)
    hellos = [message for message in recorder.requests if isinstance(message, Hello)]
    assert len(hellos) == 1 and hellos[0].pid == os.getpid() and hellos[0].endpoints == {"desktops": "tcp://x:1"}


def test_heartbeat_says_hello_again_to_a_restarted_broker() -> None:
    recorder = Recorder()
    with beating(recorder):
        recorder.wait_for(Heartbeat, 1)
        recorder.restart()
        recorder.wait_for(Hello, 2)


def test_heartbeat_survives_a_broker_that_is_away_and_metrics_that_raise() -> None:
    recorder = Recorder()
    calls: list[int] = []

    def metrics() -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("a bug in a meter")
        return {}

    with beating(recorder, metrics=metrics):
        recorder.wait_for(Heartbeat, 2)
        recorder.broken = True
        recorder.wait_for(Hello, 3)
        recorder.broken = False
        recorder.wait_for(Heartbeat, len(recorder.requests) + 1)


def test_heartbeat_of_a_superseded_process_stops_it() -> None:
    recorder = Recorder()
    stop = StopToken()
    with beating(recorder, stop=stop):
        recorder.wait_for(Heartbeat, 1)
        recorder.channel.request(Hello("actor", 0, "newer", "node", 1, {}), timeout_s=1)
        assert stop.wait(30)
    assert "newer" in stop.reason
    try:
        recorder.channel.request(Hello("actor", 0, "a", "node", 1, {}), timeout_s=1)
    except Superseded:
        return
    raise AssertionError("the old one was let in again")
