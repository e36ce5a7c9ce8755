"""What the rewards of a run may use: the text of its prompts and its screenshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.common.config import RunConfig
from computerrl.common.models.folder import model_folder
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.client import read_screenshot
from computerrl.learner.rewards.base import RewardSetting


def setting_of(config: RunConfig, folder: RunFolder) -> RewardSetting:
    """The setting of the run ``config`` in ``folder``. Loads nothing before it is asked for."""
    return RewardSetting(
        folder.folder, decode=_decoder(model_folder(config.model.name)), read_image=partial(read_screenshot, folder.trajectories)
    )


def _decoder(model: Path) -> Callable[[np.ndarray], str]:
    @cache
    def tokenizer() -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(model / "tokenizer.json"))

    def decode(tokens: Sequence[int] | np.ndarray) -> str:
        return str(tokenizer().decode([int(token) for token in tokens], skip_special_tokens=True))

    return decode
