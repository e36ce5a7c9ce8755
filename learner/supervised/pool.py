"""Successful episodes kept for supervised rounds: demonstrations for cloning, the run's own successes for Entropulse.

Bounded: per family a uniform sample over everything ever added (so that policies of all versions stay in), whatever the
length of the run. Saved in checkpoints as flat arrays. Randomness comes from the seed and the counts alone, so a resumed
run draws what an undisturbed one would have drawn. Does no training.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec import to_builtins

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.messages import ScreenshotRef, Step, StepTiming, Trajectory
from computerrl.learner.checkpoints.checkpoint import TRAINER, Checkpoint, StagedSection, split_state, trainer_state
from computerrl.learner.objective.memory import Stored
from computerrl.learner.recipe import recipe

_NO_TIMING = StepTiming(generate_s=0.0, desktop_s=0.0, settle_s=0.0)


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """The kept part of one trajectory."""

    family: str
    task_id: str
    trajectory_id: str
    steps: tuple[Step, ...]
    """Steps stripped to their tokens (and screenshots), without steps that were badly formed or could not be done: a success does
    not make those good."""


class EpisodePool:
    """A bounded, seeded sample of successful episodes."""

    def __init__(self, *, seed: int, max_per_family: int) -> None:
        self._seed = seed
        self._max_per_family = max_per_family
        self._episodes: dict[str, list[KeptEpisode]] = {}
        self._num_seen: dict[str, int] = {}

    def add(self, trajectory: Trajectory) -> None:
        """Offer one successful trajectory (Vitter's algorithm R per family)."""
        steps = tuple(self._strip(step) for step in trajectory.steps if step.format_ok and not step.action_error)
        if not steps:
            return
        family = trajectory.task.family
        kept = self._episodes.setdefault(family, [])
        seen = self._num_seen[family] = self._num_seen.get(family, 0) + 1
        episode = KeptEpisode(family, trajectory.task.task_id, trajectory.trajectory_id, steps)
        if len(kept) < self._max_per_family:
            kept.append(episode)
            return
        place = random.Random(f"{self._seed}:{family}:{seen}").randrange(seen)
        if place < self._max_per_family:
            kept[place] = episode

    def _strip(self, step: Step) -> Step:
        return bare_step(step.prompt_tokens, step.action_tokens, step.images)

    @property
    def num_episodes(self) -> int:
        return sum(len(kept) for kept in self._episodes.values())

    @property
    def num_steps(self) -> int:
        return sum(len(episode.steps) for kept in self._episodes.values() for episode in kept)

    def draw(
        self,
        *,
        per_task: int,
        max_steps: int | None,
        salt: str,
        families: Mapping[str, float] | None = None,
        fill_from: EpisodePool | None = None,
    ) -> list[KeptEpisode]:
        """At most ``per_task`` episodes of each task instance, families in turn, until ``max_steps`` steps are reached.

        ``families``: of these alone, those of lower values first. Equal ones are in random order, as all are without: where the
        steps are not enough for all, none is always left out. Families that have fewer episodes than others are filled with those
        of ``fill_from``, again and again if need be.
        """
        chosen: list[KeptEpisode] = []
        num_steps = 0
        queues = self._queues(per_task=per_task, salt=salt)
        if fill_from is not None:
            queues = _filled(queues, fill_from._queues(per_task=per_task, salt=salt))
        names = sorted(queues)
        random.Random(f"{self._seed}:{salt}").shuffle(names)
        if families is not None:
            names = sorted((name for name in names if name in families), key=families.__getitem__)
        for episode in _in_turn([queues[name] for name in names]):
            if max_steps is not None and chosen and num_steps + len(episode.steps) > max_steps:
                break
            chosen.append(episode)
            num_steps += len(episode.steps)
        return chosen

    def _queues(self, *, per_task: int, salt: str) -> dict[str, list[KeptEpisode]]:
        """Family -> its episodes as they are drawn."""
        queues: dict[str, list[KeptEpisode]] = {}
        for family, episodes in self._episodes.items():
            shuffled = list(episodes)
            random.Random(f"{self._seed}:{salt}:{family}").shuffle(shuffled)
            taken: Counter[str] = Counter()
            queue = queues[family] = []
            for episode in shuffled:
                taken[episode.task_id] += 1
                if taken[episode.task_id] <= per_task:
                    queue.append(episode)
        return queues

    def image_names(self) -> list[str]:
        """See `Stored`."""
        return [ref.content_hash for kept in self._episodes.values() for one in kept for step in one.steps for ref in step.images]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON-ready rest); `restore` takes them back."""
        arrays, rest = pack_episodes([episode for family in sorted(self._episodes) for episode in self._episodes[family]])
        return arrays, {**rest, "num_seen": dict(self._num_seen)}

    def restore(self, arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._episodes = {}
        self._num_seen = dict(rest["num_seen"])
        for episode in unpack_episodes(arrays, rest):
            self._episodes.setdefault(episode.family, []).append(episode)


def pack_episodes(episodes: Sequence[KeptEpisode]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(flat arrays, JSON-ready rest) of ``episodes``; `unpack_episodes` takes them back."""
    steps = [step for episode in episodes for step in episode.steps]
    arrays = {
        "prompt_tokens": _concatenate([step.prompt_tokens for step in steps]),
        "action_tokens": _concatenate([step.action_tokens for step in steps]),
        "prompt_lengths": np.array([len(step.prompt_tokens) for step in steps], dtype=np.int32),
        "action_lengths": np.array([len(step.action_tokens) for step in steps], dtype=np.int32),
        "episode_lengths": np.array([len(episode.steps) for episode in episodes], dtype=np.int32),
    }
    names = [[episode.family, episode.task_id, episode.trajectory_id] for episode in episodes]
    images = {str(number): to_builtins(step.images) for number, step in enumerate(steps) if step.images}
    return arrays, {"names": names, "images": images}


def unpack_episodes(arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> Iterator[KeptEpisode]:
    """The episodes that `pack_episodes` took, in their order. Raises `KeyError` or `ValueError` where the parts do not fit."""
    # A checkpoint of before steps named images holds none.
    images = rest.get("images", {})
    numbers = itertools.count()
    prompts = _split(arrays["prompt_tokens"], arrays["prompt_lengths"])
    actions = _split(arrays["action_tokens"], arrays["action_lengths"])
    for (family, task_id, trajectory_id), length in zip(rest["names"], arrays["episode_lengths"], strict=True):
        steps = tuple(bare_step(next(prompts), next(actions), _refs(images, next(numbers))) for _ in range(int(length)))
        yield KeptEpisode(family, task_id, trajectory_id, steps)


def keep_demonstration(trajectory: Trajectory, pool: EpisodePool) -> None:
    """Add a demonstration to ``pool`` when it succeeded; log it when it did not."""
    if trajectory.success:
        pool.add(trajectory)
    else:
        log.get_logger().warning("demonstration.failed", task=trajectory.task.task_id, end_reason=trajectory.end_reason)


SUCCESSES_PER_FAMILY = 256
"""Episodes kept per family for SFT rounds: several times what a round draws, a few MB."""


@dataclass(frozen=True, slots=True)
class Pools:
    """All that a run keeps to train on again."""

    demonstrations: EpisodePool
    """Demonstrations that cloning trains on."""
    aids: EpisodePool
    """Demonstrations of instances on which a whole group failed (`learner.phases.aids`)."""
    successes: EpisodePool
    """The run's own successes in RL."""
    memory: Stored | None
    """The algorithm's memory, where it has one."""

    @classmethod
    def of(cls, config: RunConfig, recorded: recipe.Recorded, *, memory: Stored | None) -> Pools:
        """Empty pools."""

        def pool(max_per_family: int) -> EpisodePool:
            return EpisodePool(seed=config.seed, max_per_family=max_per_family)

        return cls(
            demonstrations=pool(recipe.max_demonstrations(config, recorded)),
            aids=pool(max(1, config.learner.recipe.demos_of_failures)),
            successes=pool(SUCCESSES_PER_FAMILY),
            memory=memory,
        )

    def stored(self) -> dict[str, Stored]:
        """Name in a checkpoint -> pool."""
        pools: dict[str, Stored] = {"demonstrations": self.demonstrations, "aids": self.aids, "successes": self.successes}
        return pools if self.memory is None else {**pools, "memory": self.memory}

    def image_names(self) -> list[str]:
        """Images that the prompts of all pools show."""
        return [name for pool in self.stored().values() for name in pool.image_names()]


def _filled(queues: Mapping[str, list[KeptEpisode]], more: Mapping[str, list[KeptEpisode]]) -> dict[str, list[KeptEpisode]]:
    """``queues`` with every family of ``more`` made as long as the longest."""
    length = max(map(len, queues.values()), default=0)
    filled = dict(queues)
    for family, episodes in more.items():
        own = queues.get(family, [])
        filled[family] = own + list(itertools.islice(itertools.cycle(episodes), length - len(own)))
    return filled


def _in_turn(queues: Sequence[Sequence[KeptEpisode]]) -> Iterator[KeptEpisode]:
    for place in range(max(map(len, queues), default=0)):
        yield from (queue[place] for queue in queues if place < len(queue))


def digest(episodes: Sequence[KeptEpisode]) -> str:
    """Identifies what an SFT round trained on."""
    joined = "\n".join(sorted(episode.trajectory_id for episode in episodes))
    return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()


def make_batches(episodes: Sequence[KeptEpisode], *, batch_size: int, epochs: int, seed: str) -> list[list[Step]]:
    """Minibatches of about ``batch_size`` steps over ``epochs`` passes.

    Minibatches of a pass are about equally large: a small one would be an optimizer step as long as the others, decided by few
    samples.

    All episodes of a task instance go into one minibatch, since their prompts share prefixes and a pack computes a prefix once
    (`learner.model.batching`). Each pass is shuffled, with the families spread evenly over it.
    """
    batches: list[list[Step]] = []
    for epoch in range(epochs):
        generator = random.Random(f"{seed}:{epoch}")
        by_family: dict[str, dict[str, list[Step]]] = {}
        for episode in episodes:
            by_family.setdefault(episode.family, {}).setdefault(episode.task_id, []).extend(episode.steps)
        placed: list[tuple[float, str, list[Step]]] = []
        for family in sorted(by_family):
            tasks = sorted(by_family[family].items())
            generator.shuffle(tasks)
            placed += [((i + generator.random()) / len(tasks), task_id, steps) for i, (task_id, steps) in enumerate(tasks)]
        num_steps = sum(len(steps) for _, _, steps in placed)
        parts: list[list[Step]] = [[] for _ in range(max(1, round(num_steps / batch_size)))]
        taken = 0
        for _, _, steps in sorted(placed, key=lambda item: item[:2]):
            parts[taken * len(parts) // num_steps] += steps
            taken += len(steps)
        batches += [part for part in parts if part]
    return batches


def pack_run(
    loop: dict[str, Any], trainer: Mapping[str, Any] | StagedSection | None, pools: Mapping[str, Stored]
) -> tuple[dict[str, dict[str, torch.Tensor] | StagedSection], dict[str, Any]]:
    """(tensor sections, JSON-ready rest) of a checkpoint: loop state, trainer state, pools. Without the trainer's: None."""
    sections: dict[str, dict[str, torch.Tensor] | StagedSection] = {}
    tree: dict[str, Any] = {"loop": loop, TRAINER: None}
    if isinstance(trainer, Mapping):
        sections[TRAINER], tree[TRAINER] = split_state(trainer)
    elif trainer is not None:
        sections[TRAINER] = trainer
    for name, pool in pools.items():
        arrays, tree[name] = pool.state()
        sections[name] = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return sections, tree


def unpack_run(checkpoint: Checkpoint, pools: Mapping[str, Stored]) -> Any:
    """Restore ``pools`` from what `pack_run` made; returns the trainer's state."""
    for name, pool in pools.items():
        pool.restore({key: tensor.numpy() for key, tensor in checkpoint.sections[name].items()}, checkpoint.state[name])
    return trainer_state(checkpoint)


def _refs(images: Mapping[str, Any], number: int) -> tuple[ScreenshotRef, ...]:
    return tuple(ScreenshotRef(**ref) for ref in images.get(str(number), ()))


def bare_step(prompt_tokens: np.ndarray, action_tokens: np.ndarray, images: tuple[ScreenshotRef, ...]) -> Step:
    """A step of which only what is imitated is known."""
    return Step(
        prompt_tokens=prompt_tokens,
        action_tokens=action_tokens,
        behavior_logprobs=np.zeros(0, np.float32),
        policy_versions=np.zeros(0, np.int32),
        action_text="",
        format_ok=True,
        action_error="",
        screenshot=None,
        settled_by="none",
        timing=_NO_TIMING,
        images=images,
    )


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays).astype(np.int32) if arrays else np.zeros(0, np.int32)


def _split(flat: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    start = 0
    for length in lengths:
        yield flat[start : start + int(length)]
        start += int(length)
