"""Which type a machine computes fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import ModelConfig
from common.host_cpu import fast_dtype


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("model name\t: AMD EPYC\nflags\t\t: fpu sse avx2 fma\n", "float32"),
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
        ("Features\t: fp asimd\n", "float32"),
    ],
)
def test_processor_says_by_its_flags(tmp_path: Path, lines: str, expected: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(lines)
    assert fast_dtype(cpuinfo=cpuinfo, gpu=tmp_path / "none") == expected
    (tmp_path / "gpu").touch()
    assert fast_dtype(cpuinfo=cpuinfo, gpu=tmp_path / "gpu") == "bfloat16"


def test_configuration_takes_it_unless_told_otherwise() -> None:
    assert ModelConfig().dtype == fast_dtype()
    assert ModelConfig(dtype="bfloat16").dtype == "bfloat16"
