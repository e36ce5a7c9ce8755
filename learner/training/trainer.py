"""Training: RL updates on prepared batches, supervised steps on recorded actions, and everything needed to resume.

A trainer packs steps, runs the policy, takes the loss from the algorithm and steps the optimizer. It does not know which
algorithm runs, where batches come from, or who gets the weights. On several ranks each has a trainer that does the same calls in
the same order on its share of the packs (`learner.model.ranks`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from computerrl.common.config import LearnerConfig, RunConfig
from computerrl.common.host import IdleCores
from computerrl.common.messages import Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import folder_digest
from computerrl.learner.algorithms import LearnsValues, Refines, ScalesLearningRate, TrainBatch, WantsScores, make_algorithm
from computerrl.learner.algorithms.contract import blaming, checked_factor, returned
from computerrl.learner.checkpoints.shards import ShardFiles
from computerrl.learner.model.head import ValueHead
from computerrl.learner.model.policy import Policy
from computerrl.learner.model.ranks import SOLO, Ranks
from computerrl.learner.poison import StepCheck
from computerrl.learner.training.guards import EffectiveSamples, LogprobGap
from computerrl.learner.training.optimizer import PolicyOptimizer
from computerrl.learner.training.passes import Passes
from computerrl.learner.training.teacher import check_teacher, digest_tensor, load_teacher
from computerrl.learner.training.totals import Totals

_HEAD = "value_head/"
"""Prefix of the value head's tensors in a state."""
_TEACHER = "teacher/digest"
"""Name of the digest of the teacher's folder in a state; the teacher itself is not in it."""


class Trainer:
    """A policy, its algorithm and its optimizer. See `learner.contracts.AnyTrainer`."""

    def __init__(self, config: RunConfig, policy: Policy, *, ranks: Ranks = SOLO) -> None:
        """``ranks``: the processes that share the work; ``policy`` must lie over the same."""
        learner = config.learner
        self.policy = policy
        self.algorithm = make_algorithm(learner, seed=config.seed)
        self._learner = learner
        self._ranks = ranks
        self._shuffle = np.random.default_rng(config.seed)
        self._idle_threads = _IdleThreads(learner, policy.device)
        self.revision = 0
        self.skipped: frozenset[int] = frozenset()
        self._value_head: ValueHead | None = None
        if isinstance(self.algorithm, LearnsValues):
            self._value_head = ValueHead(policy.hidden_size, lr=self.algorithm.value_lr, device=policy.device)
        self._teacher = load_teacher(config) if "reference_logprobs" in self.algorithm.needs else None
        self.passes = Passes(
            policy,
            self.algorithm,
            self._value_head,
            ranks=ranks,
            max_pack_tokens=config.max_pack_tokens,
            teacher=self._teacher,
        )
        dumps = RunFolder(config.folder).dumps
        self.optimizer = PolicyOptimizer(
            learner, policy.weights, self._value_head, ranks=ranks, dumps=dumps, tower_names=policy.tower_names
        )
        self._reference: dict[str, torch.Tensor] = {}
        self.set_reference()

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: tokens are below this."""
        return self.policy.vocabulary_size

    @property
    def check_screenshot(self) -> StepCheck | None:
        return None if self.policy.vision is None else self.policy.vision.images.poison_of

    # --- training ----------------------------------------------------------------------------------------------------

    def update(self, batch: TrainBatch) -> dict[str, float]:
        """Train on ``batch``: one optimizer step per minibatch. Returns the batch's metrics and those of the update.

        A batch in which nothing can train changes nothing. Raises `TrainingDiverged`, `EngineMismatch`, `PictureError`.
        """
        self.revision += 1
        started = time.perf_counter()
        totals = Totals()
        gap = LogprobGap(limit=self._learner.max_logprob_gap)
        parts = self.minibatches(batch)
        if not parts and batch.demonstrated:
            # No group has a signal, least of all those that fail throughout: their demonstrations have one.
            parts = [[]]
        minibatches = [self.passes.of_batch(batch, part) for part in parts]
        self.passes.fill_in(minibatches, reference=self._reference)
        skipped: list[int] = []
        norms: list[float] = []
        lrs: list[float] = []
        totals.add("loss", 0.0, 1.0)
        for number, passes in enumerate(minibatches):
            samples = EffectiveSamples(len(batch.trajectory_ids))
            # A minibatch holds only its share of the batch's weights: scaled up, its gradient is as long as a whole one's.
            done = [self.passes.accumulate(item, scale=len(minibatches), totals=totals, samples=samples) for item in passes]
            seen = [one for one in done if one is not None]
            if number == 0:
                weight = batch.demonstration_weight
                if batch.demonstrated:
                    self.passes.imitate(batch.demonstrated, weight=weight, totals=totals, name="demonstration_loss")
                gap.add(seen, self._ranks)
                gap.check()
            for one in seen:
                totals.add("loss", one.loss, 0.0)
            share = samples.share(self._ranks)
            totals.add("effective_samples", share, 1)
            lrs.append(self.optimizer.rl_lr * self._lr_factor(share))
            num_skipped = self.optimizer.num_skipped
            norms.append(self.optimizer.step(lrs[-1], seen, with_values=True))
            if self.optimizer.num_skipped > num_skipped:
                skipped += parts[number]
        self.skipped = frozenset(skipped)
        if minibatches:
            self.optimizer.count_update()
        if self._ranks.counts_packs:
            totals.add_packs([item.pack for passes in minibatches for item in passes if not item.idle])
        of_images = self._count_images(totals)
        totals.add_up(self._ranks)
        totals.add("entropy", batch.left_out_nll, batch.left_out_tokens)
        metrics = {**batch.metrics, **totals.means(default=("kl", "clip_fraction", "importance_weight", "entropy"))}
        metrics |= totals.pack_metrics(batch.samples, seconds=time.perf_counter() - started)
        metrics["num_tokens"] = float(sum(len(step.prompt_tokens) + len(step.action_tokens) for step in batch.samples))
        metrics["loss"] = totals.sum("loss")
        metrics["grad_norm"] = float(np.mean(norms)) if norms else 0.0
        metrics["lr"] = float(np.mean(lrs)) if lrs else 0.0
        metrics["num_skipped"] = float(self.optimizer.num_skipped)
        metrics |= {name: totals.sum(name) for name in of_images}
        return metrics | gap.metrics()

    def _count_images(self, totals: Totals) -> list[str]:
        """Add the uses of kept features of images to ``totals``; returns the names of these metrics."""
        counts = {} if self.policy.vision is None else self.policy.vision.cache_counts()
        for name, count in counts.items():
            totals.add(name, float(count), 0.0)
        return list(counts)

    def minibatches(self, batch: TrainBatch) -> list[list[int]]:
        """Steps of ``batch`` by minibatch: whole groups, shuffled, each in the minibatch that is the smallest by then."""
        groups = self._shuffle.permutation(np.unique(batch.group_S))
        parts: list[list[int]] = [[] for _ in range(min(self._learner.num_minibatches, len(groups)))]
        for group in groups:
            min(parts, key=len).extend(np.flatnonzero(batch.group_S == group).tolist())
        return parts

    def refine(self, batch: TrainBatch) -> TrainBatch:
        """``batch`` as the algorithm wants it after a first look at the outputs of the present weights; most do not look."""
        algorithm = self.algorithm
        if not isinstance(algorithm, Refines) or not algorithm.wants_look or not batch.samples:
            return batch
        look = self.passes.look(batch, with_scores=isinstance(algorithm, WantsScores) and algorithm.wants_scores)
        with blaming(algorithm, "refine"):
            return returned(algorithm.refine(replace(batch, start_logprobs=look.logprobs), look), TrainBatch)

    def _lr_factor(self, share: float) -> float:
        if not isinstance(self.algorithm, ScalesLearningRate):
            return 1.0
        with blaming(self.algorithm, "lr_factor"):
            return checked_factor(self.algorithm.lr_factor(share))

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        """One optimizer step on the mean token log-likelihood of the actions of ``steps``.

        Raises `TrainingDiverged`, `PictureError`.
        """
        self.revision += 1
        with self._idle_threads.used():
            started = time.perf_counter()
            totals = Totals()
            seen = self.passes.imitate(steps, weight=1.0, totals=totals, name="loss")
            of_images = self._count_images(totals)
            totals.add_up(self._ranks)
            metrics = totals.means(default=("loss", "entropy"))
            metrics["grad_norm"] = self.optimizer.step(lr, seen)
            metrics |= totals.pack_metrics(steps, seconds=time.perf_counter() - started)
            metrics["num_tokens"] = totals.sum("num_sample_tokens")
            metrics["num_skipped"] = float(self.optimizer.num_skipped)
            metrics |= {name: totals.sum(name) for name in of_images}
        return metrics

    def change_objective(self, lr: float) -> None:
        """See `PolicyOptimizer.change_objective`."""
        self.revision += 1
        self.optimizer.change_objective(lr)

    def set_reference(self) -> None:
        """The present weights become the reference of the KL term, when the algorithm has one and no teacher is it."""
        if self._teacher is None and "reference_logprobs" in self.algorithm.needs:
            self.revision += 1
            self._reference = self.policy.weights.copy()

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that `load_state_dict` needs, as tensors (safetensors can hold them); the frozen weights are not in it. Tensors of
        a policy that lies over several ranks are this rank's shards."""
        state = self.optimizer.state_dict()
        state["trainer/shuffle"] = _pack_generator(self._shuffle)
        state["trainer/torch_rng"] = torch.get_rng_state()
        for name, tensor in self._reference.items():
            state[f"reference/{name}"] = tensor
        if self._teacher is not None:
            state[_TEACHER] = digest_tensor(self._teacher.folder)
        if self._value_head is not None:
            state |= {f"{_HEAD}{name}": tensor for name, tensor in self._value_head.state_dict().items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue exactly where `state_dict` was taken, on however many ranks. Raises `ValueError` when it is of another model,
        and `ConfigError` when it was trained with another teacher.

        Reads every tensor once, in the same order on all ranks: reading one may be a collective.
        """
        weights = self.policy.weights

        def shard(name: str, like: torch.Tensor) -> torch.Tensor:
            return state.shard(name, like=like) if isinstance(state, ShardFiles) else weights.shard(state[name], like=like)

        self.revision += 1
        self.optimizer.load_state_dict(state, shard=shard)
        self._shuffle = _unpack_generator(state["trainer/shuffle"])
        torch.set_rng_state(state["trainer/torch_rng"].cpu())
        self._reference = {
            name: shard(f"reference/{name}", one) for name, one in weights.compute.items() if f"reference/{name}" in state
        }
        if self._teacher is not None and _TEACHER in state:
            check_teacher(self._teacher.folder, state[_TEACHER])
        if self._value_head is not None:
            of_head = {name.removeprefix(_HEAD): state[name].to(self.policy.device) for name in state if name.startswith(_HEAD)}
            self._value_head.load_state_dict(of_head)

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> trained tensor in compute dtype, without copying, for the receivers of weights."""
        return self.policy.weights.of_base_model()

    def probe_logprobs(self) -> np.ndarray:
        """[15] float32 log-probs of `common.weight_plan.probe_tokens` under the present weights; with a vision tower [12], those
        after the image of `common.vision.probe`."""
        return self.policy.probe_logprobs()

    def model_digest(self) -> str:
        """Digest of the base model's folder: tensor names, shapes, dtypes and contents. `common.weight_plan.folder_digest` gives
        an actor the same without torch."""
        return folder_digest(self.policy.folder)


class _IdleThreads:
    """More threads of torch for supervised steps, on cores that other processes leave idle (`learner.sft_num_threads`)."""

    def __init__(self, learner: LearnerConfig, device: torch.device) -> None:
        limit = learner.sft_num_threads if device.type == "cpu" else None
        self._limit = None if limit is None else max(1, limit // learner.num_ranks)
        self._cores = IdleCores(num_cores=len(os.sched_getaffinity(0)))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, torch has as many threads as there were idle cores since the last time, and no fewer than its own."""
        if self._limit is None:
            yield
            return
        own = torch.get_num_threads()
        torch.set_num_threads(max(own, self._cores.num_threads(at_most=self._limit)))
        try:
            yield
        finally:
            torch.set_num_threads(own)


def _pack_generator(generator: np.random.Generator) -> torch.Tensor:
    """State of a numpy generator (PCG64: two 128-bit numbers and a buffered half) as int64 words: a checkpoint holds nothing but
    tensors and JSON."""
    state = generator.bit_generator.state
    assert state["bit_generator"] == "PCG64"
    words = [value >> shift & 0xFFFFFFFF for value in state["state"].values() for shift in (0, 32, 64, 96)]
    return torch.tensor([*words, state["has_uint32"], state["uinteger"]], dtype=torch.int64)


def _unpack_generator(packed: torch.Tensor) -> np.random.Generator:
    """Back from `_pack_generator`."""
    words = packed.tolist()
    numbers = [sum(word << 32 * i for i, word in enumerate(words[start : start + 4])) for start in (0, 4)]
    generator = np.random.default_rng()
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": numbers[0], "inc": numbers[1]},
        "has_uint32": words[8],
        "uinteger": words[9],
    }
    return generator
