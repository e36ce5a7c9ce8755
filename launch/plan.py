"""From a configuration to the processes of a run.

Pure: looks at nothing but its arguments and starts nothing; `launch.supervisor` runs what comes out, `--dry-run` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.config import RunConfig
from common.messages import Role

COMMANDS: dict[Role, str] = {
    "broker": "broker", "env_server": "env-server", "engine": "engine", "actor": "actor", "learner": "learner",
}  # fmt: skip
"""Role -> command of `computerrl` that runs it."""

QUIET_LIBRARIES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Everything works offline: libraries neither look for a network nor report usage."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process the supervisor starts and keeps alive."""

    role: Role
    index: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""
    nice: int = 0
    """Added to the supervisor's own niceness."""
    ends_run: bool = False
    """Exit code 0 of this process means that the run is finished; for the others every unasked exit is a death."""

    @property
    def name(self) -> str:
        """`role-index`, as in logs and in the broker's status."""
        return f"{self.role}-{self.index}"


def make_plan(
    config: RunConfig, *, config_path: Path, python: str, source_root: Path, num_cores: int, gpus: Sequence[str] = ()
) -> tuple[ProcessSpec, ...]:
    """The processes of ``config`` in starting order: broker, env_server, engines, actors, learner.

    ``config_path`` is the run folder's resolved configuration, so that a restarted process reads what the first one read.
    ``gpus``: what may be used, as CUDA_VISIBLE_DEVICES names them.
    """
    is_central = config.actor.inference == "central"
    threads: dict[Role, int] = {
        "broker": 1,
        "env_server": 1,
        "engine": config.actor.num_threads or num_cores,
        "actor": 1 if is_central else config.actor.num_threads or num_cores,
        "learner": config.learner.num_threads or num_cores,
    }
    counts: dict[Role, int] = {
        "broker": 1,
        "env_server": 1,
        "engine": config.actor.num_engines if is_central else 0,
        "actor": config.actor.num_actors,
        "learner": 1,
    }
    has_engine: Role = "engine" if is_central else "actor"
    specs = []
    for role, count in counts.items():
        for index in range(count):
            specs.append(
                ProcessSpec(
                    role=role,
                    index=index,
                    argv=(python, "-m", "launch.cli", COMMANDS[role], str(config_path), "--index", str(index)),
                    env={
                        "PYTHONPATH": str(source_root), "OMP_NUM_THREADS": str(threads[role]), **QUIET_LIBRARIES,
                        **(_gpu_of_engine(index, config, gpus) if role == has_engine else {}),
                    },
                    nice=config.supervisor.learner_nice if role == "learner" else 0,
                    ends_run=role == "learner",
                )
            )
    return tuple(specs)


def _gpu_of_engine(index: int, config: RunConfig, gpus: Sequence[str]) -> dict[str, str]:
    """The learner's ranks take the first GPUs; engines take turns with the others, or with all when none is left."""
    if not gpus or config.learner.device == "cpu":
        return {}
    free = gpus[config.learner.num_ranks :] or gpus
    return {"CUDA_VISIBLE_DEVICES": free[index % len(free)]}
