"""The images that a learner trains on, in a folder of its own: one file per image, named by its hash.

Rank 0 fetches the bytes of a group's images from the broker, once per image, before the group is looked at; all ranks read them
here. A file is durable before the group that needs it is decided, since the broker forgets images with their groups, and pools
of a checkpoint may train on theirs long after. Files that neither pools nor groups need are deleted.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from computerrl.common.errors import DiskFull
from computerrl.common.messages import MAX_IMAGE_BYTES, ScreenshotRef, Trajectory, content_hash
from computerrl.common.run_files.run_folder import write_atomically

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Fetch = Callable[[Collection[str]], Mapping[str, bytes]]
"""Names -> encoded bytes; images that are nowhere are missing."""


class ImageFolder:
    """Images in ``folder``, which is made when it is needed."""

    def __init__(self, folder: Path, *, num_checkpoints: int = 1, others: Sequence[Path] = ()) -> None:
        """``num_checkpoints``: number of the newest sweeps whose images stay. ``others``: folders with images of the same kind,
        which are read and never changed, for episodes of other runs."""
        self._folder = folder
        self._others = tuple(others)
        self._fetching = threading.Lock()
        """Held by the thread that fetches: what two groups show travels once."""
        self._lock = threading.Lock()
        self._fetched: set[str] = set()
        """Images fetched since the last sweep."""
        self._needed: deque[frozenset[str]] = deque(maxlen=num_checkpoints)

    def read(self, ref: ScreenshotRef) -> bytes:
        """A `common.vision.screens.ReadScreenshot`."""
        path = self._path(ref.content_hash)
        if not path.exists():
            path = next((there for other in self._others if (there := other / path.name).exists()), path)
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
        if len(data) != ref.num_bytes:
            raise ValueError(f"image {ref.content_hash} has {len(data)} bytes, and {ref.num_bytes} by its reference")
        if content_hash(data) != ref.content_hash:
            raise ValueError(f"{path} holds another image than its name says")
        return data

    def fetch(self, names: Iterable[str], fetch: Fetch) -> None:
        """Make those of ``names`` durable that are not there. An image that ``fetch`` does not give stays missing.
        Raises `DiskFull`."""
        names = [name for name in dict.fromkeys(names) if is_content_name(name)]
        with self._lock:
            self._fetched.update(names)
        with self._fetching:
            missing = [name for name in names if not self._path(name).exists()]
            if missing:
                self._write(fetch(missing))

    def _write(self, images: Mapping[str, bytes]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, data in images.items():
                write_atomically(self._path(name), data)
        except OSError as error:
            if error.errno not in _OUT_OF_SPACE:
                raise
            raise DiskFull(f"no space for images in {self._folder}: {error.strerror}") from error

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that are not there."""
        return [name for name in names if not (is_content_name(name) and self._path(name).exists())]

    def sweep(self, needed: Iterable[str]) -> None:
        """A checkpoint was saved: ``needed`` are the images of its pools and of the groups that it does not cover. Delete those
        that this and the newest ``num_checkpoints`` checkpoints do not need."""
        with self._lock:
            self._needed.append(frozenset(needed) | self._fetched)
            self._fetched = set()
            # After a start, the images of checkpoints made before it are not known.
            if len(self._needed) < (self._needed.maxlen or 0) or not self._folder.exists():
                return
            kept = {name for names in self._needed for name in names}
        being_written = f".{os.getpid()}."
        for path in self._folder.iterdir():
            if path.name not in kept and being_written not in path.name:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not is_content_name(name):
            raise ValueError(f"{name!r} is no hash of an image")
        return self._folder / name


def is_content_name(name: str) -> bool:
    """Whether ``name`` is a hash as `content_hash` makes them; others never become paths."""
    return len(name) == 32 and set(name) <= set("0123456789abcdef")


def names_in(trajectories: Iterable[Trajectory]) -> list[str]:
    """Names of the images that the prompts of ``trajectories`` show."""
    return [ref.content_hash for trajectory in trajectories for step in trajectory.steps for ref in step.images]
