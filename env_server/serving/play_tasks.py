"""Task files and bundles set up on desktops and judged, before a run plays them (`computerrl tasks check --play`, `tasks import
--play`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, HostBroken, TaskFailed
from computerrl.common.messages import Lease, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.judging.untouched import PAYS, Finding, Untouched
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import task_instance
from computerrl.env_server.tasks.bundles.task import SOLUTION_LIMIT_S
from computerrl.env_server.tasks.osworld.abilities import Refusal
from computerrl.env_server.tasks.osworld.check import Checked, Report

DESKTOPS = DesktopConfig(image="full", num_desktops=1, reset_deadline_s=120.0, observation="tree")
"""Desktops used where no configuration names others."""
_NUM_TRIES = 2
"""Number of desktops that a task may break before it counts as unplayable."""


_PLAY_LIMIT_S = SOLUTION_LIMIT_S + 60.0
"""Deadline in seconds of a bundle's own solution, with the time to bring its files."""


def played(
    report: Report, tasks: TasksConfig, desktops: DesktopConfig, *, prefix: str, progress: Callable[[str], None]
) -> Report:
    """``report`` extended by the refusals found on desktops, on which its tasks are families named ``prefix`` and their id.

    Each task is judged untouched, and once more after its own solution where it has one. ``progress`` receives a line for each
    task. Verdicts are kept for this host. Raises `SetupError`, `HostBroken`.
    """
    if any(task.has_solution for task in report.tasks):
        desktops = desktops.model_copy(update={"step_deadline_s": max(desktops.step_deadline_s, _PLAY_LIMIT_S)})
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="computerrl-check-")))

        def make(index: int) -> DesktopDriver:
            return make_driver(desktops, index=index, folder=logs / str(index), screenshots=None)

        pool = ThreadPoolExecutor(desktops.num_desktops)
        stack.callback(pool.shutdown, cancel_futures=True)
        untouched = Untouched(desktops)
        service = DesktopService(
            desktops, tasks=tasks, make=make, times=ServiceTimes(lease_wait_s=START_LIMIT_S), untouched=untouched
        )
        stack.enter_context(closing(service))  # closed before the pool, whose threads wait for it
        if not service.wait_ready(1, timeout_s=START_LIMIT_S):
            raise service.fatal or HostBroken("no desktop has started")
        player = _Player(DesktopClient(LocalChannel(service.handle), config=desktops), tasks, untouched)
        seed = tasks.training_seeds[0]
        playing = {
            pool.submit(player.refusals, TaskRef(prefix + task.task_id, seed, "training"), task): task
            for task in report.tasks
            if task.runnable
        }
        found: dict[str, list[Refusal]] = {}
        for done in as_completed(playing):
            task = playing[done]
            found[task.path] = done.result()
            right = "pays nothing untouched" + (", and its solution in full" if task.has_solution else "")
            said = "; ".join(map(str, found[task.path])) or right
            progress(f"played {len(found)} of {len(playing)}: {task.path}: {said}")
    return Report(tuple(replace(task, refusals=(*task.refusals, *found.get(task.path, ()))) for task in report.tasks))


@dataclass(frozen=True, slots=True)
class _Player:
    """Plays tasks on desktops. From any number of threads at once."""

    client: DesktopClient
    tasks: TasksConfig
    untouched: Untouched

    def refusals(self, ref: TaskRef, task: Checked) -> list[Refusal]:
        """What desktops show to be wrong with a task. A desktop that breaks is tried once more with another one."""
        reason = ""
        for _ in range(_NUM_TRIES):
            lease = self.client.lease("check", ref)
            try:
                found = self._on_desktop(lease, ref, task)
            except DesktopBroken as error:
                reason = str(error)
                continue
            self.client.release(lease)
            return found
        return [Refusal("fails", "on a desktop", reason)]

    def _on_desktop(self, lease: Lease, ref: TaskRef, task: Checked) -> list[Refusal]:
        try:
            self.client.reset(lease, ref)
        except TaskFailed as error:
            text = str(error)
            pays = text.startswith(PAYS)
            return [Refusal(PAYS, "evaluator", text[len(PAYS) + 2 :]) if pays else Refusal("fails", "on a desktop", text)]
        return self._solved(lease, ref) if task.has_solution else []

    def _solved(self, lease: Lease, ref: TaskRef) -> list[Refusal]:
        """What is wrong with the task's own solution. Its demonstration runs it, see `BundleTask`."""
        digest = task_instance(ref, tasks=self.tasks).digest
        assert digest is not None
        found = self.untouched.known(digest(), solved=True)
        if found is None:
            try:
                self.client.demonstrate(lease)
                verdict = self.client.evaluate(lease, "done")
            except TaskFailed as error:
                return [Refusal("solution", "on a desktop", str(error))]
            if verdict.reward < 1.0:
                return [Refusal("solution", "on a desktop", f"score {verdict.reward:.3g} after it: {verdict.detail}")]
            self.untouched.keep(digest(), Finding(ref.family, verdict.reward), solved=True)
        return []
