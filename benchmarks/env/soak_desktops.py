"""Soak: many desktops, random valid and invalid actions and resets for half an hour; nothing may leak and none may stay lost.

Through the env_server's own service (pool, leases, restarts), without sockets. `make soak`; `--quick` is one minute
with four desktops.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from computerrl.common.actions import ACTIONS
from computerrl.common.actions.spec import ActionSpec, Param
from computerrl.common.config import DesktopConfig, TasksConfig
from computerrl.common.errors import ComputerRLError
from computerrl.common.messages import (
    Action,
    ErrorReply,
    Evaluation,
    Lease,
    LeaseRelease,
    LeaseRequest,
    Observation,
    StepRequest,
    StepResult,
    TaskRef,
    TaskReset,
    TaskStarted,
)
from computerrl.env_server.driver import LiveDesktop, SetupStep, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.memory import processes_below, pss_mb
from computerrl.env_server.drivers.screenshots import ScreenshotStore
from computerrl.env_server.guest.files.fingerprint import Fingerprint, differences
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import FAMILIES

_STEPS_PER_EPISODE = 12
_SAMPLE_EVERY_S = 30.0
_NUM_GROWN = 3
"""Number of programs that are named, those that grew most."""
_EVERY_APPLICATION = (
    SetupStep("web_page", {"page": "click-button", "seed": 1}),
    SetupStep("editor_open", {"path": "a.txt", "text": ""}),
    SetupStep("files_open", {"folder": "."}),
    SetupStep("calc_open", {"cells": {}}),
)
_TEXTS = ("", "hello", "=1/0", "A1:B9", "ü 漢字 🙂", "../../etc/passwd", "x" * 1500, "ctrl+q", "#FF0000", "notes.txt", "\x00\n")


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image."""
    num_desktops, duration_s = (4, 60.0) if quick else (24, 1800.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = ScreenshotStore(folder, incarnation="soak")
        # Two cores under 24 desktops are busy many times over: a slow desktop is not a broken one.
        config = DesktopConfig(num_desktops=num_desktops, lease_time_limit_s=240.0, step_deadline_s=60.0, reset_deadline_s=120.0)
        tasks = TasksConfig(families=sorted(name for name, family in FAMILIES.items() if family.is_default))
        made: dict[LiveDesktop, Fingerprint] = {}

        def make(index: int) -> LiveDesktop:
            driver = make_driver(config, index=index, folder=folder / "logs", screenshots=store)
            made[driver] = _fingerprint(driver)
            return driver

        service = DesktopService(config, tasks=tasks, make=make)
        soak = _Soak(service, num_desktops=num_desktops, first_seed=tasks.training_seeds[0])
        try:
            assert service.wait_ready(num_desktops, timeout_s=300.0)
            samples = soak.run(duration_s)
            ready = service.wait_ready(num_desktops, timeout_s=120.0)
            found = [differences(first, _fingerprint(driver)) for driver, first in made.items() if driver.healthy()]
        finally:
            service.close(limit_s=20.0)
            store.close()
        left = len(processes_below(os.getpid())) - 1
    return _rows(soak, samples, num_desktops=num_desktops, duration_s=duration_s, num_left=left, all_ready=ready, found=found)


def _fingerprint(driver: LiveDesktop) -> Fingerprint:
    """Leftovers that an episode could leave behind, after a reset and with every application running."""
    for step in _EVERY_APPLICATION:
        driver.reset(TaskInstance("", (step,), lambda _: Evaluation(0.0, False, ""), lambda *_: Action("wait", {})))
    found: Fingerprint = driver.get("fingerprint")
    return found


def _memory_by_program() -> Counter[str]:
    taken: Counter[str] = Counter()
    for pid in processes_below(os.getpid())[1:]:
        try:
            program = Path(f"/proc/{pid}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        taken[program] += pss_mb([pid])  # type: ignore[assignment]  # MiB, with fractions
    return taken


class _Soak:
    def __init__(self, service: DesktopService, *, num_desktops: int, first_seed: int) -> None:
        self.service, self.num_desktops, self.first_seed = service, num_desktops, first_seed
        self.counts = {"resets": 0, "steps": 0, "refused": 0, "desktop_errors": 0}
        self._lock = threading.Lock()
        self._end = 0.0

    def run(self, duration_s: float) -> list[Counter[str]]:
        """Play in as many threads as there are desktops; gives memory (PSS, MiB) of all by program, sampled."""
        self._end = time.monotonic() + duration_s
        players = [threading.Thread(target=self._play, args=(index,)) for index in range(self.num_desktops)]
        for player in players:
            player.start()
        samples = []
        while time.monotonic() < self._end:
            time.sleep(min(_SAMPLE_EVERY_S, max(0.1, self._end - time.monotonic())))
            samples.append(_memory_by_program())
        for player in players:
            player.join()
        return samples

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _play(self, index: int) -> None:
        rng = random.Random(index)
        families = sorted(name for name, family in FAMILIES.items() if family.is_default)
        while time.monotonic() < self._end:
            try:
                self._episode(rng, rng.choice(families), f"actor-{index}:soak")
            except ComputerRLError as error:
                self._count("desktop_errors")
                print(f"desktop of actor {index}: {error}", file=sys.stderr)

    def _episode(self, rng: random.Random, family: str, sender: str) -> None:
        task = TaskRef(family, self.first_seed + rng.randrange(1000), "training")
        lease = self._ask(LeaseRequest("soak", task), sender, Lease)
        try:
            started = self._ask(TaskReset(lease=lease, task=task), sender, TaskStarted)
            self._count("resets")
            observation = started.observation
            for _ in range(rng.randrange(_STEPS_PER_EPISODE)):
                result = self._ask(StepRequest(lease=lease, action=random_action(rng, observation)), sender, StepResult)
                self._count("refused" if result.action_error else "steps")
                observation = result.observation
                if result.finished:
                    break
        finally:
            self.service.handle(LeaseRelease(lease=lease), sender)

    def _ask(self, message: Any, sender: str, kind: type[Any]) -> Any:
        answer = self.service.handle(message, sender)
        if isinstance(answer, ErrorReply):
            raise ComputerRLError(answer.message)
        assert isinstance(answer, kind), answer
        return answer


def random_action(rng: random.Random, observation: Observation) -> Action:
    """Any action with arguments of the right types, sensible or not."""
    spec = ACTIONS[rng.choice([name for name in ACTIONS if name not in ("done", "fail")])]
    if rng.random() < 0.5:
        spec = ACTIONS[rng.choice(["click", "type", "key", "scroll", "double_click"])]
    return Action(spec.name, {param.name: _value(rng, spec, param, observation) for param in spec.params})


def _value(rng: random.Random, spec: ActionSpec, param: Param, observation: Observation) -> Any:
    if param.default is not ... and rng.random() < 0.5:
        return param.default
    if param.choices:
        return rng.choice(param.choices)
    if param.name == "keys":
        return rng.choice(["ctrl+s", "esc", "enter", "tab", "alt+f", "ctrl+w", "f10", "nonsense", "ctrl+shift+t"])
    kind = rng.choice(param.kinds)
    if kind is list:
        return [_scalar(rng, rng.choice(param.items), observation) for _ in range(rng.randrange(5))]
    return _scalar(rng, kind, observation)


def _scalar(rng: random.Random, kind: type, observation: Observation) -> Any:
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        numbers = [element.number for element in observation.elements] or [1]
        return rng.choice([rng.choice(numbers), rng.randrange(-5, 900)])
    if kind is float:
        return rng.uniform(-10, 1000)
    texts = [element.text for element in observation.elements if element.text] or ["x"]
    return rng.choice([rng.choice(texts), rng.choice(_TEXTS)])


def _rows(
    soak: _Soak,
    samples: list[Counter[str]],
    *,
    num_desktops: int,
    duration_s: float,
    num_left: int,
    all_ready: bool,
    found: list[list[str]],
) -> list[dict[str, Any]]:
    for phrase in sorted({phrase for one in found for phrase in one}):
        print(f"left behind: {phrase}", file=sys.stderr)
    quarter = max(1, len(samples) // 4)
    first, last = (_mean(part) for part in (samples[:quarter], samples[-quarter:]))
    most = sorted(last, key=lambda program: first[program] - last[program])[:_NUM_GROWN]
    metrics = soak.service.metrics()
    what = f"{num_desktops} desktops, {duration_s / 60:g} minutes"
    rows = [
        ("processes left", num_left, "", 0),
        ("desktops lost and not replaced", 0 if all_ready else num_desktops - metrics["env_server/desktops_ready"], "", 0),
        (f"differences that resets left on {len(found)} desktops", sum(map(len, found)), "", 0),
        ("memory, last quarter over first", round(last.total() / first.total(), 3), "", 1.1),
        ("memory (PSS) of all, last quarter", round(last.total()), "MiB", None),
        *((f"of which {program}, more than first", round(last[program] - first[program]), "MiB", None) for program in most),
        ("desktops replaced", metrics["env_server/restarts"], "", None),
        *((name.replace("_", " "), count, "", None) for name, count in soak.counts.items()),
    ]
    return [
        {"name": f"{name}, {what}" if place == 0 else name, "value": value, "unit": unit, "target": target, "better": "lower"}
        for place, (name, value, unit, target) in enumerate(rows)
    ]


def _mean(samples: list[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for sample in samples:
        total.update(sample)
    return Counter({program: taken / len(samples) for program, taken in total.items()})
