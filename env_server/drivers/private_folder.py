"""A desktop's private folder: frame buffer, home, logs of its programs; gone when the desktop is.

It lies on node-local temporary storage (never in the run folder, which may be on a network file system), is readable by its owner
alone, and carries its maker's process id, so that whatever was left by a killed node-wide disaster is swept by the next start.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common.errors import HostBroken

_PREFIX = "computerrl-desktop-"
_REMOVE_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """One desktop's folder on the host."""

    path: Path

    @classmethod
    def make(cls, index: int) -> PrivateFolder:
        """Make it, and sweep those whose maker is gone. Raises `HostBroken`."""
        base = Path(tempfile.gettempdir())
        _sweep(base)
        try:
            path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{index}-", dir=base))
            folder = cls(path)
            for part in (folder.shared, folder.temporary):
                part.mkdir(mode=0o700)
        except OSError as error:
            raise HostBroken(
                f"cannot make a desktop's folder in {base}: {error}; free space there or set TMPDIR to a writable local folder"
            ) from error
        return folder

    @property
    def shared(self) -> Path:
        """Seen by host and guest: frame buffer, logs."""
        return self.path / "shared"

    @property
    def temporary(self) -> Path:
        """The guest's /tmp."""
        return self.path / "tmp"

    def remove(self) -> None:
        """Delete it; may be called twice. Programs that are just being killed may still add files for a moment."""
        deadline = time.monotonic() + _REMOVE_LIMIT_S
        while self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            if time.monotonic() > deadline:
                return  # the next start sweeps it
            time.sleep(0.02)


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        maker = path.name[len(_PREFIX) :].split("-")[0]
        if maker.isdigit() and not os.path.exists(f"/proc/{maker}") and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
