"""Prompt formats: how the policy is asked and how it answers. `actor.prompt.format` chooses one."""

from __future__ import annotations

from computerrl.actor.prompts.formats.base import PromptFormat
from computerrl.actor.prompts.formats.compact import CompactFormat, CompactVision
from computerrl.actor.prompts.formats.computerrl import ComputerRLText, ComputerRLVision
from computerrl.actor.prompts.formats.coordinates import Extents, thousand
from computerrl.actor.prompts.formats.qwen_computer_use import QwenComputerUse
from computerrl.actor.prompts.formats.ui_tars import UITars
from computerrl.common.config import Actions, PromptConfig


def make_format(config: PromptConfig, *, actions: Actions = "api_gui", extents: Extents = thousand) -> PromptFormat:
    """The format that ``config`` names. One that tells the policy what it may do tells of ``actions`` (`tasks.actions`); one with
    images takes coordinates up to ``extents``."""
    match config.format:
        case "compact":
            return CompactFormat(config)
        case "compact_vision":
            return CompactVision(config, extents=extents)
        case "computerrl_text":
            return ComputerRLText(config, actions=actions)
        case "computerrl_vision":
            return ComputerRLVision(config, actions=actions, extents=extents)
        case "ui_tars":
            return UITars(config, extents=extents)
        case "qwen_computer_use":
            return QwenComputerUse(config, extents=extents)
