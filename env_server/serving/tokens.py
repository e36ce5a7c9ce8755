"""Where the fencing tokens of an env_server start: above all that its earlier processes can have given out.

No clock is asked: one that was set back would hand out old tokens again. Each start of a process takes a stretch of its own.
"""

from __future__ import annotations

from pathlib import Path

from computerrl.common.errors import Problem, SetupError
from computerrl.common.run_files.run_folder import write_atomically

STRETCH = 1 << 32
"""Leases that one process can give out; at a million a second it lasts an hour, at one a second a century."""


def first_token(path: Path) -> int:
    """First token of a new stretch, which ``path`` remembers from now on. Raises `SetupError` when that cannot be read."""
    try:
        first = int(path.read_text()) + STRETCH
    except FileNotFoundError:
        first = STRETCH
    except ValueError:
        step = "end all env_servers of this run, then delete it"
        raise SetupError(Problem(str(path), "does not hold the number of a lease", step)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, str(first).encode())
    return first
