"""Weights through the run folder, for sites without a network that collectives can use.

A version is one safetensors file of buckets, laid out as its manifest says, that appears under its name when it is whole. The
two newest are kept: a receiver that was told of one may still be reading when the next comes. Who reads is
`learner.client.read_buckets`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

_NUM_KEPT = 2
_DRAFT = ".incomplete"


class WeightFiles:
    """The learner's side. One process writes to a folder at a time."""

    def __init__(self, folder: Path) -> None:
        """Begins with an empty ``folder``: what a learner before this one left is of no use to anybody."""
        self._folder = folder
        self._token = secrets.token_hex(4)
        """In all names: a learner that died may have written the same version with other weights."""
        self.clear()

    def write(self, policy_version: int, buffers: Sequence[torch.Tensor]) -> str:
        """The name of the file with ``buffers`` (uint8 [bytes] each), written unless it is there. Raises `OSError`."""
        path = self._folder / f"{policy_version:08d}-{self._token}.safetensors"
        if path.exists():
            return path.name
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(_DRAFT)
        try:
            save_file({f"bucket-{i}": buffer.cpu() for i, buffer in enumerate(buffers)}, draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        except SafetensorError as error:
            draft.unlink(missing_ok=True)
            raise OSError(f"{path}: {error}") from None  # The library's word for a full disk.
        draft.rename(path)
        for older in sorted(self._folder.glob("*.safetensors"))[:-_NUM_KEPT]:
            older.unlink()
        return path.name

    def clear(self) -> None:
        """Remove all files."""
        for path in (*self._folder.glob("*.safetensors"), *self._folder.glob(f"*{_DRAFT}")):
            path.unlink(missing_ok=True)
