"""What this host computes with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Dtype = Literal["bfloat16", "float32"]

_TOLERATED_LOAD = 0.3
"""Of a core: heartbeats, a terminal's display."""

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
        """Cores that other processes left idle since the last call; at least 1."""
        seen = self._read()
        busy_s, own_s, all_s = (now - then for now, then in zip(seen, self._seen, strict=True))
        self._seen = seen
        if all_s <= 0:
            return 1
        others = max(0.0, busy_s - own_s) / (all_s / self._num_cpus())
        return max(1, min(at_most, self._num_cores, int(self._num_cores - others + _TOLERATED_LOAD)))

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
