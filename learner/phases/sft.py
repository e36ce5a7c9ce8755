"""Supervised phases: cloning and Entropulse rounds, one optimizer step per unit of work."""

from __future__ import annotations

from computerrl.learner.accounts.books import Books
from computerrl.learner.contracts import Neighbours
from computerrl.learner.phases.saver import Saver
from computerrl.learner.phases.versions import PolicyVersions
from computerrl.learner.phases.work import Ended, Tick
from computerrl.learner.supervised.sft import SftRound

SAVE_EVERY_S = 15.0
"""Minimum time in seconds between two checkpoints of a round."""
SAVE_SHARE = 0.05
"""Share of the time that checkpoints of a round may take."""


class SftWork:
    """Trains one round to its end; a learner that died goes on from the round's newest checkpoint."""

    def __init__(
        self,
        around: Neighbours,
        books: Books,
        *,
        sft_round: SftRound,
        versions: PolicyVersions,
        saver: Saver,
        rl_lr: float,
    ) -> None:
        """``rl_lr``: learning rate of the RL updates that follow."""
        self._trainer = around.trainer
        self._clock = around.clock
        self._state = books.state
        self._records = books.records
        self._versions = versions
        self._saver = saver
        self._round = sft_round
        self._rl_lr = rl_lr
        self._saved_s = self._clock()
        self._copy_s = 0.0
        """Time that the newest checkpoint of the round held up training."""
        if not sft_round.num_done:
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
        self._state.sft_done = num_done
        digest = self._round.pool_digest
        self._records.event("sft", phase=self._state.phase, step=num_done, num_steps=num_steps, pool_digest=digest, **metrics)
        self.note = f"{self._state.phase}: step {num_done} of {num_steps}"
        if num_done < num_steps:
            self._save_if_due()
        return True

    def close(self) -> bool:
        return False

    def _save_if_due(self) -> None:
        """A long round must not be lost with its learner."""
        began_s = self._clock()
        wait_s = max(SAVE_EVERY_S, (self._copy_s + self._saver.write_s) / SAVE_SHARE)
        if began_s - self._saved_s >= wait_s and not self._saver.is_writing:
            self._saver.save()
            self._saved_s = self._clock()
            self._copy_s = self._saved_s - began_s

    def _end(self) -> Ended:
        # RL starts from these weights, so its KL term refers to them too.
        self._trainer.set_reference()
        self._trainer.change_objective(self._rl_lr)
        self._versions.advance(publish=True)
        return Ended(f"{self._round.num_done} optimizer steps done")
