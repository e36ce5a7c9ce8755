"""Prompt formats: how the policy is asked and how it answers. `actor.prompt.format` chooses one."""

from __future__ import annotations

from computerrl.actor.prompts.formats.base import PromptFormat
from computerrl.actor.prompts.formats.compact import CompactFormat, CompactVision
from computerrl.actor.prompts.formats.computerrl import ComputerRLText, ComputerRLVision
from computerrl.common.config import Actions, PromptConfig


def make_format(config: PromptConfig, *, actions: Actions = "api_gui") -> PromptFormat:
    """The format that ``config`` names; one that tells the policy what it may do tells of ``actions`` (`tasks.actions`)."""
    if config.format == "computerrl_text":
        return ComputerRLText(config, actions=actions)
    if config.format == "computerrl_vision":
        return ComputerRLVision(config, actions=actions)
    return CompactVision(config) if config.format == "compact_vision" else CompactFormat(config)
