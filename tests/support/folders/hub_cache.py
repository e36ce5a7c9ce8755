"""A cache of the Hugging Face hub as its library lays it out (blobs, refs, snapshots of links), with a tiny model in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

FIRST, SECOND = "1" * 40, "2" * 40
"""Commit hashes of two revisions."""
NAME = "Some-Org/tiny.Model-1B"


def model_files() -> dict[str, bytes]:
    settings = {"model_type": "llama", "vocab_size": 4, "hidden_size": 2, "num_hidden_layers": 1, "max_position_embeddings": 8192}
    tensors = {
        "model.embed_tokens.weight": np.zeros((4, 2), np.float32),
        "model.layers.0.mlp.up_proj.weight": np.zeros((2, 2), np.float32),
    }
    return {"config.json": json.dumps(settings).encode(), "tokenizer.json": b"{}", "model.safetensors": save(tensors)}


def use_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, *, is_offline: bool = False) -> Path:
    """Let huggingface_hub, which reads the environment when it is imported, use ``cache``."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    return cache


def add_revision(cache: Path, commit: str, files: dict[str, bytes], *, name: str = NAME, is_newest: bool = True) -> Path:
    """Put a revision with ``files`` into ``cache``; gives its folder."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for place in (folder / "blobs", folder / "refs", snapshot):
        place.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / path).symlink_to(Path("../../blobs") / blob.name)
    if is_newest:
        (folder / "refs" / "main").write_text(commit)
    return snapshot
