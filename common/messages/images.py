"""Images: the encoded bytes of screenshots, named by their hash, from the desktops to engines, to the broker and to the learner.

A run whose prompts show no images sends none of these messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta

from computerrl.common.messages.base import UINT8, ByteArray, ContentHash, Wire, take_arrays
from computerrl.common.messages.trajectories import MAX_IMAGE_BYTES, ScreenshotRef

MAX_IMAGES = 256
"""Maximum number of images of a message."""
ContentHashes = Annotated[tuple[ContentHash, ...], Meta(min_length=1, max_length=MAX_IMAGES)]
"""1 to 256 names of images."""


def content_hash(encoded: bytes | memoryview) -> str:
    """Name of an image: BLAKE2b of its encoded bytes, 128 bits as hexadecimal digits."""
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


class EncodedImage(Wire, frozen=True):
    """An image as an env_server stored it (webp, png or jpeg)."""

    content_hash: ContentHash
    """BLAKE2b (128 bits) of ``data``; the receiver compares."""
    data: ByteArray
    """The stored bytes, 1 to 32 MiB."""

    def __post_init__(self) -> None:
        take_arrays(self, {"data": UINT8})
        if not 1 <= self.data.size <= MAX_IMAGE_BYTES:
            raise ValueError(f"an image has 1 to {MAX_IMAGE_BYTES} bytes, this one {self.data.size}")

    @classmethod
    def of(cls, encoded: bytes) -> EncodedImage:
        """The image with its name. Raises `ValueError` for one that is empty or too large."""
        return cls(content_hash(encoded), np.frombuffer(encoded, UINT8))

    @property
    def is_intact(self) -> bool:
        """Whether the bytes have the hash that names them."""
        return content_hash(self.data.data) == self.content_hash


EncodedImages = Annotated[tuple[EncodedImage, ...], Meta(max_length=MAX_IMAGES)]
"""At most 256 images."""


class ScreenshotRequest(Wire, frozen=True):
    """An actor's request to the env_server for the bytes of a screenshot of an observation, once per image. The reply is
    `ImageReply` with this one image."""

    screenshot: ScreenshotRef


class ImageSubmission(Wire, frozen=True):
    """Bytes of images, from an actor. The broker has them on disk before its reply; an engine process keeps them for the prompts
    that show them. The reply is `Ack`."""

    images: EncodedImages


class ImageRequest(Wire, frozen=True):
    """The learner's request for the bytes of images that a trajectory names. The reply is `ImageReply`."""

    names: ContentHashes


class ImageReply(Wire, frozen=True):
    """Bytes of requested images."""

    images: EncodedImages
    """As many of the requested images as fit a message, in the order of the request. Those that the sender does not have are left
    out; when none is there, it has none of them."""


class ImagesWanted(Wire, frozen=True):
    """Reply to a `Trajectory`, a `TrajectoryBatch` or a `CompletionRequest` whose images the receiver does not have. Nothing has
    changed. The actor sends an `ImageSubmission`, then the request again."""

    names: ContentHashes
    """Images that are missing; perhaps not all of them."""


MAX_SUBMISSION_BYTES = 32 << 20
"""Size from which a submission takes no further image; the largest image still fits the message then."""


def submissions_of(names: Iterable[str], images: Mapping[str, bytes]) -> Iterator[ImageSubmission]:
    """``names`` of ``images`` in messages that are not too large. Raises `KeyError` for one that is not there."""
    batch: list[EncodedImage] = []
    num_bytes = 0
    for name in names:
        image = EncodedImage(name, np.frombuffer(images[name], UINT8))
        if batch and (num_bytes + image.data.nbytes > MAX_SUBMISSION_BYTES or len(batch) == MAX_IMAGES):
            yield ImageSubmission(tuple(batch))
            batch, num_bytes = [], 0
        batch.append(image)
        num_bytes += image.data.nbytes
    if batch:
        yield ImageSubmission(tuple(batch))
