"""The learner: algorithm, optimizer, and the recipe BC -> RL -> Entropulse -> RL."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from computerrl.common.config.base import MAX_PROCESSES, Section


class AlgorithmConfig(Section):
    """Which algorithm, and its numbers. Read by learner."""

    name: str = "grpo"
    """A name in learner.algorithms.ALGORITHMS, or `module:Class` of a third party's entry point."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Checked by the algorithm itself; unknown options are errors."""


_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW. Read by learner."""

    lr: float = Field(5e-5, gt=0)
    """Learning rate in RL."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    warmup_updates: int = Field(0, ge=0)
    """Number of the run's first updates over which the learning rate rises linearly."""


class EntropulseConfig(Section):
    """When RL pauses for a round of SFT on the run's own successes (ComputerRL section 3.4; triggers are ours)."""

    enabled: bool = True
    """False: one RL phase without SFT rounds."""
    entropy_fraction: float = Field(0.5, gt=0, le=1)
    """Trigger: entropy EMA below this fraction of the phase's first value ..."""
    success_slope: float = Field(0.005, ge=0)
    """... and success rising by less than this per update ..."""
    slope_window: int = Field(4, ge=2)
    """... over this many updates."""
    min_updates: int = Field(4, ge=1)
    """Updates an RL phase lasts at least."""
    confirm_updates: int = Field(2, ge=1)
    """Both must hold this many updates in a row; an entropy 10 % above the threshold starts the count again (hysteresis)."""
    force_after_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the RL budget (updates, time or steps; the rounds' own time does not count) after which an SFT round starts even
    when entropy has not collapsed; the k-th of n rounds at k/n of it. None: only the triggers above, or a person
    (`computerrl phase sft`)."""
    max_phases: int = Field(1, ge=0)
    """Maximum number of SFT rounds in a run. None begins in the last 30 % of the RL budget: RL goes on after each."""
    max_time_share: float = Field(0.1, gt=0, le=1)
    """Maximum share of RL's time that a round takes, estimated from the supervised steps before it: fewer samples are drawn."""
    check_episodes_per_family: int = Field(0, ge=0)
    """Episodes per family, of the tuning seeds, that are played before and after a round. A round after which fewer of them
    succeed is taken back. 0: no check."""
    samples_per_task: int = Field(2, ge=1)
    """Successful rollouts drawn per task instance, at random over all updates (diverse policies)."""
    max_samples: int = Field(160, ge=1)
    """Steps in the SFT pool at most."""
    fill_with_demonstrations: bool = False
    """What a family lacks of its share in the SFT pool is filled with its demonstrations: one that RL has never solved has no
    successes, its groups carry no signal, and rounds without it unlearn the little that cloning taught. The paper does not."""
    epochs: int = Field(1, ge=0)
    """Passes over the SFT pool. 0: nothing is trained in a round; the reference becomes the present policy and the
    optimizer forgets its first moments, which is what a round does besides training."""
    lr: float = Field(5e-5, gt=0)
    """Learning rate of the SFT round, while at most half of the training episodes succeed. Above that it falls to 0 in proportion
    to the failures: a good policy has more to lose than to learn."""
    warmup_steps: int = Field(3, ge=0)
    """Number of optimizer steps over which the learning rate rises at the beginning of a round."""


class RecipeConfig(Section):
    """The order of phases and how long each lasts. Read by the learner, who conducts the run."""

    demos_per_family: int = Field(8, ge=0)
    """Demonstrated episodes per family for behaviour cloning; 0 skips cloning."""
    demos_of_family: dict[str, int] = Field(default_factory=dict)
    """Families that need another number than ``demos_per_family``: those that cloning learns at once, or hardly. Families that
    the run does not play may be among them."""
    specialists: tuple[str, ...] = ()
    """Folders of other runs whose successful rollouts are cloned beside the demonstrations: one generalist from a run for each
    application (CODA). Each needs a checkpoint; model and prompt must be this run's."""
    specialist_episodes: int = Field(32, ge=1)
    """Of each family from each of them at most, at random."""
    bc_epochs: int = Field(2, ge=1)
    """Passes over the demonstrations."""
    bc_batch_size: int = Field(16, ge=1)
    """Steps per optimizer step in cloning and Entropulse."""
    bc_lr: float = Field(2e-4, gt=0)
    """Learning rate of behaviour cloning."""
    demo_replay_steps: int = Field(0, ge=0)
    """Maximum number of steps of demonstrations that an RL update imitates beside the algorithm's loss, of the families that fail
    (``demo_replay_below``), in turn, those that fail most first (demonstration-augmented policy gradient, arXiv 1709.10087). A
    group that fails altogether says nothing to the algorithm; families that succeed hold what they can do by their own
    successes."""
    demo_replay_below: float = Field(0.5, gt=0, le=1)
    """Families fail when less than this share of their latest rollouts succeeded, in whichever update these were."""
    demo_replay_weight: float = Field(0.5, gt=0)
    """Weight of their mean negative log-likelihood."""
    demos_of_failures: int = Field(0, ge=0)
    """Demonstrations that RL may ask for, in all: of training instances on which a whole group failed. ``demo_replay_steps``
    takes from these. What was cloned is known already, and was not enough where rollouts fail. 0: those cloned are replayed."""
    eval_episodes_per_family: int = Field(20, ge=0)
    """Held-out episodes per family in the last evaluation; 0 skips it. They begin with those of the two others."""
    eval_before_episodes_per_family: int | None = Field(None, ge=0)
    """Of the untouched model, beside the demonstrations; None: as in the last one; 0 skips it."""
    eval_cloned_episodes_per_family: int | None = Field(None, ge=0)
    """Of the cloned policy; None: as in the last one; 0 skips it."""
    eval_split: Literal["evaluation", "tuning"] = "evaluation"
    """Whose seeds evaluations play. tuning: `tasks.tuning_seeds`, while settings are being chosen."""
    eval_rollouts_per_task: int = Field(1, ge=1, le=256)
    """How often each of them is played: more than once tells pass@k (`computerrl eval`), at a temperature above 0."""
    eval_temperature: float = Field(0.0, ge=0)
    """Sampling temperature of evaluations; 0 is greedy."""
    max_updates: int = Field(60, ge=0)
    """RL updates at most."""
    max_run_s: float | None = Field(None, gt=0)
    """Maximum number of seconds from the start of the run to its report; None: no limit. An evaluation gets the episodes that fit
    into its share at the speed measured before. RL ends when the last evaluation is due. The last evaluation ends when time is
    up, with the episodes that it has."""
    max_rl_s: float | None = Field(None, gt=0)
    """RL ends after this many seconds (all RL and SFT phases together); None: no limit but ``max_run_s``."""
    max_rl_env_steps: int | None = Field(None, ge=1)
    """RL ends with the update that brings the desktop steps of its episodes to so many; None: no limit. For comparisons: how
    many steps an update takes depends on the algorithm."""
    target_success: float | None = Field(None, gt=0, le=1)
    """RL ends early when the training success EMA reaches this; None: never."""

    def num_demos(self, family: str) -> int:
        """Demonstrations of ``family`` for cloning."""
        return self.demos_of_family.get(family, self.demos_per_family)

    @property
    def max_demos(self) -> int:
        """The largest number of demonstrations of a family, at least 1."""
        return max(1, self.demos_per_family, *self.demos_of_family.values())


class StalenessConfig(Section):
    """What happens to steps that training comes too late for (AReaL section 4). Read by learner.

    Admission by credit (`broker.eta`) holds in every mode. It bounds the mean age and never the maximum: a straggler of D seconds
    is D divided by the update period old.
    """

    mode: Literal["admit", "mask", "pace"] = "mask"
    """admit: admission alone; no step is masked for its age, so there is no hard bound and `learner.max_age` has no effect.
    mask: steps older than `learner.max_age` are masked out of the loss. pace: mask, and an update waits for steps in flight that
    would pass the bound with it; meanwhile its batch grows, up to (eta + 1) * groups_per_batch groups."""
    stall_budget_s: float = Field(30.0, gt=0)
    """Seconds that an update waits at most; mode pace only."""


class LoraConfig(Section):
    """Train low-rank adapters instead of whole weights (LoRA): optimizer and gradients take hardly any memory. Read by learner.

    Needs peft, which set-up does not install: `.venv/bin/pip install peft`. Actors and exports get merged weights.
    """

    rank: int = Field(16, ge=1)
    """Rows of the inner matrix."""
    alpha: int = Field(32, ge=1)
    """What an adapter adds is scaled by alpha / rank."""
    targets: tuple[str, ...] = Field(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1)
    """Names of the linear layers that get one, in each layer that `model.trainable_top_layers` trains."""


class LearnerConfig(Section):
    """The learner process. Read by learner and launch."""

    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Where the learner computes; auto: CUDA when a GPU is visible, else the CPU."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    entropulse: EntropulseConfig = EntropulseConfig()
    recipe: RecipeConfig = RecipeConfig()
    group_size: int = Field(8, ge=2, le=4096)
    """Rollouts per task instance (G); where `tasks.rollouts` adapts it, that of families of which nothing is known."""
    groups_per_batch: int = Field(6, ge=1)
    """Groups per update; with groups of group_size that is a batch of groups_per_batch * group_size trajectories."""
    num_minibatches: int = Field(1, ge=1)
    """Optimizer steps per update, each on whole groups; fewer when fewer groups train."""
    max_age: int = Field(4, ge=0)
    """Steps older than this many policy versions are masked out of the loss (hard bound); no effect in staleness.mode admit."""
    staleness: StalenessConfig = StalenessConfig()
    max_logprob_gap: float | None = Field(0.3, gt=0)
    """The run ends when engine's and learner's log-probs of tokens that the present weights sampled differ by more than this on
    average (rounding to bfloat16 makes 0.01 to 0.1): they do not run the same model. None: it is only shown (`logprob_gap`)."""
    max_pack_tokens: int | None = Field(None, ge=64)
    """Tokens per packed forward pass: steps share prompts only inside one, memory grows with it. None: twice the longest prompt
    and answer that the run allows, at least 1,024, and more than 4,096 only where one of them is longer."""
    num_threads: int | None = Field(None, ge=1)
    """CPU threads; None: all cores."""
    sft_num_threads: int | None = Field(None, ge=1)
    """Maximum number of CPU threads of a supervised step, on cores that are idle then: desktops and actors mostly wait. None:
    num_threads."""
    lora: LoraConfig | None = None
    """None: train the weights themselves."""
    activation_checkpointing: Literal["auto", "none", "full"] = "auto"
    """What a trained layer, and a vision tower, computes again for its gradients instead of keeping it; the same gradients. none:
    nothing. full: everything, for about a third more time; memory for one layer's activations. auto: none where the learner's
    estimate fits into the memory that is free for it when it starts, of its GPU or of the host, else full."""
    num_ranks: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Processes that share weights, optimizer and packs (FSDP2), one per GPU, or on the CPU with num_threads divided among them.
    1: no torch.distributed. The learner starts the others itself; under torchrun this must be its number of processes."""
    rank_timeout_s: float = Field(300.0, gt=0)
    """A collective among ranks that takes longer is given up, and the learner ends (the supervisor starts it again)."""
    checkpoint_every_updates: int = Field(5, ge=1)
    """RL updates between checkpoints; every phase change makes one too."""
    num_checkpoints_kept: int = Field(2, ge=1)
    """Older ones are removed."""
    weight_backend: Literal["auto", "gloo", "nccl", "file"] = "auto"
    """How new weights reach actors. auto: nccl on CUDA, gloo on CPU. file: through the run folder, where all nodes see it and
    collectives have no network; costs a file of the trained weights for each version."""
    publish_every_updates: int = Field(1, ge=1)
    """RL updates from one hand-over of weights to the next. More than 1 saves broadcasts, and makes what actors sample up to so
    many versions older, less one; the end of a phase hands the weights over in any case."""
    weight_timeout_s: float = Field(3.0, gt=0)
    """A bucket of 64 MiB that takes longer has met an actor that hangs: the broadcast is given up and made again, with twice
    the time, with those that still live."""
    bind_address: str = "127.0.0.1"
    """Address for the weight control socket and store."""

    @property
    def age_bound(self) -> float:
        """Age in policy versions beyond which no step is trained; infinite in mode admit."""
        return math.inf if self.staleness.mode == "admit" else self.max_age
