"""Where model folders lie and whether one is whole, told from file names and JSON alone.

No torch and no transformers here: launch checks a configuration with it in milliseconds, before any process starts. It
neither makes folders (`learner.model_store` does) nor loads weights.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common.errors import ConfigError, Problem

BUILT_IN_MODELS = ("smollm2-135m", "tiny-random")
"""Names that `learner.model_store` can make without a network."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Any one of them is a tokenizer that transformers can load offline."""


def cache_folder() -> Path:
    """Where made models are kept: `$COMPUTERRL_CACHE`, else `~/.cache/computerrl`."""
    chosen = os.environ.get("COMPUTERRL_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "computerrl"


def model_folder(name: str) -> Path:
    """The folder of model ``name`` (a built-in name or a path); it need not exist yet when the name is built in."""
    if name in BUILT_IN_MODELS:
        return cache_folder() / "models" / name
    return Path(name).expanduser()


def is_model_folder(path: Path, *, weights: bool = True) -> bool:
    """True when `check_model_folder` finds nothing missing."""
    return not model_folder_problems(path, weights=weights)


def takes_pictures(name: str) -> bool:
    """Has model ``name`` a vision tower? False where there is no such model, which `check_model_folder` reports."""
    tree = _read_json(model_folder(name) / "config.json")
    return isinstance(tree, dict) and "vision_config" in tree


def sliding_window(name: str) -> int | None:
    """How many tokens back model ``name`` sees in its narrowest layers; None: all of them, or there is no such model."""
    tree = _read_json(model_folder(name) / "config.json") or {}
    text = tree.get("text_config") or tree
    window = text.get("sliding_window") if text.get("use_sliding_window", True) else None
    return window if isinstance(window, int) else None


def check_model_folder(path: Path, *, field: str = "model.name", weights: bool = True) -> None:
    """Raise `ConfigError` naming everything that keeps ``path`` from being a model folder. ``weights``: must it hold any?"""
    problems = [Problem(field, reason, step) for reason, step in model_folder_problems(path, weights=weights)]
    if problems:
        raise ConfigError(problems)


def model_folder_problems(path: Path, *, weights: bool = True) -> list[tuple[str, str]]:
    """(reason, next step) for each thing missing in ``path``: folder, config.json, weights, tokenizer."""
    if not path.exists():
        known = ", ".join(BUILT_IN_MODELS)
        if len(path.parts) == 2 and not str(path).startswith(("/", ".", "~")):
            # What a name on a model hub looks like.
            local = f"models/{path.name}"
            step = f"hf download {path} --local-dir {local}, where there is internet; then model.name={local}"
            return [(f"no folder {str(path)!r}, and nothing is downloaded by itself", step)]
        return [(f"no model of that name and no folder {str(path)!r}", f"use one of {known}, or the path of a model folder")]
    if not path.is_dir():
        return [(f"{str(path)!r} is a file, not a model folder", "give the folder that holds config.json")]
    return [*_config_problems(path), *(_weight_problems(path) if weights else ()), *_tokenizer_problems(path)]


def _config_problems(path: Path) -> list[tuple[str, str]]:
    tree = _read_json(path / "config.json")
    if tree is None:
        return [(f"{str(path)!r} holds no readable config.json", "save the model with save_pretrained() into that folder")]
    if not tree.get("model_type"):
        return [(f"config.json in {str(path)!r} names no model_type", "use a Hugging Face causal language model")]
    return []


def _weight_problems(path: Path) -> list[tuple[str, str]]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        tree = _read_json(index)
        if tree is None or not isinstance(tree.get("weight_map"), dict):
            return [(f"{index.name} in {str(path)!r} is not readable", "copy the model folder again")]
        missing = sorted({str(shard) for shard in tree["weight_map"].values() if not _filled(path / str(shard))})
        return [(f"weight file {shard!r} is missing in {str(path)!r}", "copy the whole model folder") for shard in missing]
    if _filled(path / "model.safetensors"):
        return []
    return [(f"{str(path)!r} holds no model.safetensors", "save the model with safe_serialization into that folder")]


def _tokenizer_problems(path: Path) -> list[tuple[str, str]]:
    if any(_filled(path / name) for name in _TOKENIZER_FILES):
        return []
    return [(f"{str(path)!r} holds no tokenizer (tokenizer.json)", "save the tokenizer with save_pretrained() next to the model")]


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None
