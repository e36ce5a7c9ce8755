"""One OSWorld task: loaded, checked, set up on a desktop and judged there."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from computerrl.common.errors import ConfigError, EnvError, Problem, TaskFailed
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import Getter, TaskInstance
from computerrl.env_server.tasks.osworld.abilities import Abilities, listed, refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.commands import converted_files, normalise
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop, Obstructed, OsworldDesktop
from computerrl.env_server.tasks.osworld.format import (
    Download,
    DownloadStep,
    ExecuteStep,
    Judge,
    SetupStep,
    Source,
    TaskFile,
    UploadStep,
    read_task_file,
)
from computerrl.env_server.tasks.osworld.getters import GETTERS, Context
from computerrl.env_server.tasks.osworld.gold import fault_of
from computerrl.env_server.tasks.osworld.home import home_steps, site_steps
from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, require_arguments, rule_of
from computerrl.env_server.tasks.osworld.network.mirror import Mirror
from computerrl.env_server.tasks.osworld.network.sites import hosts_of
from computerrl.env_server.tasks.osworld.on_desktop import RUN_ON_DESKTOP
from computerrl.env_server.tasks.osworld.steps import Carrier
from computerrl.env_server.tasks.reading.limits import LimitPassed

_NEXT_STEP = "leave the task out (`computerrl tasks check` lists what can be run), or provide what it lacks"


def load_task(path: Path, assets: Path | None, *, mirror: Path | None = None, abilities: Abilities | None = None) -> OsworldTask:
    """The task of the file ``path``; ``assets`` is the folder of the files it downloads, ``mirror`` one with a copy of web sites.

    Raises `ConfigError` with every reason when the file is broken or needs something that a contained desktop has not.
    """
    task = read_task_file(path)
    found, sites = Assets(assets), Mirror(mirror)
    problems = [
        Problem(f"{path}: {refusal.where}", f"{refusal.kind}: {refusal.reason}", _NEXT_STEP)
        for refusal in refusals(task, assets=found, abilities=abilities, mirror=sites)
    ]
    if problems:
        raise ConfigError(problems)
    return OsworldTask(file=task, assets=found, mirror=sites)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one metric said."""

    reward: float
    detail: str


@dataclass(frozen=True)
class OsworldTask:
    """A task that can be run. The same object may be used for any number of episodes, one after another on each desktop."""

    file: TaskFile
    assets: Assets = field(default_factory=Assets)
    mirror: Mirror = field(default_factory=Mirror)

    @property
    def task_id(self) -> str:
        """The file's own id."""
        return self.file.id

    @cached_property
    def digest(self) -> str:
        """Hash of the file's content, of all files that it uses, and of its sites' copies. Reads them once."""
        content = [self.file.model_dump_json(), *(self.assets.digest(url) for url in _urls(self.file))]
        content.append(self.mirror.digest(hosts_of(self.file)))
        return hashlib.sha256("\0".join(content).encode()).hexdigest()

    def as_instance(self) -> TaskInstance:
        """The task as drivers play it; everything goes through the getter kind ``osworld`` (`CalledDesktop`).

        ``evaluate`` also uses the getter kinds ``final_action`` (``done``, ``fail`` or empty, the action that ended the episode),
        ``outputs`` and ``pause``.
        """
        outputs: dict[str, str] = {}
        sites = self.mirror.find if hosts_of(self.file) and self.mirror.folder is not None else None
        steps = home_steps(self.file.model_dump_json(include={"config"}))
        if hosts_of(self.file):
            steps = (*site_steps(of_copy=sites is not None), *steps)

        def prepare(get: Getter) -> None:
            outputs.clear()
            outputs.update(self.set_up(CalledDesktop(get)))

        def evaluate(get: Getter) -> Evaluation:
            desktop, final_action = CalledDesktop(get), str(get("final_action") or "")
            return self.evaluate(
                desktop, final_action=final_action, outputs=get("outputs"), sleep=lambda seconds: get("pause", seconds=seconds)
            )

        return TaskInstance(
            self.file.instruction,
            steps,
            evaluate,
            _no_demonstration,
            judges_giving_up=True,
            prepare=prepare,
            outputs=outputs,
            sites=sites,
            # The answer "done" to a task that cannot be done pays nothing, whatever the desktop shows.
            digest=None if self.file.evaluator.infeasible else lambda: self.digest,
        )

    def set_up(self, desktop: OsworldDesktop, **options: Any) -> dict[str, str]:
        """Carry out ``config``; gives what commands printed for the getter ``cache_file``. ``options`` go to `Carrier`."""
        carrier = Carrier(desktop, self.assets, **options)
        for step in self.file.config:
            carrier.carry_out(step)
        return carrier.outputs

    def evaluate(
        self, desktop: OsworldDesktop, *, final_action: str, outputs: dict[str, str] | None = None, **options: Any
    ) -> Evaluation:
        """Judge the desktop's state. Raises `TaskFailed` for an error of the task's own parts, never gives it as reward 0."""
        evaluator = self.file.evaluator
        gave_up = final_action == "fail"
        if evaluator.infeasible:
            return _evaluation(float(gave_up), "the task cannot be done, and the agent said so" if gave_up else "cannot be done")
        if gave_up:
            return _evaluation(0.0, "the agent gave up a task that can be done")
        for url in _urls(self.file):
            if reason := self.assets.missing(url):
                raise TaskFailed(reason)
        carrier = Carrier(desktop, self.assets, strict=False, outputs=dict(outputs or {}), **options)
        try:
            scripts = list(_judges_scripts(self.file))
            if scripts or any(map(_makes_files, evaluator.postconfig)):
                desktop.bring_own_files()
            for script in scripts:
                carrier.carry_out(SetupStep(type="download", parameters={"files": [script]}))
                desktop.run(["chmod", "+x", script.path])
            for step in evaluator.postconfig:
                carrier.carry_out(step)
        except Obstructed as error:
            return _evaluation(0.0, str(error))
        with tempfile.TemporaryDirectory(prefix="osworld-") as folder:
            context = Context(desktop, self.assets, Path(folder), carrier.outputs)
            verdicts = self._judge(context)
        rewards = [verdict.reward for verdict in verdicts]
        detail = "; ".join(verdict.detail for verdict in verdicts)
        if evaluator.conj == "or":
            return _evaluation(max(rewards), detail)
        return _evaluation(0.0 if 0.0 in rewards else sum(rewards) / len(rewards), detail)

    def _judge(self, context: Context) -> list[_Verdict]:
        verdicts = []
        for judge in self.file.evaluator.judges():
            verdicts.append(_run_judge(context, judge))
            # The rest cannot change the outcome any more.
            if verdicts[-1].reward == (1.0 if self.file.evaluator.conj == "or" else 0.0):
                break
        return verdicts


def _run_judge(context: Context, judge: Judge) -> _Verdict:
    assert judge.result is not None
    expected = None
    try:
        result = _read(context, judge.result)
        expected = _read_expected(context, judge.expected)
        if result is None:
            return _Verdict(0.0, f"{judge.func}: the desktop has no {_what(judge.result)}")
        if expected is None and judge.expected is not None:
            return _Verdict(0.0, f"{judge.func}: the desktop has nothing to compare with")
        inputs = [result] if judge.expected is None else [result, expected]
        if judge.func in RUN_ON_DESKTOP:
            context.desktop.end_programs()  # what the agent left running could look into what is run now
            reward = RUN_ON_DESKTOP[judge.func](context.desktop, *inputs, **judge.options)
        else:
            function = metric(judge.func)
            require_arguments(function, inputs, judge.options)
            reward = function(*inputs, **rule_of(judge.options))
    except (EnvError, MemoryError):
        raise
    except Obstructed as error:
        return _Verdict(0.0, f"{judge.func}: {error}")
    except (BadRule, re.error) as error:  # No pattern comes from an agent.
        raise TaskFailed(f"{judge.func}: the task's rule means nothing: {error}") from error
    except (BrokenFile, LimitPassed) as error:
        if isinstance(error, BrokenFile) and not context.is_product(error.path):
            raise TaskFailed(f"{judge.func}: the task's own file is broken: {error}") from error
        _require_sound(context, judge, expected)
        return _Verdict(0.0, f"{judge.func}: {error}")
    except Exception as error:
        if not context.has_product:
            # Without a file of the agent's it is our mistake or the task file's: the agent must not pay for it.
            raise TaskFailed(f"metric {judge.func} failed: {type(error).__name__}: {error}") from error
        _require_sound(context, judge, expected)
        # An agent that leaves a file no metric can cope with gets nothing for it; the env_server logs where it was.
        raise
    if not isinstance(reward, (int, float)) or not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise TaskFailed(f"metric {judge.func} gave {reward!r}, which is no number in 0..1")
    return _Verdict(float(reward), f"{judge.func} {reward:.3g}")


def _require_sound(context: Context, judge: Judge, expected: Any) -> None:
    """Raise `TaskFailed` if the expected file is at fault as well: then no answer could have been right."""
    place = Path(expected) if isinstance(expected, str) else None
    fault = None if place is None or context.is_product(place) else fault_of(place, judge)
    if fault is not None:
        raise TaskFailed(f"{judge.func}: the task's own file is broken: {fault}")


def _read(context: Context, source: Source) -> Any:
    if source.type not in GETTERS:
        raise TaskFailed(f"unknown getter {source.type}")
    return GETTERS[source.type].read(context, source.args)


def _read_expected(context: Context, expected: Source | list[Source] | None) -> Any:
    if expected is None:
        return None
    if isinstance(expected, Source):
        return _read(context, expected)
    values = [_read(context, source) for source in expected]
    return None if any(value is None for value in values) else values


def _makes_files(step: SetupStep) -> bool:
    """Does the step bring files of the judge's, or have LibreOffice make them of the agent's?"""
    parameters = step.parameters
    if isinstance(parameters, ExecuteStep):
        return bool(converted_files(normalise(parameters.command, shell=parameters.shell)))
    return isinstance(parameters, (DownloadStep, UploadStep))


_JUDGES_SCRIPT = re.compile(r"(?:eval|check|verify|judge|grade|score)[\w-]*\.(?:sh|bash|py)", re.IGNORECASE)


def _judges_scripts(task: TaskFile) -> Iterator[Download]:
    """Scripts of the evaluator that the set-up has left within the agent's reach.

    They are told by their names, and by an instruction that does not say them: another script that an evaluator runs may be the
    very file that the agent is to change.
    """
    sources = [judge.result for judge in task.evaluator.judges() if judge.result is not None]
    run = " ".join(str(source.args.get("command")) for source in sources)
    for step in task.config:
        if isinstance(step.parameters, DownloadStep):
            for file in step.parameters.files:
                name = PurePosixPath(file.path).name
                if _JUDGES_SCRIPT.fullmatch(name) and name in run and name not in task.instruction:
                    yield file


def _urls(task: TaskFile) -> Iterator[str]:
    """Addresses of the files that the task brings onto the desktop or compares with."""
    evaluator = task.evaluator
    for step in (*task.config, *evaluator.postconfig):
        if isinstance(step.parameters, DownloadStep):
            yield from (file.url for file in step.parameters.files)
        elif isinstance(step.parameters, UploadStep):
            yield from (file.local_path for file in step.parameters.files)
    for judge in evaluator.judges():
        expected = judge.expected if isinstance(judge.expected, list) else [judge.expected]
        for source in (judge.result, *expected):
            if source is not None and source.type == "cloud_file":
                yield from map(str, listed(source.args["path"]))


def _what(source: Source) -> str:
    return str(source.args.get("path") or source.type)


def _evaluation(reward: float, detail: str) -> Evaluation:
    return Evaluation(reward=reward, success=reward >= 1.0, detail=detail[:400])


def _no_demonstration(instruction: str, observation: Observation, actions: Sequence[Action], get: Getter) -> NoReturn:
    raise TaskFailed("OSWorld tasks come without demonstrations")
