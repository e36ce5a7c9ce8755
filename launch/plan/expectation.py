"""What a run can be expected to reach on this machine: two seconds of measuring, and a rule of three.

`recipe.max_run_s` bounds the time; the machine decides how many RL updates fit into it. The reference is a run of
`configs/quickstart.yaml` on a machine that was measured the same way. Nothing here changes what a run does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from computerrl.common.config import RunConfig
from computerrl.common.host import fast_dtype, may_use_gpu
from computerrl.common.models.engine_choice import engine_here

MEASURE_S = 1.2
"""Of each core, all at once; importing numpy before takes about as long again."""

_MODEL = "smollm2-135m"
"""The reference's model: others have other times."""

_MANY_UPDATES = 8
"""With fewer RL updates a run of the reference had gained less than half of what RL gains."""

_MEASURE = """
import json, sys, time
import numpy as np
weights = [np.ones((576, 1536), np.float32) for _ in range(32)]
rows = np.ones((24, 576), np.float32)
began, done = time.perf_counter(), 0
while time.perf_counter() - began < float(sys.argv[1]):
    rows @ weights[done % len(weights)]
    done += 1
print(json.dumps(done * 2 * 24 * 576 * 1536 / (time.perf_counter() - began) / 1e9))
"""


@dataclass(frozen=True, slots=True)
class Reference:
    """A run of the quickstart on a machine of ``gflops``, all cores together."""

    gflops: float
    cloned_s: float
    """From the start of the run to the first RL update's rollouts, start-up included."""
    update_s: float
    evaluation_s: float
    """Last evaluation, end and report."""


REFERENCE = Reference(gflops=56.0, cloned_s=130.0, update_s=23.4, evaluation_s=108.0)
"""Two cores of an AMD EPYC with AVX2 alone, float32, measured by `measure` before the runs (53 to 60 GFLOP/s): means of four."""


def measure(num_cores: int, *, seconds: float = MEASURE_S) -> float:
    """GFLOP/s of ``num_cores`` cores at once, float32, in products as the policy's: 24 rows by 576 x 1,536."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _MEASURE, str(seconds)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, stdin=subprocess.DEVNULL) for _ in range(num_cores)
    ]
    return float(sum(json.loads(process.communicate()[0]) for process in processes))


def expected_updates(config: RunConfig, gflops: float) -> int | None:
    """RL updates that fit into `recipe.max_run_s` at ``gflops``; None where the reference says nothing about the run."""
    max_run_s = config.learner.recipe.max_run_s
    on_cpu = config.learner.device == "cpu" or (config.learner.device == "auto" and not may_use_gpu())
    if max_run_s is None or config.model.name != _MODEL or engine_here(config).engine != "transformers" or not on_cpu:
        return None
    slowness = REFERENCE.gflops / gflops
    left_s = max_run_s - slowness * (REFERENCE.cloned_s + REFERENCE.evaluation_s)
    return max(0, min(config.learner.recipe.max_updates, int(left_s / (slowness * REFERENCE.update_s))))


def expectation(config: RunConfig, *, num_cores: int) -> str | None:
    """One or two lines for the terminal before the run starts; None where nothing can be said."""
    max_run_s = config.learner.recipe.max_run_s
    if max_run_s is None or expected_updates(config, REFERENCE.gflops) is None:
        return None
    gflops = measure(min(num_cores, 2))
    updates = expected_updates(config, gflops)
    assert updates is not None
    kind = "bfloat16" if fast_dtype("cpu") == "bfloat16" else "no fast bfloat16"
    line = f"this machine: {num_cores} cores, {gflops:.0f} GFLOP/s on two of them, {kind}"
    line += f"\nthe run ends within {max_run_s / 60:.0f} minutes, with about {updates} RL updates"
    if updates >= _MANY_UPDATES:
        return line
    return f"{line}, which is few\n    -> learner.recipe.max_run_s={2 * max_run_s:.0f} gives it more time"
