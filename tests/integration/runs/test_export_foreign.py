"""Exported trajectories in the programs that they are for: Hugging Face's datasets, TRL's trainer, pyarrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from computerrl import SOURCE_ROOT
from computerrl.launch.export.stored import Selection
from computerrl.launch.export.write import export_trajectories
from computerrl.learner.model_store import ensure_model
from tests.foreign.environment import make_environment
from tests.support.data import image_prompts
from tests.support.folders.stored_run import SOLVED, store_run

FOREIGN = SOURCE_ROOT / "tests" / "foreign"


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_trl_takes_a_step_of_sft_on_exported_chats_and_pyarrow_reads_the_table(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "trl", FOREIGN / "openenv_requirements.txt", FOREIGN / "trl_requirements.txt")
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    # torch and transformers are this project's own: they weigh gigabytes.
    (packages / "zz_others.pth").write_text(str(Path(torch.__file__).parents[1]))
    models = {"text": ensure_model("tiny-random"), "pictures": image_prompts.make_folder(tmp_path / "model", "idefics3")}
    prompts = {
        "text": {"format": "compact", "chat_template": True},
        "pictures": {"format": "computerrl_vision", "chat_template": True, "images": 2},
    }
    words: list[str] = []
    for name, model in models.items():
        store_run(tmp_path / "runs" / name, model, [("rl-1/0/0", SOLVED)], prompt=prompts[name])
        export_trajectories(tmp_path / "runs" / name, tmp_path / name, kind="sft", selection=Selection())
        words += [str(tmp_path / name), str(model)]
    _write_table(tmp_path / "runs" / "text", tmp_path / "table", packages=packages, links=tmp_path / "links")
    out = tmp_path / "out"
    out.mkdir()
    command = [str(python), "-I", str(FOREIGN / "sft_trainer.py"), *words, str(tmp_path / "table" / "steps.parquet"), str(out)]
    subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path, check=True, timeout=1800)
    found = json.loads((out / "found.json").read_text())
    assert (found["text"]["rows"], found["pictures"]["rows"]) == (3, 3) and "images" in found["pictures"]["columns"]
    assert all(found[name]["loss"] > 0 and found[name]["moved"] > 0 for name in models)
    # The loss is on the completion alone.
    assert found["text"]["trained"] == "click(1)<|im_end|>\n"
    assert found["pictures"]["trained"].startswith("<think>") and "Agent.click([" in found["pictures"]["trained"]
    assert found["table"]["rows"] == 3 and all(found["table"]["bytes"])


def _write_table(run: Path, out: Path, *, packages: Path, links: Path) -> None:
    """Export ``run`` as Parquet in a process that sees pyarrow, and nothing else, of ``packages``."""
    links.mkdir()
    for path in packages.glob("pyarrow*"):
        (links / path.name).symlink_to(path)
    command = [sys.executable, "-m", "computerrl", "export-trajectories", str(run), str(out), "--format", "parquet"]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE_ROOT}:{links}"}
    subprocess.run(command, env=environment, cwd=run.parent, check=True, timeout=600)
