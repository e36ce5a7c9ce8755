"""`computerrl export`: what transformers loads is what the learner computes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from computerrl.common.config import LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.errors import ConfigError, ResumeError
from computerrl.common.models.folder import check_model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import PROBE_TOKENS
from computerrl.launch.plan.run_names import find_checkpoint
from computerrl.learner.algorithms import PolicyAges
from computerrl.learner.checkpoints.checkpoint import CheckpointStore
from computerrl.learner.checkpoints.export import ORIGIN_FILE, export_model
from computerrl.learner.model.policy import load_policy
from computerrl.learner.supervised.pool import pack_run
from computerrl.learner.training.trainer import Trainer
from tests.support.data.trainer_data import random_groups

ROOT = Path(__file__).resolve().parents[4]


def make_run(
    tmp_path: Path,
    *,
    model: str = "tiny-random",
    dtype: str = "float32",
    top_layers: int | None = 2,
    num_updates: int = 1,
    lr: float = 1e-2,
) -> tuple[Path, Trainer]:
    """A run folder with a checkpoint per update, and the trainer as the last one left it."""
    config = RunConfig(
        name="trained",
        run_dir=str(tmp_path),
        model=ModelConfig(name=model, dtype=dtype, trainable_top_layers=top_layers),
        learner=LearnerConfig(device="cpu", max_logprob_gap=None, optimizer=OptimizerConfig(lr=lr)),
    )
    folder = RunFolder(config.folder)
    folder.create(config)
    trainer = Trainer(config, load_policy(config))
    store = CheckpointStore(folder.checkpoints, num_kept=3)
    for update in range(1, num_updates + 1):
        trainer.update(trainer.algorithm.prepare(random_groups(num_groups=1, seed=update), ages=PolicyAges(0)))
        loop = {"policy_version": update, "phase": "rl-1", "update": update}
        sections, tree = pack_run(loop, trainer.state_dict(), {})
        store.save(sections, tree, cursor=update)
    store.close()
    return config.folder, trainer


def logprobs_of(folder: Path) -> np.ndarray:
    """[15] of the probe, by transformers alone."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokens = torch.tensor([PROBE_TOKENS])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, :-1].float(), dim=-1)
    return logprobs.gather(1, tokens[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize(("dtype", "top_layers", "atol"), [("float32", 2, 1e-4), ("float32", None, 1e-4), ("bfloat16", 2, 0.15)])
def test_export_gives_the_learners_logprobs_in_transformers(
    tmp_path: Path, dtype: str, top_layers: int | None, atol: float
) -> None:
    run, trainer = make_run(tmp_path, dtype=dtype, top_layers=top_layers)
    out = export_model(run, tmp_path / "out" / "model")
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    check_model_folder(out)
    np.testing.assert_allclose(logprobs_of(out), trainer.probe_logprobs(), atol=atol)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    exported = dict(model.named_parameters())
    for name, tensor in trainer.trainable_tensors().items():
        assert torch.equal(exported[name], tensor), name
    assert transformers.AutoTokenizer.from_pretrained(out).decode([1, 2]) is not None
    assert json.loads((out / ORIGIN_FILE).read_text())["update"] == 1


@pytest.mark.release
def test_export_command_of_a_run_takes_the_newest_whole_checkpoint_and_changes_nothing(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, num_updates=3)
    newest = (run / "checkpoints" / "latest").resolve()
    (newest / "trainer.safetensors").write_bytes(b"damaged")
    before = {path: path.stat().st_mtime_ns for path in sorted(run.rglob("*"))}
    command = [sys.executable, "-m", "computerrl", "export", str(run), str(tmp_path / "model")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("model")
    assert json.loads((tmp_path / "model" / ORIGIN_FILE).read_text())["update"] == 2
    assert {path: path.stat().st_mtime_ns for path in sorted(run.rglob("*"))} == before


def test_export_of_a_named_checkpoint_takes_that_one(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, num_updates=2)
    found = find_checkpoint(str(run / "checkpoints" / "checkpoint-000000"))
    assert found == (run.resolve(), (run / "checkpoints" / "checkpoint-000000").resolve())
    out = export_model(found[0], tmp_path / "model", checkpoint=found[1])
    assert json.loads((out / ORIGIN_FILE).read_text())["update"] == 1
    assert find_checkpoint(str(run)) == (run, None)


def test_export_never_overwrites_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        export_model(run, tmp_path / "model")
    for path in (run / "checkpoints").glob("checkpoint-*"):
        (path / "files.json").write_text("{")
    with pytest.raises(ResumeError, match="no whole checkpoint"):
        export_model(run, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "trained"]
