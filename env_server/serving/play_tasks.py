"""Task files set up on desktops and judged untouched, before a run plays them (`computerrl tasks check --play`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, HostBroken, TaskFailed
from computerrl.common.messages import TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.judging.untouched import PAYS
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks.family import FOREIGN_PREFIX
from computerrl.env_server.tasks.osworld.abilities import Refusal
from computerrl.env_server.tasks.osworld.check import Report

DESKTOPS = DesktopConfig(image="full", num_desktops=1, reset_deadline_s=120.0, observation="tree")
"""Desktops used where no configuration names others."""
_NUM_TRIES = 2
"""Number of desktops that a task may break before it counts as unplayable."""


def played(report: Report, tasks: TasksConfig, desktops: DesktopConfig, *, progress: Callable[[str], None]) -> Report:
    """``report`` of the folder ``tasks.osworld``, extended by the refusals found on desktops.

    ``progress`` receives a line for each task. Verdicts are kept for the runs of this host. Raises `SetupError`, `HostBroken`.
    """
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="computerrl-check-")))

        def make(index: int) -> DesktopDriver:
            return make_driver(desktops, index=index, folder=logs / str(index), screenshots=None)

        pool = ThreadPoolExecutor(desktops.num_desktops)
        stack.callback(pool.shutdown, cancel_futures=True)
        service = DesktopService(desktops, tasks=tasks, make=make, times=ServiceTimes(lease_wait_s=START_LIMIT_S))
        stack.enter_context(closing(service))  # closed before the pool, whose threads wait for it
        if not service.wait_ready(1, timeout_s=START_LIMIT_S):
            raise service.fatal or HostBroken("no desktop has started")
        client = DesktopClient(LocalChannel(service.handle), config=desktops)
        runnable = {FOREIGN_PREFIX + task.task_id: task for task in report.tasks if task.runnable}
        seed = tasks.training_seeds[0]
        playing = {pool.submit(_refusals, client, TaskRef(name, seed, "training")): task for name, task in runnable.items()}
        found: dict[str, list[Refusal]] = {}
        for done in as_completed(playing):
            path = playing[done].path
            found[path] = done.result()
            said = "; ".join(map(str, found[path])) or "pays nothing untouched"
            progress(f"played {len(found)} of {len(playing)}: {path}: {said}")
    return Report(tuple(replace(task, refusals=(*task.refusals, *found.get(task.path, ()))) for task in report.tasks))


def _refusals(client: DesktopClient, task: TaskRef) -> list[Refusal]:
    reason = ""
    for _ in range(_NUM_TRIES):
        lease = client.lease("check", task)
        found = []
        try:
            client.reset(lease, task)
        except DesktopBroken as error:
            reason = str(error)
            continue
        except TaskFailed as error:
            text = str(error)
            pays = text.startswith(PAYS)
            found = [Refusal(PAYS, "evaluator", text[len(PAYS) + 2 :]) if pays else Refusal("fails", "on a desktop", text)]
        client.release(lease)
        return found
    return [Refusal("fails", "on a desktop", reason)]
