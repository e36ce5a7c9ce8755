"""One supervised round: its episodes, its minibatches, and its learning rate.

Successful rollouts of other runs are read from their newest checkpoints, to clone one generalist from specialists (CODA, arXiv
2508.20096, section 3.3). Those runs are not changed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.messages import Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.learner.checkpoints.checkpoint import newest_checkpoint, read_checkpoint
from computerrl.learner.recipe import recipe
from computerrl.learner.supervised.imported import episodes_of_imports
from computerrl.learner.supervised.pool import EpisodePool, KeptEpisode, digest, make_batches

_POOL = "successes"


def episodes_of_specialists(config: RunConfig) -> list[KeptEpisode]:
    """At most `recipe.specialist_episodes` of each family from each of `recipe.specialists`, at random. Raises `ResumeError`."""
    recipe = config.learner.recipe
    chosen: list[KeptEpisode] = []
    for run in recipe.specialists:
        episodes = _drawn(Path(run), seed=config.seed, per_family=recipe.specialist_episodes)
        log.get_logger().info("specialist.read", run=run, episodes=len(episodes))
        chosen += episodes
    return chosen


def _drawn(run: Path, *, seed: int, per_family: int) -> list[KeptEpisode]:
    checkpoint = read_checkpoint(newest_checkpoint(RunFolder(run).checkpoints))
    pool = EpisodePool(seed=seed, max_per_family=per_family)
    pool.restore({name: tensor.numpy() for name, tensor in checkpoint.sections[_POOL].items()}, checkpoint.state[_POOL])
    of_family: dict[str, list[KeptEpisode]] = defaultdict(list)
    for episode in pool.draw(per_task=1, max_steps=None, salt=str(run)):
        of_family[episode.family].append(episode)
    chance = random.Random(f"{seed}:{run}")
    return [one for _, found in sorted(of_family.items()) for one in chance.sample(found, min(per_family, len(found)))]


@dataclass
class SftRound:
    """Minibatches and the progress of a round."""

    batches: Sequence[Sequence[Step]]
    max_lr: float
    pool_digest: str
    """Digest of the episodes drawn: two rounds with the same digest learn from the same episodes."""
    warmup_steps: int = 0
    num_done: int = 0

    @property
    def lr(self) -> float:
        """Learning rate of the newest minibatch."""
        return self.max_lr * min(1.0, self.num_done / self.warmup_steps) if self.warmup_steps else self.max_lr

    def next_batch(self) -> Sequence[Step] | None:
        """The next minibatch, None when the round is done."""
        if self.num_done >= len(self.batches):
            return None
        self.num_done += 1
        return self.batches[self.num_done - 1]


def make_round(
    phase: str,
    config: RunConfig,
    *,
    demonstrations: EpisodePool,
    successes: EpisodePool,
    success: float = 0.0,
    max_samples: int | None = None,
    num_done: int = 0,
) -> SftRound:
    """Cloning trains on all demonstrations, successes of specialists and imported trajectories, an Entropulse round on a few
    successes per task (ComputerRL 3.4).

    ``success``: success rate of the newest training episodes. ``max_samples``: steps that an Entropulse round has time for; None:
    any number. ``num_done``: minibatches that were trained before the learner was started again.
    """
    learner = config.learner
    warmup_steps = 0
    if phase == recipe.CLONING:
        episodes = demonstrations.draw(per_task=1, max_steps=None, salt=phase)
        episodes += episodes_of_specialists(config) + episodes_of_imports(config)
        epochs, lr = learner.recipe.bc_epochs, learner.recipe.bc_lr
    else:
        settings = learner.entropulse
        limit = settings.max_samples if max_samples is None else min(settings.max_samples, max_samples)
        episodes = successes.draw(
            per_task=settings.samples_per_task,
            max_steps=limit,
            salt=phase,
            fill_from=demonstrations if settings.fill_with_demonstrations else None,
        )
        epochs, lr, warmup_steps = settings.epochs, settings.lr * min(1.0, 2 * (1 - success)), settings.warmup_steps
    batches = make_batches(episodes, batch_size=learner.recipe.bc_batch_size, epochs=epochs, seed=f"{config.seed}:{phase}")
    pool_digest = digest(episodes)
    log.get_logger().info(
        "sft.began",
        phase=phase,
        episodes=len(episodes),
        steps=sum(len(episode.steps) for episode in episodes),
        batches=len(batches),
        done=num_done,
        pool_episodes=successes.num_episodes,
        pool_digest=pool_digest,
    )
    return SftRound(batches, lr, pool_digest, warmup_steps, num_done)
