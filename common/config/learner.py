"""Settings of the learner: algorithm, optimizer, and the recipe BC -> RL -> Entropulse -> RL."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from computerrl.common.config.actor import TeacherConfig
from computerrl.common.config.base import MAX_PROCESSES, Place, Section


class AlgorithmConfig(Section):
    """The algorithm and its options. Read by the learner."""

    name: str = "grpo"
    """Name of the algorithm: one in `learner.algorithms.ALGORITHMS`, an entry point of another package, or `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the algorithm, which checks them itself. An unknown option is an error."""


class RewardConfig(Section):
    """One part of the reward of an episode. Read by the learner."""

    name: str = "evaluator"
    """Name of the reward: `evaluator`, `length`, `step` or `judge`, an entry point of another package in the group
    `computerrl.rewards`, or `module:Class`."""
    weight: float = 1.0
    """Factor of the reward in the sum."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reward, which checks them itself. An unknown option is an error."""


_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Settings of the optimizer AdamW. Read by the learner."""

    lr: float = Field(5e-5, gt=0)
    """Learning rate of RL updates."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Coefficient of the decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum global norm of the gradients; larger ones are scaled down to it."""
    vision_lr_factor: float = Field(1.0, gt=0)
    """Factor on the learning rate of a trained vision tower (`model.vision`), in all phases."""
    warmup_updates: int = Field(0, ge=0)
    """Number of the run's first updates over which the learning rate rises linearly. 0: no warm-up."""
    offload: bool = False
    """Whether float32 master weights and AdamW's moments lie in the host's memory, where the processor makes the steps. Of a
    trained parameter a GPU then holds its weight and a float32 gradient, and the host 16 bytes. The training is the same; a step
    takes longer. A resumed run may change it. On a CPU it only takes more memory."""


class EntropulseConfig(Section):
    """Settings of Entropulse: RL pauses for rounds of SFT on the run's own successes (ComputerRL section 3.4). The paper does
    not publish its trigger; the one here is our own. Read by the learner."""

    enabled: bool = True
    """Whether RL pauses for SFT rounds. False: one RL phase without rounds."""
    entropy_fraction: float = Field(0.5, gt=0, le=1)
    """Fraction of the phase's first entropy below which the entropy EMA has collapsed. An SFT round needs this and a success
    that no longer rises (`success_slope`)."""
    success_slope: float = Field(0.005, ge=0)
    """Rise of success per update below which success no longer rises. An SFT round needs this and a collapsed entropy
    (`entropy_fraction`)."""
    slope_window: int = Field(4, ge=2)
    """Number of latest updates over which the rise of success is computed."""
    min_updates: int = Field(4, ge=1)
    """Minimum number of updates of an RL phase before a triggered round."""
    confirm_updates: int = Field(2, ge=1)
    """Number of consecutive updates for which both conditions must hold. An entropy 10 % above the threshold, or a rising
    success, starts the count again (hysteresis)."""
    force_after_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the RL budget after which an SFT round starts even without a trigger: the k-th of n rounds at k/n of it. The
    budget counts updates, time or steps, without the time of the rounds. None: only the triggers start a round, or a person
    (`computerrl phase sft`)."""
    max_phases: int = Field(1, ge=0)
    """Maximum number of SFT rounds in a run. No round begins in the last 30 % of the RL budget, so that RL goes on after
    each."""
    max_time_share: float = Field(0.1, gt=0, le=1)
    """Maximum duration of a round as a share of the time of all updates so far. It is estimated from earlier supervised steps;
    a round that would take longer draws fewer samples."""
    check_episodes_per_family: int = Field(0, ge=0)
    """Number of episodes per family, on tuning seeds, that are played before and after a round. A round after which fewer of
    them succeed is taken back. 0: no check."""
    samples_per_task: int = Field(2, ge=1)
    """Number of successful rollouts drawn per task instance. They are drawn at random over all updates, so that the policies
    behind them differ."""
    max_samples: int = Field(160, ge=1)
    """Maximum number of steps in the SFT pool."""
    fill_with_demonstrations: bool = False
    """Whether a family that lacks successes for its share of the SFT pool is filled up with its demonstrations. A family that
    RL never solved has no successes, and a round without it unlearns the little that cloning taught. The paper does not do
    this."""
    epochs: int = Field(1, ge=0)
    """Number of passes over the SFT pool. 0: nothing is trained; a round then only makes the present policy the reference and
    clears the optimizer's first moments."""
    lr: float = Field(5e-5, gt=0)
    """Learning rate of an SFT round while at most half of the training episodes succeed. Above that it falls in proportion to
    the failures, to 0: a good policy has more to lose than to learn."""
    warmup_steps: int = Field(3, ge=0)
    """Number of optimizer steps over which the learning rate rises at the beginning of a round."""


class RecipeConfig(Section):
    """Settings of the phases and of how long each lasts. Read by the learner, which conducts the run."""

    demos_per_family: int = Field(8, ge=0)
    """Number of demonstrated episodes per family for behaviour cloning. 0: no cloning."""
    demos_of_family: dict[str, int] = Field(default_factory=dict)
    """Number of demonstrated episodes of single families, in place of `demos_per_family`. It is for families that cloning
    learns at once, or hardly. Families that the run does not play may be among them."""
    teacher: TeacherConfig | None = None
    """Settings of an agent with a model of its own, which plays the demonstrated episodes. Its successes are cloned, in the
    prompts of this run. None: the tasks' own demonstrators play them."""
    specialists: tuple[str, ...] = ()
    """Folders of other runs whose successful rollouts are cloned beside the demonstrations. This makes one generalist from a
    run for each application (CODA). Each folder needs a checkpoint, and model and prompt must be those of this run."""
    specialist_episodes: int = Field(32, ge=1)
    """Maximum number of episodes of each family from each folder in `specialists`, drawn at random."""
    imported: tuple[Place, ...] = ()
    """Folders of trajectories of other programs (`computerrl import-trajectories`), which are cloned beside the demonstrations.
    Each was made for the model's tokenizer and the prompt settings of this run, and has to stay where it is."""
    imported_episodes: int = Field(1000, ge=1)
    """Maximum number of episodes from each folder in `imported`, drawn at random."""
    bc_epochs: int = Field(2, ge=1)
    """Number of passes over the demonstrations in behaviour cloning."""
    bc_batch_size: int = Field(16, ge=1)
    """Number of samples per optimizer step in cloning and in Entropulse rounds."""
    bc_lr: float = Field(2e-4, gt=0)
    """Learning rate of behaviour cloning."""
    demo_replay_steps: int = Field(0, ge=0)
    """Maximum number of steps of demonstrations that an RL update imitates beside the algorithm's loss (demonstration-augmented
    policy gradient, arXiv 1709.10087). They are of the families that fail (`demo_replay_below`), in turn, those that fail most
    first: a group that fails altogether has no signal for the algorithm. 0: no imitation."""
    demo_replay_below: float = Field(0.5, gt=0, le=1)
    """Success rate of a family's latest rollouts below which the family fails, and its demonstrations are imitated. The
    rollouts count in whichever update they were."""
    demo_replay_weight: float = Field(0.5, gt=0)
    """Weight of the mean negative log-likelihood of imitated steps in the loss."""
    demos_of_failures: int = Field(0, ge=0)
    """Maximum number of demonstrations that RL requests in a run, of training instances on which a whole group failed.
    `demo_replay_steps` then imitates these: the cloned ones are known already, and were not enough. 0: the cloned
    demonstrations are imitated."""
    eval_episodes_per_family: int = Field(20, ge=0)
    """Number of held-out episodes per family in the last evaluation. The two earlier evaluations play the first of the same
    episodes. 0: no last evaluation."""
    eval_control_episodes_per_family: int = Field(0, ge=0)
    """Number of held-out episodes per family that are played after the last evaluation with black images, and once more with the
    screens of other episodes. A policy that looks at its screen falls to chance with both. Only for formats with images."""
    eval_before_episodes_per_family: int | None = Field(None, ge=0)
    """Number of held-out episodes per family of the untouched model, played beside the demonstrations. None: as in the last
    evaluation. 0: this evaluation is skipped."""
    eval_cloned_episodes_per_family: int | None = Field(None, ge=0)
    """Number of held-out episodes per family of the cloned policy. None: as in the last evaluation. 0: this evaluation is
    skipped."""
    eval_split: Literal["evaluation", "tuning", "demonstration"] = "evaluation"
    """Seeds that evaluations play. `evaluation`: the held-out seeds. `tuning`: `tasks.tuning_seeds`, while settings are being
    chosen. `demonstration`: `tasks.demonstration_seeds`, so that successes can become demonstrations (`computerrl record`); only
    in a run that trains nothing, such as `computerrl eval`."""
    eval_rollouts_per_task: int = Field(1, ge=1, le=256)
    """Number of rollouts of each evaluated instance. More than one gives pass@k (`computerrl eval`), at a temperature above
    0."""
    eval_temperature: float = Field(0.0, ge=0)
    """Sampling temperature of evaluations. 0: greedy sampling."""
    max_updates: int = Field(60, ge=0)
    """Maximum number of RL updates. 0: no RL."""
    max_run_s: float | None = Field(None, gt=0)
    """Maximum duration in seconds from the start of the run to its report. An evaluation gets the episodes that fit into its
    share at the speed measured before. RL ends when the last evaluation is due, and the last evaluation ends when time is up,
    with the episodes that it has. None: no limit."""
    max_rl_s: float | None = Field(None, gt=0)
    """Maximum duration of all RL and SFT phases together, in seconds. None: no limit but `max_run_s`."""
    max_rl_env_steps: int | None = Field(None, ge=1)
    """Maximum number of desktop steps of RL episodes. RL ends with the update that reaches it. It is for comparisons, because
    the steps of an update depend on the algorithm. None: no limit."""
    target_success: float | None = Field(None, gt=0, le=1)
    """Success EMA of training at which RL ends early. None: RL does not end early."""

    def num_demos(self, family: str) -> int:
        """Number of demonstrations of ``family`` for cloning."""
        return self.demos_of_family.get(family, self.demos_per_family)

    @property
    def demonstrates(self) -> bool:
        """Whether there are demonstrations for cloning."""
        return self.demos_per_family > 0 or any(self.demos_of_family.values())

    @property
    def max_demos(self) -> int:
        """The largest number of demonstrations of a family, at least 1."""
        return max(1, self.demos_per_family, *self.demos_of_family.values())


class StalenessConfig(Section):
    """Treatment of steps that training reaches too late (AReaL section 4). Read by the learner.

    Admission by credit (`broker.eta`) holds in every mode. It bounds the mean age and never the maximum: a straggler of D
    seconds is D divided by the update period old.
    """

    mode: Literal["admit", "mask", "pace"] = "mask"
    """Rule for steps that are too old. `admit`: admission alone; no step is masked for its age, so that there is no hard bound
    and `learner.max_age` has no effect. `mask`: steps older than `learner.max_age` are masked out of the loss. `pace`: as
    `mask`, and an update waits for steps in flight that would pass the bound with it. Meanwhile its batch grows, up to (eta +
    1) * groups_per_batch groups."""
    stall_budget_s: float = Field(30.0, gt=0)
    """Maximum time in seconds that an update waits for steps in flight. Only mode `pace` uses this field."""


class LoraConfig(Section):
    """Settings of low-rank adapters (LoRA), which are trained in place of whole weights. Optimizer and gradients then take
    hardly any memory. Read by the learner.

    This needs the package peft, which set-up does not install: `.venv/bin/pip install peft`. Actors and exports get merged
    weights.
    """

    rank: int = Field(16, ge=1)
    """Rank of an adapter: the number of rows of its inner matrix."""
    alpha: int = Field(32, ge=1)
    """Scale of an adapter: its output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = Field(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1)
    """Names of the linear layers that get an adapter, in each layer that `model.trainable_top_layers` selects."""


class LearnerConfig(Section):
    """Settings of the learner. Read by the learner and by launch."""

    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Device on which the learner computes. `auto`: CUDA when a GPU is visible, else the CPU."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm and its options."""
    rewards: tuple[RewardConfig, ...] = Field((RewardConfig(),), min_length=1)
    """Rewards of an episode, weighed and added (docs/reference/algorithms.md). `name`: `evaluator`, `length`, `step` or `judge`,
    an entry point of another package in the group `computerrl.rewards`, or `module:Class`. `weight`: factor in the sum.
    `options`: those of the reward, which checks them itself. The default is 1 for a success by the task's evaluator, else 0."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Settings of the optimizer AdamW."""
    entropulse: EntropulseConfig = EntropulseConfig()
    """Settings of SFT rounds during RL."""
    recipe: RecipeConfig = RecipeConfig()
    """Settings of the phases and of how long each lasts."""
    group_size: int = Field(8, ge=2, le=4096)
    """Number of rollouts per task instance (G in GRPO). Where `tasks.rollouts` adapts this number, it holds for families
    without enough results."""
    groups_per_batch: int = Field(6, ge=1)
    """Number of groups per update. With groups of `group_size` that is a batch of groups_per_batch * group_size
    trajectories."""
    num_minibatches: int = Field(1, ge=1)
    """Number of optimizer steps per update, each on whole groups. There are fewer when fewer groups train."""
    max_age: int = Field(4, ge=0)
    """Maximum policy age of a trained step, in policy versions (hard bound). Older steps are masked out of the loss. Without
    effect in staleness mode `admit`."""
    staleness: StalenessConfig = StalenessConfig()
    """Treatment of steps that training reaches too late."""
    max_logprob_gap: float | None = Field(0.3, gt=0)
    """Maximum mean difference between the engine's and the learner's log-probs of tokens that the present weights sampled.
    Rounding to bfloat16 makes 0.01 to 0.1. The run ends above this: engine and learner then do not run the same model. None:
    the difference is only recorded (`logprob_gap`)."""
    max_pack_tokens: int | None = Field(None, ge=64)
    """Maximum number of tokens per packed forward pass. Steps share prompts only inside one pass, and memory grows with it.
    None: twice the longest prompt and completion that the run allows, at least 1,024, and more than 4,096 only where one of
    them is longer."""
    num_threads: int | None = Field(None, ge=1)
    """Number of CPU threads of the learner. None: all cores."""
    sft_num_threads: int | None = Field(None, ge=1)
    """Maximum number of CPU threads of a supervised step. It uses cores that are idle then, because desktops and actors mostly
    wait. None: `num_threads`."""
    lora: LoraConfig | None = None
    """Settings of low-rank adapters. None: the weights themselves are trained."""
    activation_checkpointing: Literal["auto", "none", "full"] = "auto"
    """Activations that a trained layer, and a vision tower, computes again for its gradients. The gradients are the same.
    `none`: nothing is computed again. `full`: everything is, for about a third more time and the memory of one layer's
    activations. `auto`: `none` where the learner's estimate fits into the memory of its device that is free at its start, else
    `full`."""
    image_cache_mb: int = Field(256, ge=0)
    """Maximum size in MiB of the features of images that a rank keeps while the vision tower is frozen. The least recently used
    are computed again. A screen of 1920 x 1080 takes about 19 MiB for a model of 7 billion parameters."""
    images_per_pass: int = Field(4, ge=1)
    """Maximum number of images that the vision tower encodes at once. Fewer take less memory, and the features are the same."""
    num_ranks: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Number of learner processes that share weights, optimizer and packs (FSDP2): one per GPU, or on the CPU with
    `num_threads` divided among them. 1: no torch.distributed. The learner starts the other ranks itself; under torchrun this
    must be its number of processes."""
    context_parallel_size: int = Field(1, ge=1)
    """Number of neighbouring ranks that share each pack, a divisor of `num_ranks`. Each rank runs an equal slice of the pack's
    tokens and keeps activations for that alone; each layer gathers keys and values. For prompts of 32,000 tokens and more. Not
    for models that take images, and not for mixtures of experts. 1: each rank has packs of its own."""
    rank_timeout_s: float = Field(300.0, gt=0)
    """Deadline for a collective among ranks in seconds. The learner ends when one takes longer, and the supervisor starts it
    again."""
    checkpoint_every_updates: int = Field(5, ge=1)
    """Number of RL updates between checkpoints. Every phase change makes a checkpoint too, and a long supervised round several,
    which take a twentieth of its time."""
    num_checkpoints_kept: int = Field(2, ge=1)
    """Number of newest checkpoints that are kept. Older ones are removed."""
    weight_backend: Literal["auto", "gloo", "nccl", "file"] = "auto"
    """Transport of new weights to the actors. `auto`: nccl on CUDA, gloo on the CPU. `file`: a file of the trained weights in
    the run folder for each version, for nodes whose network carries no collectives."""
    weight_encoding: Literal["whole", "changes"] = "whole"
    """Encoding of a broadcast of weights. `whole`: all trained weights. `changes`: where all receivers hold the weights that were
    sent before, what has changed since, exact to the bit, for slow networks: of SmolLM2's bfloat16 weights a hundredth at steps
    of 1e-6, a twentieth at 1e-5. A bucket of which more than a quarter has changed travels whole. It takes the memory of the
    trained weights once more in the learner, and is not for files."""
    publish_every_updates: int = Field(1, ge=1)
    """Number of RL updates between broadcasts of weights. More than 1 saves broadcasts, and makes actors' weights up to this
    many versions older, less one. The end of a phase broadcasts in any case."""
    weight_timeout_s: float = Field(3.0, gt=0)
    """Deadline for a bucket of 64 MiB of weights in seconds. When a receiver misses it, the broadcast is given up and made
    again with the receivers that still reply, and with twice the time."""
    bind_address: str = "127.0.0.1"
    """Address that the learner's weight control socket and store listen on. The default, loopback, reaches no other host."""

    @property
    def age_bound(self) -> float:
        """Age in policy versions beyond which no step is trained; infinite in mode admit."""
        return math.inf if self.staleness.mode == "admit" else self.max_age
