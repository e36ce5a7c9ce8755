"""What the guest gives up before any application runs, and what it then finds around itself.

Everything that an agent starts descends from this process and keeps what it gave up. What is found is told to the host, which
uses no desktop that finds more than it should (`env_server.drivers.containment`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38  # linux/prctl.h
_SECCOMP_MODE_FILTER = 2
_KEYCTL_JOIN_SESSION_KEYRING = 1
_CLONE_NEW = 0x7E02_0000
"""A namespace of any kind (linux/sched.h)."""

_SYSTEM_CALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "ptrace": 101, "mq_open": 240, "pivot_root": 155, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169,
        "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "clone": 56, "unshare": 272,
        "shmget": 29, "semget": 64, "msgget": 68, "memfd_create": 319, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "socket": 41, "ioprio_set": 251, "sched_setattr": 314,
    },
    "aarch64": {
        "ptrace": 117, "mq_open": 180, "pivot_root": 41, "acct": 89, "mount": 40, "umount2": 39, "swapon": 224,
        "swapoff": 225, "reboot": 142,
        "init_module": 105, "delete_module": 106, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219,
        "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
        "finit_module": 273, "kexec_file_load": 294, "bpf": 280, "userfaultfd": 282, "clone": 220, "unshare": 97,
        "msgget": 186, "semget": 190, "shmget": 194, "memfd_create": 279, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "socket": 198, "ioprio_set": 30, "sched_setattr": 274,
    },
}  # fmt: skip
"""Machine -> number of each system call that no application needs, or not with any argument. Most have been a way out of
containers. System V's shared memory, queues and semaphores outlive their processes and count to no limit, files in memory without
a name count to none either. Attributes of a folder that stays, such as the permissions of all files made in it later, would stay
as well, and so would the turn at the disk and the time slice of a program that lives on: /proc shows neither."""
PROGRAMS_AND_NETWORK: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        "socket": 41,
        "connect": 42,
        "bind": 49,
        "listen": 50,
        "fork": 57,
        "vfork": 58,
        "execve": 59,
        "kill": 62,
        "execveat": 322,
    },
    "aarch64": {"socket": 198, "bind": 200, "listen": 201, "connect": 203, "execve": 221, "kill": 129, "execveat": 281},
}
"""What a process that only reads files does without as well."""
_NEW_CALLS = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
"""The same on all machines."""
_SETXATTRAT = 463
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. No network namespace cuts off AF_VSOCK, which leads to the host of a virtual machine;
most others are kernel modules that nobody uses."""
_CLONE3 = 435
"""Its flags lie in memory, where no filter can look: "not implemented" makes the C library use `clone`."""
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32 = 0x4000_0000
"""Of the numbers of x86_64's second table."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`."""


def confine(*, also: Mapping[str, Mapping[str, int]] | None = None) -> None:
    """Give up what no application needs: keys of the host's session, tracing, mounts, namespaces, new privileges.

    ``also`` names further system calls to refuse, by machine. Other processes of the desktop cannot look into this one or write
    where it writes. Raises `OSError`.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> None:
        words = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
        if getattr(libc, name)(*words) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}{arguments[:2]}: {os.strerror(number)}")

    machine = os.uname().machine
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    if machine not in _SYSTEM_CALLS:
        return
    # A kernel without keys, or a site that refuses the call, has none to keep away.
    libc.syscall(ctypes.c_long(_SYSTEM_CALLS[machine]["keyctl"]), ctypes.c_long(_KEYCTL_JOIN_SESSION_KEYRING), None)
    program = _filter(machine, also or {})
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head, len(head)), 0, 0)


def _filter(machine: str, also: Mapping[str, Mapping[str, int]]) -> bytes:
    """The program for the kernel's filter of system calls (seccomp-bpf)."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    refuse = step(_RETURN, _ERRNO | errno.EPERM)
    allow = step(_RETURN, _ALLOW)
    calls = dict(_SYSTEM_CALLS[machine])
    with_flags, socket_call = (calls.pop("clone"), calls.pop("unshare")), calls.pop("socket")
    attributes = [*(calls.pop(name) for name in ("setxattr", "lsetxattr", "fsetxattr")), _SETXATTRAT]
    steps = [
        step(_LOAD, _ARCH),
        step(_EQUAL, _AUDIT_ARCH[machine], yes=1),
        refuse,
        step(_LOAD, _NUMBER),
        step(_AT_LEAST, _X32, no=1),
        refuse,
        step(_EQUAL, _CLONE3, no=1),
        step(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in (*calls.values(), *_NEW_CALLS.values(), *also.get(machine, {}).values()):
        steps += [step(_EQUAL, number, no=1), refuse]
    for number in attributes:  # programs that copy files expect file systems without attributes
        steps += [step(_EQUAL, number, no=1), step(_RETURN, _ERRNO | errno.EOPNOTSUPP)]
    num_families = len(_SOCKET_FAMILIES)
    steps += [step(_EQUAL, socket_call, no=num_families + 3), step(_LOAD, _FIRST_ARGUMENT)]
    steps += [step(_EQUAL, family, yes=num_families - place) for place, family in enumerate(_SOCKET_FAMILIES)]
    steps += [step(_RETURN, _ERRNO | errno.EAFNOSUPPORT), allow]
    for number in with_flags:
        steps += [step(_EQUAL, number, no=4), step(_LOAD, _FIRST_ARGUMENT), step(_ANY_BIT, _CLONE_NEW, no=1), refuse, allow]
    return b"".join([*steps, allow])


_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
"""System calls, the same on all machines (linux/landlock.h)."""
_TELL_VERSION, _PATH_BENEATH = 1, 1
_MOVES_VERSION = 2
"""The first Landlock that lets files be moved from one folder to another (Linux 5.19)."""
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 14))
"""To write files, and to remove, make and move anything."""
_KEPT_RULES: list[int] = []
"""Descriptor of the rules that this process keeps to; none before `keep_changes_to`, and on a kernel without Landlock."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def has_landlock() -> bool:
    """Does this kernel have what `keep_changes_to` needs?"""
    return _landlock(_LANDLOCK_CREATE_RULESET, None, 0, _TELL_VERSION) >= _MOVES_VERSION


def keep_changes_to(folders: Iterable[str]) -> None:
    """From now on this process and all it starts change files below ``folders`` alone, also where they may by their user.

    The files by which the kernel shows processes are everybody's of one user: an agent's program could write into the memory of
    the X server, which lives on after a reset, or have it ended first when memory is short. Not on a kernel without Landlock.
    The rules are kept for `part`. Raises `OSError`.
    """
    if not has_landlock():
        return
    handled = struct.pack("Q", _CHANGES)
    rules = _landlock(_LANDLOCK_CREATE_RULESET, handled, len(handled), 0)
    for folder in folders:
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        if _landlock(_LANDLOCK_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", _CHANGES, place), 0) < 0:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule({folder})")
        os.close(place)
    if _landlock(_LANDLOCK_RESTRICT_SELF, rules, 0) < 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    _KEPT_RULES.append(rules)


def part() -> None:
    """Between fork and exec: the program that begins, and all it starts, cannot look into programs beside it.

    Landlock lets a process open what others have open (`/proc/PID/fd`) only in its own domain and in those below. So an agent's
    program cannot write into the pipe through which a judge's command answers.
    """
    for rules in _KEPT_RULES:
        _landlock(_LANDLOCK_RESTRICT_SELF, rules, 0)


def _landlock(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(_LIBC.syscall(ctypes.c_long(number), *words))


# --- what is there ----------------------------------------------------------------------------------------------------

_STATUS = ("Uid", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")
_KNOBS = ("/proc/sys", "/sys/kernel", "/sys/fs/cgroup")
"""Trees of the kernel's settings."""
_TRIGGERS = ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/acpi", "/proc/scsi", "/sys/power/state", "/dev/mem")
_OF_THE_IMAGE = (
    "/",
    "/bin",
    "/etc",
    "/home",
    "/lib",
    "/opt",
    "/opt/computerrl/guest",
    "/root",
    "/run",
    "/usr",
    "/usr/bin",
    "/var",
)
_MOST_NAMED = 20


def findings() -> dict[str, Any]:
    """What this process may, what it could write, and what it knows of the host, in plain lists."""
    status = dict(line.split(":\t", 1) for line in _lines("/proc/self/status") if ":\t" in line)
    mounts = {line.split()[4] for line in _lines("/proc/self/mountinfo")}
    places = {*mounts, *_OF_THE_IMAGE, *_TRIGGERS, *_files(_KNOBS)}
    return {
        "status": {name: status.get(name, "").split() for name in _STATUS},
        "writable": sorted(place for place in places if os.access(place, os.W_OK))[:_MOST_NAMED],
        "environment": sorted(os.environ),
        "descriptors": sorted(_descriptors()),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
    }


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def _files(folders: Iterable[str]) -> Iterator[str]:
    for top in folders:
        for folder, _, names in os.walk(top):
            yield folder
            yield from (os.path.join(folder, name) for name in names)


def _descriptors() -> list[int]:
    with os.scandir("/proc/self/fd") as entries:
        found = [int(entry.name) for entry in entries]
    return [number for number in found if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # the one that listed them
    return True
