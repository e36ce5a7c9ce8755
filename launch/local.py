"""`computerrl train`: check, claim a run folder, supervise the processes on this machine, report.

Wires the parts of this folder together and holds no rules of its own. Every way a run can end leaves a report behind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common.config import RunConfig, load_config
from common.errors import ResumeError
from launch.machine import inspect_machine
from launch.plan import ProcessSpec, make_plan
from launch.preflight import run_preflight
from launch.run_names import claim, find_resumable, locked, new_attempt, point_latest

TICK_S = 1.0


def plan_for(config: RunConfig) -> tuple[ProcessSpec, ...]:
    """The processes of ``config`` as they would be started from here."""
    return make_plan(
        config,
        config_path=config.folder / "config.yaml",
        python=sys.executable,
        source_root=Path(__file__).resolve().parent.parent,
        num_cores=inspect_machine().num_cores,
    )


def train(path: Path, *, overrides: Sequence[str], resume: bool) -> int:
    """Run ``path`` to its end; gives the exit code. Raises only typed errors, before anything was started."""
    config = load_config(path, overrides=overrides)
    if resume:
        config = find_resumable(config)
        with locked(config.folder):
            run_preflight(config)
            return _run(config, resumed=True)
    run_preflight(config)
    config = claim(config)
    with locked(config.folder):
        return _run(config, resumed=False)


def _run(config: RunConfig, *, resumed: bool) -> int:
    from common.run_folder import RunFolder

    folder = RunFolder(config.folder)
    folder.create(config)
    point_latest(config.folder)
    attempt = new_attempt(config.folder)
    print(f"{'resuming' if resumed else 'run'} {config.folder}  (logs: {attempt})", flush=True)
    if config.mode == "serial":
        from launch.serial import run_serial

        exit_code = run_serial(config, log_folder=attempt)
    else:
        exit_code = _supervise(config, folder, attempt)
    return exit_code


def _supervise(config: RunConfig, folder: RunFolder, attempt: Path) -> int:
    from launch.dashboard import make_display
    from launch.supervisor import Supervisor
    from launch.watch import RunWatch

    # A broker file of an earlier attempt would send the first processes to a dead address.
    folder.broker_file.unlink(missing_ok=True)
    started = time.time()
    with make_display(name=config.name) as display:
        watch = RunWatch(folder, on_record=lambda record: display.record(record, watch.state))
        supervisor = Supervisor(plan_for(config), config=config.supervisor, log_folder=attempt, notify=display.note)
        try:
            outcome = supervisor.run(tick=lambda: display.update(watch.refresh(), supervisor.views()), tick_s=TICK_S)
        finally:
            watch.close()
        display.update(watch.refresh(), supervisor.views())
    return finish(config, outcome_kind=outcome.kind, reason=outcome.reason, message=outcome.message, started=started) or outcome.exit_code
