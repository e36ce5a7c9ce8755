"""The supervisor with processes that misbehave on purpose: whatever dies and however, nothing may be left."""

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

from computerrl.launch.supervision import processes

ROOT = Path(__file__).resolve().parents[3]

FAKES = {
    "good": "import signal; signal.pause()",
    "exits": "raise SystemExit(7)",
    "config_error": """
import json, os
open(os.environ['COMPUTERRL_ERROR_FILE'], 'w').write(json.dumps({'exit_code': 2, 'message': 'learner.lr: is silly'}))
raise SystemExit(2)""",
    "stubborn": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()",
    "forks": """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # like a container: another environment, another session, nobody waits for it
        os.execve('/bin/sleep', ['sleep', '1000.25'], {})
    os._exit(0)
signal.pause()""",
    "shares": """
import mmap, os, signal
path = '/dev/shm/computerrl-test-%d' % os.getpid()
fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600); os.ftruncate(fd, 4096); memory = mmap.mmap(fd, 4096)
signal.pause()""",
    "finishes": "import time; time.sleep(0.5)",
    "keeps": """
import os, signal, subprocess
from computerrl.common.descriptor_store import DescriptorStore, Kept
store = DescriptorStore.of_supervisor()
kept = store.take('helper')
if kept is None:
    reading, writing = os.pipe()
    # As a desktop: another environment, another session, and it ends with its standard input.
    helper = subprocess.Popen(['sh', '-c', 'read over'], stdin=reading, env={}, start_new_session=True)
    os.close(reading)
    kept = Kept(helper.pid, (os.pidfd_open(helper.pid), writing))
store.put('helper', kept)
with open('%s', 'a') as file:
    print(kept.pid, file=file)
signal.pause()""",
}

SUPERVISE = """
import json, sys
from pathlib import Path
from computerrl.common.config import SupervisorConfig
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.supervisor import Supervisor
folder, fakes = Path(sys.argv[1]), json.loads(sys.argv[2])
roles = ['broker', 'env_server', 'actor', 'learner']
specs = [ProcessSpec(role=role, index=0, argv=(sys.executable, '-c', code), ends_run=role == 'learner',
                     keeps_descriptors=role == 'env_server') for role, code in zip(roles, fakes)]
config = SupervisorConfig(backoff_s=0.05, max_restarts=9 if 'helper' in ''.join(fakes) else 2, stop_s=1.0)
supervisor = Supervisor(specs, config=config, log_folder=folder, notify=lambda line: print(line, flush=True))
def tick():
    rows = [[view.name, view.state, view.pid, view.num_restarts] for view in supervisor.views()]
    (folder / 'views.tmp').write_text(json.dumps(rows))
    (folder / 'views.tmp').rename(folder / 'views.json')
outcome = supervisor.run(tick=tick, tick_s=0.05)
print(json.dumps([outcome.kind, outcome.reason, outcome.exit_code, outcome.message]), flush=True)
"""


class Run:
    """One supervisor in a process of its own."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        codes = json.dumps([FAKES[name].replace("%s", str(folder / "helpers")) for name in names])
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(folder), codes],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen: set[int] = set()

    def views(self) -> dict[str, tuple[str, int | None, int]]:
        try:
            rows = json.loads((self.folder / "views.json").read_text())
        except FileNotFoundError:
            return {}
        return {name: (state, pid, num_restarts) for name, state, pid, num_restarts in rows}

    def wait_until(self, condition: Callable[[], bool], *, limit_s: float = 120.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"did not happen: {self.views()}"
            self.seen |= processes.descendants([self.process.pid])
            time.sleep(0.1)
        self.seen |= processes.descendants([self.process.pid])

    def wait_running(self, num_descendants: int) -> None:
        """Until that many processes run below the supervisor (the guardian is one of them) and it has said so."""

        def are_running() -> bool:
            states = [state for state, _, _ in self.views().values()]
            return states == ["running"] * 4 and len(processes.descendants([self.process.pid])) == num_descendants

        self.wait_until(are_running)

    def wait_adopted(self) -> None:
        """Until the supervisor has adopted the process that ``forks`` set free, and has looked at it: two whole rounds later."""
        command = b"sleep\x001000.25\x00"
        children = processes.children_of
        self.wait_until(lambda: any(_command_line(pid) == command for pid in children(self.process.pid)))
        for _ in range(2):
            before = (self.folder / "views.json").stat().st_mtime_ns
            self.wait_until(lambda before=before: (self.folder / "views.json").stat().st_mtime_ns != before)  # type: ignore[misc]

    def end(self, *, limit_s: float = 120.0) -> tuple[list[str | int], str]:
        output, _ = self.process.communicate(timeout=limit_s)
        lines = output.splitlines()
        return json.loads(lines[-1]), "\n".join(lines[:-1])

    def left(self) -> set[int]:
        return self.seen & processes.parents().keys()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _ignores_sigterm(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")), 0)
    return bool(mask >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*names: str) -> Run:
        runs.append(Run(tmp_path, *names))
        return runs[-1]

    yield begin
    for run in runs:
        processes.kill_all(run.left() | ({run.process.pid} if run.process.poll() is None else set()))
        run.process.wait()
        assert run.process.stdout is not None
        run.process.stdout.close()


def test_stop_signal_to_wellbehaved_processes_need_no_kill_and_leave_nothing(start: Callable[..., Run]) -> None:
    run = start("good", "good", "good", "good")
    run.wait_running(5)
    run.process.send_signal(signal.SIGINT)
    (kind, reason, exit_code, _), notes = run.end()
    assert (kind, exit_code) == ("stopped", 130)
    assert "SIGINT" in str(reason)
    assert "did not end" not in notes
    assert not run.left()


def test_stop_signal_with_stubborn_and_forking_processes_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start("good", "forks", "stubborn", "shares")
    run.wait_running(6)
    run.wait_until(lambda: any(Path("/dev/shm").glob("computerrl-test-*")))
    run.wait_adopted()
    # The guardian, the stubborn one and what the forking one set free: a signal before that finds nobody stubborn.
    run.wait_until(lambda: sum(_ignores_sigterm(pid) for pid in processes.descendants([run.process.pid])) == 3)
    run.process.send_signal(signal.SIGTERM)
    (kind, _, exit_code, _), notes = run.end()
    assert (kind, exit_code) == ("stopped", 143)
    assert "actor-0 did not end" in notes
    assert not run.left()
    assert not list(Path("/dev/shm").glob("computerrl-test-*"))


def test_sigkill_of_supervisor_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start("good", "forks", "stubborn", "shares")
    run.wait_running(6)
    run.wait_until(lambda: any(Path("/dev/shm").glob("computerrl-test-*")))
    run.wait_adopted()
    os.kill(run.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60.0
    while run.left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not run.left()
    assert not list(Path("/dev/shm").glob("computerrl-test-*"))


def test_sigkill_of_a_process_is_repaired_and_its_grandchildren_end(start: Callable[..., Run]) -> None:
    run = start("good", "forks", "good", "good")
    run.wait_running(6)
    run.wait_adopted()
    first = run.views()["env_server-0"][1]
    assert first is not None
    before = processes.descendants([run.process.pid])
    others = {pid for name, (_, pid, _) in run.views().items() if name != "env_server-0"}
    os.kill(first, signal.SIGKILL)
    run.wait_until(lambda: run.views()["env_server-0"][0] == "running" and run.views()["env_server-0"][2] == 1)
    run.wait_running(6)
    now = processes.descendants([run.process.pid])
    assert others <= now, "the others were left alone"
    assert len(before - now) == 2, "the killed one and its grandchild are gone"
    run.process.send_signal(signal.SIGTERM)
    (kind, _, _, _), notes = run.end()
    assert kind == "stopped"
    assert "env_server-0 ended (SIGKILL)" in notes
    assert not run.left()


def helpers(folder: Path) -> list[int]:
    """The helper that each incarnation had, in order."""
    path = folder / "helpers"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def lives(pid: int) -> bool:
    return pid in processes.parents()


def test_what_a_killed_process_had_kept_lives_on_until_another_end(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("good", "keeps", "good", "good")
    run.wait_until(lambda: len(helpers(tmp_path)) == 1)
    helper = helpers(tmp_path)[0]
    # Whoever dies: the sweep after it spares what is kept.
    for name, number in (("env_server-0", 2), ("actor-0", 2), ("env_server-0", 3)):
        run.wait_until(lambda: all(state == "running" for state, _, _ in run.views().values()))
        _, pid, num_restarts = run.views()[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        run.wait_until(lambda name=name, before=num_restarts: run.views()[name][2] > before)  # type: ignore[misc]
        run.wait_until(lambda number=number: len(helpers(tmp_path)) == number)  # type: ignore[misc]
        assert helpers(tmp_path)[-1] == helper and lives(helper)
    # What failed by itself is not for the next incarnation.
    pid = run.views()["env_server-0"][1]
    assert pid is not None
    os.kill(pid, signal.SIGABRT)
    run.wait_until(lambda: len(helpers(tmp_path)) == 4)
    run.wait_until(lambda: not lives(helper))
    assert helpers(tmp_path)[-1] != helper
    run.process.send_signal(signal.SIGINT)
    run.end()
    assert not run.left() and not lives(helpers(tmp_path)[-1])


def test_sigkill_of_a_supervisor_ends_what_it_kept(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("good", "keeps", "good", "good")
    run.wait_until(lambda: len(helpers(tmp_path)) == 1 and all(row[0] == "running" for row in run.views().values()))
    pid = run.views()["env_server-0"][1]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda: len(helpers(tmp_path)) == 2)
    os.kill(run.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60.0
    while (run.left() or lives(helpers(tmp_path)[0])) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not run.left() and not lives(helpers(tmp_path)[0])


def test_process_that_always_exits_ends_the_run_with_the_restart_limit(start: Callable[..., Run]) -> None:
    run = start("good", "good", "exits", "good")
    (kind, reason, exit_code, message), notes = run.end()
    assert (kind, reason, exit_code) == ("failed", "restart_limit", 10)
    assert "actor-0 ended 3 times in a row" in str(message)
    assert notes.count("starts again") == 2
    assert not run.left()


def test_process_with_a_config_error_ends_the_run_at_once_with_its_message(start: Callable[..., Run]) -> None:
    run = start("good", "good", "good", "config_error")
    (kind, reason, exit_code, message), notes = run.end()
    assert (kind, reason, exit_code) == ("failed", "config_error", 2)
    assert message == "learner-0: learner.lr: is silly"
    assert "starts again" not in notes
    assert not run.left()


def test_learner_that_finishes_ends_the_run_and_stops_the_others(start: Callable[..., Run]) -> None:
    run = start("good", "forks", "good", "finishes")
    (kind, _, exit_code, _), _ = run.end()
    assert (kind, exit_code) == ("finished", 0)
    assert not run.left()


DRAIN = """
import sys
from pathlib import Path
from computerrl.common.config import SupervisorConfig
from computerrl.launch.plan.processes import ProcessSpec
from computerrl.launch.supervision.supervisor import Supervisor
folder, learner = Path(sys.argv[1]), sys.argv[2]
specs = [ProcessSpec(role=role, index=0, argv=(sys.executable, '-c', code), ends_run=role == 'learner')
         for role, code in (('broker', 'import signal; signal.pause()'), ('learner', learner))]
supervisor = Supervisor(specs, config=SupervisorConfig(drain_s=1.5, stop_s=1.0), log_folder=folder, notify=print,
                        is_finished=lambda: False, ask_to_drain=(folder / 'asked').touch)
(folder / 'ready').touch()
outcome = supervisor.run(tick=lambda: None, tick_s=0.05)
print(outcome.kind, outcome.exit_code, outcome.reason)
"""

SAVES = "import os, sys, time\nwhile not os.path.exists('asked'): time.sleep(0.02)\nopen('saved', 'w').close(); sys.exit({code})"


@pytest.mark.parametrize(
    ("learner", "saved"),
    [(SAVES.format(code=0), True), (SAVES.format(code=3), True), ("import time; time.sleep(99)", False)],
)
def test_sigusr1_lets_the_learner_save_before_everything_stops(tmp_path: Path, learner: str, saved: bool) -> None:
    """Also when it fails at that, or takes too long: a draining run starts nobody again."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRAIN, str(tmp_path), learner],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not processes.descendants([process.pid]) or not (tmp_path / "learner-0.log").exists():
        time.sleep(0.02)
    seen = processes.descendants([process.pid])
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=120)
    assert output.splitlines()[-1] == "stopped 138 stopped by SIGUSR1", output
    assert (tmp_path / "saved").exists() == saved
    assert "starts again" not in output
    assert not seen & processes.parents().keys()
