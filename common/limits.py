"""How many files and sockets this process may open. Decides nothing about how many it needs."""

from __future__ import annotations

import resource

from computerrl.common.errors import Problem, SetupError


def allow_files(num_files: int) -> None:
    """Raise the soft limit on open files to ``num_files``, if it is lower. Raises `SetupError` when the hard limit is, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= num_files:
        return
    if hard != resource.RLIM_INFINITY and hard < num_files:
        reason = f"allows {hard} open files (ulimit -Hn), {num_files} are needed: every connection is one"
        raise SetupError(Problem("RLIMIT_NOFILE", reason, f"raise it to {num_files} for this user, or start fewer actors"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))
