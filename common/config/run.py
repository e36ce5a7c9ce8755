"""The whole configuration of a run, and reading it from YAML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from computerrl.common.config.actor import (
    BY_HAND_FORMATS,
    IMAGE_FORMATS,
    LONG_FORMATS,
    MIN_LONG_NEW_TOKENS,
    ActorConfig,
)
from computerrl.common.config.base import Place, Section
from computerrl.common.config.broker import BrokerConfig
from computerrl.common.config.cluster import ClusterConfig
from computerrl.common.config.curriculum import (
    CurriculumConfig,
    RolloutsConfig,
    horizon_problems,
    rollout_problems,
    weight_problems,
)
from computerrl.common.config.desktop import DesktopConfig
from computerrl.common.config.learner import LearnerConfig
from computerrl.common.config.metrics import MetricsConfig
from computerrl.common.config.model import ModelConfig
from computerrl.common.config.players import as_teacher, player_problems, trains
from computerrl.common.config.reading import read_section
from computerrl.common.errors import ConfigError, Problem

if TYPE_CHECKING:
    from computerrl.common.messages import Split  # At run time it would bring the transport.

Actions = Literal["api_gui", "gui"]
Wordings = Literal["plain", "seen", "unseen"]

_NUM_STARTS = 100
"""Number of parts of a range of seeds. Runs with different `seed` begin in different parts."""

_SPLITS: tuple[Split, ...] = ("demonstration", "training", "evaluation", "tuning")


class TasksConfig(Section):
    """Settings of the tasks that are played. Read by the env_servers, and through the learner's orders by the broker."""

    families: tuple[str, ...] = ()
    """Names of the task families that are played (`computerrl tasks list`), or `module:NAME` for a family of an installed package
    or of the current folder. Empty: the default families that the driver can play. The families `web-<page>` of all MiniWoB++
    pages are not among them."""
    max_steps: int = Field(6, ge=1)
    """Maximum number of actions per episode."""
    actions: Actions = "api_gui"
    """Actions that agents may use. `api_gui`: mouse, keyboard and calls of applications (`calc.set_cell(...)`; ComputerRL's
    API-GUI paradigm). `gui`: mouse and keyboard alone. Calls are then refused, demonstrations do without them, and prompts that
    list calls list none. Read by env_server and actor."""
    horizon: tuple[tuple[int, int], ...] = Field((), max_length=64)
    """List of [update, actions] pairs that limit training episodes (AgentGym-RL's ScalingInter: short at first, longer once
    that is learned). From that RL update on, counted in `learner.groups_per_batch` groups, an episode has at most that many
    actions. Before the first pair, and in demonstrations and evaluations, `max_steps` holds. Empty: `max_steps` always holds.
    Read by the learner for its orders."""
    length_cap: bool = False
    """Whether training episodes of a family have at most as many actions as its longest success so far (DART). Demonstrations
    and evaluations count as well. The limit begins after `curriculum.min_results` training results, and training never raises
    it again. Leave it off for families whose instances need different numbers of actions. Read by the learner for its
    orders."""
    family_weights: dict[str, float] = Field(default_factory=dict)
    """Weights of families in the choice of training groups, relative to each other; 1 for families not named, 0: not trained
    on. Demonstrations and evaluations play every family alike. Read by the learner for its orders."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Settings of how training groups choose their family."""
    rollouts: RolloutsConfig = RolloutsConfig()
    """Limits of the number of rollouts of a training group."""
    wordings: Wordings = "plain"
    """How instructions are said. `plain`: as the family says them. `seen`: in other words and sentences, drawn by the seed.
    `unseen`: the same with words and sentences that `seen` never uses: train with `seen`, evaluate with `unseen`, and success
    tells whether the policy reads. Task files, imported bundles and synthesized tasks keep their words. Read by the
    env_server."""
    demonstration_seeds: tuple[int, int] = (0, 100_000)
    """Half-open range of seeds for demonstrations. No two of the four ranges may overlap."""
    training_seeds: tuple[int, int] = (100_000, 10_000_000)
    """Half-open range of seeds for RL."""
    evaluation_seeds: tuple[int, int] = (10_000_000, 10_100_000)
    """Half-open range of held-out seeds. Nothing is ever trained on them, and no setting is chosen by them."""
    tuning_seeds: tuple[int, int] = (20_000_000, 20_100_000)
    """Half-open range of seeds for choosing settings. They are evaluated in place of the held-out ones with
    `learner.recipe.eval_split: tuning`."""
    recordings: Place | None = None
    """Folder of demonstrations that a person recorded (`computerrl desktop`), or that were made of an evaluation's successes
    (`computerrl record`). They are replayed on desktops for behaviour cloning. A recording takes the place of the scripted
    demonstration of the same instance. None: there are no recordings. Read by learner and env_server."""

    osworld: Place | None = None
    """Folder of OSWorld or OfficeWorld task files (docs/how-to/osworld.md). Each task that can run here becomes a family
    `osworld-<id>`. These families are played when `families` is empty. None: there are no such tasks. Read by learner and
    env_server."""
    osworld_assets: Place | None = None
    """Folder of the files that OSWorld tasks download. None: tasks that download a file are refused."""
    osworld_mirror: Place | None = None
    """Folder with a copy of web sites, one folder for each site (docs/how-to/osworld.md). The browser shows it to OSWorld tasks
    in place of the network. None: tasks that need a site's pages are refused."""
    imported: Place | None = None
    """Folder that `computerrl tasks import` wrote (docs/how-to/tasks.md). Each bundle that is not broken becomes a family
    `cua-gym-<id>`. These families are played when `families` is empty. None: there are no such tasks. Read by learner and
    env_server."""
    synthesized: Place | None = None
    """Folder that `computerrl tasks synthesize` wrote (docs/how-to/tasks.md). Each of its tasks becomes a family
    `synthesized-<id>`. These families are played when `families` is empty. None: there are no such tasks. Read by learner and
    env_server."""

    def seeds_of(self, split: Split) -> tuple[int, int]:
        """The half-open range of seeds of ``split``."""
        return {
            "demonstration": self.demonstration_seeds,
            "training": self.training_seeds,
            "evaluation": self.evaluation_seeds,
            "tuning": self.tuning_seeds,
        }[split]

    def split_of(self, seed: int) -> Split | None:
        """The split whose range contains ``seed``; None where there is none."""
        return next((split for split in _SPLITS if seed in range(*self.seeds_of(split))), None)

    @model_validator(mode="after")
    def _seeds_disjoint(self) -> TasksConfig:
        ranges = sorted(self.seeds_of(split) for split in _SPLITS)
        for low, high in ranges:
            if low >= high:
                raise ValueError(f"seed range {low}..{high} is empty; write [first, past_last]")
        for (_, high), (low, _) in itertools.pairwise(ranges):
            if high > low:
                raise ValueError(f"seed ranges overlap: one ends at {high}, the next starts at {low}; make them disjoint")
        return self


class SupervisorConfig(Section):
    """Settings of the repair of dead processes. Read by the supervisor."""

    max_restarts: int = Field(5, ge=0)
    """Maximum number of consecutive restarts of a process before the run is given up."""
    backoff_s: float = Field(0.5, ge=0)
    """Minimum time in seconds between a process's start and its second restart in a row; the first is at once. It doubles with
    each further restart."""
    stable_s: float = Field(60.0, gt=0)
    """Time in seconds after which a process counts as stable, and its count of restarts begins again at 0."""
    stop_s: float = Field(3.0, gt=0)
    """Time in seconds that processes have to end by themselves before they are killed."""
    drain_s: float = Field(120.0, gt=0)
    """Time in seconds that the learner has to finish an update and write a checkpoint when a job is about to lose its nodes."""
    learner_nice: int = Field(5, ge=0, le=19)
    """Niceness of the learner once its model is loaded. On shared cores desktops and sampling then go first, and training uses
    the time that they leave."""


_LATEST = "latest"
"""Name of the link to the newest run, beside the run folders."""
_MIN_PACK_TOKENS = 1024
"""Minimum of a pack's tokens. A forward pass of a small model over fewer takes no less time."""
_LARGE_PACK_TOKENS = 4096
"""Default maximum of a pack's tokens. Activations of a model of 135M parameters take some 5 GiB for as many."""


class RunConfig(Section):
    """The whole configuration of a run. These fields are in no section."""

    name: str = Field("run", max_length=200)
    """Name of the run, which is its folder below `run_dir`. It has letters, digits, dots, hyphens and underscores, and begins
    with a letter or a digit."""
    run_dir: Place = "runs"
    """Folder of the run folders, relative to the current folder."""
    mode: Literal["processes", "serial"] = "processes"
    """Layout of the run. `processes`: each role has a process of its own. `serial`: the whole loop in one process with
    in-memory transport, for debugging and unit tests."""
    seed: int = Field(0, ge=0)
    """Seed of sampling, shuffling and all other random choices of ComputerRL. It also chooses demonstrations and training
    instances, so that the spread over seeds includes the spread over tasks. Evaluations play the same instances for all
    seeds."""
    model: ModelConfig = ModelConfig()
    """The policy's model."""
    tasks: TasksConfig = TasksConfig()
    """Settings of the tasks that are played."""
    desktop: DesktopConfig = DesktopConfig()
    """Settings of the desktops of each env_server."""
    actor: ActorConfig = ActorConfig()
    """Settings of the actors and their engines."""
    broker: BrokerConfig = BrokerConfig()
    """Settings of the broker."""
    learner: LearnerConfig = LearnerConfig()
    """Settings of the learner."""
    supervisor: SupervisorConfig = SupervisorConfig()
    """Settings of the repair of dead processes."""
    metrics: MetricsConfig = MetricsConfig()
    """Settings of metrics for other programs."""
    cluster: ClusterConfig = ClusterConfig()
    """Number of nodes of a run on more than one machine."""

    @model_validator(mode="before")
    @classmethod
    def _fill_screenshot_format(cls, given: Any) -> Any:
        """Store screenshots without loss where a policy reads them, unless the configuration names a format."""
        if not isinstance(given, dict) or str(_inner(given, "actor", "prompt", "format")) not in IMAGE_FORMATS:
            return given
        desktop = given.get("desktop", {})
        if isinstance(desktop, DesktopConfig) and "screenshot_format" not in desktop.model_fields_set:
            return {**given, "desktop": desktop.model_copy(update={"screenshot_format": "png"})}
        return {**given, "desktop": {"screenshot_format": "png", **desktop}} if isinstance(desktop, dict) else given

    def first_seed(self, split: Split) -> int:
        """First task seed of ``split`` in this run. Demonstrations and training instances begin elsewhere for each of 100 values
        of ``seed``; held-out ones are the same for all."""
        first, past_last = self.tasks.seeds_of(split)
        if split not in ("demonstration", "training"):
            return first
        return first + self.seed % _NUM_STARTS * ((past_last - first) // _NUM_STARTS)

    @field_validator("name")
    @classmethod
    def _name_a_folder(cls, name: str) -> str:
        if name == _LATEST:
            raise ValueError("is the name of the newest run in commands; choose another name")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            near = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_")
            proposal = f", for example {near}" if near and near != _LATEST else ""
            raise ValueError(
                "should be letters (a to z), digits, dots, hyphens and underscores, beginning with a letter or digit" + proposal
            )
        return name

    @field_validator("run_dir")
    @classmethod
    def _can_be_shown(cls, run_dir: str) -> str:
        if not run_dir.isprintable():
            raise ValueError("should be a folder without line breaks, tabs and other characters that cannot be printed")
        return run_dir

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_dir) / self.name

    @property
    def max_pack_tokens(self) -> int:
        """Maximum number of tokens per packed forward pass (`LearnerConfig.max_pack_tokens`)."""
        longest = self.longest_sample
        return self.learner.max_pack_tokens or max(_MIN_PACK_TOKENS, longest, min(2 * longest, _LARGE_PACK_TOKENS))

    @property
    def longest_sample(self) -> int:
        """Maximum number of tokens of a prompt and its completion."""
        return self.actor.prompt.max_prompt_tokens + self.actor.max_new_tokens


def _inner(tree: Any, *names: str) -> Any:
    """The value below ``names`` in a tree of mappings and sections; None where there is none."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else getattr(tree, name, None)
    return tree


def load_config(path: str | Path, *, overrides: Sequence[str] = ()) -> RunConfig:
    """Read ``path``, apply ``overrides`` (``learner.optimizer.lr=1e-6``) and validate.

    Raises `ConfigError` with every problem found: syntax, unknown keys with the closest valid name, wrong values.
    """
    config = read_section(Path(path), RunConfig, overrides=overrides)
    problems = _combination_problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def played_by_teacher(config: RunConfig) -> RunConfig:
    """``config`` as a run whose episodes `learner.recipe.teacher` would play, in place of prompts and engine."""
    assert config.learner.recipe.teacher is not None, "the caller checked"
    return config.model_copy(update={"actor": as_teacher(config.actor, config.learner.recipe.teacher)})


def player_name(player: Mapping[str, Any]) -> str:
    """Name of the model that an agent asks at its endpoint, or the agent's kind. ``player``: the section `actor` or
    `learner.recipe.teacher` of a resolved configuration, with an agent."""
    return str((player.get("endpoint") or {}).get("model") or player["agent"]["kind"])


def _combination_problems(config: RunConfig) -> list[Problem]:
    """Problems of values that are valid alone and impossible together."""
    problems = []
    if config.mode == "processes" and config.desktop.driver == "scripted":
        problems.append(
            Problem("desktop.driver", "'scripted' works in one process only", "use mode: serial, or driver: apptainer")
        )
    problems += _engine_problems(config)
    has_recordings, recipe = config.tasks.recordings is not None, config.learner.recipe
    observation = config.desktop.observation
    problems.extend(player_problems(config.actor, recipe, has_recordings=has_recordings, observation=observation))
    problems.extend(_inference_problems(config))
    if config.mode == "serial" and config.learner.num_ranks > 1:
        reason = f"{config.learner.num_ranks}, but serial mode is one process"
        problems.append(Problem("learner.num_ranks", reason, "set it to 1, or use mode: processes"))
    num_sharing = config.learner.context_parallel_size
    if config.learner.num_ranks % num_sharing:
        reason = f"{num_sharing} is no divisor of the {config.learner.num_ranks} ranks (learner.num_ranks)"
        step = f"set learner.num_ranks to a multiple of {num_sharing}, or this to a divisor of it"
        problems.append(Problem("learner.context_parallel_size", reason, step))
    if config.learner.weight_backend == "file" and config.learner.weight_encoding == "changes":
        reason = "changes, but learner.weight_backend file writes all weights, which any receiver can read"
        problems.append(Problem("learner.weight_encoding", reason, "set it to whole"))
    problems.extend(_prompt_problems(config))
    tasks = config.tasks
    twice = sorted({family for family in tasks.families if tasks.families.count(family) > 1})
    if twice:
        step = "name each family once; tasks.family_weights gives a family more groups"
        problems.append(Problem("tasks.families", f"names {', '.join(map(repr, twice))} more than once", step))
    problems.extend(weight_problems(tasks.family_weights, families=tasks.families, curriculum=tasks.curriculum.name))
    problems.extend(horizon_problems(tasks.horizon, max_steps=tasks.max_steps))
    problems.extend(rollout_problems(tasks.rollouts, group_size=config.learner.group_size))
    demos_of_family = config.learner.recipe.demos_of_family
    if demos_of_family and not tasks.families:
        step = "name all families of the run in tasks.families"
        problems.append(Problem("learner.recipe.demos_of_family", "needs tasks.families, which is empty", step))
    for family, number in demos_of_family.items():
        if number < 0:
            problems.append(Problem(f"learner.recipe.demos_of_family.{family}", f"{number} demonstrations", "set 0 or more"))
    if config.learner.recipe.demos_of_failures and not config.learner.recipe.demo_replay_steps:
        step = "set learner.recipe.demo_replay_steps, or set this to 0"
        problems.append(Problem("learner.recipe.demos_of_failures", "no update would imitate these demonstrations", step))
    batch = config.learner.group_size * config.learner.groups_per_batch
    if config.learner.num_minibatches > config.learner.groups_per_batch:
        problems.append(
            Problem(
                "learner.num_minibatches",
                f"{config.learner.num_minibatches} minibatches, but only {config.learner.groups_per_batch} groups "
                f"({batch} trajectories) per batch",
                "lower num_minibatches or raise groups_per_batch",
            )
        )
    problems.extend(_split_problems(config))
    problems.extend(_staleness_problems(config))
    return problems


def _split_problems(config: RunConfig) -> list[Problem]:
    recipe = config.learner.recipe
    if recipe.eval_split != "demonstration" or not trains(recipe, has_recordings=config.tasks.recordings is not None):
        return []
    step = "use evaluation or tuning here, and --set learner.recipe.eval_split=demonstration with computerrl eval"
    reason = "demonstration, in a run that trains: it would be measured on tasks that it was shown"
    return [Problem("learner.recipe.eval_split", reason, step)]


def _engine_problems(config: RunConfig) -> list[Problem]:
    problems = []
    if config.mode == "serial" and config.actor.engine == "vllm":
        problems.append(Problem("actor.engine", "vllm needs its own process", "use actor.engine: transformers in serial mode"))
    if config.model.head_dtype == "float32" and config.actor.engine == "vllm":
        reason = "float32, but the engine vllm computes the output layer in model.dtype"
        problems.append(Problem("model.head_dtype", reason, "use actor.engine: transformers, or model.head_dtype: model"))
    if config.actor.tensor_parallel_size > 1 and config.actor.engine not in ("auto", "vllm"):
        reason = f"{config.actor.tensor_parallel_size}, but actor.engine is {config.actor.engine}, which is one process"
        problems.append(Problem("actor.tensor_parallel_size", reason, "set it to 1, or use actor.engine: vllm"))
    if config.actor.max_draft_tokens and config.actor.older_policy_every and config.actor.engine in ("auto", "vllm"):
        reason = "vLLM guesses in one engine of a process only, and cross-policy sampling (actor.older_policy_every) has two"
        problems.append(Problem("actor.max_draft_tokens", reason, "leave it out, or use actor.engine: transformers"))
    batched, num_live = config.actor.max_num_batched_tokens, config.actor.num_live
    if batched is not None and batched <= num_live:
        given = f"{batched}, but a step computes a token for each of {num_live} completions and for a check of the weights"
        problems.append(Problem("actor.max_num_batched_tokens", given, f"set it to {num_live + 1} or more, or null"))
    return problems


def _inference_problems(config: RunConfig) -> list[Problem]:
    """Problems of engine processes: some that no actor would use, or a mode without them."""
    actor = config.actor
    if actor.inference == "local":
        if actor.num_engines > 1:
            step = "set actor.inference: central, or actor.num_actors for more actors with an engine each"
            return [Problem("actor.num_engines", f"{actor.num_engines}, but inference is local", step)]
        return []
    if config.mode == "serial":
        return [Problem("actor.inference", "central, but serial mode is one process", "use local, or mode: processes")]
    if actor.engine == "endpoint":
        return [Problem("actor.inference", "central, but the endpoint samples for all actors already", "use local")]
    if actor.num_engines > actor.num_actors:
        reason = f"{actor.num_engines}, but actor.num_actors is {actor.num_actors}, and each actor uses one engine"
        return [Problem("actor.num_engines", reason, f"set it to {actor.num_actors} or less, or raise actor.num_actors")]
    return []


def _staleness_problems(config: RunConfig) -> list[Problem]:
    """Problems of staleness bounds that contradict each other."""
    problems = []
    eta, max_age = config.broker.eta, config.learner.max_age
    if eta > config.learner.age_bound:
        reason = f"eta {eta} admits a mean age above learner.max_age {max_age}: most steps would be masked"
        problems.append(Problem("broker.eta", reason, f"set broker.eta <= {max_age} or raise learner.max_age"))
    every = config.actor.older_policy_every
    if every is not None and every - 1 + eta > config.learner.age_bound:
        reason = f"steps of weights {every - 1} versions behind, with broker.eta {eta}, would be past learner.max_age {max_age}"
        step = f"set learner.max_age to {every - 1 + eta} or more, or lower this"
        problems.append(Problem("actor.older_policy_every", reason, step))
    lag = config.learner.publish_every_updates - 1
    if lag and lag + eta > config.learner.age_bound:
        reason = f"weights up to {lag} versions behind, with broker.eta {eta}, would be past learner.max_age {max_age}"
        step = f"set learner.max_age to {lag + eta} or more, or lower this"
        problems.append(Problem("learner.publish_every_updates", reason, step))
    if eta == 0:
        problems.extend(_problems_on_policy(config))
    if config.learner.staleness.mode == "pace":
        problems.extend(_problems_of_pacing(config))
    return problems


def _problems_of_pacing(config: RunConfig) -> list[Problem]:
    """Problems of waits that have no effect."""
    problems = []
    limit_s, num_groups = config.broker.max_assignment_s, config.learner.groups_per_batch
    if config.broker.eta == 0:
        reason = f"pace waits for at most (eta + 1) * groups_per_batch = 1 * {num_groups} groups, which every batch has anyway"
        problems.append(Problem("learner.staleness.mode", reason, "use mask, or set broker.eta to 1 or more"))
    budget_s = config.learner.staleness.stall_budget_s
    if budget_s > limit_s:
        reason = f"waits {budget_s:g} s for episodes that end after broker.max_assignment_s {limit_s:g} s"
        problems.append(Problem("learner.staleness.stall_budget_s", reason, f"set it to {limit_s:g} or less"))
    return problems


def _problems_on_policy(config: RunConfig) -> list[Problem]:
    """Problems of settings that leave actors with older weights. With `broker.eta` 0 they would never play for training."""
    reason = "with broker.eta 0 only the newest weights play for training, and this leaves {} with older weights"
    problems = []
    if config.learner.publish_every_updates > 1:
        step = "set it to 1, or set broker.eta to 1 or more"
        problems.append(Problem("learner.publish_every_updates", reason.format("all actors"), step))
    if config.actor.older_policy_every is not None:
        step = "remove it, or set broker.eta to 1 or more"
        problems.append(Problem("actor.older_policy_every", reason.format("some actors"), step))
    return problems


def _image_problems(config: RunConfig) -> list[Problem]:
    """Problems of a format that shows images: screens that are not there."""
    actor, problems = config.actor, []
    if config.desktop.observation == "tree":
        missing = f"an observation holds no screenshot, and actor.prompt.format is {actor.prompt.format}"
        problems.append(Problem("desktop.observation", missing, "set it to both"))
    recipe = config.learner.recipe
    if config.desktop.observation == "screenshot" and recipe.demonstrates:
        missing = "demonstrators name elements, and an observation holds none"
        problems.append(Problem("desktop.observation", missing, "set it to both, or learner.recipe.demos_per_family to 0"))
    return problems


def _prompt_problems(config: RunConfig) -> list[Problem]:
    """Problems of prompt formats: one that no engine supports, or completions too short for a call."""
    name = config.actor.prompt.format
    problems = _image_problems(config) if config.actor.prompt.shows_images else []
    if config.learner.recipe.eval_control_episodes_per_family and not config.actor.prompt.shows_images:
        reason = f"prompts of {name} show no images that could be taken away"
        problems.append(Problem("learner.recipe.eval_control_episodes_per_family", reason, "set it to 0"))
    num_tokens = config.actor.max_new_tokens
    # Serial mode is for looking at the loop with an untrained model, whose answers are cut anyway.
    if name in LONG_FORMATS and num_tokens < MIN_LONG_NEW_TOKENS and config.mode == "processes":
        reason = f"{num_tokens} tokens cut every completion of {name} (a thought and a call)"
        step = f"set it to at least {MIN_LONG_NEW_TOKENS}, better 256"
        problems.append(Problem("actor.max_new_tokens", reason, step))
    if name in BY_HAND_FORMATS and config.tasks.actions != "gui":
        reason = f"{config.tasks.actions}, but {name} has no calls of applications"
        problems.append(Problem("tasks.actions", reason, "set it to gui"))
    return problems
