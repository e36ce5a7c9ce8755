"""What this host computes with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Dtype = Literal["bfloat16", "float32"]

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


def _opens(place: Path) -> bool:
    try:
        os.close(os.open(place, os.O_RDWR))
    except OSError:
        return False
    return True
