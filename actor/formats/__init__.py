"""Prompt formats: how the policy is asked and how it answers. `actor.prompt.format` chooses one."""

from __future__ import annotations

from actor.formats.base import PromptFormat
from actor.formats.compact import CompactFormat
from actor.formats.computerrl import ComputerRLText, ComputerRLVision
from common.config import PromptConfig


def make_format(config: PromptConfig) -> PromptFormat:
    """The format that ``config`` names."""
    if config.format == "computerrl_text":
        return ComputerRLText(config)
    if config.format == "computerrl_vision":
        return ComputerRLVision(config)
    return CompactFormat(config)
