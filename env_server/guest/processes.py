"""Child processes of the guest: start, watch, end. No process outlives the guest: the kernel kills them with it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import confinement

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_POLL_S = 0.002
_STOP_LIMIT_S = 2.0
"""A process that waits for one that it has just begun (vfork) never counts as stopped, and does nothing either."""
_BUSY = frozenset("RDTt")
"""States of proc(5) in which a process has something to do: running or waiting for a processor, reading, stopped."""
_STARTED: dict[int, Program] = {}
"""Programs that were started and not ended by us, by process id."""
Standing = tuple[str, frozenset[tuple[object, ...]]]
"""What other programs of the same user may change of a process: its limits, and how its threads are scheduled."""
_SERVICES: dict[tuple[int, str], tuple[str, Standing]] = {}
"""Process id and start time of each process that lives as long as the desktop -> its executable, and its standing when the
desktop was ready."""
BUSY_S = 1.0
"""A program that computed, or waited for a processor, for so many seconds while it was waited for, is busy with what it was
given: what honest tasks ask takes a fraction of that. One that hangs does neither."""
_FIRST = 1
"""Process id of the first process of a container, below which everything of a desktop runs."""
_OF_APPLICATIONS = ("/usr/lib/chromium/", "/usr/lib/gimp/", "/usr/lib/libreoffice/", "/usr/lib/thunderbird/", "/usr/lib/vlc/")
"""Folders of programs that applications start for themselves."""
_SETTINGS_SERVICE = "/xfconf/xfconfd"
"""End of its executable's path. It ends by itself after five minutes without a call, and the next call starts it again."""


_MAX_FILES = 1024
"""Open files of a program that can run others for an agent, and how many descriptors may be on their way through sockets when it
sends another: the kernel counts those of all desktops of a user together, and refuses them to whoever has the lower limit. The X
server, the buses and the browser, which live on sending descriptors, keep the desktop's limit."""

_BLOCK = 256 * 1024
GIVES_MEMORY_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": f"{_BLOCK}", "MALLOC_TRIM_THRESHOLD_": f"{_BLOCK}"}
"""Environment by which a program that lives as long as the desktop gives back what it has freed (mallopt(3)). By itself, the C
library keeps a heap for each thread that there ever was, and large blocks too once one of their size has been freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def give_memory_back() -> None:
    """`GIVES_MEMORY_BACK` for this process, which has started without it."""
    for parameter, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _BLOCK), (_M_TRIM_THRESHOLD, _BLOCK)):
        _LIBC.mallopt(parameter, value)


def _die_with_guest() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    confinement.part()


def begin_command() -> None:
    """Between fork and exec of a command that a task or its judge brings."""
    _limit_files()
    confinement.part()


def _limit_files() -> None:
    """Before a program of the agent's begins, or one that can run others for it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = _MAX_FILES if most == resource.RLIM_INFINITY else min(most, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def _begin_limited() -> None:
    _die_with_guest()
    _limit_files()


def adopt_orphans() -> None:
    """From now on, what is left behind by programs that end becomes a child of this process."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def keep_services(programs: Iterable[Program] = ()) -> None:
    """The session's services that run by now belong to the desktop: no agent has acted yet. So do this process, the first one
    of the container and ``programs``, which no reset starts anew."""
    table = _table()
    for pid, start_time in [key for key, (file, _) in _SERVICES.items() if file.endswith(_SETTINGS_SERVICE)]:
        if pid not in table or table[pid].start_time != start_time:
            del _SERVICES[pid, start_time]
    kept = [pid for pid in _strays(table) if not table[pid].file.startswith(_OF_APPLICATIONS)]
    lasting = [_FIRST, os.getpid(), *(program.pid for program in programs)]
    _SERVICES.update({(pid, table[pid].start_time): (table[pid].file, _standing(pid)) for pid in (*kept, *lasting)})


def end_service(pid: int) -> None:
    """End one of the session's services, which is started anew when it is called."""
    _signal(pid, signal.SIGKILL)
    while (seen := _table().get(pid)) is not None and not (seen.is_dead and _reap(pid)):
        time.sleep(_POLL_S)
    for service in [service for service in _SERVICES if service[0] == pid]:
        del _SERVICES[service]


def changed_services() -> list[str]:
    """What happened to processes that live as long as the desktop: they ended, or were stopped, or given other limits or less of
    the processor. None of it can be taken back: programs that need a service do not start it again as it was, and limits go
    down alone. Not so the settings service, which every clean-up replaces."""
    table = _table()
    changes: list[str] = []
    for (pid, start_time), (file, standing) in _SERVICES.items():
        if file.endswith(_SETTINGS_SERVICE):
            continue
        seen = table.get(pid)
        if seen is None or seen.start_time != start_time or seen.is_dead:
            changes.append(f"{file} ({pid}) has ended")
        elif _standing(pid) != standing:
            changes.append(f"{file} ({pid}) no longer runs as it did")
    return changes


def _standing(pid: int) -> Standing:
    with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
        limits = file.read()
    threads = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
        niceness, priority, policy = fields[15], fields[36], fields[37]  # proc_pid_stat(5)
        threads.add((state in "Tt", niceness, priority, policy, frozenset(os.sched_getaffinity(int(thread)))))
    return limits, frozenset(threads)


def is_running(pid: int) -> bool:
    """Is this a program that was started here, and that has not ended?"""
    return pid in _STARTED and _STARTED[pid].running


def are_used_up() -> bool:
    """Does the agent run more than half of the processes and threads that the desktop may have?"""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    table = _table()
    return limit != resource.RLIM_INFINITY and 2 * sum(table[pid].num_threads for pid in _strays(table)) > limit


def living() -> frozenset[int]:
    """Process ids of all that runs."""
    return frozenset(pid for pid, seen in _table().items() if not seen.is_dead)


def is_at_rest(pid: int) -> bool:
    """Do all threads of a process wait for something? Not while one computes, is kept from computing, or is stopped."""
    return _BUSY.isdisjoint(_thread_states(pid))


def is_application_at_rest(pid: int) -> bool:
    """Are the process of a window and its helpers at rest? A browser has others lay out its pages and draw them."""
    table = _table()
    file = table[pid].file if pid in table else ""
    helpers = {other for other, seen in table.items() if file and seen.file == file and _is_below(other, pid, table)}
    return all(map(is_at_rest, {pid, *helpers}))


def foreign_files() -> list[str]:
    """Executables of what runs and belongs to no program of the desktop."""
    table = _table()
    return sorted({table[pid].file for pid in _strays(table) if not table[pid].file.startswith(_OF_APPLICATIONS)})


def log_files() -> set[Path]:
    """Logs of the programs that run."""
    return {program.log for program in _STARTED.values()}


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as the kernel lists it."""

    parent: int
    start_time: str
    """Ticks since the machine started; tells a process from a later one with its number."""
    file: str
    """Its executable; empty where that cannot be read."""
    is_dead: bool = False
    """It has ended, and its parent has not asked how."""
    num_threads: int = 1


def strays(table: Mapping[int, Seen], *, guest: int, started: Container[int], services: Container[tuple[int, str]]) -> set[int]:
    """Processes below ``guest`` that belong to no program of the desktop. Pure.

    A program's helpers are those below it that run the same executable. Everything else an agent had started, whoever its
    parent is: a service, an application, or the guest for what was left behind.
    """
    children: dict[int, list[int]] = {}
    for pid, seen in table.items():
        children.setdefault(seen.parent, []).append(pid)
    found: set[int] = set()
    pending = [(pid, False, "") for pid in children.get(guest, ())]
    while pending:
        pid, may_help, file = pending.pop()
        seen = table[pid]
        is_helper = may_help and bool(file) and seen.file == file
        is_own = pid in started or (pid, seen.start_time) in services or is_helper
        if not is_own and not seen.is_dead:
            found.add(pid)
        pending += [(child, is_own, seen.file) for child in children.get(pid, ())]
    return found


def end_strays() -> bool:
    """End all processes that nobody started on purpose; tells whether programs of an agent's own were among them.

    All are stopped before the first is ended, and while they stand still they count for the desktop's limit of processes: also
    those that make children without end are caught up with.
    """
    stopped: set[int] = set()
    files: set[str] = set()
    table = _table()
    while running := _strays(table) - stopped:
        files |= {table[pid].file for pid in running}
        # What has ended by itself is left out: its number may already be another's.
        stopped |= {pid for pid in running if _signal(pid, signal.SIGSTOP)}
        table = _table()
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    while _strays(table := _table()) or any(_reap(pid) for pid in _dead_children(table)):
        time.sleep(_POLL_S)
    return any(not file.startswith(_OF_APPLICATIONS) for file in files)


def children_of(pid: int) -> frozenset[tuple[int, str]]:
    """Process ids and start times."""
    return frozenset((child, seen.start_time) for child, seen in _table().items() if seen.parent == pid and not seen.is_dead)


def wait_for_end(programs: frozenset[tuple[int, str]], *, limit_s: float) -> None:
    """Wait at most so long until all these (process id, start time) have ended."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        table = _table()
        if not any(pid in table and table[pid].start_time == began and not table[pid].is_dead for pid, began in programs):
            return
        time.sleep(_POLL_S)


@contextmanager
def held_still(*, awake: Collection[int] = ()) -> Iterator[None]:
    """Meanwhile everything stands still but the guest, the session's services, the processes ``awake`` with all below them, and
    what is started in between."""
    stopped: set[int] = set()
    while running := _others(awake) - stopped:
        stopped |= {pid for pid in running if _signal(pid, signal.SIGSTOP)}
    # Whoever waits for a processor in the middle of a system call, such as a write, finishes it before it stops.
    deadline = time.monotonic() + _STOP_LIMIT_S
    while not all(map(_stands_still, stopped)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    """Have all its threads stopped, or ended?"""
    return _thread_states(pid) <= frozenset("TtZX")


def _thread_states(pid: int) -> set[str]:
    """States of proc(5); none of a process that has ended."""
    try:
        return {_state_of(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")}
    except FileNotFoundError:
        return set()


def _state_of(pid: int, thread: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _busy_s(pid: int) -> float:
    """Seconds for which the threads of a process have computed, and for which those that live have waited for a processor (which
    not every kernel counts)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    computed = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # proc_pid_stat(5): utime, stime
    waited_ns = 0
    for thread in threads:
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            waited_ns += int(file.read().split()[1])  # the kernel's sched-stats.rst: computed, waited, turns
    return computed + waited_ns / 1e9


def _others(awake: Collection[int]) -> set[int]:
    table = _table()
    found = {pid for pid, seen in table.items() if not seen.is_dead and (pid, seen.start_time) not in _SERVICES}
    found = {pid for pid in found if not any(_is_below(pid, ancestor, table) for ancestor in awake)}
    return {pid for pid in found if pid != os.getpid() and _is_below(pid, os.getpid(), table)}


def _is_below(pid: int, ancestor: int, table: Mapping[int, Seen]) -> bool:
    """Does it descend from ``ancestor``, or is it that?"""
    while pid in table and pid != ancestor:
        pid = table[pid].parent
    return pid == ancestor


def _strays(table: Mapping[int, Seen]) -> set[int]:
    return strays(table, guest=os.getpid(), started=_held(), services=_SERVICES)


def _held() -> set[int]:
    """Process ids of programs that were started. One whose end was noticed has none any more: by now it may be another's."""
    return {pid for pid, program in _STARTED.items() if program.is_held}


def _dead_children(table: Mapping[int, Seen]) -> list[int]:
    held = _held()
    return [pid for pid, seen in table.items() if seen.is_dead and seen.parent == os.getpid() and pid not in held]


def _reap(pid: int) -> bool:
    """Was it still to be asked for?"""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _table() -> dict[int, Seen]:
    found = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        # A process whose first thread has ended may live on in others.
        num_threads = int(fields[17])
        is_dead = fields[0] in "ZX" and num_threads <= 1
        found[pid] = Seen(int(fields[1]), fields[19], executable(pid), is_dead, num_threads)
    return found


def executable(pid: int) -> str:
    """The file that a process runs; empty where that cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:  # it has ended, or hides itself
        return ""


def _signal(pid: int, number: int) -> bool:
    """Was there still somebody to signal?"""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def empty_logs() -> None:
    """What programs of the agent's wrote into the logs of those that live on was for the next ones to read."""
    for program in _STARTED.values():
        program.empty_log()


class Program:
    """One program that may be started again after it died."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_folder: Path,
        folder: Path | None = None,
        sends_files: bool = False,
    ) -> None:
        """``sends_files``: it lives on sending descriptors to other programs, and runs none for an agent."""
        self.name = name
        self.num_starts = 0
        self._argv = list(argv)
        self._env = dict(env)
        self._folder = folder
        self._begin = _die_with_guest if sends_files else _begin_limited
        self.log = log_folder / f"{name}.log"
        self._log_start = 0
        self._killed_s = 0.0
        """`busy_s` of processes that were killed."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id, 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def is_held(self) -> bool:
        """Started, and its end, if it has ended, not noticed: its process id is its own."""
        return self._process is not None and self._process.returncode is None

    @property
    def running(self) -> bool:
        """Started and not dead (reaps it when it is)."""
        return self._process is not None and self._process.poll() is None

    @property
    def busy_s(self) -> float:
        """Seconds for which its threads have computed or waited for a processor, and those of its processes before up to when
        they were killed. On a machine with much to do, a program computes for a fraction of the time in which it has to."""
        return self._killed_s + _busy_s(self.pid)

    def start(self, arguments: Sequence[str] = (), *, pass_fds: Sequence[int] = (), stdout: int | None = None) -> None:
        """Start it in a process group of its own, so that its children can be ended with it; ``arguments`` come after its own.

        All of a desktop stays in one session: to the kernel's scheduler it is one of those that share the machine, not eight."""
        self.num_starts += 1
        _STARTED.pop(self.pid, None)
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*self._argv, *arguments],
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                process_group=0,
                pass_fds=pass_fds,
                # System calls through modules that are loaded already: they take no lock another thread may hold.
                preexec_fn=self._begin,  # noqa: PLW1509
            )
        _STARTED[self._process.pid] = self

    def end(self, *, wait_s: float) -> None:
        """Ask it to end, as `pkill` does, and give it so long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its process group at once."""
        if self._process is None:
            return
        if self.is_held:  # else its number may be another's by now
            self._killed_s += _busy_s(self.pid)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        _STARTED.pop(self._process.pid, None)

    def how_it_ended(self, *, wait_s: float) -> str:
        """For error messages: its signal or exit status and the end of what it said; empty when it is still running then."""
        if self._process is None:
            return ""
        try:
            status = self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return ""
        how = f"killed by signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"exit status {status}"
        return f"; {self.name} ended, {how}: {self.log_tail()}"

    def empty_log(self) -> None:
        """Forget what it has said so far. It writes at the end of its log, wherever that is."""
        if self.log.is_file() and not self.log.is_symlink():
            os.truncate(self.log, 0)
        self._log_start = 0

    def log_tail(self, num_chars: int = 400) -> str:
        """The end of what it said since it was last started, for error messages."""
        try:
            return self.log.read_bytes()[self._log_start :].decode(errors="replace")[-num_chars:].strip()
        except OSError:
            return ""
