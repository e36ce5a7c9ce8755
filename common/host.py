"""This host: devices and number formats it computes with, its memory, and limits on the open files of a process."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from computerrl.common.errors import ConfigError, Problem, SetupError


def allow_files(num_files: int) -> None:
    """Raise the soft limit on open files to ``num_files``, if it is lower. Raises `SetupError` when the hard limit is, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= num_files:
        return
    if hard != resource.RLIM_INFINITY and hard < num_files:
        reason = f"allows {hard} open files (ulimit -Hn), {num_files} are needed: every connection is one"
        raise SetupError(Problem("RLIMIT_NOFILE", reason, f"raise it to {num_files} for this user, or start fewer actors"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""
_KEPT_BYTES, _MAPPED_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Do not give back what was freed, where the C library is glibc: this process keeps about as much as it ever had.

    For processes through which large messages go: to give pages back and have new ones cleared for the next message takes as
    long as decrypting it. Only what lies at the end of a heap, beyond 256 MiB, and blocks from 32 MiB on go back.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def total_and_available_mb() -> tuple[int, int]:
    """MiB in all, and what can still be had without swapping (the kernel's estimate), both within the cgroup's limit."""
    memory = _meminfo()
    total_mb, available_mb = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
    limit_mb, used_mb = _cgroup_memory()
    if limit_mb is not None:
        total_mb = min(total_mb, limit_mb)
        available_mb = min(available_mb, max(0, limit_mb - used_mb))
    return total_mb, available_mb


def read_fact(path: str) -> str:
    """A file of /proc or /sys; empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _meminfo() -> dict[str, int]:
    """MiB by name."""
    pairs = (line.split(":") for line in read_fact("/proc/meminfo").splitlines() if ":" in line)
    return {name: int(value.split()[0]) // 1024 for name, value in pairs}


def cgroup_folder() -> Path | None:
    """This process's cgroup (version 2)."""
    for line in read_fact("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    return None


def _cgroup_memory() -> tuple[int | None, int]:
    """(limit, used without cache that can be dropped) in MiB; the tightest limit of this cgroup and those above it."""
    folder, limit, used = cgroup_folder(), None, 0
    while folder is not None and folder.is_relative_to("/sys/fs/cgroup"):
        text = read_fact(f"{folder}/memory.max").strip()
        if text.isdigit() and (limit is None or int(text) < limit):
            limit = int(text)
            stat = dict(line.split() for line in read_fact(f"{folder}/memory.stat").splitlines() if line)
            used = int(read_fact(f"{folder}/memory.current").strip() or 0) - int(stat.get("inactive_file", 0))
        folder = folder.parent
    return (None, 0) if limit is None else (limit >> 20, max(0, used) >> 20)


Dtype = Literal["bfloat16", "float32"]

_TOLERATED_LOAD = 0.3
"""Of a core: heartbeats, a terminal's display."""

_WINDOW_S = 0.3
"""Long enough for counters of hundredths of a second."""

_CPU_FLAGS = {"amx_bf16", "bf16"}
"""x86-64's, and ARM's."""
_CPU_FLAGS_AMD = {"avx512_bf16"}
"""Intel's processors have it too, without a gain (measured on one whose AMX the hypervisor hides: products of 64 rows and more
take 1.5 to 1.75 times as long as in float32, those of 4 rows 0.65, a training run on desktops 1.1)."""


def fast_dtype(device: str = "auto", *, cpuinfo: Path = Path("/proc/cpuinfo"), devices: Path = Path("/dev")) -> Dtype:
    """bfloat16 where there is an NVIDIA GPU (``device`` "auto" or "cuda") or a processor with fast instructions for it; without
    any a product of matrices takes seven times as long as in float32 (measured on a Zen 3 core)."""
    if device == "cuda" or (device == "auto" and may_use_gpu(devices)):
        return "bfloat16"
    text = cpuinfo.read_text()
    named = {line.partition(":")[2] for line in text.splitlines() if line.startswith(("flags", "Features"))}
    fast = _CPU_FLAGS | (_CPU_FLAGS_AMD if "AuthenticAMD" in text else set())
    return "bfloat16" if any(fast & set(flags.split()) for flags in named) else "float32"


def choose_device(wanted: str, *, built_for: str | None, has_cuda: bool, has_gpu: bool) -> Literal["cpu", "cuda"]:
    """The device that ``wanted`` (`learner.device`: cpu, cuda or auto) means in this process. Raises `ConfigError`.

    ``built_for``: the CUDA version that torch is built for, None: a CPU build. ``has_cuda``: torch can use a GPU. ``has_gpu``:
    this process may use one, told without torch.
    """
    if wanted == "cpu" or (wanted == "auto" and not has_gpu and not has_cuda):
        return "cpu"
    if has_cuda:
        return "cuda"
    if built_for is None and has_gpu:
        raise ConfigError([cpu_build_problem()])
    if wanted == "cuda":
        raise ConfigError([Problem("learner.device", "cuda is asked for, but torch sees no GPU", "use cpu or auto")])
    return "cpu"


def cpu_build_problem() -> Problem:
    """A GPU is here, and the environment holds a torch that cannot use it."""
    step = "install the build for it with `make setup DEVICE=cuda`, or set learner.device: cpu"
    return Problem("learner.device", "this machine has an NVIDIA GPU, but torch is a build for CPUs", step)


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch is built for, read without importing it; None: a CPU build, or no torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, flags=re.MULTILINE)
    return match[1] if match else None


def has_visible_gpu() -> bool:
    """This process may use a GPU: its device opens, and CUDA_VISIBLE_DEVICES does not hide all of them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() not in ("", "-1") and may_use_gpu()


def may_use_gpu(devices: Path = Path("/dev")) -> bool:
    """An NVIDIA GPU is here and this process may open it; a batch job without one may see its device and not open it."""
    return any(_opens(place) for place in devices.glob("nvidia[0-9]*"))


class IdleCores:
    """How many threads may compute here without waiting for a core that another process has: threads that share cores wait for
    each other at the end of every product, and two of them may then take twice as long as one."""

    def __init__(self, *, num_cores: int, stat: Path = Path("/proc/stat")) -> None:
        """``num_cores``: of this process's, at most."""
        self._num_cores = num_cores
        self._stat = stat
        self._seen = self._read()

    def num_threads(self, *, at_most: int) -> int:
        """Cores that other processes left idle since the last call, or, where those are too few, do so at present: what was busy
        then may have ended. At least 1."""
        wanted = min(at_most, self._num_cores)
        if self._since_last_call(wanted) < wanted:
            time.sleep(_WINDOW_S)
            return self._since_last_call(wanted)
        return wanted

    def _since_last_call(self, wanted: int) -> int:
        seen = self._read()
        busy_s, own_s, all_s = (now - then for now, then in zip(seen, self._seen, strict=True))
        self._seen = seen
        if all_s <= 0:
            return 1
        others = max(0.0, busy_s - own_s) / (all_s / self._num_cpus())
        return max(1, min(wanted, int(self._num_cores - others + _TOLERATED_LOAD)))

    def _read(self) -> tuple[float, float, float]:
        """(seconds that processes computed, this process's part, seconds of all cores), since the machine started."""
        ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in self._stat.read_text().partition("\n")[0].split()[1:9]]
        user, _nice, system, _idle, _iowait, irq, softirq, steal = ticks
        own = os.times()
        # Processes of lower priority give way. Where this one is of that kind, its own time is among theirs.
        is_nice = os.getpriority(os.PRIO_PROCESS, 0) > 0
        own_s = own.system + (0.0 if is_nice else own.user)
        return user + system + irq + softirq + steal, own_s, sum(ticks)

    def _num_cpus(self) -> int:
        return sum(line.startswith("cpu") for line in self._stat.read_text().splitlines()) - 1


def _opens(place: Path) -> bool:
    try:
        os.close(os.open(place, os.O_RDWR))
    except OSError:
        return False
    return True
