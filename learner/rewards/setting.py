"""What the rewards of a run may use: the text of its prompts and its screenshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.config import RunConfig
from computerrl.common.messages import MAX_IMAGE_BYTES, ScreenshotRef, content_hash
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.rewards.base import RewardSetting


def setting_of(config: RunConfig, folder: RunFolder) -> RewardSetting:
    """The setting of the run ``config`` in ``folder``. Loads nothing before it is asked for."""
    return RewardSetting(folder.folder, decode=_decoder(model_folder(config.model.name)), read_image=_reader(folder.trajectories))


def _decoder(model: Path) -> Callable[[np.ndarray], str]:
    @cache
    def tokenizer() -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(model / "tokenizer.json"))

    def decode(tokens: Sequence[int] | np.ndarray) -> str:
        return str(tokenizer().decode([int(token) for token in tokens], skip_special_tokens=True))

    return decode


def _reader(trajectories: Path) -> Callable[[ScreenshotRef], bytes]:
    def read(ref: ScreenshotRef) -> bytes:
        if "/" in ref.segment or ref.num_bytes > MAX_IMAGE_BYTES:
            raise ValueError(f"{ref.segment!r} is no segment of screenshots, or its image is too large")
        with (trajectories / ref.segment).open("rb") as file:
            file.seek(ref.offset)
            data = file.read(ref.num_bytes)
        if content_hash(data) != ref.content_hash:
            raise ValueError(f"{ref.segment} holds another image at {ref.offset} than {ref.content_hash}")
        return data

    return read
