"""Supervised phases: cloning and Entropulse rounds, one optimizer step per unit of work."""

from __future__ import annotations

from computerrl.learner.accounts.books import Books
from computerrl.learner.contracts import Neighbours
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.phases.work import Ended, Tick
from computerrl.learner.supervised.sft import SftRound


class SftWork:
    """Trains one round to its end; a learner that died begins the round anew."""

    def __init__(self, around: Neighbours, books: Books, *, sft_round: SftRound, versions: PolicyVersions, rl_lr: float) -> None:
        """``rl_lr``: learning rate of the RL updates that follow."""
        self._trainer = around.trainer
        self._clock = around.clock
        self._state = books.state
        self._records = books.records
        self._versions = versions
        self._round = sft_round
        self._rl_lr = rl_lr
        self._trainer.change_objective(sft_round.max_lr)
        self.note = self._state.phase

    def tick(self) -> Tick:
        """Do one optimizer step, or end the phase."""
        steps = self._round.next_batch()
        if steps is None:
            return self._end()
        began_s = self._clock()
        metrics = self._trainer.sft_step(steps, self._round.lr)
        self._state.sft_sample_s = (self._clock() - began_s) / len(steps)
        num_done, num_steps = self._round.num_done, len(self._round.batches)
        digest = self._round.pool_digest
        self._records.event("sft", phase=self._state.phase, step=num_done, num_steps=num_steps, pool_digest=digest, **metrics)
        self.note = f"{self._state.phase}: step {num_done} of {num_steps}"
        return True

    def close(self) -> bool:
        return False

    def _end(self) -> Ended:
        # RL starts from these weights, so its KL term refers to them too.
        self._trainer.set_reference()
        self._trainer.change_objective(self._rl_lr)
        self._versions.advance(publish=True)
        return Ended(f"{self._round.num_done} optimizer steps done")
