"""Successful rollouts of other runs, to clone one generalist from specialists (CODA, arXiv 2508.20096, section 3.3).

Every run keeps a pool of its own successes for Entropulse in its checkpoints; here they are read out of the newest one. Looks at
other runs and changes nothing in them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from computerrl.learner.supervised.pool import Episode, EpisodePool

_POOL = "successes"


def episodes_of_specialists(config: RunConfig) -> list[Episode]:
    """At most `recipe.specialist_episodes` of each family from each of `recipe.specialists`, at random. Raises `ResumeError`."""
    recipe = config.learner.recipe
    chosen: list[Episode] = []
    for run in recipe.specialists:
        episodes = _drawn(Path(run), seed=config.seed, per_family=recipe.specialist_episodes)
        log.get_logger().info("specialist.read", run=run, episodes=len(episodes))
        chosen += episodes
    return chosen


def _drawn(run: Path, *, seed: int, per_family: int) -> list[Episode]:
    checkpoint = read_checkpoint(newest_checkpoint(RunFolder(run).checkpoints))
    pool = EpisodePool(seed=seed, max_per_family=per_family)
    pool.restore({name: tensor.numpy() for name, tensor in checkpoint.sections[_POOL].items()}, checkpoint.state[_POOL])
    of_family: dict[str, list[Episode]] = defaultdict(list)
    for episode in pool.draw(per_task=1, max_steps=None, salt=str(run)):
        of_family[episode.family].append(episode)
    chance = random.Random(f"{seed}:{run}")
    return [one for _, found in sorted(of_family.items()) for one in chance.sample(found, min(per_family, len(found)))]
