"""The whole tree, and reading it from YAML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from computerrl.common.config.actor import MIN_COMPUTERRL_NEW_TOKENS, VISION_PROBLEM, ActorConfig
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
from computerrl.common.config.reading import read_section
from computerrl.common.errors import ConfigError, Problem

if TYPE_CHECKING:
    from computerrl.common.messages import Split  # At run time it would bring the transport.

Actions = Literal["api_gui", "gui"]

_NUM_STARTS = 100
"""Parts of a range of seeds, of which runs with different `seed` take one each."""

_SPLITS: tuple[Split, ...] = ("demonstration", "training", "evaluation", "tuning")


class TasksConfig(Section):
    """What is played. Read by broker (through the learner's orders) and env_server."""

    families: tuple[str, ...] = ()
    """Names in env_server.tasks; empty: the default ones that the driver can play, without the `web-<page>` of every MiniWoB++
    page."""
    max_steps: int = Field(6, ge=1)
    """Actions per episode at most."""
    actions: Actions = "api_gui"
    """What agents may do. api_gui: use mouse and keyboard, and call applications (`calc.set_cell(...)`; ComputerRL's API-GUI
    paradigm). gui: mouse and keyboard alone; calls are refused, demonstrations do without, and prompts that list calls list
    none. Read by env_server and actor."""
    horizon: tuple[tuple[int, int], ...] = Field((), max_length=64)
    """[update, actions] pairs: from that RL update on (counted in `learner.groups_per_batch` groups), training episodes have at
    most so many actions (AgentGym-RL's ScalingInter: short at first, longer when that is learned); before the first pair, and
    without any, ``max_steps``. Demonstrations and evaluations have ``max_steps``. Read by learner (into its orders)."""
    length_cap: bool = False
    """Training episodes of a family have at most as many actions as its longest success so far, demonstrations and evaluations
    included (DART), once there are `curriculum.min_results` training results. Nothing in training raises a cap again: for
    families whose instances need different lengths it should be off. Read by learner (into its orders)."""
    family_weights: dict[str, float] = Field(default_factory=dict)
    """Share of the training groups relative to other families; 1 for those not named, 0: not trained on. Demonstrations and
    evaluations play every family alike. Read by learner (into its orders)."""
    curriculum: CurriculumConfig = CurriculumConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    demonstration_seeds: tuple[int, int] = (0, 100_000)
    """Half-open seed ranges; no two may meet."""
    training_seeds: tuple[int, int] = (100_000, 10_000_000)
    """Seeds of RL."""
    evaluation_seeds: tuple[int, int] = (10_000_000, 10_100_000)
    """Held-out seeds; nothing is ever trained on them, and no setting is chosen by them."""
    tuning_seeds: tuple[int, int] = (20_000_000, 20_100_000)
    """Seeds for choosing settings: evaluated in place of the held-out ones with `learner.recipe.eval_split: tuning`."""
    recordings: Place | None = None
    """Folder of demonstrations that people recorded (`computerrl desktop`); None: there are none. They are replayed on desktops
    for behaviour cloning, in place of the scripted demonstrator's where both know an instance. Read by learner, env_server."""

    osworld: Place | None = None
    """Folder of OSWorld or OfficeWorld task files (docs/osworld.md). Each that can be run here becomes a family `osworld-<id>`;
    without names in `families` they are what is played. Read by learner, env_server."""
    osworld_assets: Place | None = None
    """Folder of the files that those tasks download; None: tasks that download something are refused."""

    def seeds_of(self, split: Split) -> tuple[int, int]:
        """The split's half-open range."""
        return {
            "demonstration": self.demonstration_seeds,
            "training": self.training_seeds,
            "evaluation": self.evaluation_seeds,
            "tuning": self.tuning_seeds,
        }[split]

    def split_of(self, seed: int) -> Split | None:
        """The split whose range holds ``seed``, None for none."""
        return next((split for split in _SPLITS if seed in range(*self.seeds_of(split))), None)

    @model_validator(mode="after")
    def _seeds_disjoint(self) -> TasksConfig:
        ranges = sorted(self.seeds_of(split) for split in _SPLITS)
        for low, high in ranges:
            if low >= high:
                raise ValueError(f"seed range {low}..{high} is empty; give [first, past_last]")
        for (_, high), (low, _) in itertools.pairwise(ranges):
            if high > low:
                raise ValueError(f"seed ranges overlap: one ends at {high}, the next starts at {low}; make them disjoint")
        return self


class SupervisorConfig(Section):
    """Repair of dead processes. Read by the supervisor."""

    max_restarts: int = Field(5, ge=0)
    """Restarts per process in a row before the run is given up."""
    backoff_s: float = Field(0.5, ge=0)
    """Wait before the first restart; doubles each time."""
    stable_s: float = Field(60.0, gt=0)
    """A process that lived this long starts counting from zero again."""
    stop_s: float = Field(3.0, gt=0)
    """Time processes get to end by themselves before they are killed."""
    drain_s: float = Field(120.0, gt=0)
    """Time the learner gets to finish an update and write a checkpoint when a job is about to lose its nodes."""
    learner_nice: int = Field(5, ge=0, le=19)
    """Niceness of the learner once its model is loaded: on shared cores desktops and generation go first, and training fills what
    they leave."""


_LATEST = "latest"
"""Link beside the runs to the newest one."""
_MIN_PACK_TOKENS = 1024
"""Below it a forward pass of a small model takes no less time."""
_LARGE_PACK_TOKENS = 4096
"""Activations of a model of 135M parameters take some 5 GiB for as many; whoever has more memory says so."""


class RunConfig(Section):
    """One run."""

    name: str = Field("run", max_length=200)
    """Folder below ``run_dir``: letters, digits, dots, hyphens and underscores, first a letter or a digit."""
    run_dir: Place = "runs"
    """Where run folders lie; relative to the current folder."""
    mode: Literal["processes", "serial"] = "processes"
    """serial: the whole loop in one process with in-memory transport, for debugging and unit tests."""
    seed: int = Field(0, ge=0)
    """Seed of sampling, shuffling and everything else that is random and ours. It also chooses demonstrations and training
    instances (`first_seed`), so that the spread over seeds includes that of tasks. Evaluations play the same instances for all
    seeds."""
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig = TasksConfig()
    desktop: DesktopConfig = DesktopConfig()
    actor: ActorConfig = ActorConfig()
    broker: BrokerConfig = BrokerConfig()
    learner: LearnerConfig = LearnerConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    metrics: MetricsConfig = MetricsConfig()
    cluster: ClusterConfig = ClusterConfig()

    def first_seed(self, split: Split) -> int:
        """First task seed that the run plays of ``split``: demonstrations and training instances begin elsewhere for each of 100
        values of ``seed``, held-out ones never."""
        first, past_last = self.tasks.seeds_of(split)
        if split not in ("demonstration", "training"):
            return first
        return first + self.seed % _NUM_STARTS * ((past_last - first) // _NUM_STARTS)

    @field_validator("name")
    @classmethod
    def _name_a_folder(cls, name: str) -> str:
        if name == _LATEST:
            raise ValueError("is what commands call the newest run; choose another name")
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
            raise ValueError("should be a folder without line breaks, tabs and other letters that cannot be printed")
        return run_dir

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_dir) / self.name

    @property
    def max_pack_tokens(self) -> int:
        """See `LearnerConfig.max_pack_tokens`."""
        longest = self.longest_sample
        return self.learner.max_pack_tokens or max(_MIN_PACK_TOKENS, longest, min(2 * longest, _LARGE_PACK_TOKENS))

    @property
    def longest_sample(self) -> int:
        """Tokens that a prompt and its answer have at most."""
        return self.actor.prompt.max_prompt_tokens + self.actor.max_new_tokens


def load_config(path: str | Path, *, overrides: Sequence[str] = ()) -> RunConfig:
    """Read ``path``, apply ``overrides`` (``learner.optimizer.lr=1e-6``) and validate.

    Raises `ConfigError` with every problem found: syntax, unknown keys with the closest valid name, wrong values.
    """
    config = read_section(Path(path), RunConfig, overrides=overrides)
    problems = _combination_problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _combination_problems(config: RunConfig) -> list[Problem]:
    """Values that are fine alone and impossible together."""
    problems = []
    if config.mode == "processes" and config.desktop.driver == "scripted":
        problems.append(
            Problem("desktop.driver", "'scripted' has no desktops for other processes", "use mode: serial, or driver: apptainer")
        )
    if config.mode == "serial" and config.actor.engine == "vllm":
        problems.append(Problem("actor.engine", "vllm needs its own process", "use actor.engine: transformers in serial mode"))
    if config.model.head_dtype == "float32" and config.actor.engine == "vllm":
        reason = "float32, but the engine vllm computes the output layer in model.dtype"
        problems.append(Problem("model.head_dtype", reason, "use actor.engine: transformers, or model.head_dtype: model"))
    batched, num_live = config.actor.max_num_batched_tokens, config.actor.num_live
    if batched is not None and batched <= num_live:
        given = f"{batched}, but a step computes a token of each of {num_live} answers and of a check of the weights"
        problems.append(Problem("actor.max_num_batched_tokens", given, f"set it to {num_live + 1} or more, or null"))
    problems.extend(_endpoint_problems(config))
    problems.extend(_inference_problems(config))
    if config.mode == "serial" and config.learner.num_ranks > 1:
        reason = f"{config.learner.num_ranks}, but serial mode is one process"
        problems.append(Problem("learner.num_ranks", reason, "set it to 1, or use mode: processes"))
    problems.extend(_prompt_problems(config))
    tasks = config.tasks
    twice = sorted({family for family in tasks.families if tasks.families.count(family) > 1})
    if twice:
        step = "name each once; tasks.family_weights gives a family more groups"
        problems.append(Problem("tasks.families", f"names {', '.join(map(repr, twice))} more than once", step))
    problems.extend(weight_problems(tasks.family_weights, families=tasks.families, curriculum=tasks.curriculum.name))
    problems.extend(horizon_problems(tasks.horizon, max_steps=tasks.max_steps))
    problems.extend(rollout_problems(tasks.rollouts, group_size=config.learner.group_size))
    demos_of_family = config.learner.recipe.demos_of_family
    if demos_of_family and not tasks.families:
        step = "name all families of the run in tasks.families"
        problems.append(Problem("learner.recipe.demos_of_family", "says nothing about the families not named", step))
    for family, number in demos_of_family.items():
        if number < 0:
            problems.append(Problem(f"learner.recipe.demos_of_family.{family}", f"{number} demonstrations", "give 0 or more"))
    if config.learner.recipe.demos_of_failures and not config.learner.recipe.demo_replay_steps:
        step = "set learner.recipe.demo_replay_steps, or ask for no demonstrations of failures"
        problems.append(Problem("learner.recipe.demos_of_failures", "no update would imitate them", step))
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
    problems.extend(_staleness_problems(config))
    return problems


def _endpoint_problems(config: RunConfig) -> list[Problem]:
    """A server whose model is to be trained, or that nobody asks."""
    recipe, asks = config.learner.recipe, config.actor.engine == "endpoint"
    if asks != (config.actor.endpoint is not None):
        step = "give both actor.engine: endpoint and actor.endpoint.url, or neither"
        return [Problem("actor.endpoint", "goes with actor.engine endpoint, and that with it", step)]
    if not asks:
        return []
    trains = recipe.max_updates > 0 or recipe.demos_per_family > 0 or any(recipe.demos_of_family.values()) or recipe.specialists
    if trains or config.tasks.recordings is not None:
        step = "use computerrl eval FOLDER --endpoint URL, or another engine"
        return [Problem("actor.engine", "a model on a server takes no weights, so the run can only evaluate", step)]
    if config.mode == "serial" or config.actor.older_policy_every is not None:
        return [Problem("actor.engine", "endpoint is for mode processes and one policy", "leave mode and older_policy_every")]
    return []


def _inference_problems(config: RunConfig) -> list[Problem]:
    """Engine processes that nobody would ask, or that there cannot be."""
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
        return [Problem("actor.num_engines", reason, f"set it to {actor.num_actors} or less, or actor.num_actors higher")]
    return []


def _staleness_problems(config: RunConfig) -> list[Problem]:
    """Bounds that contradict each other."""
    problems = []
    eta, max_age = config.broker.eta, config.learner.max_age
    if eta > config.learner.age_bound:
        reason = f"eta {eta} admits a mean age above learner.max_age {max_age}: most steps would be masked"
        problems.append(Problem("broker.eta", reason, f"set broker.eta <= {max_age} or raise learner.max_age"))
    every = config.actor.older_policy_every
    if every is not None and every - 1 + eta > config.learner.age_bound:
        reason = f"steps of weights {every - 1} versions behind, with broker.eta {eta}, would be past learner.max_age {max_age}"
        step = f"set learner.max_age to {every - 1 + eta} or more, or this lower"
        problems.append(Problem("actor.older_policy_every", reason, step))
    lag = config.learner.publish_every_updates - 1
    if lag and lag + eta > config.learner.age_bound:
        reason = f"weights up to {lag} versions behind, with broker.eta {eta}, would be past learner.max_age {max_age}"
        step = f"set learner.max_age to {lag + eta} or more, or this lower"
        problems.append(Problem("learner.publish_every_updates", reason, step))
    if eta == 0:
        problems.extend(_problems_on_policy(config))
    if config.learner.staleness.mode == "pace":
        problems.extend(_problems_of_pacing(config))
    return problems


def _problems_of_pacing(config: RunConfig) -> list[Problem]:
    """Waits that cannot help."""
    problems = []
    limit_s, num_groups = config.broker.max_assignment_s, config.learner.groups_per_batch
    if config.broker.eta == 0:
        reason = f"pace waits for (eta + 1) * groups_per_batch = 1 * {num_groups} groups at most, which is every batch anyway"
        problems.append(Problem("learner.staleness.mode", reason, "use mask, or set broker.eta to 1 or more"))
    budget_s = config.learner.staleness.stall_budget_s
    if budget_s > limit_s:
        reason = f"waits {budget_s:g} s for episodes that end after broker.max_assignment_s {limit_s:g} s"
        problems.append(Problem("learner.staleness.stall_budget_s", reason, f"set it to {limit_s:g} or less"))
    return problems


def _problems_on_policy(config: RunConfig) -> list[Problem]:
    """What leaves actors with older weights: with `broker.eta` 0 they would never play for training."""
    reason = "broker.eta 0 lets only the version announced last play for training, and this leaves {} with older weights"
    problems = []
    if config.learner.publish_every_updates > 1:
        step = "set it to 1, or broker.eta to 1 or more"
        problems.append(Problem("learner.publish_every_updates", reason.format("all actors"), step))
    if config.actor.older_policy_every is not None:
        step = "leave it out, or set broker.eta to 1 or more"
        problems.append(Problem("actor.older_policy_every", reason.format("some actors"), step))
    return problems


def _prompt_problems(config: RunConfig) -> list[Problem]:
    """Formats that nothing can serve, and answers that could never be said to the end."""
    name = config.actor.prompt.format
    if name == "computerrl_vision":
        return [VISION_PROBLEM]
    num_tokens = config.actor.max_new_tokens
    # Serial mode is for looking at the loop with an untrained model, whose answers are cut anyway.
    if name == "computerrl_text" and num_tokens < MIN_COMPUTERRL_NEW_TOKENS and config.mode == "processes":
        reason = f"{num_tokens} tokens cut every answer of {name} (a thought, fences and a call)"
        return [Problem("actor.max_new_tokens", reason, f"set it to at least {MIN_COMPUTERRL_NEW_TOKENS}, better 256")]
    return []
