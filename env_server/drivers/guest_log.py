"""Standard error of a guest, written to a file of the host at a limited rate and length.

Every program in the desktop can write there, so the file proves nothing. Only output from before the guest was ready, which is
that of the product's own programs, explains a start that failed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

from computerrl.common.errors import HostBroken

FILE_LIMIT = 4 << 20
"""Bytes after which a new file is begun; the one before is kept beside it."""
BYTES_PER_S = 1 << 20
"""Maximum rate at which it is read: a guest that floods has to wait itself."""
_TAIL_CHUNKS = 8
_CHUNK = 4096


class GuestLog:
    """Log of one start of one desktop: a pipe for its standard error and a thread that copies it into the file."""

    def __init__(self, folder: Path, index: int, *, reader: int | None = None) -> None:
        """``reader``: end of the pipe of a guest that runs already, which is taken over; None: a new pipe. Raises `HostBroken`
        when the file cannot be written."""
        self.path = folder / f"desktop-{index}.log"
        self._tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise HostBroken(
                f"desktop.log folder {folder} is not writable: {error}; free space or choose another folder"
            ) from error
        self.writer: int | None = None
        if reader is None:
            reader, self.writer = os.pipe()
        self.reader = reader
        self._thread = threading.Thread(target=self._pump, name=f"desktop-{index}-log", daemon=True)

    def begin(self) -> None:
        """Start copying; the guest has ``writer`` now."""
        if self.writer is not None:
            os.close(self.writer)
        self._thread.start()

    def tail(self, *, wait_s: float) -> str:
        """Last output, at most 32 KiB. ``wait_s``: time that its writers have to end."""
        self._thread.join(wait_s)
        return b"".join(self._tail).decode(errors="replace")

    def _pump(self) -> None:
        while chunk := os.read(self.reader, _CHUNK):
            self._tail.append(chunk)
            try:
                if os.fstat(self._file).st_size + len(chunk) > FILE_LIMIT:
                    self._begin_anew()
                os.write(self._file, chunk)
            except OSError:
                pass  # a full disk; it is read all the same, or the guest would stand still
            time.sleep(len(chunk) / BYTES_PER_S)
        os.close(self.reader)
        os.close(self._file)

    def _begin_anew(self) -> None:
        self.path.replace(self.path.with_suffix(".log.1"))
        # Opened before the old one is closed: where that fails, the old number must not become somebody else's file.
        new = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.close(self._file)
        self._file = new
