"""Tasks set up on desktops and judged, before a run plays them: task files and bundles (`computerrl tasks check --play`, `tasks
import --play`), and families (`tasks prove`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from computerrl.common.actions import FINAL_ACTIONS, parse_action
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import DesktopBroken, HostBroken, LeaseRefused, TaskFailed
from computerrl.common.messages import Lease, TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.driver import DesktopDriver
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.judging.untouched import PAYS, Finding, Untouched
from computerrl.env_server.serving.fleet import START_LIMIT_S, ServiceTimes
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import families_of, task_instance
from computerrl.env_server.tasks.bundles.task import SOLUTION_LIMIT_S
from computerrl.env_server.tasks.osworld.abilities import Refusal
from computerrl.env_server.tasks.osworld.check import Checked, Report

DESKTOPS = DesktopConfig(image="full", num_desktops=1, reset_deadline_s=120.0, observation="tree")
"""Desktops used where no configuration names others."""
_NUM_TRIES = 2
"""Number of desktops that a task may break before it counts as unplayable."""
_MAX_ACTIONS = 64
"""Number of actions after which a demonstration does not end."""
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
    untouched = Untouched(desktops)
    with _played_on(desktops, tasks, untouched) as (client, pool):
        player = _Player(client, tasks, untouched)
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


@contextmanager
def _played_on(
    desktops: DesktopConfig, tasks: TasksConfig, untouched: Untouched | None
) -> Iterator[tuple[DesktopClient, ThreadPoolExecutor]]:
    """Desktops, and as many threads that play on them."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="computerrl-check-")))

        def make(index: int) -> DesktopDriver:
            return make_driver(desktops, index=index, folder=logs / str(index), screenshots=None)

        pool = ThreadPoolExecutor(desktops.num_desktops)
        stack.callback(pool.shutdown, cancel_futures=True)
        service = DesktopService(
            desktops, tasks=tasks, make=make, times=ServiceTimes(lease_wait_s=START_LIMIT_S), untouched=untouched
        )
        stack.enter_context(closing(service))  # closed before the pool, whose threads wait for it
        if not service.wait_ready(1, timeout_s=START_LIMIT_S):
            raise service.fatal or HostBroken("no desktop has started")
        yield DesktopClient(LocalChannel(service.handle), config=desktops), pool


@dataclass(frozen=True, slots=True)
class Proof:
    """What one instance of a family is worth untouched, and after its demonstration. None: not played, for lack of one or since
    something failed."""

    task: TaskRef
    untouched: float | None = None
    demonstrated: float | None = None
    num_actions: int = 0
    reason: str = ""
    """Why it is not proven: the verdict's detail, or what failed."""
    is_proven: bool = False

    def as_json(self) -> dict[str, Any]:
        """Its figures, without the task."""
        return {name: getattr(self, name) for name in ("untouched", "demonstrated", "num_actions", "reason", "is_proven")}

    def in_words(self) -> str:
        """Its figures in a few words."""
        if self.reason:
            return self.reason
        if self.demonstrated is None:
            return "untouched 0; it has no demonstrator"
        return f"untouched 0, demonstrated 1 in {self.num_actions} action{'' if self.num_actions == 1 else 's'}"


def proofs(tasks: TasksConfig, desktops: DesktopConfig, *, num_seeds: int) -> Iterator[Proof]:
    """Play ``num_seeds`` training instances of each family of ``tasks.families``: untouched it must score 0, and 1 after the
    family's own demonstration. Raises `SetupError`, `HostBroken`."""
    first = tasks.training_seeds[0]
    refs = [TaskRef(name, seed, "training") for name in tasks.families for seed in range(first, first + num_seeds)]
    with _played_on(desktops, tasks, None) as (client, pool):
        for done in as_completed([pool.submit(_proof, client, ref, tasks) for ref in refs]):
            yield done.result()


def _proof(client: DesktopClient, ref: TaskRef, tasks: TasksConfig) -> Proof:
    lease = client.lease("check", ref)
    found = Proof(ref)
    try:
        client.reset(lease, ref)
        verdict = client.evaluate(lease, "done")
        found = replace(found, untouched=verdict.reward)
        if verdict.reward > 0:
            return replace(found, reason=f"pays {verdict.reward:.3g} untouched: {verdict.detail}")
        if not families_of(tasks)[ref.family].has_demonstrator:
            return replace(found, is_proven=True)
        client.reset(lease, ref)
        while found.num_actions < _MAX_ACTIONS:
            action = parse_action(client.demonstrate(lease).action_text)
            if action.name in FINAL_ACTIONS:
                break
            found = replace(found, num_actions=found.num_actions + 1)
            if client.step(lease, action).finished:
                break
        verdict = client.evaluate(lease, "done")
        reason = "" if verdict.success else f"score {verdict.reward:.3g} after its demonstration: {verdict.detail}"
        return replace(found, demonstrated=verdict.reward, reason=reason, is_proven=verdict.success)
    except (DesktopBroken, TaskFailed) as error:
        return replace(found, reason=str(error))
    finally:
        with suppress(LeaseRefused):  # it has broken, and the lease with it
            client.release(lease)


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
