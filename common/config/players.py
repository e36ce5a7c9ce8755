"""Who plays a run's episodes: the engine or a server, an agent in place of prompts, a teacher that demonstrates."""

from __future__ import annotations

from computerrl.common.config.actor import ActorConfig, AgentConfig, TeacherConfig
from computerrl.common.config.learner import RecipeConfig
from computerrl.common.errors import Problem

_TEACHER = "learner.recipe.teacher"


def trains(recipe: RecipeConfig, *, has_recordings: bool) -> bool:
    """Whether ``recipe`` trains anything, by cloning or by RL. ``has_recordings``: `tasks.recordings` names some."""
    clones = recipe.demonstrates or has_recordings or recipe.specialists or recipe.imported
    return recipe.max_updates > 0 or bool(clones)


def player_problems(actor: ActorConfig, recipe: RecipeConfig, *, has_recordings: bool, observation: str) -> list[Problem]:
    """Problems of who plays: engine, endpoint, agent, and teacher. ``observation``: what desktops observe."""
    return [
        *_endpoint_problems(actor, recipe, has_recordings=has_recordings, observation=observation),
        *_teacher_problems(actor, recipe, has_recordings=has_recordings, observation=observation),
    ]


def as_teacher(actor: ActorConfig, teacher: TeacherConfig) -> ActorConfig:
    """``actor`` with ``teacher`` as the one that plays, in place of prompts and engine."""
    changes = {"engine": "agent", "agent": teacher.agent, "endpoint": teacher.endpoint, "max_new_tokens": teacher.max_new_tokens}
    return actor.model_copy(update=changes)


def of_teacher(problem: Problem) -> Problem:
    """``problem`` of settings that `as_teacher` made, with the names that its fields have in the run's."""
    words = [problem.field, problem.reason, problem.next_step]
    for name in ("agent", "endpoint", "max_new_tokens"):
        words = [text.replace(f"actor.{name}", f"{_TEACHER}.{name}") for text in words]
    return Problem(*words)


def _teacher_problems(actor: ActorConfig, recipe: RecipeConfig, *, has_recordings: bool, observation: str) -> list[Problem]:
    """Problems of an agent that gives the demonstrations."""
    if recipe.teacher is None:
        return []
    agent, problems = recipe.teacher.agent, []
    if not recipe.demonstrates:
        step = "set it to the number of episodes that the teacher plays, or leave out the teacher"
        problems.append(Problem("learner.recipe.demos_per_family", "0, and a teacher is to demonstrate", step))
    if has_recordings:
        reason = "names recorded demonstrations, and the teacher gives all that there are"
        problems.append(Problem("tasks.recordings", reason, f"leave out one of it and {_TEACHER}"))
    if actor.agent is not None:
        reason = "demonstrates in the prompts of the run, and actor.agent has prompts of its own"
        problems.append(Problem(_TEACHER, reason, "leave out one of them"))
    if agent.demonstrate is not None:
        reason = "belongs to an agent that is trained, and a teacher is not"
        problems.append(Problem(f"{_TEACHER}.agent.demonstrate", reason, "leave it out"))
    if agent.is_service != (recipe.teacher.endpoint is not None):
        reason = "goes with the agents openai and anthropic, and one of them is missing"
        step = f"set {_TEACHER}.endpoint.url with one of these, and without them leave it out"
        return [*problems, Problem(f"{_TEACHER}.endpoint", reason, step)]
    return problems + [
        of_teacher(one) for one in _agent_problems(as_teacher(actor, recipe.teacher), agent, observation=observation)
    ]


def _endpoint_problems(actor: ActorConfig, recipe: RecipeConfig, *, has_recordings: bool, observation: str) -> list[Problem]:
    """Problems of the engines `endpoint` and `agent`: one without its settings, or in a run that trains."""
    agent = actor.agent
    if actor.engine == "agent" and agent is None:
        return [Problem("actor.agent", "is missing, and actor.engine is agent", "set actor.agent.kind")]
    if agent is not None and actor.engine == "endpoint":
        reason = "plays with a model of its own or the run's policy, not with actor.engine endpoint"
        return [Problem("actor.agent", reason, "use actor.engine: agent, or leave it out")]
    if agent is not None and actor.engine != "agent":
        return _trained_agent_problems(actor, recipe, agent, has_recordings=has_recordings)
    asks = actor.engine == "endpoint" or (agent is not None and agent.is_service)
    if asks != (actor.endpoint is not None):
        step = "set actor.endpoint.url with one of these, and without them leave it out"
        reason = "goes with actor.engine endpoint and with the agents openai and anthropic, and one of them is missing"
        return [Problem("actor.endpoint", reason, step)]
    if actor.served_at is None:
        return []
    if trains(recipe, has_recordings=has_recordings):
        step = "use computerrl eval with --endpoint or --agent, or another engine"
        reason = "a model that is not ours takes no weights, so the run can only evaluate"
        if actor.endpoint is not None and actor.endpoint.mode == "chat":
            reason += "; in mode chat its replies have neither token ids nor log-probs either"
        return [Problem("actor.engine", reason, step)]
    if actor.older_policy_every is not None:
        step = "leave out actor.older_policy_every"
        return [Problem("actor.engine", "a model that is not ours has one policy only", step)]
    return _chat_problems(actor) if agent is None else _agent_problems(actor, agent, observation=observation)


def _trained_agent_problems(
    actor: ActorConfig, recipe: RecipeConfig, agent: AgentConfig, *, has_recordings: bool
) -> list[Problem]:
    """Problems of an agent whose model is the run's policy."""
    problems = []
    if agent.is_service:
        step = "use actor.engine: agent to evaluate it, or a module:Class or program, whose model is the policy"
        problems.append(Problem("actor.agent.kind", f"{agent.kind} has a model of its own, which cannot be trained here", step))
    if (recipe.demonstrates or has_recordings) and agent.demonstrate is None:
        step = "name the function that says what the policy should have answered (docs/how-to/agents.md), or set"
        step += " learner.recipe={demos_per_family: 0} and tasks.recordings: null and begin with a policy that succeeds sometimes"
        problems.append(Problem("actor.agent.demonstrate", "is missing, and the run begins with demonstrations", step))
    if recipe.imported:
        reason = "episodes in a prompt format of ours, and an agent has prompts of its own"
        problems.append(Problem("learner.recipe.imported", reason, "leave it out"))
    return problems


def _agent_problems(actor: ActorConfig, agent: AgentConfig, *, observation: str) -> list[Problem]:
    """Problems of settings of an agent that exclude each other."""
    if not agent.is_service:
        return []
    assert actor.endpoint is not None
    problems = []
    if not actor.endpoint.model:
        problems.append(Problem("actor.endpoint.model", "names no model, and the server may have many", "give its name there"))
    if agent.kind == "anthropic" and (agent.interface, agent.answers) != ("chat", "tools"):
        step = "leave out actor.agent.interface and actor.agent.answers"
        problems.append(Problem("actor.agent", "interface and answers belong to kind openai", step))
    if agent.answers == "text" and agent.interface != "chat":
        problems.append(Problem("actor.agent.interface", "responses, but answers in text need chat", "set it to chat"))
    shows = agent.kind == "anthropic" or (agent.answers == "text" and actor.prompt.shows_images)
    if shows and observation == "tree":
        reason = "tree, but the model acts on pictures of the screen"
        problems.append(Problem("desktop.observation", reason, "set it to both or screenshot"))
    return problems


def _chat_problems(actor: ActorConfig) -> list[Problem]:
    """Problems of prompts for the engine `endpoint`: only turns of a chat have images, and turns go through a chat template."""
    assert actor.endpoint is not None
    if actor.endpoint.mode == "tokens":
        if not actor.prompt.shows_images:
            return []
        reason = f"tokens, which show no images, and actor.prompt.format is {actor.prompt.format}"
        return [Problem("actor.endpoint.mode", reason, "set it to chat")]
    if actor.prompt.format.startswith("compact") and not actor.prompt.chat_template:
        reason = "false, and a server in mode chat writes every prompt with its chat template"
        return [Problem("actor.prompt.chat_template", reason, "set it to true")]
    return []
