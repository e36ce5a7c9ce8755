"""A new folder that appears when everything in it is written, or not at all."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from computerrl.common.errors import ConfigError, DiskFull, Problem


def require_new(out: Path) -> None:
    """Raise `ConfigError` where the folder ``out`` cannot be made, before the work begins."""
    if out.exists() or out.is_symlink():
        raise ConfigError([Problem("OUT", f"{str(out)!r:.200} exists already", "give a folder that does not exist yet")])
    if not out.absolute().parent.is_dir():
        raise ConfigError([Problem("OUT", f"there is no folder {str(out.parent)!r:.200}", "make it first")])


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Give a folder beside ``out`` to write to, which becomes ``out`` at the end, and is removed after an error. Raises
    `DiskFull`."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
        try:
            yield aside
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        step = "free space, or choose an OUT on another disk"
        raise DiskFull(f"no space beside {out}: nothing was kept\n    -> {step}") from error
