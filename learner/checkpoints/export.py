"""A checkpoint as a Hugging Face model folder: the base model with the trained tensors in their places.

What is written is what actors served: the masters in compute type, under the base model's own names, with its tokenizer and
settings beside them. Reads the run and changes nothing in it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from computerrl.common import log
from computerrl.common.config import RunConfig, load_config
from computerrl.common.errors import ConfigError, Problem, ResumeError
from computerrl.common.models.hub import model_label
from computerrl.common.models.loading import load_whole
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.checkpoints.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint, trainer_state
from computerrl.learner.model.lora import adapters_among
from computerrl.learner.model.vision import auto_class
from computerrl.learner.model_store import ensure_model

ORIGIN_FILE = "computerrl.json"
"""In an exported folder: which run, checkpoint and policy version it is."""

_NUM_PARTS = 4
"""Parts of an export, as its progress counts them: checkpoint, base model, trained weights, files."""
_MASTER = "master/"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth")
"""Files of the base model that are not copied."""


def export_model(
    run: Path,
    out: Path,
    *,
    checkpoint: Path | None = None,
    tell: Callable[[float, float | None], None] = lambda done, total: None,
) -> Path:
    """Write the model of ``checkpoint`` (None: the run's newest whole one) to ``out``; returns ``out``. ``tell`` receives the
    number of finished parts and that of all parts.

    The folder appears under its name only when it is whole, and is its owner's alone, as the run is.

    Raises `ConfigError` when it exists already or the run's model is no model folder any more, `ResumeError` when there is no
    whole checkpoint or it is not of that model.
    """
    if out.exists():
        raise ConfigError([Problem("OUT_FOLDER", f"{str(out)!r} exists", "give a folder that does not exist yet")])
    folder = RunFolder(run)
    path = checkpoint or newest_checkpoint(folder.checkpoints)
    found = read_checkpoint(path)
    config = load_config(folder.resolved_config)
    base = ensure_model(config.model.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        tell(1, _NUM_PARTS)
        _write(config, base, found, aside, tell)
        origin = _origin(config, found, path)
        (aside / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    log.get_logger().info("model.exported", folder=str(out), **origin)
    return out


def masters_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Hugging Face name -> trained tensor, float32."""
    state = trainer_state(checkpoint)
    return {name.removeprefix(_MASTER): state[name] for name in state if name.startswith(_MASTER)}


@torch.no_grad()
def _write(config: RunConfig, base: Path, checkpoint: Checkpoint, out: Path, tell: Callable[[float, float | None], None]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    model = load_whole(auto_class(base).from_pretrained, base, dtype=dtype)
    tell(2, _NUM_PARTS)
    parameters = dict(model.named_parameters())
    masters = masters_of(checkpoint)
    for adapter in adapters_among(masters, config.learner.lora):
        # In compute type first: what actors got was merged from those.
        down, up = (masters.pop(name).to(dtype) for name in (adapter.down, adapter.up))
        if adapter.weight not in parameters or parameters[adapter.weight].shape != (len(up), down.shape[1]):
            raise _other_model(adapter.weight, base)
        masters[adapter.weight] = adapter.merged(parameters[adapter.weight], down, up)
    for name, master in masters.items():
        if name not in parameters or parameters[name].shape != master.shape:
            raise _other_model(name, base)
        parameters[name].copy_(master)
    tell(3, _NUM_PARTS)
    # transformers follows the outer setting, vLLM that of the language model.
    model.config.get_text_config().tie_word_embeddings = model.config.tie_word_embeddings
    model.save_pretrained(out)
    # Tokenizer, chat template and the like. What save_pretrained wrote stays: config.json knows the type of the weights.
    weights = {file.name for pattern in _WEIGHTS for file in base.glob(pattern)}
    for file in base.iterdir():
        if file.is_file() and file.name not in weights and not (out / file.name).exists():
            shutil.copy(file, out)
    templates = base / "additional_chat_templates"
    if templates.is_dir():
        shutil.copytree(templates, out / templates.name, dirs_exist_ok=True)
    tell(_NUM_PARTS, _NUM_PARTS)


def _other_model(name: str, base: Path) -> ResumeError:
    return ResumeError(f"the checkpoint's {name} does not fit the model in {base}: put back the one that the run began with")


def _origin(config: RunConfig, checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
    loop = checkpoint.state["loop"]
    return {
        "run": config.name,
        "checkpoint": path.name,
        "base_model": model_label(config.model.name),
        "policy_version": loop["policy_version"],
        "phase": loop["phase"],
        "update": loop["update"],
    }
