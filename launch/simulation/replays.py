"""Published comparisons, played by this model: the part of a published factor that remains under the assumptions beside it.

These are model replays, not reproductions: nothing of the compared systems runs. Schedules are taken from the papers, sizes and
times mostly are not stated there and are assumed; nothing is tuned until the numbers agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from computerrl.common.config import RunConfig
from computerrl.launch.simulation.cluster import Cluster, Failures
from computerrl.launch.simulation.figures import Figures
from computerrl.launch.simulation.what_if import Setting
from computerrl.launch.simulation.workload import AssumedWorkload


@dataclass(frozen=True, slots=True)
class Row:
    """A published factor and the model's."""

    what: str
    published: float
    model: float


@dataclass(frozen=True, slots=True)
class Replay:
    """One comparison."""

    name: str
    source: str
    settings: tuple[Setting, ...]
    """Settings of the comparison; the first is the baseline."""
    duration_s: float
    assumptions: tuple[str, ...]
    judge: Callable[[list[Figures]], tuple[Row, ...]]


def _config(*, eta: int, groups: int, group_size: int = 8) -> RunConfig:
    tree = {"broker": {"eta": eta}, "learner": {"groups_per_batch": groups, "group_size": group_size, "max_age": eta + 4}}
    return RunConfig.model_validate(tree)


def areal() -> Replay:
    """Synchronous, all GPUs in turn for generation and training, against asynchronous on the same number of GPUs."""
    num_gpus, train_s = 16, 400.0
    work = AssumedWorkload(
        mean_steps=16,
        spread_steps=1.0,
        max_steps=128,
        desktop_step_s=0.0,
        spread_desktop=0.0,
        generate_step_s=10.0,
        reset_s=0.1,
        evaluate_s=0.1,
    )
    base = Cluster(num_desktops=512, num_actors=num_gpus, crowding=0.02, train_step_s=0.0, overhead_s=1.0, weight_s=5.0)
    sync = replace(base, train_fixed_s=train_s * 4 / num_gpus, pauses_while_training=True)
    split = replace(base, num_actors=num_gpus * 3 // 4, train_fixed_s=train_s * 4 / (num_gpus // 4))
    return Replay(
        "areal",
        "AReaL (arXiv 2505.24298): up to 2.77 times the training speed of synchronous systems on as many GPUs",
        (
            Setting("synchronous", _config(eta=0, groups=32, group_size=16), sync, work),
            Setting("asynchronous, eta 4", _config(eta=4, groups=32, group_size=16), split, work),
        ),
        8 * 3600.0,
        (
            "paper: generation and training on separate GPUs, three quarters for generation; new weights interrupt completions",
            "assumed: 16 GPUs, 512 completions a batch, their lengths lognormal with sigma 1 cut at 8 times the mean",
            "assumed: an engine slows by 2 % for each further completion under way; an update takes 400 GPU-seconds times 4",
        ),
        lambda rows: (Row("updates per hour", 2.77, rows[1].updates_per_h / rows[0].updates_per_h),),
    )


def dart() -> Replay:
    """Batch-wise, task-wise and rollout-wise sampling of desktops; all workers at once or one after the other for new weights."""
    work = AssumedWorkload(mean_steps=15, spread_steps=0.9, max_steps=100, straggler_share=0.05, straggler_factor=5.0)
    base = Cluster(
        num_desktops=128, num_actors=8, crowding=0.03, train_fixed_s=120.0, train_step_s=0.02, weight_s=5.0, load_stall_s=30.0
    )
    turn = replace(base, actors_load_in_turn=True, load_stall_s=4.0)
    paused = replace(base, pauses_while_training=True)
    return Replay(
        "dart",
        "DART-GUI (arXiv 2509.23866): 1.9 times the training throughput, 5.5 times the use of environments",
        (
            Setting("batch-wise, all workers at once", _config(eta=0, groups=16), paused, work),
            Setting("task-wise, all workers at once", _config(eta=1, groups=16), replace(base, waves="task"), work),
            Setting("rollout-wise, all workers at once", _config(eta=4, groups=16), base, work),
            Setting("rollout-wise, worker by worker", _config(eta=4, groups=16), turn, work),
        ),
        12 * 3600.0,
        (
            "paper: the schedules; 'environment use' is taken for the share of desktop time in episodes",
            "assumed: 128 desktops, 8 engines, 8 rollouts of 16 tasks a batch (one for each), 15 steps in the mean, a long tail",
            "assumed: 5 % of desktops five times slower; an update takes 2 minutes; weights stop all engines 30 s, or each 4 s",
        ),
        lambda rows: (
            Row("steps trained per second", 1.9, rows[3].steps_trained_per_s / rows[0].steps_trained_per_s),
            Row("use of desktops", 5.5, rows[3].desktop_use / rows[0].desktop_use),
            Row("... task-wise", float("nan"), rows[1].desktop_use / rows[0].desktop_use),
        ),
    )


def verl() -> Replay:
    """The ladder: shared GPUs, one step off-policy, streaming without and with partial rollouts."""
    work = AssumedWorkload(
        mean_steps=16,
        spread_steps=1.1,
        max_steps=160,
        desktop_step_s=0.0,
        spread_desktop=0.0,
        generate_step_s=8.0,
        reset_s=0.1,
        evaluate_s=0.1,
    )
    base = Cluster(num_desktops=512, num_actors=16, crowding=0.02, train_step_s=0.0, overhead_s=1.0, weight_s=5.0)
    shared = replace(base, train_fixed_s=180.0, pauses_while_training=True)
    split = replace(base, num_actors=8, train_fixed_s=360.0)
    return Replay(
        "verl",
        "verl's fully asynchronous recipe: 2.35 to 2.67 times as fast as with shared GPUs (Qwen2.5-7B, 128 GPUs)",
        (
            Setting("shared GPUs", _config(eta=0, groups=32, group_size=16), shared, work),
            Setting(
                "one step off-policy", _config(eta=1, groups=32, group_size=16), replace(split, drains_for_weights=True), work
            ),
            Setting("streaming", _config(eta=3, groups=32, group_size=16), replace(split, drains_for_weights=True), work),
            Setting("streaming, partial rollouts", _config(eta=3, groups=32, group_size=16), split, work),
        ),
        8 * 3600.0,
        (
            "documentation: the rungs, and half of the GPUs for each side",
            "assumed: 16 engines stand for all GPUs, 512 completions a batch, lengths lognormal, sigma 1.1, "
            "cut at 10 times the mean",
            "assumed: an update takes 180 s on all GPUs and 360 s on half of them",
        ),
        lambda rows: (
            Row("updates per hour, partial rollouts", 2.35, rows[3].updates_per_h / rows[0].updates_per_h),
            Row("... streaming without", float("nan"), rows[2].updates_per_h / rows[0].updates_per_h),
            Row("... one step off-policy", float("nan"), rows[1].updates_per_h / rows[0].updates_per_h),
        ),
    )


def robustrl() -> Replay:
    """A failure stops one role, or the whole job."""
    work = AssumedWorkload(
        mean_steps=16,
        spread_steps=0.8,
        max_steps=64,
        desktop_step_s=0.0,
        spread_desktop=0.0,
        generate_step_s=6.0,
        reset_s=0.1,
        evaluate_s=0.1,
    )
    update_s = 240.0
    fails = Failures(actor_mtbf_s=16 * 20 * update_s, learner_mtbf_s=20 * update_s, actor_repair_s=180.0, learner_repair_s=180.0)
    base = Cluster(
        num_desktops=512,
        num_actors=16,
        crowding=0.02,
        train_fixed_s=update_s,
        train_step_s=0.0,
        overhead_s=1.0,
        weight_s=5.0,
        checkpoint_every_updates=1,
        failures=fails,
    )
    whole = replace(fails, job_restarts=True, actor_repair_s=600.0, learner_repair_s=600.0)
    config = _config(eta=2, groups=32, group_size=16)
    return Replay(
        "robustrl",
        "RobustRL (arXiv 2512.22492): effective training time over 80 % against 60 % where a failure restarts the job",
        (
            Setting("a failure restarts the job", config, replace(base, failures=whole), work),
            Setting("a failure restarts its role", config, base, work),
        ),
        48 * 3600.0,
        (
            "paper: 10 % failure injection, taken as one failure in ten updates, half of them the trainer's, half an engine's",
            "assumed: updates of 240 s, a checkpoint after each; a role is back after 3 minutes, a whole job after 10",
            "effective: share of time in which the trainer neither was down nor repeated updates",
        ),
        lambda rows: (
            Row("effective share, job restarts", 0.60, rows[0].effective_share),
            Row("effective share, role restarts", 0.80, rows[1].effective_share),
        ),
    )


REPLAYS: dict[str, Callable[[], Replay]] = {"areal": areal, "dart": dart, "verl": verl, "robustrl": robustrl}
"""Name on the command line -> comparison."""
