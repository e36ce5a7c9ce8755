"""The books of a run, opened together: the conductor's state, the ledger, the append-only files, and the intake."""

from __future__ import annotations

from dataclasses import dataclass

from computerrl.common.config import RunConfig
from computerrl.common.models.folder import image_token_id, model_folder
from computerrl.learner.accounts.intake import Intake
from computerrl.learner.accounts.ledger import Ledger
from computerrl.learner.accounts.records import Records
from computerrl.learner.contracts import Neighbours
from computerrl.learner.recipe.state import LoopState


@dataclass(frozen=True, slots=True)
class Books:
    """See the module's docstring."""

    state: LoopState
    records: Records
    ledger: Ledger
    intake: Intake

    @classmethod
    def open(cls, config: RunConfig, state: LoopState, around: Neighbours) -> Books:
        """Continue the files and the counters where ``state`` left them."""
        image_token = image_token_id(model_folder(config.model.name)) if config.actor.prompt.shows_images else None
        records = Records(around.folder, positions=state.positions, has_wandb=config.metrics.wandb, image_token=image_token)
        ledger = Ledger(records.ledger_line)
        if state.ledger:
            ledger.restore(state.ledger)
        intake = Intake(
            state,
            broker=around.broker,
            ledger=ledger,
            records=records,
            vocabulary_size=around.trainer.vocabulary_size,
            check_screenshot=around.trainer.check_screenshot,
        )
        return cls(state, records, ledger, intake)

    def note_in_state(self) -> None:
        """Put the ledger's counters and the lengths of the files into the state, for a checkpoint."""
        self.state.positions = self.records.positions()
        self.state.ledger = self.ledger.state()
