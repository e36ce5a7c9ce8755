"""Open files that a supervisor keeps for a role: what the next incarnation gets, what it does not, and that none is left open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from computerrl.common import descriptor_store
from computerrl.common.descriptor_store import DescriptorKeeper, DescriptorStore, Kept

LIMIT_S = 120.0

INCARNATION = """
import os, signal, subprocess, sys
from computerrl.common import descriptor_store
from computerrl.common.descriptor_store import DescriptorStore, Kept
store = DescriptorStore.of_supervisor()
assert not [name for name in os.environ if "DESCRIPTOR" in name]
kept = store.take("helper")
print(None if kept is None else kept.pid, flush=True)
if kept is None:
    reading, writing = os.pipe()
    helper = subprocess.Popen(["sh", "-c", "read over"], stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True)
    store.put("helper", Kept(helper.pid, (os.pidfd_open(helper.pid), writing)))
    print(helper.pid, flush=True)
else:
    os.write(kept.descriptors[1], b"over\\n")
    store.put("helper", kept)
subprocess.run(["sh", "-c", "ls /proc/self/fd | wc -w"])
sys.stdin.read()
"""


@pytest.fixture
def keeper() -> Iterator[DescriptorKeeper]:
    keeper = DescriptorKeeper()
    yield keeper
    keeper.close()


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def start(keeper: DescriptorKeeper) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INCARNATION],
        env={**os.environ, **keeper.environment()},
        pass_fds=keeper.descriptors(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str], *, by: signal.Signals | None = None) -> None:
    if by is not None:
        process.send_signal(by)
    process.communicate(timeout=LIMIT_S)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_process_outlives_the_incarnation_that_was_killed_and_is_taken_over_by_the_next(keeper: DescriptorKeeper) -> None:
    first = start(keeper)
    assert line(first) == "None"
    helper = int(line(first))
    assert line(first) == "4", "children of a role inherit nothing"
    end(first, by=signal.SIGKILL)
    keeper.receive()
    assert keeper.pids() == {helper}

    second = start(keeper)
    assert int(line(second)) == helper
    assert line(second) == "4"
    end(second)
    keeper.receive()
    wait_until(lambda: not keeper.pids())
    third = start(keeper)
    assert line(third) == "None", "a process that has ended is offered to nobody"
    assert int(line(third)) != helper
    end(third)


def test_process_ends_with_the_role_when_its_descriptors_are_forgotten(keeper: DescriptorKeeper) -> None:
    role = start(keeper)
    line(role)
    helper = int(line(role))
    end(role, by=signal.SIGKILL)
    keeper.receive()
    keeper.forget_all()
    assert keeper.pids() == set() and json.loads(keeper.environment()["COMPUTERRL_KEPT_DESCRIPTORS"]) == {}
    # Its standard input has ended.
    wait_until(lambda: not is_running(helper))


def test_name_put_again_replaces_what_was_kept_and_nothing_stays_open() -> None:
    before = open_files()
    keeper = DescriptorKeeper()
    store = DescriptorStore(os.dup(int(keeper.environment()["COMPUTERRL_DESCRIPTOR_STORE"])), {})
    for _ in range(30):
        pidfd = os.pidfd_open(os.getpid())
        store.put("a", Kept(os.getpid(), (pidfd, 0)))
        store.put("b", Kept(os.getpid(), (pidfd,)))
        os.close(pidfd)
        keeper.receive()
    kept = json.loads(keeper.environment()["COMPUTERRL_KEPT_DESCRIPTORS"])
    assert {name: (pid, len(descriptors)) for name, (pid, descriptors) in kept.items()} == {
        "a": (os.getpid(), 2),
        "b": (os.getpid(), 1),
    }
    keeper.close()
    del store
    assert open_files() == before


def test_process_without_a_supervisor_has_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTERRL_DESCRIPTOR_STORE", raising=False)
    assert DescriptorStore.of_supervisor() is None


def test_supervisor_that_takes_nothing_stops_no_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptor_store, "_SEND_LIMIT_S", 0.01)
    keeper = DescriptorKeeper()
    store = DescriptorStore(os.dup(int(keeper.environment()["COMPUTERRL_DESCRIPTOR_STORE"])), {})
    with structlog.testing.capture_logs() as logs:
        for number in range(2000):
            store.put(str(number), Kept(os.getpid(), (0,)))
            if logs:
                break
    assert [(line["event"], line["name"]) for line in logs] == [("descriptors.not_kept", str(number))]
    keeper.close()
