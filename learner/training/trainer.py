"""Optimizer steps: RL updates on prepared batches, supervised steps on recorded actions, and everything needed to resume.

The trainer packs, runs the policy, asks the algorithm for the loss and steps AdamW on float32 masters. It does not know
which algorithm runs, where batches come from, or who gets the weights. On several ranks each has a trainer that does the same
calls in the same order on its share of the packs (`learner.model.ranks`); whatever decides about a step must be the same on all.

Shape legend: M action tokens of a pass, U distinct (node, next token) pairs, S steps of a batch.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from safetensors import SafetensorError

from computerrl.common import log
from computerrl.common.config import RunConfig
from computerrl.common.errors import TrainingDiverged
from computerrl.common.host import IdleCores
from computerrl.common.messages import Step
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.common.weight_plan import folder_digest
from computerrl.learner.algorithms import (
    FirstLook,
    LearnsValues,
    LossBatch,
    LossResult,
    PolicyOutputs,
    Refines,
    ScalesLearningRate,
    TrainBatch,
    WantsScores,
    make_algorithm,
)
from computerrl.learner.algorithms.contract import blaming, checked_factor, returned
from computerrl.learner.checkpoints.shards import ShardFiles
from computerrl.learner.model.batching import Pack
from computerrl.learner.model.head import ValueHead
from computerrl.learner.model.pack_tensors import PackTensors
from computerrl.learner.model.policy import PackOutputs, Policy
from computerrl.learner.model.ranks import SOLO, Ranks
from computerrl.learner.model.transfers import to_device
from computerrl.learner.poison import StepCheck
from computerrl.learner.training.generators import pack_generator, unpack_generator
from computerrl.learner.training.guards import EffectiveSamples, LogprobGap, SeenPass, dump, reason_not_finite
from computerrl.learner.training.loss_batch import check_loss, make_loss_batch
from computerrl.learner.training.totals import Totals

_MAX_SKIPPED_IN_A_ROW = 5
"""A single bad batch happens (overflow in bfloat16); five in a row are a run that is lost."""

_HEAD = "value_head/"
"""What the value head's tensors are called in a state."""


@dataclass(slots=True)
class _Pass:
    """One pack and what is kept of it between the passes of an update."""

    pack: Pack
    batch: LossBatch
    tensors: PackTensors
    num_own_tokens: int
    """Action tokens that are not replayed."""
    trajectory_M: torch.Tensor
    """int64, of each action token; an index into `TrainBatch.trajectory_ids`."""
    trajectories: frozenset[int]
    """The same ones, as the host knows them."""
    hidden: torch.Tensor | None = None
    proximal_logprobs_M: torch.Tensor | None = None
    reference_logprobs_M: torch.Tensor | None = None
    idle: bool = False
    """Another rank's pack, run because this one has none left: takes part in the collectives, counts for nothing."""


class Trainer:
    """Owns the optimizer; the policy's masters are its parameters."""

    def __init__(self, config: RunConfig, policy: Policy, *, ranks: Ranks = SOLO) -> None:
        """``ranks``: who shares the work; ``policy`` must lie over the same."""
        self.policy = policy
        self._ranks = ranks
        self._max_pack_tokens = config.max_pack_tokens
        self.algorithm = make_algorithm(config.learner, seed=config.seed)
        self._learner = config.learner
        self._shuffle = np.random.default_rng(config.seed)
        self._names = list(policy.masters)
        self._reference: dict[str, torch.Tensor] = {}
        self._idle_cores = IdleCores(num_cores=len(os.sched_getaffinity(0)))
        self.revision = 0
        """Another number whenever `state_dict` may give something else than before."""
        self._num_skipped = 0
        self._num_skipped_in_a_row = 0
        self.skipped: frozenset[int] = frozenset()
        """See `learner.contracts.Trainer`."""
        self._dumps = RunFolder(config.folder).dumps
        self._value_head: ValueHead | None = None
        if isinstance(self.algorithm, LearnsValues):
            self._value_head = ValueHead(policy.hidden_size, lr=self.algorithm.value_lr, device=policy.device)
        self._make_optimizer(config.learner.optimizer.lr)
        if "reference_logprobs" in self.algorithm.needs:
            self.set_reference()

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: tokens are below this."""
        return self.policy.vocabulary_size

    @property
    def check_picture(self) -> StepCheck | None:
        """What refuses a step for its picture; None when the model takes none."""
        return None if self.policy.vision is None else self.policy.vision.pictures.poison_of

    # --- training ----------------------------------------------------------------------------------------------------

    def update(self, batch: TrainBatch) -> dict[str, float]:
        """Train on ``batch``: one optimizer step per minibatch. Returns the batch's metrics and those of the update.

        A batch in which nothing can train changes nothing. Raises `TrainingDiverged`, `EngineMismatch`, `PictureError`.
        """
        self.revision += 1
        started = time.perf_counter()
        totals = Totals()
        gap = LogprobGap(limit=self._learner.max_logprob_gap)
        parts = self._parts(batch)
        if not parts and batch.demonstrated:
            # No group says anything, least of all those that fail throughout: their demonstrations do.
            parts = [[]]
        minibatches = [self._passes(batch, part) for part in parts]
        self._fill_in(minibatches)
        skipped: list[int] = []
        norms: list[float] = []
        lrs: list[float] = []
        totals.add("loss", 0.0, 1.0)
        for number, passes in enumerate(minibatches):
            samples = EffectiveSamples(len(batch.trajectory_ids))
            # A minibatch holds only its share of the batch's weights: scaled up, its gradient is as long as a whole one's.
            done = [self._accumulate(item, scale=len(minibatches), totals=totals, samples=samples) for item in passes]
            seen = [one for one in done if one is not None]
            if number == 0 and batch.demonstrated:
                self._imitate(batch.demonstrated, weight=batch.demonstration_weight, totals=totals, name="demonstration_loss")
            if number == 0:
                gap.add(seen, self._ranks)
                gap.check()
            for one in seen:
                totals.add("loss", one.loss, 0.0)
            share = samples.share(self._ranks)
            totals.add("effective_samples", share, 1)
            lrs.append(self._rl_lr() * self._lr_factor(share))
            num_skipped = self._num_skipped
            norms.append(self._step(lrs[-1], seen, with_values=True))
            if self._num_skipped > num_skipped:
                skipped += parts[number]
        self.skipped = frozenset(skipped)
        self._num_updates += bool(minibatches)
        totals.add_packs([item.pack for passes in minibatches for item in passes if not item.idle])
        totals.add_up(self._ranks)
        metrics = dict(batch.metrics)
        totals.add("entropy", batch.left_out_nll, batch.left_out_tokens)
        metrics |= totals.means(default=("kl", "clip_fraction", "importance_weight", "entropy"))
        metrics |= totals.pack_metrics(batch.samples, seconds=time.perf_counter() - started)
        metrics["num_tokens"] = float(sum(len(step.prompt_tokens) + len(step.action_tokens) for step in batch.samples))
        metrics["loss"] = totals.sum("loss")
        metrics["grad_norm"] = float(np.mean(norms)) if norms else 0.0
        metrics["lr"] = float(np.mean(lrs)) if lrs else 0.0
        metrics["num_skipped"] = float(self._num_skipped)
        return metrics | gap.metrics()

    def refine(self, batch: TrainBatch) -> TrainBatch:
        """``batch`` as the algorithm wants it after a first look at what the present weights say of it; most do not look."""
        if not isinstance(self.algorithm, Refines) or not self.algorithm.wants_look or not batch.samples:
            return batch
        found: dict[str, np.ndarray] = {}
        for item in self._passes(batch, list(range(len(batch.samples)))):
            with torch.no_grad():
                outputs = self._forward(item)
                if item.idle:
                    continue
                seen = {"logprobs": _logprobs_of(outputs, item.tensors), "entropy": _of_tokens(outputs.entropy_Q, item.tensors)}
                if self._value_head is not None:
                    seen["values"] = _of_tokens(self._value_head.values(outputs.states_QE), item.tensors)
            ends = np.cumsum([len(batch.samples[i].action_tokens) for i in item.pack.samples_S])
            for name, values_M in seen.items():
                parts = np.split(values_M.cpu().numpy(), ends[:-1])
                found |= {f"{name}/{i}": part for i, part in zip(item.pack.samples_S, parts, strict=True)}
        found = self._ranks.gather(found)

        def of(name: str) -> tuple[np.ndarray, ...]:
            return tuple(found[f"{name}/{i}"] for i in range(len(batch.samples)))

        values = of("values") if self._value_head is not None else None
        scores = self._score_norms(batch) if isinstance(self.algorithm, WantsScores) and self.algorithm.wants_scores else None
        look = FirstLook(of("logprobs"), of("entropy"), values, scores)
        with blaming(self.algorithm, "refine"):
            return returned(self.algorithm.refine(replace(batch, start_logprobs=look.logprobs), look), TrainBatch)

    def _score_norms(self, batch: TrainBatch) -> np.ndarray:
        """See `FirstLook.score_norms_T`."""
        norms_T = np.full(len(batch.trajectory_ids), np.nan)
        for trajectory in np.unique(batch.trajectory_S):
            for item in self._passes(batch, np.flatnonzero(batch.trajectory_S == trajectory).tolist()):
                outputs = self._forward(item)
                if item.idle:
                    self._backward_nothing(outputs)
                else:
                    _logprobs_of(outputs, item.tensors).sum().backward()
            masters = [master for master in self.policy.masters.values() if master.grad is not None]
            norms_T[trajectory] = self.policy.clip_gradients(masters, math.inf)
            self._optimizer.zero_grad(set_to_none=True)
        return norms_T

    def _lr_factor(self, share: float) -> float:
        if not isinstance(self.algorithm, ScalesLearningRate):
            return 1.0
        with blaming(self.algorithm, "lr_factor"):
            return checked_factor(self.algorithm.lr_factor(share))

    def sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        """One optimizer step on the mean token log-likelihood of the actions of ``steps``.

        Raises `TrainingDiverged`, `PictureError`.
        """
        with self._on_idle_cores():
            return self._sft_step(steps, lr)

    def _sft_step(self, steps: Sequence[Step], lr: float) -> dict[str, float]:
        self.revision += 1
        started = time.perf_counter()
        totals = Totals()
        seen = self._imitate(steps, weight=1.0, totals=totals, name="loss")
        totals.add_up(self._ranks)
        metrics = totals.means(default=("loss", "entropy"))
        metrics["grad_norm"] = self._step(lr, seen)
        metrics |= totals.pack_metrics(steps, seconds=time.perf_counter() - started)
        metrics["num_tokens"] = totals.sum("num_sample_tokens")
        metrics["num_skipped"] = float(self._num_skipped)
        return metrics

    def _imitate(self, steps: Sequence[Step], *, weight: float, totals: Totals, name: str) -> list[SeenPass]:
        """Forward and backward of ``weight`` times the mean negative log-likelihood of the action tokens of ``steps``.

        The mean itself goes into ``totals`` as ``name``.
        """
        num_tokens = sum(len(step.action_tokens) for step in steps)
        seen: list[SeenPass] = []
        packs = self.policy.packs(steps, max_tokens=self._max_pack_tokens)
        for index, idle in self._ranks.share([pack.num_nodes for pack in packs]):
            pack = packs[index]
            tensors = self.policy.tensors(pack)
            outputs = self.policy.forward(pack, temperature=1.0, tensors=tensors)
            if idle:
                self._backward_nothing(outputs)
                continue
            totals.add_packs([pack])
            logprobs_M = _logprobs_of(outputs, tensors)
            loss = -logprobs_M.sum() / num_tokens
            (weight * loss).backward()
            seen.append(SeenPass(pack, None, logprobs_M.detach(), loss.detach()))
            totals.add(name, loss.detach() * num_tokens, len(logprobs_M))
            if name == "loss":
                totals.add("entropy", _of_tokens(outputs.entropy_Q, tensors).sum(), len(logprobs_M))
        return seen

    @contextmanager
    def _on_idle_cores(self) -> Iterator[None]:
        """With the threads of `learner.sft_num_threads`, as far as cores were idle since the last supervised step."""
        own, limit = torch.get_num_threads(), self._learner.sft_num_threads
        if limit is None or self.policy.device.type != "cpu":
            yield
            return
        idle = self._idle_cores.num_threads(at_most=max(1, limit // self._learner.num_ranks))
        torch.set_num_threads(max(own, idle))
        try:
            yield
        finally:
            torch.set_num_threads(own)

    def change_objective(self, lr: float) -> None:
        """Forget the first moments, which point where the last phase wanted to go; ``lr`` is that of the RL updates that follow.

        The second moments stay from phase to phase, and the warm-up happens once a run. An optimizer that begins anew makes sign
        steps: each weight moves by the learning rate however small its gradient is, which undoes what a policy has learnt.
        """
        self.revision += 1
        self._lr = lr
        for state in self._optimizer.state.values():
            state["exp_avg"].zero_()

    def _make_optimizer(self, lr: float) -> None:
        self._lr = lr
        optimizer = self._learner.optimizer
        self._optimizer = torch.optim.AdamW(
            list(self.policy.masters.values()),
            lr=lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._num_updates = 0
        if self._value_head is not None:
            self._value_head.reset_optimizer()

    def set_reference(self) -> None:
        """The present weights become the reference of the KL term, when the algorithm has one."""
        if "reference_logprobs" in self.algorithm.needs:
            self.revision += 1
            self._reference = self.policy.copy_weights()

    # --- parts of an update ------------------------------------------------------------------------------------------

    def _parts(self, batch: TrainBatch) -> list[list[int]]:
        """Steps of ``batch`` by minibatch: whole groups, shuffled, each in the minibatch that is the smallest by then."""
        groups = self._shuffle.permutation(np.unique(batch.group_S))
        parts: list[list[int]] = [[] for _ in range(min(self._learner.num_minibatches, len(groups)))]
        for group in groups:
            min(parts, key=len).extend(np.flatnonzero(batch.group_S == group).tolist())
        return parts

    def _passes(self, batch: TrainBatch, members: list[int]) -> list[_Pass]:
        packs = self.policy.packs(
            [batch.samples[i] for i in members],
            max_tokens=self._max_pack_tokens,
            groups=[int(batch.group_S[i]) for i in members],
        )
        passes = []
        for index, idle in self._ranks.share([pack.num_nodes for pack in packs]):
            pack = packs[index]
            chosen = [members[i] for i in pack.samples_S]
            lengths = [len(batch.samples[i].action_tokens) for i in chosen]
            num_own = sum(length for i, length in zip(chosen, lengths, strict=True) if not batch.replayed_S[i])
            loss_batch = make_loss_batch(batch, chosen, device=self.policy.device)
            owners = batch.trajectory_S[chosen].astype(np.int64)
            of_tokens = to_device({"trajectory_M": np.repeat(owners, lengths)}, self.policy.device)
            tensors, present = self.policy.tensors(pack), frozenset(owners.tolist())
            passes.append(_Pass(pack, loss_batch, tensors, num_own, trajectories=present, idle=idle, **of_tokens))
        return passes

    def _fill_in(self, minibatches: list[list[_Pass]]) -> None:
        """The extra forward passes that the algorithm needs. In the first minibatch the weights are still those of the
        start of the update, so its own training pass gives the proximal log-probs; a first look has seen those of all."""
        if "reference_logprobs" in self.algorithm.needs:
            with self.policy.other_weights(self._reference):
                for item in (item for passes in minibatches for item in passes):
                    item.reference_logprobs_M = self._logprobs(item)
        if "proximal_logprobs" in self.algorithm.needs:
            with torch.no_grad():
                for item in (item for passes in minibatches[1:] for item in passes):
                    seen_M = item.batch.start_logprobs_M
                    item.proximal_logprobs_M = self._logprobs(item) if seen_M is None else seen_M

    def _forward(self, item: _Pass) -> PackOutputs:
        return self.policy.forward(item.pack, temperature=self.algorithm.temperature, tensors=item.tensors, hidden=item.hidden)

    def _logprobs(self, item: _Pass) -> torch.Tensor:
        if item.hidden is None:
            item.hidden = self.policy.frozen_hidden(item.pack, item.tensors)
        return _logprobs_of(self._forward(item), item.tensors)

    def _accumulate(self, item: _Pass, *, scale: float, totals: Totals, samples: EffectiveSamples) -> SeenPass | None:
        """Forward and backward of one pass; gradients gather in the masters. The loss in the result is not scaled; None when
        idle."""
        outputs = self._forward(item)
        if item.idle:
            self._backward_nothing(outputs)
            return None
        head = self._value_head
        logprobs_M = _logprobs_of(outputs, item.tensors)
        entropy_M = _of_tokens(outputs.entropy_Q, item.tensors)
        # What older policies did is no sign of how sure the present one is of its own actions.
        totals.add("entropy", torch.where(item.batch.is_replayed_M, 0.0, entropy_M).sum(), item.num_own_tokens)
        proximal_M = item.proximal_logprobs_M
        seen = PolicyOutputs(
            logprobs_M=logprobs_M,
            entropy_M=entropy_M,
            proximal_logprobs_M=logprobs_M.detach() if proximal_M is None else proximal_M,
            reference_logprobs_M=item.reference_logprobs_M,
            values_M=None if head is None else _of_tokens(head.values(outputs.states_QE), item.tensors),
        )
        with blaming(self.algorithm, "loss"):
            result = returned(self.algorithm.loss(seen, item.batch), LossResult)
            check_loss(result, num_tokens=len(logprobs_M))
        (result.loss * scale).backward()
        for name, (total, count) in result.metrics.items():
            totals.add(name, total, count)
        if result.log_weights_M is not None:
            samples.add(result.log_weights_M, item.trajectory_M, item.trajectories)
        return SeenPass(item.pack, item.batch, logprobs_M.detach(), result.loss.detach())

    @staticmethod
    def _backward_nothing(outputs: PackOutputs) -> None:
        """Add zero to all gradients: a rank without a pack of its own must still take part where they are summed."""
        (outputs.logprobs_U.sum() * 0.0).backward()

    def _step(self, lr: float, seen: Sequence[SeenPass], *, with_values: bool = False) -> float:
        """Clip, step, publish; returns the gradient norm of the policy. One that is not finite, the value head's too, skips the
        step and dumps what was ``seen``. ``with_values``: the value head has gradients too."""
        masters = [master for master in self.policy.masters.values() if master.grad is not None]
        if not masters:
            return 0.0
        max_norm = self._learner.optimizer.max_grad_norm
        head = self._value_head if with_values else None
        norm = self.policy.clip_gradients(masters, max_norm)
        norms = [norm] if head is None else [norm, head.clip_gradients(max_norm, self._ranks)]
        reason = ""
        if np.isfinite(norms).all():
            self._num_skipped_in_a_row = 0
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self.policy.publish()
            if head is not None:
                head.step()
        else:
            reason = self._note_skipped(seen)
            if head is not None:
                head.forget_gradients()
        self._optimizer.zero_grad(set_to_none=True)
        if self._num_skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            # With values: a step of the algorithm, not one of imitation.
            own = f", or correct the loss of the algorithm {self._learner.algorithm.name!r}" if with_values else ""
            raise TrainingDiverged(
                f"loss or gradients were not finite in {self._num_skipped_in_a_row} optimizer steps in a row, in the last one "
                f"{reason}; lower learner.optimizer.lr, set model.dtype: float32{own}"
            )
        return norm

    def _note_skipped(self, seen: Sequence[SeenPass]) -> str:
        """Count, dump and log a step that is not done; returns why."""
        self._num_skipped += 1
        self._num_skipped_in_a_row += 1
        of_values = {} if self._value_head is None else self._value_head.gradients()
        reason = reason_not_finite(seen, {**self.policy.gradients(), **of_values})
        path = None
        try:
            path = dump(self._dumps, seen, reason=reason, name=f"{self._num_skipped:06d}-{self._ranks.rank}") if seen else None
        except (OSError, SafetensorError) as error:
            # A full disk is no reason to end a run that only lost a picture of its trouble.
            log.get_logger().error("dump.failed", folder=str(self._dumps), error=str(error))
        log.get_logger().error("step.skipped", reason=reason, dump=None if path is None else str(path))
        return reason

    def _rl_lr(self) -> float:
        warmup = self._learner.optimizer.warmup_updates
        return self._lr * min(1.0, (self._num_updates + 1) / warmup) if warmup else self._lr

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that `load_state_dict` needs, as tensors (safetensors can hold them); the frozen weights are not in it. Those of a
        policy that lies over several ranks are divided as it is."""
        state: dict[str, torch.Tensor] = {
            "trainer/lr": torch.tensor(self._lr, dtype=torch.float64),
            "trainer/num_updates": torch.tensor(self._num_updates),
            "trainer/num_skipped": torch.tensor([self._num_skipped, self._num_skipped_in_a_row]),
            "trainer/shuffle": pack_generator(self._shuffle),
            "trainer/torch_rng": torch.get_rng_state(),
        }
        for name, master in self.policy.masters.items():
            state[f"master/{name}"] = master.detach()
            for key, value in self._optimizer.state.get(master, {}).items():
                state[f"optimizer/{key}/{name}"] = value
        for name, tensor in self._reference.items():
            state[f"reference/{name}"] = tensor
        if self._value_head is not None:
            state |= {f"{_HEAD}{name}": tensor for name, tensor in self._value_head.state_dict().items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue exactly where `state_dict` was taken, on however many ranks. Raises `ValueError` when it is of another model.

        Reads every tensor once, in the same order on all ranks: reading one may be a collective.
        """

        def part(name: str, like: torch.Tensor) -> torch.Tensor:
            return state.part(name, like=like) if isinstance(state, ShardFiles) else self.policy.part(state[name], like=like)

        self.revision += 1
        refusal = "the state's trained tensors are not this model's: other model or other trainable_top_layers"
        if {key.removeprefix("master/") for key in state if key.startswith("master/")} != set(self._names):
            raise ValueError(refusal)
        self._make_optimizer(float(state["trainer/lr"]))
        self._num_updates = int(state["trainer/num_updates"])
        self._num_skipped, self._num_skipped_in_a_row = state["trainer/num_skipped"].tolist()
        self._shuffle = unpack_generator(state["trainer/shuffle"])
        torch.set_rng_state(state["trainer/torch_rng"].cpu())
        self._reference = {}
        for name, master in self.policy.masters.items():
            master.copy_(part(f"master/{name}", master))
            if f"optimizer/exp_avg/{name}" in state:
                self._optimizer.state[master] = {
                    "exp_avg": part(f"optimizer/exp_avg/{name}", master),
                    "exp_avg_sq": part(f"optimizer/exp_avg_sq/{name}", master),
                    "step": state[f"optimizer/step/{name}"].to(master.device, copy=True),
                }
            if f"reference/{name}" in state:
                self._reference[name] = part(f"reference/{name}", master)
        if self._value_head is not None:
            self._value_head.load_state_dict(
                {name.removeprefix(_HEAD): state[name].to(self.policy.device) for name in state if name.startswith(_HEAD)}
            )
        self.policy.publish()

    def trainable_tensors(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> trained tensor in compute dtype, without copying: what receivers must get."""
        return self.policy.trained_tensors()

    def probe_logprobs(self) -> np.ndarray:
        """[15] float32 log-probs of `common.weight_plan.probe_tokens` under the present weights."""
        return self.policy.probe_logprobs()

    def model_digest(self) -> str:
        """Of the base model's folder: tensor names, shapes, dtypes and contents. `common.weight_plan.folder_digest` gives an
        actor the same without torch."""
        return folder_digest(self.policy.folder)


def _logprobs_of(outputs: PackOutputs, tensors: PackTensors) -> torch.Tensor:
    """[M] of each action token."""
    return outputs.logprobs_U.index_select(0, tensors.token_pair_M)


def _of_tokens(values_Q: torch.Tensor, tensors: PackTensors) -> torch.Tensor:
    """[M] for each action token what belongs to the state before it."""
    return values_Q.index_select(0, tensors.token_state_M)
