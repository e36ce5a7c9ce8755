"""Nothing outlives its desktop: namespaces around it with a keeper as first process. Shared by both real drivers.

Processes, from the outside in: `unshare` (a child of this process) makes a user, a mount and a PID namespace; its
first process is a small shell, the keeper; below it runs Apptainer, or the guest itself. The keeper ends when its
life line does (all who held it died), when it is told so there (the desktop is closed), or when its child ends, and the
kernel then ends everything below it at once, whatever state it is in; if `unshare` is killed, the keeper dies with it.
All files of a desktop lie in a tmpfs of its own that only this mount namespace sees: it goes with the last process, so
there is nothing to delete and nothing to be left.

Started by root, all of it runs as a user of its own that has no rights and owns nothing: what breaks out of a container is then
nobody on the host, and the kernel's settings are not its to change. Folders that such a user could not reach (below /root, say)
are shown to it at their own places, alone and read-only, in a mount namespace of the desktop. Inside, it is called by the name of
an ordinary user, as on a cluster.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import shlex
import shutil
import stat
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from computerrl.common.errors import Problem, SetupError
from computerrl.env_server.drivers.memory import FILES, MAX_OPEN_FILES

GUEST = Path(__file__).resolve().parents[1] / "guest"

FILES_LIMIT = "1g"
"""What a desktop's files may take, profiles and frame buffer included (about 30 MiB in use)."""
NUM_FILES_LIMIT = 100_000
"""How many a desktop may have, folders and links included (some hundreds in use): each takes about a KiB that counts nowhere."""

_FIRST_PIDS = 300
"""Process ids below this are given out once only (the kernel's RESERVED_PIDS), so they do not count."""

_LIMITS_PER_USER = "max_inotify_instances=64 max_inotify_watches=16384"
"""Watchers of files that a desktop may have. The kernel counts them per user, and desktops of an ordinary user are all one: a
desktop without a limit of its own would take those of all others (128 by default; a desktop uses about 10)."""
_MAX_TIMERS = 4096
"""Timers and pending signals of a desktop, which the kernel counts in the same way."""

KEEPER = f"""
exec 3<&0 </dev/null
[ -z "$1" ] || echo "$1" > /proc/sys/kernel/pid_max
shift
for limit in {_LIMITS_PER_USER}; do
  {{ echo ${{limit#*=}} > /proc/sys/user/${{limit%=*}}; }} 2>/dev/null
done
mount -t tmpfs -o size={FILES_LIMIT},nr_inodes={NUM_FILES_LIMIT},mode=0700 tmpfs {FILES} || exit 1
mkdir -m 1777 {FILES}/tmp {FILES}/var-tmp {FILES}/shm && mkdir {FILES}/user {FILES}/tmp/agent || exit 1
( read -r over <&3; kill -KILL -1 ) >/dev/null &
"$@" 3<&- &
exec 3<&- >/dev/null
wait $!
exit 0
"""
"""First process of the PID namespace. Its standard input is the life line; when that ends, or a line comes, it kills everything
but itself, and then it ends, and the kernel ends whatever is still there. Arguments: the highest process id (empty: any), the
command to run."""

NOBODY = 1_900_000_000
"""The first user id that desktops of root run under, one for each desktop; no account and no container manager has them."""
_NUM_NOBODIES = 10_000
_COPY_LIMIT = 32 << 20
"""Bytes; the guest's program and the web tasks' pages have less, an image has more."""

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


def isolation(*, max_processes: int, needs: Sequence[Path], index: int = 0) -> list[str]:
    """The command that puts what follows into namespaces with the keeper as first process, as their root and nobody outside.

    At most ``max_processes`` processes and threads, where the kernel knows such a limit (since 6.14); see `as_ordinary_user`.
    ``needs``: what desktop ``index`` has to read of the host. Raises `SetupError`.
    """
    for program in ("unshare", "prlimit", "setpriv", "sh", "mount"):
        if shutil.which(program) is None:
            raise SetupError(Problem(program, "not on PATH", "install util-linux"))
    highest_pid = str(max_processes + _FIRST_PIDS) if _has_pid_limit(os.uname().release) else ""
    return [
        *(become_nobody(needs, index=index) if os.geteuid() == 0 and _outside(0) == 0 else []),
        "setpriv",
        "--no-new-privs",
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
        "sh",
        "-c",
        KEEPER,
        "keeper",
        highest_pid,
    ]


def become_nobody(needs: Iterable[Path], *, index: int) -> list[str]:
    """The command by which root becomes a user without rights, for whom ``needs`` can be reached. Raises `SetupError`."""
    user = str(_nobody(index))
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all"]
    shown = [path for path in sorted({path.resolve() for path in needs}) if not _is_open(path) or _closed_above(path)]
    _require_capabilities(shown)
    return ["unshare", "--mount", "sh", "-ec", _show_alone(shown), "show", *become] if shown else become


def _require_capabilities(shown: Sequence[Path]) -> None:
    """Raise `SetupError` where root cannot become another user, or cannot show ``shown`` to it: root of a container, mostly."""
    wanted = ["SETUID", "SETGID", *(["SYS_ADMIN"] if shown else [])]
    lacking = [name for name in wanted if not _capabilities() & 1 << _CAPABILITIES[name]]
    if not lacking:
        return
    reason = f"root lacks the capabilities {', '.join(lacking)} here, and desktops of root run as a user without rights"
    options = " ".join(f"--cap-add {name}" for name in lacking)
    step = f"start as an ordinary user, or give them to the container (docker run {options})"
    if lacking == ["SYS_ADMIN"]:
        reason += f" who may not look into {', '.join(map(str, sorted({_closed_above(path) or path for path in shown})))}"
        step += "; or keep the program and COMPUTERRL_CACHE where others may read them"
    raise SetupError(Problem("desktop.driver", reason, step))


_CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_ADMIN": 21}
"""Capability -> its bit (linux/capability.h)."""


def _capabilities() -> int:
    """Those of this process that count, as bits."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def _nobody(index: int) -> int:
    """The user id of desktop ``index``; in a container that has few of them the last but one, which is `nobody` by custom."""
    wanted = NOBODY + index % _NUM_NOBODIES
    return wanted if _outside(wanted) is not None else max(first + count for first, _, count in _user_ids()) - 2


def _outside(user: int) -> int | None:
    """What a user of this user namespace is called in the one around it: root of a rootless container is no root there."""
    return next((outside + user - first for first, outside, count in _user_ids() if first <= user < first + count), None)


def _user_ids() -> list[tuple[int, int, int]]:
    """First id, the same id outside, and number of each range of user ids that exist here."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return [(int(first), int(outside), int(count)) for first, outside, count in (line.split() for line in lines)]


def _is_open(path: Path) -> bool:
    """May others read it?"""
    mode, wanted = path.stat().st_mode, stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return mode & wanted == wanted


def _closed_above(path: Path) -> Path | None:
    """The topmost folder above ``path`` that others may not pass."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)


def _show_alone(paths: Sequence[Path]) -> str:
    """A shell script for a mount namespace: each path stays where it is, readable, and closed folders above are empty otherwise;
    then "$@". Raises `SetupError`."""
    lines = ["umask 022", f"mount -t tmpfs -o mode=0700 tmpfs {FILES}"]
    for number, path in enumerate(paths):
        source, place = shlex.quote(str(path)), f"{FILES}/{number}"
        if _is_open(path):
            lines += [f"mkdir {place}" if path.is_dir() else f"touch {place}", f"mount --bind {source} {place}"]
        else:
            _require_small(path)
            lines += [f"cp -r {source} {place}", f"chmod -R a+rX {place}", f"mount --bind {place} {place}"]
    covers = sorted({closed for path in paths if (closed := _closed_above(path))})
    lines += [f"mount -t tmpfs -o mode=0755,size=1m tmpfs {shlex.quote(str(folder))}" for folder in covers]
    for number, path in enumerate(paths):
        target = shlex.quote(str(path))
        if _closed_above(path):
            lines += [f"mkdir -p {target}" if path.is_dir() else f"mkdir -p {shlex.quote(str(path.parent))}; touch {target}"]
        lines += [f"mount --move {FILES}/{number} {target}", f"mount -o remount,bind,ro,nosuid,nodev {target}"]
    return "\n".join([*lines, f"umount {FILES}", 'exec "$@"'])


def _require_small(path: Path) -> None:
    """What others may not read is copied for each desktop."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if sum(file.stat().st_size for file in files) > _COPY_LIMIT:
        reason = "closed to other users, and desktops that root starts run as a user without rights"
        raise SetupError(Problem(str(path), reason, f"open it (chmod -R o+rX {path}), or start as an ordinary user"))


def _has_pid_limit(release: str) -> bool:
    """Does a PID namespace have a ``kernel.pid_max`` of its own? Before Linux 6.14 it is the host's, and not ours to set."""
    major, minor = (int(part) for part in re.findall(r"\d+", release)[:2])
    return (major, minor) >= (6, 14)


def as_ordinary_user(*, max_processes: int) -> list[str]:
    """The command that runs what follows as an ordinary user again, with at most so many processes and threads.

    The kernel counts them per user namespace (since 5.14), so that desktops do not share one limit; before, per user.
    """
    user, group = ordinary_user()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    num_files = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    return [
        "prlimit",
        f"--nofile={num_files}:{num_files}",
        f"--nproc={max_processes}",
        f"--sigpending={_MAX_TIMERS}",
        "--core=0",
        "unshare",
        "--user",
        "--ipc",
        f"--map-user={user}",
        f"--map-group={group}",
    ]
