"""`computerrl train`: check, claim a run folder, supervise the processes on this machine, report.

Wires the parts of this folder together and holds no rules of its own. Every way a run can end leaves a report behind.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computerrl import SOURCE_ROOT
from computerrl.common.clock import anchor_clock, unix_now
from computerrl.common.config import RunConfig
from computerrl.common.errors import DiskFull
from computerrl.common.models.folder import BUILT_IN_MODELS
from computerrl.common.run_files import requests
from computerrl.common.run_files.run_folder import ADDRESS_FILE, PROCESSES_FILE, write_atomically
from computerrl.launch.plan.machine import inspect_machine, visible_gpus
from computerrl.launch.plan.processes import ProcessSpec, make_plan
from computerrl.launch.plan.run_names import claim, find_resumable, locked, new_attempt, point_latest
from computerrl.launch.report.report_data import Attempt
from computerrl.launch.run.preflight import run_preflight
from computerrl.launch.setup.machine_setup import bring_model
from computerrl.launch.supervision.role_process import ProcessView
from computerrl.launch.supervision.supervisor import Outcome
from computerrl.launch.web.serve import tunnel_hint

if TYPE_CHECKING:
    from computerrl.common.run_files.run_folder import RunFolder
    from computerrl.launch.supervision.supervisor import Supervisor

TICK_S = 1.0
BY_A_PERSON = "a person's request"

MIN_FREE_BYTES = 32 << 20
"""With less free space a run ends while it still can: room for the last lines of logs and metrics, and for the report."""


def plan_for(config: RunConfig) -> tuple[ProcessSpec, ...]:
    """The processes of ``config`` as they would be started from here."""
    machine = inspect_machine()
    plan = make_plan(
        config,
        config_path=config.folder / "config.yaml",
        python=sys.executable,
        source_root=SOURCE_ROOT,
        num_cores=machine.num_cores,
        gpus=visible_gpus(machine),
    )
    return tuple(replace(spec, keeps_descriptors=spec.role == "env_server") for spec in plan)


def play(
    config: RunConfig,
    *,
    resume: bool,
    is_latest: bool = True,
    has_dashboard: bool = False,
    prepare: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> tuple[int, Path]:
    """(exit code, run folder) of ``config``, run to its end; ``is_latest``: `runs/latest` leads to it from now on.

    ``prepare`` makes in a new run's folder what the run needs there, and returns the configuration that names it.

    Raises only typed errors, before anything was started.
    """
    if resume:
        config = find_resumable(config)
    else:
        run_preflight(config)
        tell_expectation(config)
        config = claim(config)
    with locked(config.folder):
        if resume:
            run_preflight(config)
        else:
            config = prepared(config, prepare)
        make_model(config)
        begin(config, is_latest=is_latest)
        with watched(config.folder) if has_dashboard else nullcontext():
            outcome = run_attempt(config, resumed=resume, supervise=lambda attempt: supervise(attempt, plan_for(config)))
    return outcome.exit_code, config.folder


def prepared(config: RunConfig, prepare: Callable[[RunConfig], RunConfig]) -> RunConfig:
    """The configuration that ``prepare`` returns. Where it fails, the claimed folder of ``config`` is removed."""
    try:
        return prepare(config)
    except BaseException:
        shutil.rmtree(config.folder)
        raise


def begin(config: RunConfig, *, is_latest: bool = True) -> None:
    """Write what the run's folder, which the caller holds locked, has at its beginning. From now on its pages can be shown."""
    from computerrl.common.run_files.run_folder import RunFolder

    RunFolder(config.folder).create(config)
    if is_latest:
        point_latest(config.folder)


def tell_expectation(config: RunConfig) -> None:
    """Print what this machine can be expected to reach, where something is known about it."""
    from computerrl.launch.plan.expectation import expectation

    line = expectation(config, num_cores=inspect_machine().num_cores)
    if line is not None:
        print(line, flush=True)


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Serve the dashboard of the run in ``folder`` meanwhile, in a process that gives way to the run's. Its address is in the
    run folder's `dashboard.url` until the block ends."""
    address = folder / ADDRESS_FILE
    address.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "computerrl", "dashboard", str(folder), "--with-parent"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        address.unlink(missing_ok=True)


def make_model(config: RunConfig) -> None:
    """Make the built-in model that ``config`` names where it is not there yet: its processes start at the same time and all look
    for it. Raises `SetupError`."""
    name = config.model.name
    if name in BUILT_IN_MODELS and config.actor.engine != "agent":
        bring_model(name, progress=lambda line: print(f"model {name}: {line}", flush=True))


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One start of a run, until it ends or has to be resumed."""

    config: RunConfig
    folder: RunFolder
    logs: Path


def run_attempt(
    config: RunConfig, *, resumed: bool, supervise: Callable[[RunAttempt], tuple[Outcome, dict[str, int]]]
) -> Outcome:
    """Play ``config`` in its folder, which the caller holds locked and has begun (`begin`), and leave a report. ``supervise``
    runs the processes and gives the outcome and the restarts by process. Main thread only."""
    from computerrl.launch.watch.display import outliving_the_terminal

    with outliving_the_terminal(), naming_full_disk(config.folder):
        return _run_attempt(config, resumed=resumed, supervise=supervise)


def _run_attempt(
    config: RunConfig, *, resumed: bool, supervise: Callable[[RunAttempt], tuple[Outcome, dict[str, int]]]
) -> Outcome:
    from computerrl.common.run_files.run_folder import RunFolder
    from computerrl.launch.report.write import write_attempt

    folder = RunFolder(config.folder)
    if not resumed:
        folder.note_start()
    folder.forget_broker()
    for kind in requests.ENDS_WITH_ATTEMPT:
        requests.withdraw(folder.folder, kind)
    log_folder = new_attempt(config.folder)
    print(f"{'resuming' if resumed else 'run'} {config.folder}, logs in {log_folder}", flush=True)
    anchor = anchor_clock()
    attempt = Attempt(started=unix_now(), ended=None, clock=anchor)
    write_attempt(log_folder, attempt)
    if config.mode == "serial":
        outcome, num_restarts = _run_serial(config)
    else:
        outcome, num_restarts = supervise(RunAttempt(config, folder, log_folder))
        folder.forget_broker()
    attempt = replace(
        attempt,
        ended=unix_now(),
        outcome=outcome.kind,
        reason=outcome.reason,
        message=outcome.message,
        num_restarts=num_restarts,
    )
    write_attempt(log_folder, attempt)
    _conclude(config, outcome)
    return outcome


def _run_serial(config: RunConfig) -> tuple[Outcome, dict[str, int]]:
    from computerrl.common import lifecycle
    from computerrl.launch.report.write import write_status
    from computerrl.launch.run.serial import run_serial
    from computerrl.launch.watch.display import LineDisplay

    display = LineDisplay(lambda line: print(line, flush=True))
    came = int(signal.SIGINT)

    def stop(number: int, _frame: object) -> None:
        nonlocal came
        came = number
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in lifecycle.stop_signals()}
    try:
        state = run_serial(config, on_record=display.record, on_start=display.start, on_progress=display.progress)
    except KeyboardInterrupt:
        return Outcome("stopped", f"stopped by {signal.Signals(came).name}", exit_code=128 + came), {}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if state.status is not None:
        write_status(config.folder, state.status)
    return Outcome("finished", "finished", exit_code=0), {}


def supervise(
    attempt: RunAttempt,
    specs: Sequence[ProcessSpec],
    *,
    look: Callable[[Supervisor], Outcome | None] = lambda _: None,
    extra_stop_s: float = 0.0,
) -> tuple[Outcome, dict[str, int]]:
    """Run ``specs`` to the end of the attempt. ``look`` is asked each second, and may end the run or drain the supervisor;
    ``extra_stop_s``: what a stop takes longer where processes are on other nodes."""
    from computerrl.launch.report.write import write_status
    from computerrl.launch.supervision.supervisor import Supervisor
    from computerrl.launch.watch.display import make_display
    from computerrl.launch.watch.display_frame import ending_of
    from computerrl.launch.watch.follow import RunWatch
    from computerrl.launch.watch.start_up import is_up

    config, folder = attempt.config, attempt.folder
    settings = config.supervisor.model_copy(update={"stop_s": config.supervisor.stop_s + extra_stop_s})
    with make_display(name=config.name) as display:
        watch = RunWatch(folder, on_record=lambda record: display.record(record, watch.state))

        def finished() -> bool:
            return watch.refresh().summary is not None

        def tick() -> Outcome | None:
            views = supervisor.views()
            show_address()
            display.update(watch.refresh(), views)
            tell.processes(views)
            return look(supervisor) or _asked_to_end(folder.folder, supervisor) or disk_outcome(folder.folder)

        started = unix_now()
        show_address = _AddressOnce(folder.folder / ADDRESS_FILE, display.dashboard)
        tell = _Teller(attempt.logs / PROCESSES_FILE)
        supervisor = Supervisor(
            specs,
            config=settings,
            log_folder=attempt.logs,
            notify=display.note,
            is_finished=finished,
            ask_to_drain=lambda: requests.ask(folder.folder, "save"),
            # The learner loads longest, and the first episode needs its first policy version.
            gives_way=lambda: is_up("learner-0", watch.state),
        )
        try:
            outcome = supervisor.run(tick=tick, tick_s=TICK_S)
        finally:
            watch.close()
        tell.processes(supervisor.views())
        ended = unix_now()
        ending = ending_of(outcome.kind, ended=ended, took_s=ended - started)
        display.update(watch.refresh(), supervisor.views(), ending=ending)
    if watch.last_status is not None:
        write_status(folder.folder, watch.last_status)
    return outcome, {view.name: view.num_restarts for view in supervisor.views()}


class _AddressOnce:
    """Shows the dashboard's address when its process has written it down, once."""

    def __init__(self, path: Path, show: Callable[[str, str], None]) -> None:
        self._path = path
        self._show: Callable[[str, str], None] | None = show

    def __call__(self) -> None:
        """Look for the address, until it is there."""
        if self._show is None or not self._path.exists():
            return
        address = self._path.read_text().strip()
        self._show(address, tunnel_hint(address))
        self._show = None


class _Teller:
    """Writes down what the supervisor knows of its processes, for pages in other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, dict[str, Any]] = {}

    def processes(self, views: Sequence[ProcessView]) -> None:
        """When something has changed."""
        now = {view.name: {"state": view.state, "pid": view.pid, "restarts": view.num_restarts} for view in views}
        if now != self._told:
            self._told = now
            write_atomically(self._path, json.dumps(now).encode())


def _asked_to_end(folder: Path, supervisor: Supervisor) -> Outcome | None:
    wish = requests.asked(folder, "end")
    if wish == "drain":
        supervisor.drain(BY_A_PERSON)
    return Outcome("stopped", f"stopped by {BY_A_PERSON}", exit_code=128 + signal.SIGTERM) if wish == "stop" else None


def disk_outcome(folder: Path, *, min_free_bytes: int = MIN_FREE_BYTES) -> Outcome | None:
    """How the run has to end when the disk below ``folder`` is as good as full; None while it is not."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes >= min_free_bytes:
        return None
    return Outcome("failed", DiskFull.code, DiskFull.exit_code, _full(folder))


@contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Turn the system's "no space left" into `DiskFull`, which says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(_full(folder)) from error


def _full(folder: Path) -> str:
    free_mb = shutil.disk_usage(folder).free >> 20
    return f"{free_mb} MiB are left where {folder} lies; what was acknowledged is safe\n    -> free space, then use --resume"


def _conclude(config: RunConfig, outcome: Outcome) -> None:
    """The report, and the few lines a person reads at the end."""
    from computerrl.launch.plan.run_names import REPORT_FILE
    from computerrl.launch.report.report_data import closing_line
    from computerrl.launch.report.write import write_report

    print("writing the report", flush=True)
    page = write_report(config.folder)
    if outcome.kind == "failed":
        print(f"error: the run failed: {outcome.reason}\n{outcome.message}", file=sys.stderr)
    elif outcome.kind == "stopped":
        print(f"{outcome.reason}; the same command with --resume continues this run")
    report = json.loads((config.folder / REPORT_FILE).read_text())
    print(closing_line(report))
    print(f"report: {page}")
    if report["num_episodes"]:
        name = config.folder.name if config.folder.parent == Path("runs") else config.folder
        print(f"next: {shlex.join(['computerrl', 'replay', str(name)])}", flush=True)
