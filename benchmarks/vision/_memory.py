"""Memory of a learner's update on screens, each in a process of its own, beside what plans say."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from computerrl.benchmarks.vision._folders import save_random_model
from computerrl.benchmarks.vision._runs import Row, VisionRun

_FAMILY = "qwen2_5_vl"
_SIZES: dict[str, Any] = {
    "text": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 10_000.0},
    },
    "tower": {"hidden_size": 512, "intermediate_size": 1536, "depth": 8, "num_heads": 8, "out_hidden_size": 512},
}
"""Large enough that a screen takes more than interpreter and libraries."""
_SCREEN = (800, 600)
_TOKENS = 640
"""A screen, its task and a completion."""
_LIMIT = 0.25


def memory_rows(folder: Path, *, quick: bool) -> Iterator[Row]:
    model = save_random_model(folder / "large", _FAMILY, **_SIZES)
    cases = [("frozen", "none", 1), ("trained", "full", 4)]
    if not quick:
        cases += [("frozen", "none", 4), ("trained", "full", 1), ("trained", "none", 1), ("trained", "none", 4)]
    for vision, recomputation, number in sorted(cases):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak_mb, planned_mb = pool.apply(_update, (folder, model, vision, recomputation, number))
        screens = "1 screen" if number == 1 else f"{number} screens"
        yield {
            "name": f"memory, plan against peak: {vision} tower, recomputation {recomputation}, {screens}",
            "value": abs(planned_mb / peak_mb - 1),
            "unit": "share",
            "spread": f"plan {planned_mb:.0f}, peak {peak_mb:.0f} MiB",
            "better": "lower",
            "target": _LIMIT,
        }


def _update(folder: Path, model: Path, vision: str, recomputation: str, number: int) -> tuple[float, float]:
    """MiB of two updates on ``number`` screens, the second one while a checkpoint is written: the peak of the resident set, and
    the plan's. The optimizer's moments are made at the end of the first one, when nothing else is held any more."""
    from computerrl.common.memory_plan import learner_mb
    from computerrl.learner.algorithms import PolicyAges
    from computerrl.learner.checkpoints.checkpoint import CheckpointStore
    from computerrl.learner.model.policy import load_policy
    from computerrl.learner.supervised.pool import pack_run
    from computerrl.learner.training.trainer import Trainer

    run = VisionRun(
        folder,
        f"memory-{vision}-{recomputation}-{number}",
        model,
        dtype="float32",
        top_layers=None,
        vision=vision,
        learner={
            "activation_checkpointing": recomputation,
            "max_pack_tokens": number * _TOKENS,
            "num_threads": 2,
            # There are too few screens to fill more.
            "image_cache_mb": 16,
        },
    )
    # A new process begins with its parent's peak, which is forgotten here (proc_pid_clear_refs(5)).
    Path("/proc/self/clear_refs").write_text("5")
    trainer = Trainer(run.config, load_policy(run.config))
    group = run.group([run.step(run.take(seed, _SCREEN), [11, 12, 13 + seed], [-1.0] * 3) for seed in range(number)] * 2)
    store = CheckpointStore(folder / "checkpoints" / f"{vision}-{recomputation}-{number}", num_kept=1)
    for _ in range(2):
        trainer.update(trainer.algorithm.prepare([group], ages=PolicyAges(0)))
        store.save(*pack_run({}, trainer.state_dict(), {}), cursor=0)
    store.close()
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None, "the kernel counts no peak"
    peak_mb = int(found[1]) / 2**10
    return peak_mb, float(learner_mb(run.config, "none"))
