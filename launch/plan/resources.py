"""What each process of a run takes: memory, processor cores, GPUs. Estimates (`common.memory_plan`); starts nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from computerrl.common.config import RunConfig
from computerrl.common.errors import Problem
from computerrl.common.memory_plan import (
    CUDA_HOST_MB,
    LEARNING,
    PROCESS_MB,
    Choice,
    central_actor_mb,
    checkpoint_mb,
    choose_recomputation,
    engine_mb,
    image_plan,
    learner_mb,
    memory_parts,
    model_size,
    offloaded_mb,
    ranks_per_node,
)
from computerrl.common.messages import Role
from computerrl.common.vision.screen_memory import engine_images
from computerrl.launch.plan.machine import Machine, visible_gpus


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one process on one node."""

    num_cores: int = 1
    memory_mb: int = 0
    num_gpus: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.num_cores + other.num_cores, self.memory_mb + other.memory_mb, self.num_gpus + other.num_gpus)


def role_resources(config: RunConfig, *, learner_has_gpus: bool = False) -> dict[Role, Resources]:
    """What one process of each role takes on its node; the learner: all its ranks there. GPUs are one for each rank and for each
    process that samples, whether or not there are any. ``learner_has_gpus``: then activations take none of the host's memory;
    else there is room to keep all of them where `learner.activation_checkpointing` is auto."""
    cluster, actor = config.cluster, config.actor
    is_central = actor.inference == "central"
    num_ranks = ranks_per_node(config)
    engine_cores = actor.num_threads or cluster.cores_per_engine
    rank_mb, sampling_mb = learner_mb(config, "none"), engine_mb(config)
    if learner_has_gpus:
        rank_mb = CUDA_HOST_MB + learner_mb(config, "full", on_card=True) + checkpoint_mb(config) + offloaded_mb(config)
    desktops_mb = config.desktop.num_desktops * config.desktop.memory_per_desktop_mb
    desktop_cores = max(1, math.ceil(config.desktop.num_desktops * cluster.cores_per_desktop))
    found: dict[Role, tuple[int, float, int]] = {
        "broker": (1, PROCESS_MB["broker"], 0),
        "env_server": (desktop_cores, PROCESS_MB["env_server"] + desktops_mb, 0),
        "engine": (engine_cores, sampling_mb, actor.tensor_parallel_size),
        "actor": (1, central_actor_mb(config), 0) if is_central else (engine_cores, sampling_mb, actor.tensor_parallel_size),
        "learner": (
            num_ranks * (config.learner.num_threads or cluster.cores_per_rank),
            num_ranks * rank_mb,
            num_ranks,
        ),
    }
    return {
        role: Resources(num_cores, math.ceil(memory_mb * cluster.memory_margin), num_gpus)
        for role, (num_cores, memory_mb, num_gpus) in found.items()
    }


def describe_images(config: RunConfig, choice: Choice | None) -> str:
    """One line about what images take; empty where prompts show none, or nothing is known of the model yet. ``choice``: None as
    in `MemoryPlan`."""
    least = image_plan(config, "full" if choice is None else choice.recomputation, on_card=choice is None)
    most = image_plan(config, "none", on_card=True)
    if least is None or most is None:
        return ""
    screen = least.screen
    size, millions = f"{config.desktop.screen_width} x {config.desktop.screen_height}", screen.tower.num_parameters / 1e6
    takes = f"{least.pass_mb} MiB"
    if choice is None:
        takes += " of a GPU"
        if most.pass_mb != least.pass_mb:
            takes += f", or {most.pass_mb} MiB where all activations are kept"
    parts = [
        f"images: a screen of {size} is {screen.num_tokens} tokens, with {_told_mb(screen.kv_bytes)} of keys and values and"
        f" {_told_mb(screen.feature_bytes)} of features",
        f"{least.num_in_pack} screens fit into a pack",
        f"the {config.model.vision} vision tower ({millions:.0f} million parameters) takes {takes}",
    ]
    if least.features_mb:
        parts.append(f"its features {least.features_mb} MiB at most")
    parts.append(f"images take {_told_mb(engine_images(config).total)} at most of a process with an engine")
    return "; ".join(parts)


def _told_mb(num_bytes: int) -> str:
    mb = num_bytes / 2**20
    return f"{mb:,.0f} MiB" if mb >= 10 else f"{mb:.2g} MiB"


def missing_model(config: RunConfig) -> Problem | None:
    """A model that is not on this machine: its sizes are unknown, and plans count none for it."""
    if config.actor.served_at is not None or model_size(config.model.name)[0]:
        return None
    reason = f"{config.model.name!r} is not on this machine, so memory of learner and engines is counted without it"
    return Problem("model.name", reason, "fetch it (hf download NAME), or give the path of its folder")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Of a run on one machine."""

    parts: list[tuple[str, int, int]]
    """(what, how many, MiB each)."""
    choice: Choice | None
    """None: the learner makes it, on its GPU."""


def plan_memory(config: RunConfig, machine: Machine) -> MemoryPlan:
    """Memory of a run that is to start on ``machine`` as it is now."""
    least = memory_parts(config)
    if config.learner.device != "cpu" and visible_gpus(machine):
        return MemoryPlan(least, None)
    others_mb = sum(count * each_mb for what, count, each_mb in least if not what.startswith(LEARNING))
    choice = choose_recomputation(config, room_mb=machine.available_memory_mb - others_mb, num_sharing=config.learner.num_ranks)
    return MemoryPlan(memory_parts(config, choice.recomputation), choice)


def describe_choice(config: RunConfig, choice: Choice | None) -> str:
    """A line about `learner.activation_checkpointing`."""
    if choice is not None:
        return f"activation_checkpointing {choice.recomputation}: {choice.reason}"
    wanted = config.learner.activation_checkpointing
    if wanted != "auto":
        return f"activation_checkpointing {wanted}: configured"
    need_mb = learner_mb(config, "none", on_card=True)
    return f"activation_checkpointing auto: none where {need_mb} MiB of a GPU, with a tenth to spare, are free for it, else full"
