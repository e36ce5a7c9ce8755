"""Agents that play in place of prompts and engine: which one a configuration means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from computerrl.actor.agents.base import Agent
from computerrl.common.config import RunConfig, played_by_teacher, player_name

if TYPE_CHECKING:
    from pathlib import Path

    from computerrl.actor.prompts.tokenizer import Tokenizer
    from computerrl.common.vision.screens import ReadScreenshot


def make_agent(
    config: RunConfig, tokenizer: Tokenizer | None = None, *, model: Path | None = None, read: ReadScreenshot | None = None
) -> Agent | None:
    """The agent that ``config.actor`` asks for; None where prompts play. ``tokenizer``: of the run's policy, for an agent that
    it trains; ``model``: its folder, and ``read``: of screenshots, where it is shown images.

    Raises `ConfigError` for a class that cannot be imported or made, and for a key that cannot be read."""
    agent = config.actor.agent
    if agent is None:
        return None
    if agent.is_service:
        from computerrl.actor.agents.service import ServiceAgent

        return ServiceAgent(config)
    from computerrl.actor.agents.module_agent import ModuleAgent
    from computerrl.actor.agents.policy_endpoint import PolicyEndpoint
    from computerrl.actor.agents.program import ProgramAgent
    from computerrl.actor.agents.server import AgentServer
    from computerrl.actor.prompts.images import ImageTokens

    policy = None
    if tokenizer is not None:
        images = None
        if config.actor.prompt.shows_images:
            assert model is not None and read is not None, "given with the tokenizer"
            images = ImageTokens.of(model, tokenizer, read=read)
        policy = PolicyEndpoint(
            tokenizer,
            max_prompt_tokens=config.actor.prompt.max_prompt_tokens,
            max_new_tokens=config.actor.max_new_tokens,
            images=images,
            is_central=config.actor.inference == "central",
        )
    if policy is None and not agent.is_program:
        return ModuleAgent(agent)
    server = AgentServer(policy)
    try:
        return ProgramAgent(agent, server) if agent.is_program else ModuleAgent(agent, server)
    except BaseException:
        server.close()
        raise


def make_teacher(config: RunConfig) -> Agent | None:
    """The agent `learner.recipe.teacher`, which plays demonstrations; None where the tasks' demonstrators do.

    Raises as `make_agent`."""
    return None if config.learner.recipe.teacher is None else make_agent(played_by_teacher(config))


def name_of_teacher(config: RunConfig) -> str:
    """Name of that agent: the model that it asks, or its kind; empty where there is none."""
    teacher = config.learner.recipe.teacher
    return "" if teacher is None else player_name(teacher.model_dump())
