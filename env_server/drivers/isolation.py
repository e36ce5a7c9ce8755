"""Nothing outlives its desktop: namespaces around it with a keeper as first process. Shared by both real drivers.

Processes, from the outside in: `unshare` (a child of this process) makes a user, a mount and a PID namespace; its
first process is a small shell, the keeper; below it runs Apptainer, or the guest itself. The keeper ends when its
life line does (this process died or closed the desktop) or when its child does, and the kernel then ends everything
below it at once, whatever state it is in; if `unshare` is killed, the keeper dies with it. All files of a desktop lie
in a tmpfs of its own that only this mount namespace sees: it goes with the last process, so there is nothing to
delete and nothing to be left. As root, what runs inside is mapped to an ordinary user, so that the whole stack runs
as on a cluster and applications do not warn of being root.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from common.errors import Problem, SetupError

GUEST = Path(__file__).resolve().parents[1] / "guest"

FILES = "/dev/shm"
"""Where the desktop's tmpfs is mounted inside the namespace: a folder that every Linux has and that nothing below needs."""

FILES_LIMIT = "1g"
"""What a desktop's files may take, profiles and frame buffer included (about 30 MiB in use)."""

_FIRST_PIDS = 300
"""Process ids below this are given out once only (the kernel's RESERVED_PIDS), so they do not count."""

KEEPER = f"""
exec 3<&0 </dev/null
[ -z "$1" ] || echo "$1" > /proc/sys/kernel/pid_max
shift
mount -t tmpfs -o size={FILES_LIMIT},mode=0700 tmpfs {FILES} || exit 1
mkdir -m 1777 {FILES}/tmp && mkdir -p {FILES}/tmp/agent/work || exit 1
( cat <&3 >/dev/null; kill -KILL -1 ) >/dev/null &
"$@" 3<&- &
exec 3<&- >/dev/null
wait $!
exit 0
"""
"""First process of the PID namespace. Its standard input is the life line; when that ends, it kills everything but itself, and
then it ends, and the kernel ends whatever is still there. Arguments: the highest process id (empty: any), the command to run."""

_SERVICE_USER = "daemon"
"""Every Debian has it; its password entry is all that is needed."""


def pages_folder() -> Path:
    """MiniWoB++'s HTML files, out of the installed package. Raises `SetupError`."""
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(Problem("miniwob", "the package with the web tasks is not installed", "run `make setup`"))
    return Path(spec.submodule_search_locations[0]) / "html"


def ordinary_user() -> tuple[str, str]:
    """User and group ids inside: our own, or an ordinary user's when we are root."""
    if os.geteuid() != 0:
        return str(os.geteuid()), str(os.getegid())
    # The id must have a password entry: D-Bus and Apptainer look it up.
    known = [entry for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]
    chosen = known[0] if known else pwd.getpwnam(_SERVICE_USER)
    return str(chosen.pw_uid), str(chosen.pw_gid)


def isolation(*, max_processes: int) -> list[str]:
    """The command that puts what follows into namespaces with the keeper as first process, still as their root.

    At most ``max_processes`` processes and threads, where the kernel knows such a limit (since 6.14); see
    `as_ordinary_user`.
    """
    for program in ("unshare", "prlimit", "sh", "mount"):
        if shutil.which(program) is None:
            raise SetupError(Problem(program, "not on PATH", "install util-linux"))
    highest_pid = str(max_processes + _FIRST_PIDS) if _has_pid_limit(os.uname().release) else ""
    return [
        "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
        "sh", "-c", KEEPER, "keeper", highest_pid,
    ]  # fmt: skip


def _has_pid_limit(release: str) -> bool:
    """Does a PID namespace have a ``kernel.pid_max`` of its own? Before Linux 6.14 it is the host's, and not ours to set."""
    major, minor = (int(part) for part in re.findall(r"\d+", release)[:2])
    return (major, minor) >= (6, 14)


def as_ordinary_user(*, max_processes: int) -> list[str]:
    """The command that runs what follows as an ordinary user again, with at most so many processes and threads.

    The kernel counts them per user namespace (since 5.14), so that desktops do not share one limit; before, per user. Where we
    are the host's root it does not count them at all: there `isolation` has to limit them, or `env_server.memory` sees it.
    """
    user, group = ordinary_user()
    return [
        "prlimit", f"--nproc={max_processes}", "--core=0",
        "unshare", "--user", f"--map-user={user}", f"--map-group={group}",
    ]  # fmt: skip
