"""Names of the images whose bytes are in the journal. Pure; `broker.journal.image_index` knows where they lie.

An actor submits bytes before the trajectory that names them, and both are answered only once they are durable. So the bytes of
every accepted trajectory are in the journal before the trajectory is. They are kept as long as a trajectory that names them is
held, and dropped at a later snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from computerrl.broker.events import Decision, PersistFirst
from computerrl.common.errors import ProtocolError
from computerrl.common.messages import MAX_IMAGES, Ack, ImageSubmission, ImagesWanted, Trajectory


class ImageShelf:
    """Images in the journal, by name."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._recent: set[str] = set()
        """Images submitted since the last snapshot; their trajectory may be on its way."""

    def check(self, submission: ImageSubmission) -> Decision:
        """Decision on a submission: those that are not held have to be durable first. Raises `ProtocolError` for bytes that do
        not have the hash that names them."""
        for image in submission.images:
            if not image.is_intact:
                raise ProtocolError(f"the bytes of image {image.content_hash} have another hash: they were changed or cut off")
        new = tuple(image for image in submission.images if image.content_hash not in self._held)
        if not new:
            return Ack()
        return PersistFirst(submission if len(new) == len(submission.images) else ImageSubmission(new))

    def accept(self, submission: ImageSubmission) -> Ack:
        """Take in durable images."""
        names = [image.content_hash for image in submission.images]
        self._held.update(names)
        self._recent.update(names)
        return Ack()

    def wanted(self, trajectories: Sequence[Trajectory]) -> ImagesWanted | None:
        """The images that ``trajectories`` name and that are not held; None when all are."""
        missing = [name for name in named(trajectories) if name not in self._held]
        return ImagesWanted(tuple(missing[:MAX_IMAGES])) if missing else None

    def needed(self, trajectories: Iterable[Trajectory]) -> set[str]:
        """Images that a snapshot keeps when ``trajectories`` are all that are held or about to be."""
        return self._recent | self._held.intersection(named(trajectories))

    def keep(self, names: set[str]) -> None:
        """Forget all images but ``names``, which a snapshot was made with."""
        self._held = set(names)
        self._recent = set()

    def names(self) -> list[str]:
        """All images that are held."""
        return sorted(self._held)

    def __len__(self) -> int:
        return len(self._held)


def named(trajectories: Iterable[Trajectory]) -> dict[str, None]:
    """Names of the images in the prompts of ``trajectories``, each once, in their order."""
    return {ref.content_hash: None for trajectory in trajectories for step in trajectory.steps for ref in step.images}
