"""The table of algorithms, and everything that a new one imports: `from computerrl.learner.algorithms import GRPO, Algorithm`.

A new algorithm is one file here (or in another package, see `make_algorithm`), one line in `ALGORITHMS`, one config and one
numeric test. The trainer, the conductor, the broker and the actors do not know which algorithm runs.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from computerrl.common.config import LearnerConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.plugins import load_named, registered
from computerrl.learner.algorithms.base import (
    PER_TOKEN,
    Algorithm,
    ChecksConfig,
    Draws,
    FirstLook,
    LearnsValues,
    LeftOut,
    LossBatch,
    LossResult,
    Need,
    PolicyOutputs,
    Refines,
    SamplesDynamically,
    ScalesLearningRate,
    StepKey,
    TrainBatch,
    WantsGuidance,
    WantsScores,
    WantsTargets,
    parse_options,
)
from computerrl.learner.algorithms.contract import DERIVE, check_members
from computerrl.learner.algorithms.grpo import GRPO
from computerrl.learner.algorithms.step_table import StepTable
from computerrl.learner.objective.ages import PolicyAges

__all__ = [
    "ALGORITHMS",
    "GRPO",
    "PER_TOKEN",
    "Algorithm",
    "ChecksConfig",
    "Draws",
    "FirstLook",
    "LearnsValues",
    "LeftOut",
    "LossBatch",
    "LossResult",
    "Need",
    "PolicyAges",
    "PolicyOutputs",
    "Refines",
    "SamplesDynamically",
    "ScalesLearningRate",
    "StepKey",
    "StepTable",
    "TrainBatch",
    "WantsGuidance",
    "WantsScores",
    "WantsTargets",
    "make_algorithm",
    "parse_options",
]

ENTRY_POINT_GROUP = "computerrl.algorithms"
"""Other packages register `name = module:Class` here."""

Maker = Callable[[Mapping[str, Any], LearnerConfig], Algorithm]

ALGORITHMS: dict[str, str] = {
    "grpo": "computerrl.learner.algorithms.grpo:GRPO",
    "rloo": "computerrl.learner.algorithms.rloo:RLOO",
    "reinforce_pp": "computerrl.learner.algorithms.reinforce_pp:ReinforcePlusPlus",
    "dr_grpo": "computerrl.learner.algorithms.dr_grpo:DrGRPO",
    "dapo": "computerrl.learner.algorithms.dapo:DAPO",
    "m_grpo": "computerrl.learner.algorithms.m_grpo:MGRPO",
    "max_rl": "computerrl.learner.algorithms.max_rl:MaxRL",
    "rebn": "computerrl.learner.algorithms.rebn:ReBN",
    "agentrl": "computerrl.learner.algorithms.agentrl:AgentRL",
    "adagrpo": "computerrl.learner.algorithms.adagrpo:AdaGRPO",
    "arpo": "computerrl.learner.algorithms.arpo:ARPO",
    "gigpo": "computerrl.learner.algorithms.gigpo:GiGPO",
    "ui_s1": "computerrl.learner.algorithms.ui_s1:UIS1",
    "grpo_roc": "computerrl.learner.algorithms.grpo_roc:GRPORoC",
    "dart": "computerrl.learner.algorithms.dart:DART",
    "ppo": "computerrl.learner.algorithms.ppo:PPO",
    "vtrace": "computerrl.learner.algorithms.vtrace:VTrace",
    "digirl": "computerrl.learner.algorithms.digirl:DigiRL",
    "grounding": "computerrl.learner.algorithms.grounding:Grounding",
    "vcpo": "computerrl.learner.algorithms.vcpo:VCPO",
    "distillation": "computerrl.learner.algorithms.distillation:Distillation",
    "self_distillation": "computerrl.learner.algorithms.self_distillation:SelfDistillation",
}
"""Name -> `module:Class`."""


def make_algorithm(learner: LearnerConfig, *, seed: int = 0) -> Algorithm:
    """The configured algorithm: a name in `ALGORITHMS`, the name of an entry point in the group `computerrl.algorithms`, or
    `module:Class`. Raises `ConfigError` when there is none of that name or its options are wrong.

    ``seed``: of the run, for an algorithm that `Draws`.
    """
    name = learner.algorithm.name
    if name in ALGORITHMS:
        algorithm = _maker(ALGORITHMS[name])(learner.algorithm.options, learner)
    else:
        algorithm = _made_elsewhere(name, learner)
    if isinstance(algorithm, Draws):
        algorithm.seed = seed
    return algorithm


def _made_elsewhere(name: str, learner: LearnerConfig) -> Algorithm:
    """The algorithm ``name`` of another package. Its errors become a `ConfigError` that names the line."""
    try:
        made = _maker(name)(learner.algorithm.options, learner)
        check_members(name, made, needs=get_args(Need))
        return made
    except ConfigError:
        raise
    except Exception as error:  # code of others may raise anything; the cause goes along
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{name!r} cannot be made: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        step = f"its constructor gets (options, learner): {DERIVE}"
        raise ConfigError([Problem("learner.algorithm.name", reason, step)]) from error


def _maker(name: str) -> Maker:
    found = registered(name, group=ENTRY_POINT_GROUP)
    if found is not None:
        return cast(Maker, found)
    if ":" not in name:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        known = f"use one of {', '.join(sorted(ALGORITHMS))}, or module:Class"
        step = f"did you mean {near[0]!r}?" if near else f"{known}; other names of configs/algorithms/ are options of these"
        raise ConfigError([Problem("learner.algorithm.name", f"no algorithm {name!r}", step)])
    return load_named(name, field="learner.algorithm.name", what="Class")
