"""The books of a run, opened together: the conductor's state, the ledger, the append-only files, and the intake."""

from __future__ import annotations

from dataclasses import dataclass

from computerrl.common.config import RunConfig
from computerrl.common.models.folder import image_token_id, model_folder
from computerrl.learner.accounts.intake import Intake
from computerrl.learner.accounts.ledger import Ledger
from computerrl.learner.accounts.records import Records
from computerrl.learner.contracts import Neighbours
from computerrl.learner.images import ImageFolder
from computerrl.learner.recipe.state import LoopState


@dataclass(frozen=True, slots=True)
class Books:
    """See the module's docstring."""

    state: LoopState
    records: Records
    ledger: Ledger
    intake: Intake
    images: ImageFolder | None
    """None for a model that takes no images."""

    @classmethod
    def open(cls, config: RunConfig, state: LoopState, around: Neighbours) -> Books:
        """Continue the files and the counters where ``state`` left them."""
        image_token = image_token_id(model_folder(config.model.name)) if config.actor.prompt.shows_images else None
        records = Records(around.folder, positions=state.positions, has_wandb=config.metrics.wandb, image_token=image_token)
        ledger = Ledger(records.ledger_line)
        if state.ledger:
            ledger.restore(state.ledger)
        images = None
        if around.trainer.check_screenshot is not None:
            # One more than the kept ones: a sweep comes later than its checkpoint.
            images = ImageFolder(around.folder.images, num_checkpoints=around.checkpoints.num_kept + 1)
        intake = Intake(
            state,
            broker=around.broker,
            ledger=ledger,
            records=records,
            vocabulary_size=around.trainer.vocabulary_size,
            check_screenshot=around.trainer.check_screenshot,
            images=images,
        )
        return cls(state, records, ledger, intake, images)

    def note_in_state(self) -> None:
        """Put the ledger's counters and the lengths of the files into the state, for a checkpoint."""
        self.state.positions = self.records.positions()
        self.state.ledger = self.ledger.state()
