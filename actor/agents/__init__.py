"""Agents that play in place of prompts and engine: which one a configuration means."""

from __future__ import annotations

from computerrl.actor.agents.base import Agent
from computerrl.common.config import RunConfig


def make_agent(config: RunConfig) -> Agent | None:
    """The agent that ``config.actor`` asks for; None where prompts and an engine play.

    Raises `ConfigError` for a class that cannot be imported or made, a key that cannot be read and a server that is not there."""
    agent = config.actor.agent
    if agent is None:
        return None
    if agent.is_service:
        from computerrl.actor.agents.service import ServiceAgent

        return ServiceAgent(config)
    from computerrl.actor.agents.module_agent import ModuleAgent

    return ModuleAgent(agent)
