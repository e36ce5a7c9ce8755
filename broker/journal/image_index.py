"""Where the bytes of images lie in the journal, and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from computerrl.broker.journal import records
from computerrl.broker.journal.file import Position
from computerrl.common import log
from computerrl.common.errors import ResumeError
from computerrl.common.messages import EncodedImage, ImageReply, ImageSubmission, Message

MAX_REPLY_BYTES = 32 << 20
"""Size from which a reply takes no further image; the largest image still fits the message then."""


class ImageIndex:
    """Position of each image by name."""

    def __init__(self) -> None:
        self._positions: dict[str, Position] = {}

    def add(self, message: Message, position: Position) -> None:
        """Note the images of a durable message; of two copies the first."""
        if isinstance(message, ImageSubmission):
            for part, image in enumerate(message.images):
                self._positions.setdefault(image.content_hash, position._replace(part=part))

    def restore(self, positions: Mapping[str, Sequence[int]]) -> None:
        """Continue from the value of `plain` in a snapshot."""
        self._positions = {name: Position(*position) for name, position in positions.items()}

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others."""
        self._positions = {name: self._positions[name] for name in names}

    def plain(self) -> dict[str, list[int]]:
        """For a snapshot."""
        return {name: list(position) for name, position in self._positions.items()}

    def segments(self) -> set[int]:
        """Segments in which images lie."""
        return {position.segment for position in self._positions.values()}

    def read(self, names: Sequence[str], journal: records.Readable) -> ImageReply:
        """As many of the images as fit a reply; without those whose record is damaged, which is logged."""
        found: list[EncodedImage] = []
        num_bytes, submissions = 0, dict[Position, ImageSubmission]()
        for name in names:
            image = self._image(name, journal, submissions)
            if image is None:
                continue
            if found and num_bytes + image.data.nbytes > MAX_REPLY_BYTES:
                break
            found.append(image)
            num_bytes += image.data.nbytes
        return ImageReply(tuple(found))

    def _image(self, name: str, journal: records.Readable, submissions: dict[Position, ImageSubmission]) -> EncodedImage | None:
        """``submissions``: the records that were read already."""
        position = self._positions.get(name)
        if position is None:
            return None
        record = position._replace(part=0)
        if record not in submissions:
            try:
                message = records.message_of(journal.read(record))
            except ResumeError as error:
                # The learner sets the episodes that show it aside by name; the others of the run go on.
                log.get_logger().error("journal.image_unreadable", image=name, reason=str(error))
                return None
            assert isinstance(message, ImageSubmission)
            submissions[record] = message
        return submissions[record].images[position.part]
