"""Imported trajectories as episodes to clone: their tokens in files of some hundred episodes each."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.run_files.imported import read_head
from computerrl.learner.supervised.pool import KeptEpisode, bare_step, pack_episodes, unpack_episodes

_REST = "rest"
EPISODES_PER_FILE = 256


def write_episodes(folder: Path, episodes: Sequence[KeptEpisode], *, number: int) -> None:
    """Write file ``number`` of ``folder``."""
    arrays, rest = pack_episodes(episodes)
    # Written here: a full disk is an `OSError` then.
    _path(folder, number).write_bytes(save(arrays, metadata={_REST: json.dumps(rest)}))


def read_episodes(folder: Path) -> Iterator[KeptEpisode]:
    """All episodes of ``folder``, one file in memory at a time. Raises `ConfigError` for a file that is missing or damaged."""
    for number in range(math.ceil(read_head(folder).num_episodes / EPISODES_PER_FILE)):
        yield from _read(_path(folder, number))


def episodes_of_imports(config: RunConfig) -> list[KeptEpisode]:
    """At most `recipe.imported_episodes` of each folder in `recipe.imported`, at random."""
    recipe = config.learner.recipe
    chosen: list[KeptEpisode] = []
    for name in recipe.imported:
        folder = Path(name)
        total = read_head(folder).num_episodes
        wanted = set(random.Random(f"{config.seed}:{name}").sample(range(total), min(total, recipe.imported_episodes)))
        found = [_owned(episode) for number, episode in enumerate(read_episodes(folder)) if number in wanted]
        log.get_logger().info("import.read", folder=name, episodes=len(found), of=total)
        chosen += found
    return chosen


def _path(folder: Path, number: int) -> Path:
    return folder / f"episodes-{number:05}.safetensors"


def _read(path: Path) -> list[KeptEpisode]:
    try:
        with safe_open(path, framework="numpy") as file:
            rest = json.loads(file.metadata()[_REST])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return list(unpack_episodes(arrays, rest))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        step = "import the trajectories again with computerrl import-trajectories"
        raise ConfigError([Problem("learner.recipe.imported", f"{path} cannot be read: {error}", step)]) from None


def _owned(episode: KeptEpisode) -> KeptEpisode:
    """``episode`` with arrays of its own, so that those of its file can go."""
    steps = (bare_step(step.prompt_tokens.copy(), step.action_tokens.copy(), step.images) for step in episode.steps)
    return replace(episode, steps=tuple(steps))
