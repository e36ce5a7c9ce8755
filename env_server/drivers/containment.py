"""Devices, mounts and variables that may exist in a desktop's container. A desktop that finds anything else is not used. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_WRITABLE = frozenset({"/tmp", "/var/tmp", "/dev/shm", "/home/user"})
"""All of them lie in the desktop's own limited tmpfs."""
_HARMLESS = frozenset({"/dev", "/dev/mqueue", "/proc/sys/kernel/ns_last_pid"})
"""Apptainer's own small /dev, where a site's configuration wants it (`mount dev = minimal`); and what all may open, but takes
only what a privileged process writes."""
_DEVICES = frozenset(
    {
        "/dev/full",
        "/dev/fuse",
        "/dev/null",
        "/dev/ptmx",
        "/dev/pts",
        "/dev/pts/ptmx",
        "/dev/random",
        "/dev/tty",
        "/dev/urandom",
        "/dev/zero",
    }
)
"""/dev/fuse, by which image files are mounted, is of no use without mounts, which the filter of system calls refuses."""
_ENVIRONMENT = frozenset(
    {
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
        "PATH",
        "PROMPT_COMMAND",
        "PS1",
        "PWD",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPATH",
        "SHLVL",
        "TERM",
        "USER_PATH",
        "_",
    }
)
_OF_THE_CONTAINER = ("APPTAINER_", "SINGULARITY_")
"""Variables by which a container is told about itself."""
_NO_CAPABILITY = "0000000000000000"


class Findings(msgspec.Struct, frozen=True):
    """As `guest.confinement.findings` collects them."""

    status: dict[str, list[str]]
    writable: list[str]
    environment: list[str]
    descriptors: list[int]
    interfaces: list[str]


def differences(found: Findings, *, is_cut_off: bool) -> Sequence[str]:
    """What is other than it should be, one phrase each. ``is_cut_off``: the container has a network of its own."""
    wrong = [f"{path} is writable" for path in found.writable if path not in _WRITABLE | _HARMLESS | _DEVICES]
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        if found.status.get(name) != [_NO_CAPABILITY]:
            wrong.append(f"capabilities {name} are {' '.join(found.status.get(name, []))}")
    if "0" in found.status.get("Uid", []):
        wrong.append("it runs as root")
    if found.status.get("NoNewPrivs") != ["1"]:
        wrong.append("programs may gain privileges")
    if found.status.get("Seccomp") != ["2"]:
        wrong.append("system calls are not filtered")
    foreign = [name for name in found.environment if name not in _ENVIRONMENT and not name.startswith(_OF_THE_CONTAINER)]
    wrong += [f"variable {name} of the host is known" for name in foreign]
    wrong += [f"file descriptor {number} is open" for number in found.descriptors if number > 3]
    if is_cut_off:
        wrong += [f"network interface {name} is there" for name in found.interfaces if name != "lo"]
    return wrong
