"""Forward and backward passes over packs of steps, with the algorithm's loss or a likelihood; gradients gather in the masters.

On several ranks each runs its share of the packs (`learner.model.ranks`). A rank without a pack of its own runs another rank's
pack to take part in the collectives, and counts nothing of it ("idle"). Ranks that share a pack all compute its loss, and the
first of them counts it. No optimizer here.

Shape legend: M action tokens of a pass, Q nodes with logits, U distinct (node, next token) pairs, T trajectories of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec.structs import replace as msgspec_replace

from computerrl.common.messages import Step
from computerrl.learner.algorithms import FirstLook, LossBatch, LossResult, PolicyOutputs, TrainBatch
from computerrl.learner.algorithms.base import Algorithm
from computerrl.learner.algorithms.contract import blaming, returned
from computerrl.learner.model.batching import Pack
from computerrl.learner.model.head import ValueHead
from computerrl.learner.model.pack_tensors import PackTensors
from computerrl.learner.model.policy import PackOutputs, Policy
from computerrl.learner.model.ranks import Ranks
from computerrl.learner.model.transfers import to_device
from computerrl.learner.training.guards import EffectiveSamples, SeenPass
from computerrl.learner.training.loss_batch import check_loss, make_loss_batch
from computerrl.learner.training.totals import Totals


@dataclass(slots=True)
class PackPass:
    """One pack and what is kept of it between the passes of an update."""

    pack: Pack
    batch: LossBatch
    tensors: PackTensors
    num_own_tokens: int
    """Action tokens that are not replayed."""
    trajectory_M: torch.Tensor
    """int64; trajectory of each action token, an index into `TrainBatch.trajectory_ids`."""
    trajectories: frozenset[int]
    """The distinct values of ``trajectory_M``, on the host."""
    hidden: torch.Tensor | None = None
    proximal_logprobs_M: torch.Tensor | None = None
    reference_logprobs_M: torch.Tensor | None = None
    idle: bool = False
    """The pack is another rank's, run because this rank has none left: it takes part in the collectives and counts nothing."""


class Passes:
    """Runs the packs of a batch through policy and value head."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        value_head: ValueHead | None,
        *,
        ranks: Ranks,
        max_pack_tokens: int,
        teacher: Policy | None = None,
    ) -> None:
        """``teacher``: frozen model that is the reference policy, whole on each rank; None: a copy of the policy is."""
        self._policy = policy
        self._teacher = teacher
        self._algorithm = algorithm
        self._value_head = value_head
        self._ranks = ranks
        self._max_pack_tokens = max_pack_tokens

    def of_batch(self, batch: TrainBatch, members: list[int]) -> list[PackPass]:
        """This rank's passes over the steps ``members`` of ``batch``."""
        packs = self._policy.packs(
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
            loss_batch = make_loss_batch(batch, chosen, device=self._policy.device)
            owners = batch.trajectory_S[chosen].astype(np.int64)
            of_tokens = to_device({"trajectory_M": np.repeat(owners, lengths)}, self._policy.device)
            tensors, present = self._policy.tensors(pack), frozenset(owners.tolist())
            passes.append(PackPass(pack, loss_batch, tensors, num_own, trajectories=present, idle=idle, **of_tokens))
        return passes

    def look(self, batch: TrainBatch, *, with_scores: bool) -> FirstLook:
        """The outputs of the present weights for each step of ``batch``. ``with_scores``: see `FirstLook.score_norms_T`."""
        found: dict[str, np.ndarray] = {}
        for item in self.of_batch(batch, list(range(len(batch.samples)))):
            with torch.no_grad():
                outputs = self._forward(item)
                if item.idle or not self._ranks.counts_packs:
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
        scores = self._score_norms(batch) if with_scores else None
        hinted = None if batch.hints is None else self.look(_after_hints(batch), with_scores=False).logprobs
        return FirstLook(of("logprobs"), of("entropy"), values, scores, hinted)

    def _score_norms(self, batch: TrainBatch) -> np.ndarray:
        """See `FirstLook.score_norms_T`."""
        norms_T = np.full(len(batch.trajectory_ids), np.nan)
        for trajectory in np.unique(batch.trajectory_S):
            for item in self.of_batch(batch, np.flatnonzero(batch.trajectory_S == trajectory).tolist()):
                outputs = self._forward(item)
                if item.idle:
                    _backward_nothing(outputs)
                else:
                    _logprobs_of(outputs, item.tensors).sum().backward()
            norms_T[trajectory] = self._policy.weights.clip_gradients(math.inf)
            self._policy.weights.clear_gradients()
        return norms_T

    def fill_in(self, minibatches: Sequence[Sequence[PackPass]], *, reference: Mapping[str, torch.Tensor]) -> None:
        """Do the extra forward passes that the algorithm needs. In the first minibatch the weights are still those of the
        start of the update, so its own training pass gives the proximal log-probs; a first look has seen those of all."""
        if self._teacher is not None:
            for item in _flat(minibatches):
                item.reference_logprobs_M = self._logprobs_of_teacher(self._teacher, item)
        elif "reference_logprobs" in self._algorithm.needs:
            with self._policy.weights.replaced_by(reference):
                for item in _flat(minibatches):
                    item.reference_logprobs_M = self.logprobs(item)
        if "proximal_logprobs" in self._algorithm.needs:
            with torch.no_grad():
                for item in _flat(minibatches[1:]):
                    seen_M = item.batch.start_logprobs_M
                    item.proximal_logprobs_M = self.logprobs(item) if seen_M is None else seen_M

    def logprobs(self, item: PackPass) -> torch.Tensor:
        """[M] log-probs of the pass's action tokens; the output of frozen layers is kept for the passes that follow."""
        if item.hidden is None:
            item.hidden = self._policy.frozen_hidden(item.pack, item.tensors)
        return _logprobs_of(self._forward(item), item.tensors)

    @torch.no_grad()
    def _logprobs_of_teacher(self, teacher: Policy, item: PackPass) -> torch.Tensor | None:
        """[M] log-probs of the pass's action tokens under ``teacher``; None for an idle pass, as no other rank takes part."""
        if item.idle:
            return None
        tensors = teacher.tensors(item.pack)
        return _logprobs_of(teacher.forward(item.pack, temperature=self._algorithm.temperature, tensors=tensors), tensors)

    def accumulate(self, item: PackPass, *, scale: float, totals: Totals, samples: EffectiveSamples) -> SeenPass | None:
        """Forward and backward pass with ``scale`` times the algorithm's loss. The loss in the result is not scaled; None when
        idle, and where another rank counts the pack."""
        outputs = self._forward(item)
        if item.idle:
            _backward_nothing(outputs)
            return None
        head = self._value_head
        logprobs_M = _logprobs_of(outputs, item.tensors)
        entropy_M = _of_tokens(outputs.entropy_Q, item.tensors)
        values_M = None if head is None else _of_tokens(head.values(outputs.states_QE), item.tensors)
        is_counted = self._ranks.counts_packs
        if values_M is not None and not is_counted:
            # The head's gradients of all ranks are added up, and these are those of the rank that counts the pack.
            values_M = values_M.detach()
        proximal_M = item.proximal_logprobs_M
        seen = PolicyOutputs(
            logprobs_M=logprobs_M,
            entropy_M=entropy_M,
            proximal_logprobs_M=logprobs_M.detach() if proximal_M is None else proximal_M,
            reference_logprobs_M=item.reference_logprobs_M,
            values_M=values_M,
        )
        with blaming(self._algorithm, "loss"):
            result = returned(self._algorithm.loss(seen, item.batch), LossResult)
            check_loss(result, num_tokens=len(logprobs_M))
        (result.loss * scale).backward()
        if not is_counted:
            return None
        # Actions of older policies are no sign of how sure the present one is of its own.
        totals.add("entropy", torch.where(item.batch.is_replayed_M, 0.0, entropy_M).sum(), item.num_own_tokens)
        for name, (total, count) in result.metrics.items():
            totals.add(name, total, count)
        if result.log_weights_M is not None:
            samples.add(result.log_weights_M, item.trajectory_M, item.trajectories)
        return SeenPass(item.pack, item.batch, logprobs_M.detach(), result.loss.detach())

    def imitate(self, steps: Sequence[Step], *, weight: float, totals: Totals, name: str) -> list[SeenPass]:
        """Forward and backward passes with ``weight`` times the mean negative log-likelihood of the action tokens of ``steps``.

        The mean itself goes into ``totals`` as ``name``.
        """
        num_tokens = sum(len(step.action_tokens) for step in steps)
        seen: list[SeenPass] = []
        packs = self._policy.packs(steps, max_tokens=self._max_pack_tokens)
        for index, idle in self._ranks.share([pack.num_nodes for pack in packs]):
            pack = packs[index]
            tensors = self._policy.tensors(pack)
            outputs = self._policy.forward(pack, temperature=1.0, tensors=tensors)
            if idle:
                _backward_nothing(outputs)
                continue
            logprobs_M = _logprobs_of(outputs, tensors)
            loss = -logprobs_M.sum() / num_tokens
            (weight * loss).backward()
            if not self._ranks.counts_packs:
                continue
            totals.add_packs([pack])
            seen.append(SeenPass(pack, None, logprobs_M.detach(), loss.detach()))
            totals.add(name, loss.detach() * num_tokens, len(logprobs_M))
            if name == "loss":
                totals.add("entropy", _of_tokens(outputs.entropy_Q, tensors).sum(), len(logprobs_M))
        return seen

    def _forward(self, item: PackPass) -> PackOutputs:
        temperature = self._algorithm.temperature
        return self._policy.forward(item.pack, temperature=temperature, tensors=item.tensors, hidden=item.hidden)


def _after_hints(batch: TrainBatch) -> TrainBatch:
    """``batch`` whose prompts begin with its hints."""
    assert batch.hints is not None
    both = zip(batch.samples, batch.hints, strict=True)
    samples = [msgspec_replace(step, prompt_tokens=np.concatenate([hint, step.prompt_tokens])) for step, hint in both]
    return replace(batch, samples=tuple(samples), hints=None)


def _flat(minibatches: Iterable[Sequence[PackPass]]) -> Iterable[PackPass]:
    return (item for passes in minibatches for item in passes)


def _backward_nothing(outputs: PackOutputs) -> None:
    """Add zero to all gradients: a rank without a pack of its own must still take part where they are summed."""
    (outputs.logprobs_U.sum() * 0.0).backward()


def _logprobs_of(outputs: PackOutputs, tensors: PackTensors) -> torch.Tensor:
    """[M] log-prob of each action token."""
    return outputs.logprobs_U.index_select(0, tensors.token_pair_M)


def _of_tokens(values_Q: torch.Tensor, tensors: PackTensors) -> torch.Tensor:
    """[M] for each action token the value of the state before it."""
    return values_Q.index_select(0, tensors.token_state_M)
