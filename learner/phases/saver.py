"""A run's checkpoints: collects whatever a resumed learner needs, and reports to the broker which groups they cover."""

from __future__ import annotations

from typing import Any

from computerrl.common.errors import ResumeError
from computerrl.learner.accounts.books import Books
from computerrl.learner.checkpoints.checkpoint import TRAINER, Checkpoint
from computerrl.learner.contracts import Neighbours
from computerrl.learner.images import names_in
from computerrl.learner.recipe.entropulse import PhaseMachine
from computerrl.learner.supervised.pool import Pools, pack_run, unpack_run


class Saver:
    """Saves and restores the books, the trainer and the pools as one."""

    def __init__(self, around: Neighbours, books: Books, *, pools: Pools, machine: PhaseMachine) -> None:
        self._around = around
        self._store = around.checkpoints
        self._books = books
        self._pools = pools
        self._machine = machine
        self._saved_revision = -1
        """`Trainer.revision` in the newest checkpoint."""
        self._saved_trainer: Any = None
        """The trainer's part of the newest checkpoint's tree."""
        self._reported_cursor = 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put the trainer, the pools and the Entropulse trigger into the state that ``checkpoint`` holds."""
        self._around.trainer.load_state_dict(unpack_run(checkpoint, self._pools.stored()))
        self._require_images()
        self._machine.restore(self._books.state.entropulse)

    def _require_images(self) -> None:
        images = self._books.images
        if images is None:
            return
        names = self._pools.image_names()
        images.fetch(names, self._around.broker.fetch_images)
        if missing := images.missing(names):
            reason = f"{len(missing)} images of the episodes that the checkpoint keeps are not in {self._around.folder.images}"
            raise ResumeError(f"{reason}, for example {missing[0]}: restore that folder, or start a new run")

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._store.busy

    @property
    def write_s(self) -> float:
        """Seconds that the newest checkpoint took in the background; 0 before the first."""
        return self._store.last_write_s

    def save(self, *, wait: bool = False) -> None:
        """Save everything as it is now; in the background unless ``wait``."""
        state, records, trainer = self._books.state, self._books.records, self._around.trainer
        self._books.note_in_state()
        state.entropulse = self._machine.state()
        # Most phases end without a step of the optimizer since the last checkpoint, and wait for the next: a GB less to write.
        is_saved = trainer.revision == self._saved_revision and self._store.has_newest()
        sections, tree = pack_run(state.to_json(), None if is_saved else trainer.state_dict(), self._pools.stored())
        if is_saved:
            tree[TRAINER] = self._saved_trainer
        unchanged = [TRAINER] if is_saved else []
        self._store.save(
            sections, tree, cursor=state.cursor, sync_first=records.paths(), unchanged=unchanged, keep=state.before_round
        )
        self._saved_revision, self._saved_trainer = trainer.revision, tree[TRAINER]
        if wait:
            self._store.wait()
            self.report_consumption()

    def report_consumption(self) -> None:
        """Report to the broker the groups that all kept checkpoints cover, once there are more of them."""
        covered = self._store.covered_cursor
        if covered > self._reported_cursor:
            self._around.broker.report_consumption(covered)
            self._reported_cursor = covered
            if self._books.images is not None:
                taken = (one for group in self._books.intake.received for one in group.trajectories)
                self._books.images.sweep([*self._pools.image_names(), *names_in(taken)])
