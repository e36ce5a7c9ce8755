"""Which type a machine computes fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import ModelConfig
from common.host_compute import fast_dtype

SLOW = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse avx2 fma\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (SLOW, "float32"),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "bfloat16"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "float32"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
        ("Features\t: fp asimd\n", "float32"),
    ],
)
def test_processor_says_by_its_flags(tmp_path: Path, lines: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(lines)
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == expected


def test_gpu_counts_where_it_may_be_opened_and_is_used(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(SLOW)
    (tmp_path / "nvidia0").mkdir()  # Cannot be opened for writing, like one that belongs to another job.
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "float32"
    (tmp_path / "nvidia1").touch()
    assert fast_dtype(cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "bfloat16"
    assert fast_dtype("cpu", cpuinfo=tmp_path / "cpuinfo", devices=tmp_path) == "float32"


def test_configuration_takes_it_unless_told_otherwise() -> None:
    assert ModelConfig().dtype == fast_dtype()
    assert ModelConfig(dtype="bfloat16").dtype == "bfloat16"
