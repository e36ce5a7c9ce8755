"""Images of completion requests in an engine process: bytes by name, and what the model's own processor makes of them.

The bytes of an image come once (`ImageSubmission`), whichever actor sends them. The least recently shown are dropped when there
are too many; an actor sends them again when it is told that they are wanted, as it does to a process that was started again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from computerrl.actor.engines.base import RequestImage
from computerrl.actor.prompts.images import ImageTokens
from computerrl.actor.prompts.tokenizer import Tokenizer
from computerrl.common.errors import ProtocolError
from computerrl.common.messages import Ack, ImageSubmission, ImagesWanted, ScreenshotRef
from computerrl.common.sampling_limits import MAX_SERVED_BYTES, NUM_PREPARING


class ServedImages:
    """Images for the prompts of one model. Safe to share between threads."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, max_bytes: int = MAX_SERVED_BYTES) -> None:
        """Raises `ConfigError` for a model that takes no images."""
        self._prepared = ImageTokens.of(folder, tokenizer, read=self._read)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self._threads = ThreadPoolExecutor(NUM_PREPARING, thread_name_prefix="images")

    def keep(self, submission: ImageSubmission) -> Ack:
        """Keep what was sent. Raises `ProtocolError` for bytes that do not have the hash that names them."""
        for image in submission.images:
            if not image.is_intact:
                raise ProtocolError(f"the bytes of image {image.content_hash} have another hash: they were changed or cut off")
        with self._lock:
            for image in submission.images:
                if image.content_hash not in self._held:
                    self._held[image.content_hash] = image.data.tobytes()
                    self._num_bytes += image.data.nbytes
                self._held.move_to_end(image.content_hash)
            while self._num_bytes > self._max_bytes and len(self._held) > len(submission.images):
                self._num_bytes -= len(self._held.popitem(last=False)[1])
        return Ack()

    def wanted(self, refs: Sequence[ScreenshotRef]) -> ImagesWanted | None:
        """Those of ``refs`` whose bytes are not here; None when all are."""
        with self._lock:
            missing = [ref.content_hash for ref in refs if ref.content_hash not in self._held]
            for ref in refs:
                if ref.content_hash in self._held:
                    self._held.move_to_end(ref.content_hash)
        return ImagesWanted(tuple(dict.fromkeys(missing))) if missing else None

    def prepare(self, refs: Sequence[ScreenshotRef], then: Callable[[Callable[[], tuple[RequestImage, ...]]], None]) -> None:
        """Call ``then`` in another thread with a function that gives the images or raises `PictureError`."""
        self._threads.submit(then, lambda: tuple(map(self._prepared.image, refs)))

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, ref: ScreenshotRef) -> bytes:
        with self._lock:
            data = self._held.get(ref.content_hash)
        if data is None:
            raise FileNotFoundError(f"image {ref.content_hash} is not here any more")
        return data
